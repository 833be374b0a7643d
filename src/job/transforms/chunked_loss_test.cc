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
  bool keeps_logits = false;
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
  if (!extras.keeps_logits) maker.Free(logits);
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

/// Of a job whose logits nothing frees in their own step.
constexpr Storage kKeptLogits = 4;

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
            "the loss is no cross-entropy and no log-probabilities over a linear layer");
  EXPECT_EQ(LogitsOf(other.job, other.variant(), 8), 0);
  EXPECT_EQ(WhyNotChunked(other.job, other.variant(), 8, 0), std::nullopt) << "no cross-entropy";
  JobMaker scaled = Head({.scales_logits = true});
  EXPECT_NE(WhyNotChunked(scaled.job, scaled.variant(), 8, 1000), std::nullopt);
  EXPECT_EQ(WhyNotChunked(scaled.job, scaled.variant(), 8, kGiB), std::nullopt) << "small";
}

std::string WhyNot(JobMaker& maker) {
  const Result<Variant> chunked = ChunkLoss(maker.job, maker.variant(), 8);
  return chunked ? "" : chunked.error().message;
}

constexpr std::string_view kKept =
    "the loss cannot be computed in chunks: the script keeps its logits";

TEST(ChunkedLoss, LogitsThatAVariableHoldsUntilTheNextStepAreNotKept) {
  JobMaker maker = Head({.keeps_logits = true});
  EXPECT_EQ(WhyNot(maker), "") << "there is no next step";
  maker.BeginStep();
  maker.Free(kKeptLogits);
  maker.BeginStep();
  EXPECT_EQ(WhyNot(maker), "");
}

/// Logits that plimsoll.apply does not compute hold the hidden states: as long as the script's
/// variable does, into the next step or what follows the steps.
TEST(ChunkedLoss, HiddenStatesStayAsLongAsTheVariableOfTheLogits) {
  const Bytes hidden = kBatch * kRows * kWidth * 4;
  const auto left = [](JobMaker&& maker) {
    const Result<Variant> chunked = ChunkLoss(maker.job, maker.variant(), 8);
    EXPECT_TRUE(chunked.ok());
    return LeftOf(LowerIt(maker, *chunked));
  };
  const Bytes none = left(Head());
  EXPECT_EQ(left(Head({.keeps_logits = true})), none + hidden);
  JobMaker next_step = Head({.keeps_logits = true});
  next_step.BeginStep();
  next_step.Free(kKeptLogits);
  EXPECT_EQ(left(std::move(next_step)), none + hidden) << "one step is run";
  JobMaker behind = Head({.keeps_logits = true});
  behind.BeginPart({.stage = Stage::kEvaluation});
  behind.Free(kKeptLogits);
  EXPECT_EQ(left(std::move(behind)), none);
}

TEST(ChunkedLoss, LogitsOfEveryStepThatAreKeptStayWhole) {
  JobMaker maker = Head({.keeps_logits = true});
  maker.BeginStep();
  maker.BeginStep();
  EXPECT_EQ(WhyNot(maker), kKept);
  maker.Free(kKeptLogits);
  EXPECT_EQ(WhyNot(maker), kKept) << "until the step after the next";
  EXPECT_EQ(WhyNotChunked(maker.job, maker.variant(), 8, 0), kKept);
}

TEST(ChunkedLoss, LogitsThatAreReadBehindTheStepsStayWhole) {
  JobMaker maker = Head({.keeps_logits = true});
  maker.BeginPart({});
  maker.Make("aten.argmax.default", Each(kRows),
             {Arg(maker.Floats(kKeptLogits, {Each(kRows), Always(kClasses)}))});
  EXPECT_EQ(WhyNot(maker), kKept);
}

/// What a job of log-probabilities does besides.
struct RowExtras {
  /// The picked logits less their logsumexp, in place of log_softmax.
  bool logsumexp = false;
  bool trains = true;
  bool averages_logits = false;
  bool picks_two = false;
  std::string_view weight = "layer.weight";
};

