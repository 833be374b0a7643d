// For tests: training runs written event by event as PyTorch records them, with whatever bug a test
// puts into the loop. A run has a model of several layers, passes with and without gradients, an
// optimizer, variables that the next step replaces, and a device that fills up.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "diagnose/explain.h"

namespace plimsoll::testing_run {

struct RunShape {
  int layers = 4;
  /// The size of a typical activation; weights follow from it.
  Bytes unit = 4 * kMiB;
  bool adam = true;
  /// Whether events carry Python's frames.
  bool frames = true;
  /// Whether the record marks the optimizer's steps, as from PyTorch 2.5 on.
  bool marks = true;
};

/// Thrown where a request is refused: what is left of the loop does not run.
struct RanOut {};

using Blocks = std::vector<Address>;

/// What a forward leaves: `saved` is held by the graph, the rest by variables.
struct Pass {
  Blocks saved;
  Address logits = 0;
  Address loss = 0;

  Blocks All() const {
    Blocks all = saved;
    all.insert(all.end(), {logits, loss});
    return all;
  }
};

/// Each frame as file:line and function, the innermost first.
using Stack = std::vector<std::pair<std::string, std::string>>;

inline std::string Torch(const std::string& file) {
  return "/venv/lib/python3.12/site-packages/torch/" + file;
}

/// Called from a line of the training loop.
inline Stack Loop(Stack inner, int line) {
  inner.push_back({"/me/train.py:" + std::to_string(line), "main"});
  inner.push_back({"/me/train.py:200", "<module>"});
  return inner;
}

/// Inside a layer of the model that a line of the loop calls.
inline Stack InModel(const std::string& leaf, int model_line, int line) {
  Stack stack = {{Torch("nn/modules/" + leaf), "forward"}};
  for (int i = 0; i < 2; ++i) {
    stack.push_back({Torch("nn/modules/module.py:1762"), "_call_impl"});
    stack.push_back({Torch("nn/modules/module.py:1751"), "_wrapped_call_impl"});
    if (i == 0) stack.push_back({"/me/model.py:" + std::to_string(model_line), "forward"});
  }
  return Loop(stack, line);
}

inline Stack InOptimizer(int line) {
  return Loop({{Torch("optim/adam.py:200"), "_init_group"},
               {Torch("optim/adam.py:230"), "step"},
               {Torch("optim/optimizer.py:500"), "wrapper"}},
              line);
}

/// The record, event by event.
class EventLog {
 public:
  explicit EventLog(const RunShape& shape) : with_frames_(shape.frames), marks_(shape.marks) {
    timeline.streams = {0};
  }

  Timeline timeline;

  void Add(Action action, Address at, Bytes size, const Stack& stack) {
    std::vector<FrameId> frames;
    for (const auto& [where, function] : stack) frames.push_back(FrameOf(where, function));
    StackId id;
    if (!frames.empty() && with_frames_) id = timeline.stacks.AddStack(frames);
    timeline.events.push_back({.address = at,
                               .size = size,
                               .time_us = static_cast<TimeUs>(timeline.events.size()) + 1,
                               .stack = id,
                               .action = action});
  }

  void Mark(const std::string& name, bool start) {
    if (!marks_) return;
    timeline.annotations.push_back({.name = timeline.stacks.strings.Intern(name),
                                    .start = start,
                                    .time_us = static_cast<TimeUs>(timeline.events.size()) + 1});
  }

 private:
  /// Each distinct frame once, as readers make them.
  FrameId FrameOf(const std::string& where, const std::string& function) {
    const auto [at, fresh] = frames_.try_emplace({where, function});
    if (fresh) {
      const std::size_t colon = where.rfind(':');
      StackTable& stacks = timeline.stacks;
      at->second = stacks.AddFrame({.function = stacks.strings.Intern(function),
                                    .file = stacks.strings.Intern(where.substr(0, colon)),
                                    .line = std::stoi(where.substr(colon + 1))});
    }
    return at->second;
  }

  bool with_frames_;
  bool marks_;
  std::map<std::pair<std::string, std::string>, FrameId> frames_;
};

class TrainingRun {
 public:
  explicit TrainingRun(const RunShape& shape) : shape_(shape), log_(shape) {
    for (int i = 0; i < shape.layers; ++i) {
      weights_.push_back(shape.unit / 2 + i * 65536);
      weights_.push_back(shape.unit / 256 + 1024 + i * 512);
    }
    models_[5] = weights_;
    for (Bytes size : weights_)
      Alloc(size, Loop({{Torch("nn/modules/module.py:900"), "_apply"}}, 5));
  }

