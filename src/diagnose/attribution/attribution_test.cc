// Training loops of a LibTorch program, event by event: only C++ names tell what goes on.
#include "diagnose/attribution/attribution.h"

#include <gtest/gtest.h>

#include <map>

#include "diagnose/explain.h"

namespace plimsoll::attribution_test {
namespace {

using Stack = std::vector<std::string>;  // functions, innermost first

/// Writes events as the caching allocator would.
class CppLoop {
 public:
  CppLoop() { t_.streams = {0}; }

  static Stack Main(Stack inner) {
    inner.insert(inner.begin(), {"torch::unwind::unwind()", "at::_ops::empty::call(int)"});
    inner.insert(inner.end(), {"Train(Net&, torch::optim::Optimizer&)", "main", "_start"});
    return inner;
  }
  static Stack Forward() { return Main({"torch::nn::LinearImpl::forward(X)", "Net::forward(X)"}); }
  static Stack Optimizer() { return Main({"torch::optim::Adam::step(std::function<X ()>)"}); }
  static Stack Engine(Stack inner) {
    inner.insert(inner.begin(), {"torch::unwind::unwind()", "at::_ops::empty::call(int)"});
    inner.insert(inner.end(),
                 {"torch::autograd::generated::MmBackward0::apply(X)",
                  "torch::autograd::Engine::evaluate_function(X)",
                  "torch::autograd::Engine::thread_main(X)", "pthread_create", "__clone"});
    return inner;
  }

  Address Alloc(Bytes size, const Stack& stack) {
    const Address at = next_;
    next_ += 1 << 30;
    Add(Action::kSegmentAlloc, at, (size + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB), {});
    Add(Action::kAlloc, at, size, stack);
    sizes_[at] = size;
    return at;
  }
  void Free(Address at) {
    Add(Action::kFreeRequested, at, sizes_[at], {});
    Add(Action::kFreeCompleted, at, sizes_[at], {});
  }
  void RunOut(Bytes size, const Stack& stack) { Add(Action::kOutOfMemory, 0, size, stack); }

  void MakeModel() {
    for (int i = 0; i < 8; ++i) {
      parameters_.push_back(16 * kMiB + i * 4 * kMiB);
      Alloc(parameters_.back(), Main({"torch::nn::Module::to(c10::Device, bool)"}));
    }
  }
  std::vector<Address> RunForward(int blocks) {
    std::vector<Address> saved;
    for (int i = 0; i < blocks; ++i) saved.push_back(Alloc(20 * kMiB, Forward()));
    return saved;
  }
  /// With `again`, the first block is made anew with that stack before each gradient.
  std::vector<Address> RunBackward(const std::vector<Address>& saved, const Stack& again = {}) {
    std::vector<Address> gradients;
    for (std::size_t i = parameters_.size(); i-- > 0;) {
      const Address made = again.empty() ? 0 : Alloc(20 * kMiB, again);
      gradients.push_back(Alloc(parameters_[i], Engine({})));
      Free(Alloc(24 * kMiB, Engine({})));
      if (!again.empty()) Free(made);
    }
    for (Address at : saved) Free(at);
    Free(Alloc(2 * kMiB, Engine({})));
    return gradients;
  }
  void RunOptimizer(const std::vector<Address>& gradients) {
    if (!state_made_) {
      for (Bytes size : parameters_) Alloc(size, Optimizer());
    }
    state_made_ = true;
    Free(Alloc(12 * kMiB, Optimizer()));
    for (Address at : gradients) Free(at);
  }
  void Step(const Stack& again = {}) {
    const Address batch = Alloc(6 * kMiB, Main({"Batch::To(c10::Device) const"}));
    RunOptimizer(RunBackward(RunForward(10), again));
    Free(batch);
  }
  void MakeState(const Stack& stack) {
    for (Bytes size : parameters_) Alloc(size, stack);
    state_made_ = true;
  }

  Explanation Explain() {
    Recording recording;
    recording.file = "loop";
    recording.format = "PyTorch memory snapshot (test)";
    recording.timelines.push_back(std::move(t_));
    Result<Explanation> explanation = ExplainRecording(recording, {});
    EXPECT_TRUE(explanation.ok());
    return std::move(*explanation);
  }

 private:
  void Add(Action action, Address at, Bytes size, const Stack& stack) {
    std::vector<FrameId> frames;
    for (const std::string& function : stack) {
      frames.push_back(t_.stacks.AddFrame({.function = t_.stacks.strings.Intern(function),
                                           .file = t_.stacks.strings.Intern("??"),
                                           .line = 0}));
    }
    StackId id;
    if (!frames.empty()) id = t_.stacks.AddStack(frames);
    t_.events.push_back({.address = at,
                         .size = size,
                         .time_us = static_cast<TimeUs>(t_.events.size()),
                         .stack = id,
                         .action = action});
  }