/// log_softmax(logits / temperature).gather(labels), a number for each row, and its backward.
void AddRowHead(JobMaker& maker, const RowExtras& extras) {
  const Storage weight = maker.Parameter(kClasses * kWidth, true, extras.weight);
  maker.BeginStep();
  maker.Begin(Stage::kTransfer);
  const Storage labels = maker.Make("aten.randint.default", Each(kRows));
  maker.Begin(Stage::kForward);
  const std::vector<Number> wide = {Each(kRows), Always(kClasses)};
  const std::vector<Number> narrow = {Each(kRows), Always(kWidth)};
  const std::vector<Number> single = {Each(kRows), Always(1)};
  const auto arg = [&](Storage s, const std::vector<Number>& sizes) {
    return Arg(maker.Floats(s, sizes));
  };
  const Storage hidden = maker.Make("aten.relu.default", narrow);
  const Storage product =
      maker.Make("aten.mm.default", wide,
                 {arg(hidden, narrow), arg(weight, {Always(kWidth), Always(kClasses)})});
  const Storage logits = maker.Make("aten.div.Tensor", wide, {arg(product, wide), Arg(0.7)});
  maker.Free(product);
  if (extras.averages_logits)
    maker.Free(maker.Make("aten.mean.default", std::vector<Number>{}, {arg(logits, wide)}));
  const Argument index =
      arg(labels, extras.picks_two ? std::vector<Number>{Each(kRows), Always(2)} : single);
  Storage logs = logits;
  Storage own = 0;
  Storage sum = 0;
  if (extras.logsumexp) {
    const Storage picked = maker.Make("aten.gather.default", single,
                                      {arg(logits, wide), Arg(std::int64_t{-1}), index});
    sum =
        maker.Make("aten.logsumexp.default", std::vector<Number>{Each(kRows)}, {arg(logits, wide)});
    own = maker.Make("aten.sub.Tensor", std::vector<Number>{Each(kRows)},
                     {arg(picked, {Each(kRows)}), arg(sum, {Each(kRows)})});
    maker.Free(picked);
  } else {
    logs = maker.Make("aten._log_softmax.default", wide, {arg(logits, wide)});
    own =
        maker.Make("aten.gather.default", single, {arg(logs, wide), Arg(std::int64_t{-1}), index});
    maker.Free(logits);
  }
  const Storage loss = maker.Make("aten.mean.default", std::vector<Number>{}, {arg(own, single)});
  if (!extras.trains) {
    for (const Storage done : {loss, own, logs, sum, hidden, labels}) maker.Free(done);
    return;
  }
  maker.Begin(Stage::kBackward);
  const Storage of_own =
      maker.Make("aten.mul.Tensor", std::vector<Number>{Each(kRows)}, {arg(own, single)});
  Storage of_logs = maker.Make("aten.new_zeros.default", wide, {arg(of_own, single)});
  maker.variant().calls.push_back(maker.last_call());
  maker.last_call().op = maker.job.strings.Intern("aten.scatter_add_.default");
  maker.last_call().fresh.clear();
  maker.last_call().args = {arg(of_logs, wide), Arg(std::int64_t{-1}), index, arg(of_own, single)};
  maker.variant().events.push_back(
      {.kind = JobEvent::Kind::kCall,
       .index = static_cast<std::uint32_t>(maker.variant().calls.size() - 1)});
  Storage gradient = 0;
  if (extras.logsumexp) {
    const Storage negated = maker.Make("aten.neg.default", std::vector<Number>{Each(kRows)},
                                       {arg(of_own, {Each(kRows)})});
    const Storage shares =
        maker.Make("aten.sub.Tensor", wide, {arg(logits, wide), arg(sum, single)});
    const Storage scaled =
        maker.Make("aten.mul.Tensor", wide, {arg(negated, single), arg(shares, wide)});
    for (const Storage done : {negated, shares, sum}) maker.Free(done);
    gradient = maker.Make("aten.add.Tensor", wide, {arg(scaled, wide), arg(of_logs, wide)});
    maker.Free(scaled);
  } else {
    gradient = maker.Make("aten._log_softmax_backward_data.default", wide,
                          {arg(of_logs, wide), arg(logs, wide)});
  }
  for (const Storage done : {of_own, of_logs, logs}) maker.Free(done);
  const Storage of_logits = maker.Make("aten.div.Tensor", wide, {arg(gradient, wide), Arg(0.7)});
  maker.Free(gradient);
  const Storage of_weight =
      maker.Make("aten.mm.default", {Always(kClasses), Always(kWidth)},
                 {arg(of_logits, {Always(kClasses), Each(kRows)}), arg(hidden, narrow)});
  const Storage of_hidden =
      maker.Make("aten.mm.default", narrow,
                 {arg(of_logits, wide), arg(weight, {Always(kClasses), Always(kWidth)})});
  for (const Storage done : {of_logits, hidden}) maker.Free(done);
  maker.Free(maker.Make("aten.relu_backward.default", narrow, {arg(of_hidden, narrow)}));
  maker.Label(Category::kGradients, of_weight);
  for (const Storage done : {of_hidden, loss, own, labels}) maker.Free(done);
  maker.Begin(Stage::kOptimizer);
  maker.Free(of_weight);
}

JobMaker RowHead(const RowExtras& extras = {}) {
  JobMaker maker;
  AddRowHead(maker, extras);
  return maker;
}

