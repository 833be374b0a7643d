// Small training loops, event by event, that recorded runs do not cover.
#include <gtest/gtest.h>

#include <deque>
#include <map>

#include "diagnose/diff.h"
#include "diagnose/explain.h"

namespace plimsoll::training_loops_test {
namespace {

constexpr const char* kTorch = "/venv/lib/python3.12/site-packages/torch/";

/// Writes the events of a loop as the caching allocator would, with stacks as PyTorch records them.
class Loop {
 public:
  Loop() { t_.streams = {0}; }

  using Stack = std::vector<std::pair<std::string, std::string>>;  // file:line and function
  static Stack Main(Stack inner, int line) {
    inner.push_back({"/me/train.py:" + std::to_string(line), "main"});
    inner.push_back({"/me/train.py:99", "<module>"});
    return inner;
  }
  static Stack Call(int line) {
    return Main({{std::string(kTorch) + "nn/modules/linear.py:12", "forward"},
                 {std::string(kTorch) + "nn/modules/module.py:1751", "_call_impl"}},
                line);
  }
  static Stack Optimizer(int line) {
    return Main({{std::string(kTorch) + "optim/adam.py:200", "_init_group"},
                 {std::string(kTorch) + "optim/optimizer.py:500", "wrapper"}},
                line);
  }
  /// The model called by a closure that the optimizer runs.
  static Stack InClosure(int line) {
    Stack stack = Call(line);
    stack.insert(stack.end() - 1, {{std::string(kTorch) + "optim/adam.py:230", "step"},
                                   {std::string(kTorch) + "optim/optimizer.py:500", "wrapper"}});
    return stack;
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
      model_.push_back(
          Alloc(parameters_.back(),
                Main({{std::string(kTorch) + "nn/modules/module.py:900", "_apply"}}, 5)));
    }
  }
  /// What a program does when it ends.
  void LetGoOfModel() {
    for (Address at : model_) Free(at);
  }
  /// A forward, and a backward that makes all gradients; whoever calls releases them.
  std::vector<Address> Gradients(const Stack& forward) {
    std::vector<Address> saved;
    for (int i = 0; i < 10; ++i) saved.push_back(Alloc(20 * kMiB, forward));
    std::vector<Address> gradients;
    for (std::size_t i = parameters_.size(); i-- > 0;) {
      gradients.push_back(Alloc(parameters_[i], {}));
      Free(Alloc(24 * kMiB, {}));
    }
    for (Address at : saved) Free(at);
    Free(Alloc(2 * kMiB, {}));
    return gradients;
  }
  /// Inside a block that line 608 of a library's model calls, in a model that a wrapper's forward
  /// calls on to; `inner` tells lines of the block apart.
  static Stack InBlock(int line, int inner) {
    const auto call = [](Stack& stack) {
      stack.push_back({std::string(kTorch) + "nn/modules/module.py:1751", "_call_impl"});
      stack.push_back({std::string(kTorch) + "nn/modules/module.py:1739", "_wrapped_call_impl"});
    };
    Stack stack = {{std::string(kTorch) + "nn/modules/linear.py:12", "forward"}};
    call(stack);
    stack.push_back(
        {"/venv/lib/python3.12/site-packages/models/net.py:" + std::to_string(inner), "forward"});
    call(stack);
    stack.push_back({"/venv/lib/python3.12/site-packages/models/layers.py:9", "__call__"});
    stack.push_back({"/venv/lib/python3.12/site-packages/models/net.py:608", "forward"});
    stack.push_back({"/venv/lib/python3.12/site-packages/wrap/operations.py:943", "forward"});
    call(stack);
    stack.push_back({"/venv/lib/python3.12/site-packages/wrap/outer.py:77", "forward"});
    call(stack);
    return Main(stack, line);
  }
  /// Forward, backward and optimizer; `keep_gradients` leaves them for the caller to release.
  void Step(const Stack& forward, int activations = 10, bool gradients_stay = false) {
    std::vector<Address> saved;
    for (int i = 0; i < activations; ++i) saved.push_back(Alloc(20 * kMiB, forward));
    std::vector<Address> gradients;
    for (std::size_t i = parameters_.size(); i-- > 0;) {
      if (!gradients_made_) gradients.push_back(Alloc(parameters_[i], {}));
      Free(Alloc(24 * kMiB, {}));
    }
    for (Address at : saved) Free(at);
    Free(Alloc(2 * kMiB, {}));
    if (!state_made_) {
      for (Bytes size : parameters_) Alloc(size, Optimizer(30));
      state_made_ = true;
    }
    Free(Alloc(12 * kMiB, Optimizer(30)));
    gradients_made_ = gradients_stay;
    if (!gradients_stay) {
      for (Address at : gradients) Free(at);
    }
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
  /// Each distinct frame once, as readers make them.
  FrameId FrameOf(const std::string& where, const std::string& function) {
    const auto [at, fresh] = frames_.try_emplace({where, function});
    if (fresh) {
      const std::size_t colon = where.rfind(':');
      at->second = t_.stacks.AddFrame({.function = t_.stacks.strings.Intern(function),
                                       .file = t_.stacks.strings.Intern(where.substr(0, colon)),
                                       .line = std::stoi(where.substr(colon + 1))});
    }
    return at->second;
  }

  void Add(Action action, Address at, Bytes size, const Stack& stack) {
    std::vector<FrameId> frames;
    for (const auto& frame : stack) frames.push_back(FrameOf(frame.first, frame.second));
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
  std::map<std::pair<std::string, std::string>, FrameId> frames_;
  std::vector<Bytes> parameters_;
  std::vector<Address> model_;
  bool state_made_ = false;
  bool gradients_made_ = false;
};

const Finding* Find(const Explanation& e, const std::string& id) {
  for (const Finding& f : e.findings) {
    if (FindingName(f.id) == id && f.severity != Severity::kInfo) return &f;
  }
  return nullptr;
}

Bytes Peak(const Explanation& e, Category category) {
  return (*e.ranks.at(0).peaks)[static_cast<std::size_t>(category)];
}

constexpr Bytes kModel = 240 * kMiB;  // 16 + 20 + … + 44

TEST(TrainingLoop, PlainIsUnderstood) {
  Loop loop;
  loop.MakeModel();
  for (int i = 0; i < 5; ++i) loop.Step(Loop::Call(20));
  const Explanation e = loop.Explain();
  EXPECT_EQ(e.ranks.at(0).steps, 5);
  EXPECT_EQ(Peak(e, Category::kParameters), kModel);
  EXPECT_EQ(Peak(e, Category::kGradients), kModel);
  EXPECT_EQ(Peak(e, Category::kOptimizerState), kModel);
  EXPECT_EQ(Peak(e, Category::kActivations), 200 * kMiB);
  for (const Finding& f : e.findings) EXPECT_EQ(f.severity, Severity::kInfo) << f.title;
}

TEST(TrainingLoop, TheLastStepEndsBeforeTheProgramDoes) {
  Loop loop;
  loop.MakeModel();
  for (int i = 0; i < 4; ++i) loop.Step(Loop::Call(20));
  loop.LetGoOfModel();
  const Explanation e = loop.Explain();
  const std::vector<StepReport>& steps = e.ranks.at(0).step_table;
  ASSERT_EQ(steps.size(), 4u);
  for (const StepReport& step : steps) EXPECT_EQ(step.end_allocated, 2 * kModel);
}

/// torch.autograd.grad(): the new gradients are there before the old ones go.
TEST(TrainingLoop, GradientsMadeAnewAreNoAccumulation) {
  Loop loop;
  loop.MakeModel();
  std::vector<Address> old;
  for (int i = 0; i < 5; ++i) {
    std::vector<Address> gradients = loop.Gradients(Loop::Call(20));
    for (Address at : old) loop.Free(at);
    loop.Free(loop.Alloc(12 * kMiB, Loop::Main({}, 30)));
    old = std::move(gradients);
  }
  const Explanation e = loop.Explain();
  EXPECT_EQ(e.ranks.at(0).steps, 5);
  for (const StepReport& step : e.ranks[0].step_table) EXPECT_EQ(step.micro_batches, 1);
}

const Remedy* Find(const Explanation& e, Lever lever) {
  for (const Finding& f : e.findings) {
    for (const Remedy& r : f.remedies) {
      if (r.lever == lever) return &r;
    }
  }
  return nullptr;
}

TEST(TrainingLoop, TheLineThatCallsTheBlocksIsNamedNotAWrapper) {
  Loop loop;
  loop.MakeModel();
  loop.Step(Loop::Call(20));
  for (int block = 0; block < 6; ++block) {
    for (int inner : {240, 250, 260}) loop.Alloc(40 * kMiB, Loop::InBlock(20, inner));
  }
  loop.RunOut(20 * kMiB, Loop::InBlock(20, 240));
  const Explanation e = loop.Explain();
  const Remedy* remedy = Find(e, Lever::kCheckpointing);
  ASSERT_NE(remedy, nullptr);
  EXPECT_NE(remedy->change.find("that net.py:608 in forward calls"), std::string::npos)
      << remedy->change;
  EXPECT_NE(e.ranks[0].holders.front().module.find("outer:77 > net:608 > net:2"), std::string::npos)
      << e.ranks[0].holders.front().module;
}

TEST(TrainingLoop, DyingInTheFirstForwardItMayTrainOrNot) {
  Loop loop;
  loop.MakeModel();
  for (int block = 0; block < 6; ++block) {
    for (int inner : {240, 250, 260}) loop.Alloc(40 * kMiB, Loop::InBlock(20, inner));
  }
  loop.RunOut(20 * kMiB, Loop::InBlock(20, 240));
  const Explanation e = loop.Explain();
  EXPECT_NE(Find(e, Lever::kCheckpointing), nullptr);
  ASSERT_NE(Find(e, Lever::kEvaluation), nullptr);
  EXPECT_NE(Find(e, Lever::kEvaluation)->change.find("if nothing is trained"), std::string::npos);
  EXPECT_EQ(Find(e, Lever::kOptimizer), nullptr);
  EXPECT_EQ(Find(e, Lever::kSharding), nullptr);
  EXPECT_EQ(e.ranks[0].phase, "in a forward");
}

TEST(TrainingLoop, WhatHoldsNothingForABackwardGetsNoAdviceForTraining) {
  Loop loop;
  loop.MakeModel();
  loop.Alloc(400 * kMiB, Loop::InBlock(20, 240));
  loop.RunOut(200 * kMiB, Loop::InBlock(20, 250));
  const Explanation e = loop.Explain();
  EXPECT_EQ(Find(e, Lever::kCheckpointing), nullptr);
  EXPECT_EQ(Find(e, Lever::kOptimizer), nullptr);
  ASSERT_NE(Find(e, Lever::kSmallerBatch), nullptr);
  EXPECT_EQ(Find(e, Lever::kSmallerBatch)->change.find("accumulation"), std::string::npos);
}

Explanation ThreeSteps(bool dies) {
  Loop loop;
  loop.MakeModel();
  for (int i = 0; i < 3; ++i) loop.Step(Loop::Call(20));
  if (dies) loop.RunOut(20 * kMiB, Loop::Call(20));
  return loop.Explain();
}

TEST(Diff, SaysWhichRunRanOut) {
  const RankReport well = ThreeSteps(false).ranks[0];
  const RankReport dead = ThreeSteps(true).ranks[0];
  const auto verdict = [](const RankReport& a, const RankReport& b) {
    return Compare(a, b)->verdict;
  };
  EXPECT_TRUE(verdict(well, dead)
                  .starts_with("The second run ran out of memory (in the forward of step 4, when "
                               "20.00 MiB were asked for)"))
      << verdict(well, dead);
  EXPECT_TRUE(verdict(dead, well).starts_with("The first run ran out of memory"));
  EXPECT_TRUE(verdict(dead, dead).starts_with("Both runs ran out of memory"));
  EXPECT_TRUE(verdict(well, well).starts_with("The peak went"));
}

TEST(Join, TheRankThatIsShownIsTheOneTheVerdictSpeaksOf) {
  std::vector<Explanation> parts = {ThreeSteps(false), ThreeSteps(true), ThreeSteps(false)};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i].ranks[0].rank = static_cast<int>(i);
    parts[i].ranks[0].file = "rank" + std::to_string(i);
    for (Finding& f : parts[i].findings) f.rank = static_cast<int>(i);
  }
  const Explanation joined = Join(std::move(parts));
  EXPECT_EQ(joined.shown, 1u);
  EXPECT_TRUE(joined.verdict.starts_with("1 of 3 ranks ran out of memory: rank 1. 20.00 MiB could"))
      << joined.verdict;
}

TEST(TrainingLoop, AClosureIsNotTheOptimizersWork) {
  Loop loop;
  loop.MakeModel();
  for (int i = 0; i < 5; ++i) loop.Step(Loop::InClosure(20));
  const Explanation e = loop.Explain();
  EXPECT_EQ(e.ranks.at(0).steps, 5);
  EXPECT_EQ(Peak(e, Category::kActivations), 200 * kMiB);
  EXPECT_EQ(Peak(e, Category::kOptimizerState), kModel);
}

TEST(TrainingLoop, WhatIsKeptForeverIsALeak) {
  Loop loop;
  loop.MakeModel();
  for (int i = 0; i < 8; ++i) {
    loop.Step(Loop::Call(20));
    loop.Alloc(30 * kMiB, Loop::Call(40));
  }
  const Explanation e = loop.Explain();
  const Finding* leak = Find(e, "leak");
  ASSERT_NE(leak, nullptr);
  EXPECT_NE(leak->title.find("train.py:40"), std::string::npos) << leak->title;
}

TEST(TrainingLoop, ABufferOfFixedLengthIsNoLeak) {
  Loop loop;
  loop.MakeModel();
  std::deque<Address> buffer;
  for (int i = 0; i < 30; ++i) {
    loop.Step(Loop::Call(20));
    buffer.push_back(loop.Alloc(30 * kMiB, Loop::Call(40)));
    if (buffer.size() > 5) {
      loop.Free(buffer.front());
      buffer.pop_front();
    }
  }
  EXPECT_EQ(Find(loop.Explain(), "leak"), nullptr);
}

TEST(TrainingLoop, GradientsThatAreNeverDroppedAreGradients) {
  Loop loop;
  loop.MakeModel();
  for (int i = 0; i < 4; ++i) loop.Step(Loop::Call(20), 10, true);
  const Explanation e = loop.Explain();
  EXPECT_EQ(Peak(e, Category::kGradients), kModel);
  EXPECT_EQ(e.ranks.at(0).steps, 4);
}

TEST(TrainingLoop, RunningOutInValidationIsNoLongBatch) {
  Loop loop;
  loop.MakeModel();
  for (int i = 0; i < 4; ++i) loop.Step(Loop::Call(20));
  for (int i = 0; i < 40; ++i) loop.Alloc(20 * kMiB, Loop::Call(60));
  loop.RunOut(20 * kMiB, Loop::Call(60));
  const Explanation e = loop.Explain();
  EXPECT_EQ(Find(e, "longest_batch"), nullptr);
  const Finding* spike = Find(e, "eval_spike");
  ASSERT_NE(spike, nullptr);
  EXPECT_NE(spike->title.find("train.py:60"), std::string::npos) << spike->title;
}

TEST(TrainingLoop, RunningOutInALongBatchIsOne) {
  Loop loop;
  loop.MakeModel();
  for (int i = 0; i < 4; ++i) loop.Step(Loop::Call(20));
  for (int i = 0; i < 40; ++i) loop.Alloc(20 * kMiB, Loop::Call(20));
  loop.RunOut(20 * kMiB, Loop::Call(20));
  const Explanation e = loop.Explain();
  EXPECT_NE(Find(e, "longest_batch"), nullptr);
  EXPECT_EQ(Find(e, "eval_spike"), nullptr);
  EXPECT_EQ(e.ranks.at(0).phase, "in the forward of step 5");
}

TEST(TrainingLoop, TwoTracesOfOneRankAndItsLogLoseNothing) {
  std::vector<Explanation> parts;
  for (int i = 0; i < 2; ++i) {
    Loop loop;
    loop.MakeModel();
    loop.Step(Loop::Call(20));
    loop.RunOut(20 * kMiB, Loop::Call(20));
    parts.push_back(loop.Explain());
    parts.back().ranks[0].rank = 0;
  }
  Explanation text;
  text.ranks.emplace_back();
  text.ranks[0].rank = 0;
  text.ranks[0].capacity = 24 * kGiB;
  text.ranks[0].instant.kind = InstantKind::kOutOfMemory;
  parts.push_back(text);
  const Explanation joined = Join(std::move(parts));
  EXPECT_EQ(joined.ranks.size(), 2u);
  EXPECT_EQ(joined.ranks[0].capacity, 24 * kGiB);
}

}  // namespace
}  // namespace plimsoll::training_loops_test