  Timeline t_;
  Address next_ = Address{1} << 32;
  std::map<Address, Bytes> sizes_;
  std::vector<Bytes> parameters_;
  bool state_made_ = false;
};

constexpr Bytes kModel = 240 * kMiB;  // 16 + 20 + … + 44

Bytes Peak(const Explanation& e, Category category) {
  return (*e.ranks.at(0).peaks)[static_cast<std::size_t>(category)];
}

void ExpectModel(const Explanation& e) {
  EXPECT_EQ(Peak(e, Category::kParameters), kModel);
  EXPECT_EQ(Peak(e, Category::kGradients), kModel);
  EXPECT_EQ(Peak(e, Category::kOptimizerState), kModel);
}

TEST(CppLoop, PlainIsUnderstood) {
  CppLoop loop;
  loop.MakeModel();
  for (int i = 0; i < 5; ++i) loop.Step();
  const Explanation e = loop.Explain();
  EXPECT_EQ(e.ranks.at(0).steps, 5);
  ExpectModel(e);
  EXPECT_EQ(Peak(e, Category::kActivations), 200 * kMiB);
  EXPECT_EQ(Peak(e, Category::kInputs), 6 * kMiB);
  EXPECT_EQ(Peak(e, Category::kUnattributed), 0);
  EXPECT_TRUE(e.ranks.at(0).notes.empty()) << e.ranks.at(0).notes.front();
}

TEST(CppLoop, WhatIsComputedAgainIsAnActivation) {
  const Stack checkpoint = CppLoop::Engine({"Net::forward(X)", "Checkpoint::backward(X)"});
  const Stack hook =
      CppLoop::Engine({"Offload::Bring()", "torch::autograd::SavedVariable::unpack(X) const"});
  for (const Stack& again : {checkpoint, hook}) {
    CppLoop loop;
    loop.MakeModel();
    for (int i = 0; i < 5; ++i) loop.Step(again);
    const Explanation e = loop.Explain();
    ExpectModel(e);
    EXPECT_EQ(Peak(e, Category::kActivations), 220 * kMiB);
  }
}

TEST(CppLoop, AForwardThatIsCutOffHoldsActivations) {
  CppLoop loop;
  loop.MakeModel();
  std::vector<Address> saved = loop.RunForward(40);
  saved.push_back(loop.Alloc(30 * kMiB, CppLoop::Main({"Loss(X)"})));
  loop.RunOut(20 * kMiB, CppLoop::Forward());
  for (Address at : saved) loop.Free(at);
  for (int i = 0; i < 5; ++i) loop.Step();
  const Explanation e = loop.Explain();
  ExpectModel(e);
  EXPECT_EQ(Peak(e, Category::kActivations), 830 * kMiB);
  EXPECT_EQ(e.ranks.at(0).steps, 5);
}

TEST(CppLoop, MicroBatchesArePiecesOfOneBatch) {
  CppLoop loop;
  loop.MakeModel();
  for (int i = 0; i < 4; ++i) {
    const Address batch = loop.Alloc(6 * kMiB, CppLoop::Main({"Batch::To(c10::Device) const"}));
    std::vector<Address> gradients = loop.RunBackward(loop.RunForward(10));
    for (int piece = 0; piece < 3; ++piece) {
      const std::vector<Address> saved = loop.RunForward(10);
      for (Bytes k = 0; k < 6; ++k) loop.Free(loop.Alloc(24 * kMiB, CppLoop::Engine({})));
      for (Address at : saved) loop.Free(at);
      loop.Free(loop.Alloc(2 * kMiB, CppLoop::Engine({})));
    }
    loop.RunOptimizer(gradients);
    loop.Free(batch);
  }
  const Explanation e = loop.Explain();
  EXPECT_EQ(e.ranks.at(0).steps, 4);
  ExpectModel(e);
  EXPECT_EQ(Peak(e, Category::kInputs), 6 * kMiB);
}

TEST(CppLoop, AnOptimizerMayStepInTheBackward) {
  const Stack step = CppLoop::Engine({"my::Adam8bit::Step()", "StepHook(X)"});
  CppLoop loop;
  loop.MakeModel();
  for (int i = 0; i < 5; ++i) {
    const std::vector<Address> saved = loop.RunForward(10);
    loop.Free(loop.Alloc(2 * kMiB, CppLoop::Engine({})));
    if (i == 0) loop.MakeState(step);
    loop.Free(loop.Alloc(12 * kMiB, step));
    for (Address at : loop.RunBackward(saved)) loop.Free(at);
  }
  const Explanation e = loop.Explain();
  EXPECT_EQ(Peak(e, Category::kParameters), kModel);
  EXPECT_EQ(Peak(e, Category::kOptimizerState), kModel);
  EXPECT_EQ(Peak(e, Category::kActivations), 200 * kMiB);
}

TEST(CppLoop, WhatIsGatheredAfterTheStepsIsNoBatch) {
  CppLoop loop;
  loop.MakeModel();
  for (int i = 0; i < 4; ++i) loop.Step();
  for (int i = 0; i < 3; ++i) loop.Alloc(400 * kMiB, loop.Main({"Save()"}));
  loop.RunOut(400 * kMiB, loop.Main({"Save()"}));
  const Explanation e = loop.Explain();
  EXPECT_EQ(Peak(e, Category::kInputs), 6 * kMiB);
  EXPECT_EQ(Peak(e, Category::kUnattributed), 1200 * kMiB);
}

}  // namespace
}  // namespace plimsoll::attribution_test