int CallsOf(const JobMaker& maker, const Variant& variant, std::string_view op) {
  return static_cast<int>(
      std::count_if(variant.events.begin(), variant.events.end(), [&](const JobEvent& event) {
        return event.kind == JobEvent::Kind::kCall &&
               BaseName(maker.job.strings[variant.calls[event.index].op]) == op;
      }));
}

TEST(ChunkedLoss, LogProbabilitiesAreComputedTwice) {
  for (const bool logsumexp : {false, true}) {
    JobMaker maker = RowHead({.logsumexp = logsumexp});
    const Lowered plain = LowerIt(maker, maker.variant());
    const Result<Variant> chunked = ChunkLoss(maker.job, maker.variant(), 8);
    ASSERT_TRUE(chunked.ok()) << chunked.error().ToLine();
    const Lowered lowered = LowerIt(maker, *chunked);
    const Bytes logits = kBatch * kRows * kClasses * 4;
    EXPECT_GT(PeakOf(plain), 2 * logits);
    EXPECT_LT(PeakOf(lowered), logits / 2);
    EXPECT_EQ(LeftOf(lowered), LeftOf(plain)) << "everything that is made is freed";
    EXPECT_EQ(CallsOf(maker, *chunked, "mm"), 3 * 8);
    EXPECT_EQ(CallsOf(maker, *chunked, "addmm_"), 8);
    EXPECT_EQ(CallsOf(maker, *chunked, "mean"), 1) << "what is made of them stays";
  }
}

TEST(ChunkedLoss, LogProbabilitiesOfAReferenceHaveNoBackward) {
  JobMaker maker = RowHead({.trains = false});
  const Result<Variant> chunked = ChunkLoss(maker.job, maker.variant(), 8);
  ASSERT_TRUE(chunked.ok()) << chunked.error().ToLine();
  EXPECT_EQ(CallsOf(maker, *chunked, "mm"), 8);
  EXPECT_EQ(LeftOf(LowerIt(maker, *chunked)), LeftOf(LowerIt(maker, maker.variant())));
  EXPECT_FALSE(LossesInChunks(maker.job, maker.variant(), 8).front().has_gradient);
}

TEST(ChunkedLoss, LogProbabilitiesOfAnotherModelStayWhole) {
  for (const std::string_view other : {"Model.layer.weight", "layer.weight"}) {
    JobMaker maker = RowHead({.trains = false, .weight = other});
    AddRowHead(maker, {});
    const Result<Variant> chunked = ChunkLoss(maker.job, maker.variant(), 8);
    ASSERT_TRUE(chunked.ok()) << chunked.error().ToLine();
    EXPECT_EQ(CallsOf(maker, *chunked, "mm"), 1 + 3 * 8) << "one of the reference";
  }
}

TEST(ChunkedLoss, AReferenceAloneStaysWholeWhereAnotherLossTrains) {
  JobMaker maker = RowHead({.trains = false});
  AddRowHead(maker, {.averages_logits = true, .weight = "Model.layer.weight"});
  EXPECT_EQ(WhyNot(maker),
            "the loss cannot be computed in chunks: it is of a model that is not trained");
}

TEST(ChunkedLoss, OfTwoModelsThatTrainNeitherIsTaken) {
  JobMaker maker = RowHead();
  AddRowHead(maker, {.weight = "Model.layer.weight"});
  EXPECT_EQ(WhyNot(maker),
            "the loss cannot be computed in chunks: several models are trained by one");
}

TEST(ChunkedLoss, SaysHowLogProbabilitiesAreMade) {
  JobMaker maker = RowHead();
  LossInChunks expected{.layer = "layer", .log_probs = true, .scaled = true};
  EXPECT_EQ(LossesInChunks(maker.job, maker.variant(), 8), std::vector{expected});
  maker = RowHead({.logsumexp = true});
  expected.applies = false;
  EXPECT_EQ(LossesInChunks(maker.job, maker.variant(), 8), std::vector{expected});
}

TEST(ChunkedLoss, SaysWhyLogProbabilitiesCannotBe) {
  const auto why_not = [](const RowExtras& extras) {
    JobMaker maker = RowHead(extras);
    const Result<Variant> chunked = ChunkLoss(maker.job, maker.variant(), 8);
    return chunked ? "" : chunked.error().message;
  };
  EXPECT_EQ(why_not({.averages_logits = true}),
            "the loss cannot be computed in chunks: its logits are used by mean too");
  EXPECT_EQ(why_not({.picks_two = true}),
            "the loss cannot be computed in chunks: its logits are used by gather too");
}

}  // namespace
}  // namespace plimsoll::chunked_loss_test
