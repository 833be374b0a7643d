#include "job/transforms/checkpoint.h"

#include <gtest/gtest.h>

#include "job/lowering/job_for_tests.h"
#include "job/transforms/block_offload.h"

namespace plimsoll::checkpoint_test {
namespace {

using testing_job::Always;
using testing_job::Each;
using testing_job::JobMaker;
using testing_job::RequestsOf;

/// Blocks of three steps, all of which the backward reads: 400, 600 and 800 bytes in the first
/// block, each 40 more in the next. What goes in has 100.
class Chain {
 public:
  explicit Chain(int blocks) {
    weight_ = maker.Parameter(1);
    maker.BeginStep();
    maker.Begin(Stage::kForward);
    Storage at = Call("stem", "aten.add.Tensor", 25, weight_);
    saved_.push_back(at);
    for (int i = 0; i < blocks; ++i) {
      const std::string module = "h." + std::to_string(i);
      for (const auto& [op, floats] : {std::pair("aten.exp.default", 100),
                                       {"aten.add.Tensor", 150},
                                       {"aten.gelu.default", 200}}) {
        at = Call(module, op, floats + 10 * i, at);
        saved_.push_back(at);
      }
    }
    const Storage loss = Call("head", "aten.sum.default", 5, at);
    maker.Begin(Stage::kBackward);
    maker.Free(loss);
    for (int i = blocks; i-- > 0;) {
      for (int k = 3; k-- > 0;) {
        const Storage saved = saved_[std::size_t(3 * i + k)];
        const Storage gradient = Call("h." + std::to_string(i), "aten.mul.Tensor", 1, saved);
        maker.Free(gradient);
        maker.Free(saved_[std::size_t(3 * i + k + 1)]);
      }
    }
    maker.Free(saved_.front());
  }

  std::string Requests(const Variant& variant) {
    return RequestsOf(Lower(maker.job, variant, *FindGpu("H200"), {.batch = 2, .steps = 1}));
  }
  std::string Checkpointed(const char* text) {
    const Result<CheckpointSegment> segment = ParseCheckpointSegment(text);
    return Requests(AddCheckpointing(maker.job, maker.variant(), {*segment}));
  }
  std::optional<Error> Refusal(const char* text) {
    return CannotKeep(maker.job, maker.variant(), {*ParseCheckpointSegment(text)});
  }

  JobMaker maker;

 private:
  Storage Call(std::string_view module, std::string_view op, std::int64_t floats, Storage of) {
    const Storage made = maker.Make(op, Always(floats), {Arg(maker.Floats(of, {Always(1)}))});
    maker.last_call().module = maker.job.strings.Intern(module);
    return made;
  }