  Address Alloc(Bytes size, const Stack& stack) {
    if (allocated_ + size > capacity_) {
      log_.Add(Action::kOutOfMemory, device_free_, size, stack);
      throw RanOut{};
    }
    std::vector<Address>& cached = free_[size];
    Address at = next_;
    if (cached.empty()) {
      next_ += Address{1} << 36;
      const Bytes segment = (size + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
      log_.Add(Action::kSegmentAlloc, at, segment, {});
      segments_[at] = {segment, StackId(), 0};
    } else {
      at = cached.back();
      cached.pop_back();
    }
    log_.Add(Action::kAlloc, at, size, stack);
    segments_[at].stack = log_.timeline.events.back().stack;
    segments_[at].size_in_use = size;
    allocated_ += size;
    return at;
  }
  void Free(Address at) {
    const Bytes size = segments_[at].size_in_use;
    log_.Add(Action::kFreeRequested, at, size, {});
    log_.Add(Action::kFreeCompleted, at, size, {});
    segments_[at].size_in_use = 0;
    allocated_ -= size;
    free_[size].push_back(at);
  }
  void Free(const Blocks& blocks) {
    for (Address at : blocks) Free(at);
  }
  /// As Python does: the new value is there before the old one goes.
  void Assign(const std::string& variable, Blocks blocks) {
    Blocks old = std::exchange(variables_[variable], std::move(blocks));
    Free(old);
  }
  const Blocks& Variable(const std::string& name) { return variables_[name]; }
  /// The variable lets go of what something else holds too.
  Blocks Take(const std::string& variable) { return std::exchange(variables_[variable], {}); }

  Bytes Scaled(double scale) const { return static_cast<Bytes>(double(shape_.unit) * scale); }

  /// A second model, moved to the device at a line.
  void AddModel(int line, Bytes unit) {
    for (int i = 0; i < shape_.layers; ++i) {
      const Bytes size = unit / 2 + i * 32768 + 4096;
      models_[line].push_back(size);
      Alloc(size, Loop({{Torch("nn/modules/module.py:900"), "_apply"}}, line));
    }
  }

  /// A batch of the usual size or another.
  Blocks Batch(int line, double scale = 1) {
    return {Alloc(Scaled(scale / 2), Loop({}, line)), Alloc(4096, Loop({}, line))};
  }

  /// A forward and its loss, called from a line of the loop.
  Pass Forward(int line, double scale = 1, bool gradients = true) {
    Pass pass;
    Blocks passing;
    const auto make = [&](Bytes size, const Stack& stack) {
      const Address at = Alloc(size, stack);
      (gradients ? pass.saved : passing).push_back(at);
      // Without gradients a layer's input goes as soon as its output is there.
      if (passing.size() > 1) {
        Free(passing.front());
        passing.erase(passing.begin());
      }
    };
    for (int i = 0; i < shape_.layers; ++i) {
      make(Scaled(scale), InModel("linear.py:134", 40, line));
      make(Scaled(scale / 8), InModel("normalization.py:229", 41, line));
      make(Scaled(scale), InModel("activation.py:816", 42, line));
      make(Scaled(scale), InModel("linear.py:134", 43, line));
      Free(Alloc(Scaled(scale / 2), InModel("linear.py:134", 43, line)));
      make(Scaled(scale / 2), InModel("dropout.py:70", 44, line));
    }
    pass.logits = Alloc(Scaled(scale * 2), InModel("linear.py:134", 50, line));
    if (!passing.empty()) Free(passing);
    make(Scaled(scale * 2), Loop({{Torch("nn/functional.py:3494"), "cross_entropy"}}, line + 1));
    pass.loss = Alloc(4, Loop({{Torch("nn/functional.py:3494"), "cross_entropy"}}, line + 1));
    if (!gradients) Free(passing);
    return pass;
  }

  /// Makes the gradients of a model that are not there, and lets go of what the graph saved.
  void Backward(Pass& pass, bool retain_graph = false, int model = 5) {
    Free(Alloc(4, {}));
    const std::vector<Bytes>& weights = models_[model];
    Blocks& gradients = gradients_[model];
    const bool fresh = gradients.empty();
    Blocks passing = {Alloc(Scaled(2), {})};
    std::size_t next = pass.saved.size();
    for (std::size_t i = weights.size(); i-- > 0;) {
      if (fresh) gradients.push_back(Alloc(weights[i], {}));
      passing.push_back(Alloc(Scaled(1), {}));
      Free(passing.front());
      passing.erase(passing.begin());
      const std::size_t until = pass.saved.size() * i / weights.size();
      while (!retain_graph && next > until) Free(pass.saved[--next]);
    }
    Free(passing);
    Free(Alloc(8192, {}));
    if (!retain_graph) pass.saved.clear();
  }

  void OptimizerStep(int line = 30) {
    log_.Mark("Optimizer.step#Adam.step", true);
    if (shape_.adam && state_.empty()) MakeState(line);
    Free(Alloc(65536, InOptimizer(line)));
    log_.Mark("Optimizer.step#Adam.step", false);
  }
  void MakeState(int line = 30) {
    for (Bytes size : weights_) {
      for (int i = 0; i < 2; ++i) state_.push_back(Alloc(size, InOptimizer(line)));
    }
  }
  /// The state goes into somebody's hands; the next step makes it anew.
  Blocks TakeState() { return std::exchange(state_, {}); }
  void ZeroGradients(int model = 5) { Free(std::exchange(gradients_[model], {})); }
  Blocks TakeGradients() { return std::exchange(gradients_[5], {}); }

  /// Forward, backward, optimizer; results stay in variables, as in a script.
  void Step(int line = 20, double scale = 1) {
    Assign("batch", Batch(10, scale));
    Pass pass = Forward(line, scale);
    Assign("logits", {pass.logits});
    Assign("loss", {pass.loss});
    Backward(pass);
    OptimizerStep();
    ZeroGradients();
  }

  /// Runs a loop to its end or until it runs out, and explains the record. With `lost`, that share
  /// of the events had left the ring buffer.
  Explanation Explain(const std::function<void()>& loop, double lost = 0) {
    try {
      loop();
    } catch (const RanOut&) {
      // The record ends here.
    }
    if (lost > 0) LoseOldest(lost);
    Recording recording;
    recording.file = "run";
    recording.format = "PyTorch memory snapshot (test)";
    recording.timelines.push_back(std::move(log_.timeline));
    return *ExplainRecording(recording, {});
  }

  Bytes allocated() const { return allocated_; }
  /// From here on requests are refused that go beyond so much more than is there.
  void Leave(Bytes room, Bytes device_free = 0) {
    capacity_ = allocated_ + room;
    device_free_ = static_cast<Address>(device_free);
  }
  /// What is alive in the end, and stood in the ring buffer, is said to be held by this list.
  void OwnedBy(std::string list) { owner_ = std::move(list); }
  Timeline& timeline() { return log_.timeline; }

 private:
  struct SegmentState {
    Bytes size = 0;
    StackId stack;
    Bytes size_in_use = 0;
  };

  void LoseOldest(double share) {
    Timeline& timeline = log_.timeline;
    const auto lost = static_cast<std::ptrdiff_t>(share * double(timeline.events.size()));
    timeline.events.erase(timeline.events.begin(), timeline.events.begin() + lost);
    for (const auto& [at, state] : segments_) {
      timeline.segments.push_back({.address = at,
                                   .size = state.size,
                                   .first_block = timeline.blocks.size(),
                                   .block_count = 1});
      const bool used = state.size_in_use > 0;
      timeline.blocks.push_back({.address = at,
                                 .size = state.size,
                                 .requested = state.size_in_use,
                                 .state = used ? BlockState::kActive : BlockState::kInactive,
                                 .stack = used ? state.stack : StackId()});
      if (!used || owner_.empty()) continue;
      const std::string name = owner_ + "[" + std::to_string(timeline.blocks.size()) + "]";
      timeline.blocks.back().owner = timeline.stacks.strings.Intern(name);
    }
  }

  RunShape shape_;
  EventLog log_;
  Address next_ = Address{1} << 40;
  Bytes allocated_ = 0;
  Bytes capacity_ = Bytes{1} << 50;
  Address device_free_ = 0;  // as the driver would say
  std::map<Bytes, std::vector<Address>> free_;
  std::map<Address, SegmentState> segments_;
  std::vector<Bytes> weights_;
  std::map<int, std::vector<Bytes>> models_;  // by the line that moved them
  std::map<int, Blocks> gradients_;
  Blocks state_;
  std::map<std::string, Blocks> variables_;
  std::string owner_;
};

}  // namespace plimsoll::testing_run
