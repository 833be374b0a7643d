#include "job/parallel/fully_sharded.h"

#include <gtest/gtest.h>

#include "job/lowering/job_for_tests.h"
#include "job/lowering/lower.h"
#include "job/transforms/optimizer.h"

namespace plimsoll::fully_sharded_test {
namespace {

using testing_job::Always;
using testing_job::Each;
using testing_job::JobMaker;
using testing_job::RequestsOf;

Storage Named(JobMaker& maker, std::string_view name, std::int64_t floats) {
  const Storage storage = maker.Parameter(floats);
  maker.variant().model_tensors.back().name = maker.job.strings.Intern(name);
  return storage;
}
Storage MakeIn(JobMaker& maker, std::string_view module, std::string_view op,
               const Number& floats) {
  const Storage storage = maker.Make(op, floats);
  maker.last_call().module = maker.job.strings.Intern(module);
  return storage;
}

/// Two blocks of 4000 bytes and a head of 40, whose ten rows four ranks have to pad to twelve.
/// An activation has 20 bytes a sample and the name of its module.
JobMaker TwoBlocks() {
  JobMaker maker;
  const char* modules[] = {"h.0", "h.1", "head"};
  const std::int64_t floats[] = {1000, 1000, 10};
  for (int m = 0; m < 3; ++m) Named(maker, std::string(modules[m]) + ".weight", floats[m]);
  for (int i = 0; i < 3; ++i) {
    maker.BeginStep();
    maker.Begin(Stage::kForward);
    std::vector<Storage> activations;
    for (const char* module : modules) {
      activations.push_back(MakeIn(maker, module, "aten.relu.default", Each(5)));
    }
    maker.Begin(Stage::kBackward);
    std::vector<Storage> gradients;
    for (int m = 2; m >= 0; --m) {
      gradients.push_back(MakeIn(maker, modules[m], "aten.mul.Tensor", Always(floats[m])));
      maker.Free(activations[static_cast<std::size_t>(m)]);
    }
    for (const Storage gradient : gradients) maker.Label(Category::kGradients, gradient);
    maker.Begin(Stage::kOptimizer);
    for (int m = 0; m < 3 && i == 0; ++m) {
      maker.Label(Category::kOptimizerState,
                  maker.Make("aten.zeros_like.default", Always(floats[m])));
    }
    maker.Begin(Stage::kUnknown);
    for (const Storage gradient : gradients) maker.Free(gradient);
  }
  return maker;
}

Lowered AsRank(JobMaker maker, const Sharding& sharding, int steps) {
  const Variant variant = AddFullySharded(maker.job, maker.variant(), sharding);
  return Lower(maker.job, variant, *FindGpu("H200"), {.batch = 2, .steps = steps});
}

Bytes AliveAtTheEnd(const Lowered& lowered) {
  Bytes alive = 0;
  for (const Request& r : lowered.workload.requests) {
    const Bytes bytes = lowered.blocks[r.allocation].requested;
    alive += r.kind == Request::Kind::kAllocate ? bytes : -bytes;
  }
  return alive;
}

TEST(FullySharded, TheModelIsShardedGroupByGroup) {
  EXPECT_EQ(RequestsOf(AsRank(TwoBlocks(), {.ranks = 4}, 0)),
            "+4000 +4000 +40 +1000 -4000 +1000 -4000 +12 -40");
}

TEST(FullySharded, OfAModelOnMetaOnlyShardsAreEverThere) {
  EXPECT_EQ(RequestsOf(AsRank(TwoBlocks(), {.ranks = 4, .meta = true}, 0)), "+1000 +1000 +12");
}

// The order that the traces show, one step without the model.
TEST(FullySharded, AStep) {
  const std::string step =
      "+48 +48 "                      // the root: gathered, and copied
      "+4000 +4000 -48 +40 "          // h.0: the buffer before goes when the copy is there
      "-4000 +4000 +4000 -4000 +40 "  // h.0 is let go; h.1 likewise
      "-4000 +40 -4000 "              // the head; the last buffer goes at the end of the forward
      "+4000 +40 -40 "                // h.1 is gathered while the head's backward runs
      "+4000 -4000 +4000 +4000 -40 "  // copied; h.0 is gathered; h.1's gradient
      "-4000 +4000 +1000 -4000 "      // reduced; the gradient of the last parameter goes last
      "+4000 -4000 +4000 -40 "        // h.0: copied, its gradient
      "-4000 -4000 +4000 +1000 -4000 "
      "-48 -4000 +48 +12 -40 -48 "  // the root's, when all is done
      "+1000 +1000 +12 "            // the optimizer's state
      "-12 -1000 -1000";            // zero_grad
  EXPECT_EQ(RequestsOf(AsRank(TwoBlocks(), {.ranks = 4, .meta = true}, 1)),
            "+1000 +1000 +12 " + step);
}

/// The bytes that are asked for in a stream, in order.
std::vector<Bytes> AskedForIn(const Lowered& lowered, int stream) {
  std::vector<Bytes> bytes;
  for (const Request& r : lowered.workload.requests) {
    if (r.kind == Request::Kind::kAllocate && r.stream == stream) bytes.push_back(r.size);
  }
  return bytes;
}

TEST(FullySharded, GlooCopiesWhatIsGatheredAndReduced) {
  const Sharding sharding{.ranks = 4, .meta = true, .backend = Backend::kGloo};
  const Lowered gloo = AsRank(TwoBlocks(), sharding, 1);
  const std::string step =
      "+48 +48 -48 +48 "
      "+4000 +4000 -4000 +4000 -48 +40 "
      "-4000 +4000 +4000 -4000 +4000 -4000 +40 "
      "-4000 +40 -4000 "
      "+4000 +4000 -4000 +40 -40 "
      "+4000 -4000 +4000 +4000 -4000 +4000 -40 "
      "-4000 +4000 +1000 +4000 -4000 -4000 "
      "+4000 -4000 +4000 -40 "
      "-4000 -4000 +4000 +1000 +4000 -4000 -4000 "
      "-48 -4000 +48 +12 +48 -48 -40 -48 "
      "+1000 +1000 +12 -12 -1000 -1000";
  EXPECT_EQ(RequestsOf(gloo), "+1000 +1000 +12 " + step);
  // Beside the buffers, and not in their stream; beside the shards of gradients, in theirs.
  const std::vector<Bytes> gathered{48, 4000, 4000, 4000, 4000};
  EXPECT_EQ(AskedForIn(gloo, 1), gathered);
  EXPECT_EQ(AskedForIn(gloo, 3), gathered);
  EXPECT_EQ(AskedForIn(gloo, 2), (std::vector<Bytes>{1000, 4000, 1000, 4000, 12, 48}));
}

// The buffer of the last block goes when the model is done, and is gathered again when the gradient
// of the model's output is there.
TEST(FullySharded, ALossOutsideOfTheModel) {
  const auto one_block = [](bool names_root) {
    JobMaker maker;
    maker.job.names_root = names_root;
    Named(maker, "h.0.weight", 1000);
    maker.BeginStep();
    maker.Begin(Stage::kForward);
    MakeIn(maker, "h.0", "aten.relu.default", Always(1));
    MakeIn(maker, "", "aten.relu.default", Always(2));
    maker.Make("aten.relu.default", Always(3));
    maker.last_call().module = {};
    maker.Begin(Stage::kBackward);
    maker.Make("aten.relu.default", Always(4));
    maker.last_call().module = {};
    MakeIn(maker, "", "aten.relu.default", Always(5));
    return maker;
  };
  const Sharding sharding{.ranks = 4, .meta = true};
  EXPECT_EQ(RequestsOf(AsRank(one_block(true), sharding, 1)),
            "+1000 +4000 +4000 +4 -4000 +8 -4000 +12 +16 +4000 +20 -4000");
  // Older captures do not say where the model ends.
  EXPECT_EQ(RequestsOf(AsRank(one_block(false), sharding, 1)),
            "+1000 +4000 +4000 +4 -4000 +8 +12 -4000 +4000 +16 +20 -4000");
}

TEST(FullySharded, KeptBlocksAreGatheredOnce) {
  const std::string step =
      "+48 +48 +4000 +4000 -48 +40 +4000 +4000 -4000 +40 +40 -4000 "
      "+40 -40 +4000 -40 -4000 +4000 +1000 -4000 "
      "+4000 -40 -4000 -4000 +4000 +1000 -4000 "
      "-48 -4000 +48 +12 -40 -48 +1000 +1000 +12 -12 -1000 -1000";
  EXPECT_EQ(
      RequestsOf(AsRank(TwoBlocks(), {.ranks = 4, .keep = Sharding::Keep::kAll, .meta = true}, 1)),
      "+1000 +1000 +12 " + step);
}

TEST(FullySharded, TheLastBlockAloneCanBeKept) {
  const Sharding all{.ranks = 4, .keep = Sharding::Keep::kAll, .meta = true};
  const Sharding last{.ranks = 4, .keep = Sharding::Keep::kLast, .meta = true};
  // Of the three gatherings of a block that two blocks have without it, h.1's second is spared.
  const auto gathered = [](const Lowered& lowered) {
    Bytes bytes = 0;
    for (const Request& r : lowered.workload.requests) {
      if (r.kind == Request::Kind::kAllocate && r.stream == 1) bytes += r.size;
    }
    return bytes;
  };
  EXPECT_EQ(gathered(AsRank(TwoBlocks(), all, 1)), 48 + 2 * 4000);
  EXPECT_EQ(gathered(AsRank(TwoBlocks(), last, 1)), 48 + 3 * 4000);
}

/// The same two blocks, captured in bf16.
JobMaker TwoBlocksInHalf() {
  JobMaker maker = TwoBlocks();
  for (LayoutRecord& layout : maker.job.layouts) layout.dtype = DType::kBFloat16;
  for (CallRecord& call : maker.variant().calls) {
    for (NewStorage& fresh : call.fresh) {
      fresh.bytes = Number::Each([](Bytes n) { return n / 2; }, fresh.bytes);
    }
  }
  return maker;
}

// As torch's source says: shards are fp32; they are cast together before they are gathered.
TEST(FullySharded, AMixedPrecisionPolicyComputesInHalf) {
  const std::string step =
      "+6 +24 -6 +24 "                          // the root: cast, gathered, copied
      "+500 +2000 -500 +2000 -24 +20 "          // h.0
      "-2000 +500 +2000 -500 +2000 -2000 +20 "  // h.1
      "-2000 +20 -2000 "                        // the head
      "+500 +2000 -500 +20 -20 "                // h.1 is gathered; the head's backward
      "+2000 -2000 +500 +2000 -500 +2000 -20 "  // h.1's gradient in bf16
      "-2000 +4000 +1000 -2000 "                // widened to fp32, reduced
      "+2000 -2000 +2000 -20 "                  // h.0
      "-2000 -4000 +4000 +1000 -2000 "
      "-24 -4000 +48 +12 -20 -48 "  // the root's
      "+1000 +1000 +12 "            // the optimizer's state in fp32
      "-12 -1000 -1000";
  const Sharding sharding{.ranks = 4, .meta = true, .policy = MixedPrecision{}};
  EXPECT_EQ(RequestsOf(AsRank(TwoBlocksInHalf(), sharding, 1)), "+1000 +1000 +12 " + step);
}

TEST(FullySharded, WhatIsReducedInHalfIsWidenedAfterwards) {
  const Sharding sharding{
      .ranks = 4, .meta = true, .policy = MixedPrecision{.reduce = DType::kBFloat16}};
  const std::string requests = RequestsOf(AsRank(TwoBlocksInHalf(), sharding, 1));
  EXPECT_NE(requests.find("-2000 +2000 +500 +1000 -500 -2000"), std::string::npos) << requests;
}

TEST(FullySharded, APolicyNeedsACaptureInItsType) {
  JobMaker half = TwoBlocksInHalf();
  const Sharding sharding{.ranks = 4, .policy = MixedPrecision{}};
  EXPECT_EQ(CannotShard(half.job, half.variant(), sharding), std::nullopt);
  JobMaker single = TwoBlocks();
  const std::optional<Error> error = CannotShard(single.job, single.variant(), sharding);
  ASSERT_TRUE(error);
  EXPECT_NE(error->hint.find("precisions=[\"bf16\"]"), std::string::npos);
  EXPECT_EQ(CannotShard(single.job, single.variant(), {.ranks = 4}), std::nullopt);
}

TEST(FullySharded, BuffersHaveStreamsOfTheirOwn) {
  const Lowered lowered = AsRank(TwoBlocks(), {.ranks = 4}, 1);
  EXPECT_EQ(lowered.workload.streams.size(), 3u);
  Bytes gathered = 0;
  Bytes reduced = 0;
  for (const Request& r : lowered.workload.requests) {
    if (r.kind != Request::Kind::kAllocate) continue;
    if (r.stream == 1) gathered += r.size;
    if (r.stream == 2) reduced += r.size;
  }
  EXPECT_EQ(gathered, 48 + 4 * 4000);
  EXPECT_EQ(reduced, 12 + 2 * 1000);
}

TEST(FullySharded, NothingPilesUpOverTheSteps) {
  // Shards of the parameters and of one state each.
  for (const int steps : {1, 2, 3, 5, 9}) {
    EXPECT_EQ(AliveAtTheEnd(AsRank(TwoBlocks(), {.ranks = 4}, steps)), 2 * 2012) << steps;
  }
}

TEST(FullySharded, GradientsThatStayAreAddedTo) {
  JobMaker maker = TwoBlocks();
  // zero_grad(set_to_none=False): the first step's stay, and later ones are sums into them.
  std::vector<JobEvent> events;
  int steps = 0;
  Stage stage = Stage::kBuild;
  for (const JobEvent& event : maker.variant().events) {
    if (event.kind == JobEvent::Kind::kStep) ++steps;
    if (event.kind == JobEvent::Kind::kStage) stage = event.stage;
    const bool zero = event.kind == JobEvent::Kind::kFree && stage == Stage::kUnknown;
    const bool made = event.kind == JobEvent::Kind::kCall && stage == Stage::kBackward;
    if (!zero && (steps == 1 || !made)) events.push_back(event);
  }
  maker.variant().events = std::move(events);
  const auto alive = [&](int n) {
    const Variant variant = AddFullySharded(maker.job, maker.variant(), {.ranks = 4});
    return AliveAtTheEnd(Lower(maker.job, variant, *FindGpu("H200"), {.batch = 2, .steps = n}));
  };
  for (const int n : {1, 2, 3, 7}) EXPECT_EQ(alive(n), 3 * 2012) << n;
}

TEST(FullySharded, AnotherOptimizerWorksOnShardsToo) {
  JobMaker maker = TwoBlocks();
  const Variant sharded = AddFullySharded(maker.job, maker.variant(), {.ranks = 4});
  const Result<Variant> variant = ReplaceOptimizer(maker.job, sharded, {.name = "adamw"});
  ASSERT_TRUE(variant);
  EXPECT_EQ(AliveAtTheEnd(Lower(maker.job, *variant, *FindGpu("H200"), {.batch = 2, .steps = 3})),
            3 * 2012);
}

TEST(FullySharded, WhatIsNoBlockIsGatheredAtOnce) {
  const Lowered lowered = AsRank(testing_job::TrainingLoop(), {.ranks = 3}, 4);
  EXPECT_EQ(lowered.workload.requests[1].size, 1336);  // 334 of 1000 rows
  JobMaker maker = testing_job::TrainingLoop();
  EXPECT_NE(DescribeSharding(maker.job, maker.variant(), {}).find("no numbered list"),
            std::string::npos);
}

TEST(FullySharded, WhatTheFlagMaySay) {
  EXPECT_EQ(ParseSharding("8")->ranks, 8);
  EXPECT_EQ(ParseSharding("8:keep")->keep, Sharding::Keep::kAll);
  EXPECT_EQ(ParseSharding("8:keep_last")->keep, Sharding::Keep::kLast);
  EXPECT_FALSE(ParseSharding("8")->policy);
  EXPECT_EQ(ParseSharding("8:meta:bf16")->policy->param, DType::kBFloat16);
  EXPECT_EQ(ParseSharding("8:bf16:meta")->policy->reduce, DType::kFloat32);
  EXPECT_EQ(ParseSharding("8:fp16:reduce_half")->policy->reduce, DType::kFloat16);
  EXPECT_FALSE(ParseSharding("8:keep")->meta);
  EXPECT_FALSE(ParseSharding("8")->backend);
  EXPECT_EQ(ParseSharding("8:gloo:keep")->backend, Backend::kGloo);
  EXPECT_FALSE(ParseSharding("8:gloo:nccl"));
  EXPECT_TRUE(ParseSharding("8:keep:meta")->meta);
  for (const char* text : {"8", "8:keep", "8:keep_last:meta", "8:bf16", "8:meta:fp16:reduce_half",
                           "8:keep:bf16:gloo", "8:nccl"}) {
    EXPECT_EQ(ShardingText(*ParseSharding(text)), text);
  }
  for (const char* bad :
       {"", "1", "0", "-4", "x", "4x", "4:", "4:keep:", "4:offload", "4:keep:keep_last",
        "4:reduce_half", "4:bf16:fp16", "4 keep", "99999999999999999999", "2000000000"}) {
    EXPECT_FALSE(ParseSharding(bad)) << bad;
  }
}

}  // namespace
}  // namespace plimsoll::fully_sharded_test