  Storage weight_ = 0;
  std::vector<Storage> saved_;
};

TEST(Checkpoint, AModuleIsMadeAgainAsAWhole) {
  Chain chain(1);
  EXPECT_EQ(chain.Requests(chain.maker.variant()),
            "+4 +100 +400 +600 +800 +20 -20 +4 -4 -800 +4 -4 -600 +4 -4 -400 -100");
  // The last result is read outside and stays. The others are dropped and made again.
  EXPECT_EQ(
      chain.Checkpointed("h.0"),
      "+4 +100 +400 +600 -400 +800 -600 +20 -20 +400 +600 +4 -4 -800 +4 -4 -600 +4 -4 -400 -100");
}

/// A function's variable holds what the next step reads until the function returns.
TEST(Checkpoint, VariablesHoldWhatIsDropped) {
  Chain chain(1);
  for (CallRecord& call : chain.maker.variant().calls) {
    if (call.fresh.front().bytes.at(0) == 400) call.fresh.front().held_calls = 2;
  }
  EXPECT_EQ(
      chain.Checkpointed("h.0"),
      "+4 +100 +400 +600 +800 -600 -400 +20 -20 +400 +600 +4 -4 -800 +4 -4 -600 +4 -4 -400 -100");
}

TEST(Checkpoint, WhatIsKeptIsNotMadeAgain) {
  Chain chain(1);
  EXPECT_EQ(chain.Checkpointed("h.0[exp]"),
            "+4 +100 +400 +600 +800 -600 +20 -20 +600 +4 -4 -800 +4 -4 -600 +4 -4 -400 -100");
  EXPECT_EQ(chain.Checkpointed("h.0[add.Tensor@0]"),
            "+4 +100 +400 +600 -400 +800 +20 -20 +400 +4 -4 -800 +4 -4 -600 +4 -4 -400 -100");
  // All of it: nothing is dropped.
  EXPECT_EQ(chain.Checkpointed("h.0[exp+add.Tensor]"), chain.Requests(chain.maker.variant()));
}

/// A product that only an addition reads is gone by the backward; kept, it waits for the
/// repetition.
TEST(Checkpoint, WhatNobodySavesIsHeldIfItIsKept) {
  JobMaker maker;
  const Storage weight = maker.Parameter(1);
  maker.BeginStep();
  maker.Begin(Stage::kForward);
  const auto call = [&](const char* op, std::int64_t floats, Storage of, const char* module) {
    const Storage made = maker.Make(op, Always(floats), {Arg(maker.Floats(of, {Always(1)}))});
    maker.last_call().module = maker.job.strings.Intern(module);
    return made;
  };
  const Storage in = call("aten.add.Tensor", 25, weight, "stem");
  const Storage product = call("aten.exp.default", 100, in, "h.0");
  const Storage sum = call("aten.add.Tensor", 150, product, "h.0");
  maker.Free(product);
  const Storage out = call("aten.exp.default", 200, sum, "h.0");
  call("aten.sum.default", 5, out, "head");
  maker.Begin(Stage::kBackward);
  maker.Free(call("aten.mul.Tensor", 1, sum, "h.0"));
  maker.Free(out);
  maker.Free(sum);
  maker.Free(in);
  const auto requests = [&](const char* text) {
    const Variant changed =
        AddCheckpointing(maker.job, maker.variant(), {*ParseCheckpointSegment(text)});
    return RequestsOf(Lower(maker.job, changed, *FindGpu("H200"), {.batch = 2, .steps = 1}));
  };
  EXPECT_EQ(requests("h.0"),
            "+4 +100 +400 +600 -400 +800 -600 +20 +400 +600 -400 +4 -4 -800 -600 -100");
  EXPECT_EQ(requests("h.0[exp@0]"),
            "+4 +100 +400 +600 +800 -600 +20 +600 -400 +4 -4 -800 -600 -100");
  // The last product is never come to again: it goes with the checkpoint.
  EXPECT_EQ(requests("h.0[exp]"), requests("h.0[exp@0]"));
}

TEST(Checkpoint, WhatCannotBeKeptIsRefused) {
  Chain chain(1);
  EXPECT_FALSE(chain.Refusal("h.0[exp]"));
  EXPECT_NE(chain.Refusal("h.0[addmm]")->ToLine().find("makes no call of addmm"),
            std::string::npos);
  EXPECT_NE(chain.Refusal("h.0[exp@1]"), std::nullopt) << "there is one";
}

/// 64 floats of state that an operator works in place on.
TEST(Checkpoint, WhatIsWrittenInPlaceCannotBeKept) {
  JobMaker maker;
  const Storage weight = maker.Parameter(1);
  maker.BeginStep();
  maker.Begin(Stage::kForward);
  const Storage made =
      maker.Make("aten.exp.default", Always(64), {Arg(maker.Floats(weight, {Always(1)}))});
  maker.last_call().module = maker.job.strings.Intern("h.0");
  maker.Make("aten.relu_.default", Always(1), {Arg(maker.Floats(made, {Always(64)}))});
  maker.last_call().module = maker.job.strings.Intern("h.0");
  maker.Begin(Stage::kBackward);
  const std::optional<Error> error =
      CannotKeep(maker.job, maker.variant(), {*ParseCheckpointSegment("h.0[exp]")});
  ASSERT_TRUE(error);
  EXPECT_NE(error->ToLine().find("written in place"), std::string::npos);
}

TEST(Checkpoint, RandomNumbersAreTheSameWhenTheyAreRepeated) {
  JobMaker maker;
  const Storage weight = maker.Parameter(1);
  maker.BeginStep();
  maker.Begin(Stage::kForward);
  for (const char* op :
       {"aten.bernoulli.default", "aten.exp.default", "aten.native_dropout.default"}) {
    maker.Make(op, Always(64), {Arg(maker.Floats(weight, {Always(1)}))});
    maker.last_call().module = maker.job.strings.Intern("h.0");
  }
  maker.Begin(Stage::kBackward);
  const auto refusal = [&](const char* text) {
    return CannotKeep(maker.job, maker.variant(), {*ParseCheckpointSegment(text)});
  };
  EXPECT_FALSE(refusal("h.0[exp]"));
  EXPECT_FALSE(refusal("h.0[native_dropout]")) << "what comes before it is repeated as it was";
  EXPECT_FALSE(refusal("h.0[bernoulli+native_dropout]"));
  const std::optional<Error> error = refusal("h.0[bernoulli]");
  ASSERT_TRUE(error);
  EXPECT_NE(error->ToLine().find("native_dropout would get other random numbers"),
            std::string::npos);
}

/// The first block leaves when it is done; its memory is free after the second, and comes back when
/// the second one's backward begins.
/// A forward in which each call reads one storage and makes another.
class Forward {
 public:
  Forward() {
    maker.BeginStep();
    maker.Begin(Stage::kForward);
  }
  Storage Call(std::string_view module, std::string_view op, Storage of) {
    const Storage made = maker.Make(op, Always(8), {Arg(maker.Floats(of, {Always(8)}))});
    maker.last_call().module = maker.job.strings.Intern(module);
    return made;
  }
  /// Makes nothing: it works in place.
  void Write(std::string_view module, std::string_view op, Storage into) {
    Call(module, op, into);
    maker.last_call().fresh.clear();
  }
  std::vector<std::string> Modules() { return CheckpointModules(maker.job, maker.variant()); }

