#include "job/transforms/chunked_loss.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "job/lowering/job_for_tests.h"
#include "job/transforms/linear_loss.h"
#include "job/transforms/offload.h"

namespace plimsoll::chunked_loss_test {
namespace {

using testing_job::Always;
using testing_job::Each;
using testing_job::JobMaker;

constexpr std::int64_t kRows = 64;  // a sample
constexpr std::int64_t kWidth = 16;
constexpr std::int64_t kClasses = 1000;

/// What a job does besides.
struct Extras {
  bool reads_logits = false;
  bool scales_logits = false;
  /// F.cross_entropy inside autocast: nll_loss reads a copy of what log_softmax gives.
  bool widens_logs = false;
  std::int64_t reduction = 1;
};

/// A head without a bias over hidden states in fp32, cross-entropy, and its backward.
JobMaker Head(const Extras& extras = {}) {
  JobMaker maker;
  const Storage weight = maker.Parameter(kClasses * kWidth);
  maker.BeginStep();
  maker.Begin(Stage::kTransfer);
  const Storage labels = maker.Make("aten.randint.default", Each(kRows));
  maker.Label(Category::kInputs, labels);
  maker.Begin(Stage::kForward);
  const auto rows = [&](Storage s) { return Arg(maker.Floats(s, {Each(kRows), Always(kWidth)})); };
  const auto wide = [&](Storage s) {
    return Arg(maker.Floats(s, {Each(kRows), Always(kClasses)}));
  };
  const auto flat = [&](Storage s) { return Arg(maker.Floats(s, {Each(kRows)})); };
  const auto number = [&](Storage s) { return Arg(maker.Floats(s, {})); };
  const auto weights = [&](bool back) {
    return Arg(back ? maker.Floats(weight, {Always(kClasses), Always(kWidth)})
                    : maker.Floats(weight, {Always(kWidth), Always(kClasses)}));
  };
  const std::vector<Number> logits_size = {Each(kRows), Always(kClasses)};
  const Storage hidden = maker.Make("aten.relu.default", {Each(kRows), Always(kWidth)});
  Storage logits = maker.Make("aten.mm.default", logits_size, {rows(hidden), weights(false)});
  if (extras.scales_logits) {
    logits = maker.Make("aten.tanh.default", logits_size, {wide(logits)});
  }
  if (extras.reads_logits) maker.Make("aten.argmax.default", Each(kRows), {wide(logits)});
  const Storage logs = maker.Make("aten._log_softmax.default", logits_size, {wide(logits)});
  const Storage read =
      extras.widens_logs ? maker.Make("aten._to_copy.default", logits_size, {wide(logs)}) : logs;
  const Storage loss =
      maker.Make("aten.nll_loss_forward.default", std::vector<Number>{},
                 {wide(read), flat(labels), {}, Arg(extras.reduction), Arg(std::int64_t{-100})});
  const Storage total = maker.variant().storages++;
  maker.last_call().results.push_back(maker.Floats(total, {}));
  maker.last_call().fresh.push_back({.storage = total, .bytes = Always(4), .result = 1});
  maker.Free(logits);
  maker.Begin(Stage::kBackward);
  const Storage one = maker.Make("aten.ones_like.default", std::vector<Number>{});
  Storage of_logs = maker.Make("aten.nll_loss_backward.default", logits_size,
                               {number(one), wide(read), flat(labels)});
  maker.Free(total);
  if (extras.widens_logs) {
    maker.Free(read);
    const Storage narrow = maker.Make("aten._to_copy.default", logits_size, {wide(of_logs)});
    maker.Free(of_logs);
    of_logs = narrow;
  }
  const Storage of_logits = maker.Make("aten._log_softmax_backward_data.default", logits_size,
                                       {wide(of_logs), wide(logs)});
  maker.Free(of_logs);
  maker.Free(logs);
  const Storage of_weight =
      maker.Make("aten.mm.default", {Always(kClasses), Always(kWidth)},
                 {Arg(maker.Floats(of_logits, {Always(kClasses), Each(kRows)})), rows(hidden)});
  const Storage of_hidden = maker.Make("aten.mm.default", {Each(kRows), Always(kWidth)},
                                       {wide(of_logits), weights(true)});
  maker.Free(of_logits);
  maker.Free(hidden);
  maker.Free(
      maker.Make("aten.relu_backward.default", {Each(kRows), Always(kWidth)}, {rows(of_hidden)}));
  maker.Free(of_hidden);
  maker.Label(Category::kGradients, of_weight);
  maker.Free(one);
  maker.Free(loss);
  maker.Begin(Stage::kOptimizer);
  maker.Free(of_weight);
  maker.Free(labels);
  return maker;
}

constexpr std::int64_t kBatch = 8;

Lowered LowerIt(const JobMaker& maker, const Variant& variant) {
  return Lower(maker.job, variant, *FindGpu("H200"), {.batch = kBatch, .steps = 1});
}

/// Of tensors alone; the workspaces of libraries are kept for good.
Bytes PeakOf(const Lowered& lowered) {
  Bytes now = 0;
  Bytes most = 0;
  for (const Request& request : lowered.workload.requests) {
    const LoweredBlock& block = lowered.blocks[request.allocation];
    if (block.category == Category::kWorkspaces) continue;
    now += request.kind == Request::Kind::kFree ? -block.requested : block.requested;
    most = std::max(most, now);
  }
  return most;
}

/// What is never freed.
Bytes LeftOf(const Lowered& lowered) {
  Bytes now = 0;
  for (const Request& request : lowered.workload.requests) {
    const Bytes size = lowered.blocks[request.allocation].requested;
    now += request.kind == Request::Kind::kFree ? -size : size;
  }
  return now;
}

TEST(ChunkedLoss, OnlyTheLogitsOfOneChunkAreThere) {
  JobMaker maker = Head();
  const Lowered plain = LowerIt(maker, maker.variant());
  const Result<Variant> chunked = ChunkLoss(maker.job, maker.variant(), 8);
  ASSERT_TRUE(chunked.ok()) << chunked.error().ToLine();
  const Lowered lowered = LowerIt(maker, *chunked);
  const Bytes logits = kBatch * kRows * kClasses * 4;
  EXPECT_GT(PeakOf(plain), 3 * logits) << "logarithms and two gradients";
  EXPECT_LT(PeakOf(lowered), PeakOf(plain) - 5 * logits / 2);
  for (const LoweredBlock& block : lowered.blocks) {
    if (block.category != Category::kWorkspaces) {
      EXPECT_LE(block.requested, logits / 8);
    }
  }
  EXPECT_EQ(LeftOf(lowered), LeftOf(plain)) << "everything that is made is freed";
}

TEST(ChunkedLoss, IsFoundInsideAutocast) {
  JobMaker maker = Head({.widens_logs = true});
  const Lowered plain = LowerIt(maker, maker.variant());
  const Result<Variant> chunked = ChunkLoss(maker.job, maker.variant(), 8);
  ASSERT_TRUE(chunked.ok()) << chunked.error().ToLine();
  const Lowered lowered = LowerIt(maker, *chunked);
  EXPECT_LT(PeakOf(lowered), PeakOf(plain) / 4);
  EXPECT_EQ(LeftOf(lowered), LeftOf(plain));
}

TEST(ChunkedLoss, ALayerThatIsCheckpointedStaysWhole) {
  JobMaker maker = Head();
  EXPECT_EQ(LogitLayers(maker.job, maker.variant(), 8), std::vector<std::string>{"layer"});
  maker.variant().calls.back().recomputed = true;
  EXPECT_EQ(ChunkLoss(maker.job, maker.variant(), 8).error().message,
            "layer makes the logits: it cannot be checkpointed where the loss goes in chunks");
}

TEST(ChunkedLoss, TheProductsAreTheSameThree) {
  JobMaker maker = Head();
  const Result<Variant> chunked = ChunkLoss(maker.job, maker.variant(), 4);
  ASSERT_TRUE(chunked.ok());
  int products = 0;
  for (const JobEvent& event : chunked->events) {
    if (event.kind != JobEvent::Kind::kCall) continue;
    const std::string_view op = maker.job.strings[chunked->calls[event.index].op];
    products += op.find("mm") != std::string_view::npos;
  }
  EXPECT_EQ(products, 3 * 4);
}

TEST(ChunkedLoss, GradientsThatWaitAreNotTakenToTheHost) {
  JobMaker maker = Head();
  const Result<Variant> chunked = ChunkLoss(maker.job, maker.variant(), 8);
  ASSERT_TRUE(chunked.ok());
  const Variant offloaded = AddActivationOffload(maker.job, *chunked);
  EXPECT_EQ(LeftOf(LowerIt(maker, offloaded)), LeftOf(LowerIt(maker, *chunked)));
  EXPECT_LE(PeakOf(LowerIt(maker, offloaded)), PeakOf(LowerIt(maker, *chunked)));
}

std::string WhyNot(const Extras& extras, int chunks = 8) {
  JobMaker maker = Head(extras);
  const Result<Variant> chunked = ChunkLoss(maker.job, maker.variant(), chunks);
  return chunked ? "" : chunked.error().message;
}

TEST(ChunkedLoss, SaysWhyItCannotBe) {
  EXPECT_EQ(WhyNot({.reads_logits = true}),
            "the loss cannot be computed in chunks: its logits are used by argmax too");
  EXPECT_EQ(WhyNot({.scales_logits = true}),
            "the loss cannot be computed in chunks: tanh stands between the last linear layer and "
            "its cross-entropy");
  EXPECT_EQ(WhyNot({.reduction = 0}),
            "the loss cannot be computed in chunks: the loss of each row is used by itself");
  EXPECT_EQ(WhyNot({}, 100), "the loss has fewer rows for each sample than 100 chunks");
  JobMaker other = testing_job::TrainingLoop();
  EXPECT_EQ(ChunkLoss(other.job, other.variant(), 8).error().message,
            "the loss is no cross-entropy over a linear layer");
  EXPECT_EQ(LogitsOf(other.job, other.variant(), 8), 0);
  EXPECT_EQ(WhyNotChunked(other.job, other.variant(), 8, 0), std::nullopt) << "no cross-entropy";
  JobMaker scaled = Head({.scales_logits = true});
  EXPECT_NE(WhyNotChunked(scaled.job, scaled.variant(), 8, 1000), std::nullopt);
  EXPECT_EQ(WhyNotChunked(scaled.job, scaled.variant(), 8, kGiB), std::nullopt) << "small";
}

/// log_softmax(logits / temperature).gather(labels)
TEST(ChunkedLoss, NamesTheFunctionForLogProbabilities) {
  JobMaker maker;
  const Storage weight = maker.Parameter(kClasses * kWidth);
  maker.BeginStep();
  maker.Begin(Stage::kForward);
  const std::vector<Number> wide = {Each(kRows), Always(kClasses)};
  const std::vector<Number> narrow = {Each(kRows), Always(kWidth)};
  const Storage hidden = maker.Make("aten.relu.default", narrow);
  const Storage logits =
      maker.Make("aten.mm.default", wide,
                 {Arg(maker.Floats(hidden, narrow)),
                  Arg(maker.Floats(weight, {Always(kWidth), Always(kClasses)}))});
  const Storage cooled = maker.Make("aten.div.Tensor", wide, {Arg(maker.Floats(logits, wide))});
  const Storage logs =
      maker.Make("aten._log_softmax.default", wide, {Arg(maker.Floats(cooled, wide))});
  maker.Make("aten.gather.default", {Each(kRows), Always(1)}, {Arg(maker.Floats(logs, wide))});
  const std::optional<std::string> why = WhyNotChunked(maker.job, maker.variant(), 8, 1000);
  ASSERT_TRUE(why.has_value());
  EXPECT_NE(why->find("plimsoll.chunked_log_probs"), std::string::npos);
}

}  // namespace
}  // namespace plimsoll::chunked_loss_test