  JobMaker maker;
};
using Modules = std::vector<std::string>;

TEST(CheckpointModules, WriteIntoNothingThatOthersMade) {
  Forward forward;
  const Storage in = forward.Call("stem", "aten.exp.default", 0);
  forward.Write("a.relu", "aten.relu_.default", forward.Call("a", "aten.exp.default", in));
  EXPECT_EQ(forward.Modules(), (Modules{"stem", "a"}));
  forward.Call("b", "aten.div.out", in);
  forward.maker.last_call().kwargs = {
      {forward.maker.job.strings.Intern("out"), Arg(forward.maker.Floats(in, {Always(8)}))}};
  EXPECT_EQ(forward.Modules(), (Modules{"stem"})) << "what went into a is another now, too";
}

TEST(CheckpointModules, WriteIntoNothingOfTheModelButBatchesOfANorm) {
  Forward forward;
  const Storage state = forward.maker.Parameter(8, false);
  StringId& name = forward.maker.variant().model_tensors.front().name;
  forward.Call("a", "aten.exp.default", state);
  forward.Write("a", "aten.add_.Tensor", state);
  name = forward.maker.job.strings.Intern("a.codebook");
  EXPECT_EQ(forward.Modules(), Modules());
  name = forward.maker.job.strings.Intern("a.num_batches_tracked");
  EXPECT_EQ(forward.Modules(), Modules{"a"});
}

/// `x = self.stem(x); x += self.mlp(x)`, where a cast is all that the backward has of x.
TEST(CheckpointModules, FindWhatTheyWereGivenAsItWas) {
  Forward forward;
  const Storage x = forward.Call("block.stem", "aten.exp.default", 0);
  const Storage cast = forward.Call("block.mlp.up", "aten._to_copy.default", x);
  forward.Call("block.mlp.down", "aten.mm.default", cast);
  EXPECT_EQ(forward.Modules(),
            (Modules{"block", "block.stem", "block.mlp", "block.mlp.up", "block.mlp.down"}));
  forward.Write("block", "aten.add_.Tensor", x);
  EXPECT_EQ(forward.Modules(), (Modules{"block", "block.stem", "block.mlp.down"}));
}

TEST(CheckpointModules, ChangeNoListThatTheyAreGiven) {
  Forward forward;
  forward.Call("a.0", "aten.exp.default", forward.Call("a.1", "aten.exp.default", 0));
  forward.maker.job.lists =
      std::make_shared<const GivenLists>(GivenLists{.to = {"a.0", "a.1"}, .changed_by = {"a.0"}});
  EXPECT_EQ(forward.Modules(), Modules{"a.1"});
  const auto refusal = [&](const char* text) {
    const std::optional<Error> error =
        CannotRepeat(forward.maker.job, {*ParseCheckpointSegment(text)});
    return error ? error->ToLine() : "";
  };
  EXPECT_EQ(refusal("a.1"), "");
  EXPECT_EQ(refusal("a.0[host:a.1]"), "");
  EXPECT_NE(refusal("a.0").find("'a.0' changes a list"), std::string::npos) << refusal("a.0");
}

TEST(BlockOffload, LeavesBesideTheNextBlockAndComesBackBesideIt) {
  Chain chain(3);
  const Variant changed = OffloadBlocks(chain.maker.job, chain.maker.variant(),
                                        {*ParseCheckpointSegment("h.0[host:h.1]")});
  EXPECT_EQ(chain.Requests(changed),
            "+4 +100 +400 +600 +800 +440 +640 +840 -400 -600 +480 +680 +880 +20 -20 "
            "+4 -4 -880 +4 -4 -680 +4 -4 -480 "
            "+400 +600 +4 -4 -840 +4 -4 -640 +4 -4 -440 +4 -4 -800 +4 -4 -600 +4 -4 -400 -100");
  int copies = 0;
  int waits = 0;
  for (const CallRecord& call : changed.calls) {
    copies += SideCopyOf(chain.maker.job, call).has_value();
    waits += CopyWaitedFor(chain.maker.job, call).has_value();
  }
  EXPECT_EQ(copies, 2);
  EXPECT_EQ(waits, 2);
  // Nothing comes after the last: it stays.
  const Variant same = OffloadBlocks(chain.maker.job, chain.maker.variant(),
                                     {*ParseCheckpointSegment("h.2[host:h.1]")});
  EXPECT_EQ(chain.Requests(same), chain.Requests(chain.maker.variant()));
}

}  // namespace
}  // namespace plimsoll::checkpoint_test
