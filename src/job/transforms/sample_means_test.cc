#include "job/transforms/sample_means.h"

#include <gtest/gtest.h>

#include <functional>

#include "job/lowering/job_for_tests.h"

namespace plimsoll::sample_means_test {
namespace {

using testing_job::Always;
using testing_job::Each;
using testing_job::JobMaker;

const std::vector<Number> kOfEach = {Each(8), Always(10)};
const std::vector<Number> kNumber = {};

/// A step whose forward makes a loss of what a layer gives for each sample.
class Maker : public JobMaker {
 public:
  Maker() {
    BeginStep();
    Begin(Stage::kForward);
    given_ = Make("aten.relu.default", kOfEach);
  }
  Argument Use(Storage storage, const std::vector<Number>& sizes, DType type = DType::kFloat32) {
    TensorUse use = Floats(storage, sizes);
    job.layouts[use.layout].dtype = type;
    use.needs_grad = type == DType::kFloat32;
    return Arg(use);
  }
  /// A number of numbers.
  Storage Of(std::string_view op, std::initializer_list<Storage> numbers) {
    std::vector<Argument> args;
    for (const Storage number : numbers) args.push_back(Use(number, kNumber));
    return Make(op, kNumber, args);
  }
  Storage Over(std::string_view op, Storage all) { return Make(op, kNumber, {Use(all, kOfEach)}); }
  Storage given() const { return given_; }

  MicroBatchNumerics End(Storage loss) {
    Begin(Stage::kBackward);
    Make("aten.ones_like.default", kNumber, {Use(loss, kNumber)});
    return NumericsOfMicroBatches(job, variant());
  }

 private:
  Storage given_ = 0;
};

std::string Why(const std::function<Storage(Maker&)>& loss) {
  Maker maker;
  const Storage made = loss(maker);
  return maker.End(made).why;
}

TEST(SampleMeans, MeansOfSamplesAreTheSame) {
  EXPECT_EQ(Why([](Maker& m) { return m.Over("aten.mean.default", m.given()); }), "");
  EXPECT_EQ(Why([](Maker& m) { return m.Over("aten.mse_loss.default", m.given()); }), "");
  EXPECT_EQ(
      Why([](Maker& m) {
        const Storage sum = m.Over("aten.sum.default", m.given());
        return m.Make("aten.div.Tensor", kNumber, {m.Use(sum, kNumber), Argument{.is = Each(1)}});
      }),
      "");
  EXPECT_EQ(Why([](Maker& m) {
              const Storage mean = m.Over("aten.mean.default", m.given());
              const Storage other = m.Over("aten.mean.default", m.given());
              return m.Of("aten.add.Tensor", {mean, other});
            }),
            "");
  // The rest of the job is of no account.
  EXPECT_EQ(Why([](Maker& m) {
              m.Of("aten.exp.default", {m.Over("aten.sum.default", m.given())});
              return m.Over("aten.mean.default", m.given());
            }),
            "");
}

constexpr std::string_view kAt = " (train.py:7 in step)";

TEST(SampleMeans, OtherNumbersOverTheSamplesAreNot) {
  EXPECT_EQ(
      Why([](Maker& m) { return m.Over("aten.sum.default", m.given()); }),
      "the loss is a sum over the samples of one micro-batch, and no mean" + std::string(kAt));
  EXPECT_EQ(
      Why([](Maker& m) {
        return m.Of("aten.sqrt.default", {m.Over("aten.mean.default", m.given())});
      }),
      "the loss is not linear in a mean over the samples of one micro-batch" + std::string(kAt));
  EXPECT_EQ(Why([](Maker& m) { return m.Over("aten.amax.default", m.given()); }),
            "the loss is not linear in what its samples have" + std::string(kAt));
  EXPECT_EQ(Why([](Maker& m) {
              const Storage mean = m.Over("aten.mean.default", m.given());
              const Storage centred = m.Make("aten.sub.Tensor", kOfEach,
                                             {m.Use(m.given(), kOfEach), m.Use(mean, kNumber)});
              return m.Over("aten.mean.default", centred);
            }),
            "the loss has a number over the samples of one micro-batch in it" + std::string(kAt));
  EXPECT_EQ(Why([](Maker& m) {
              const Storage normed =
                  m.Make("aten.native_batch_norm.default", kOfEach, {m.Use(m.given(), kOfEach)});
              return m.Over("aten.mean.default", normed);
            }),
            "batch norm averages over the samples of one micro-batch");
}

TEST(SampleMeans, SamplesThatAreComparedAreNot) {
  const std::vector<Number> pairs = {Each(1), Each(1)};
  EXPECT_EQ(Why([&](Maker& m) {
              const Storage all = m.Make("aten.mm.default", pairs,
                                         {m.Use(m.given(), kOfEach), m.Use(m.given(), kOfEach)});
              const Storage logs =
                  m.Make("aten._log_softmax.default", kOfEach, {m.Use(all, pairs)});
              return m.Over("aten.mean.default", logs);
            }),
            "the loss compares the samples of one micro-batch" + std::string(kAt));
}

/// (x * mask).sum() / mask.sum()
Storage OverMask(Maker& m) {
  const Storage mask = m.Make("aten.ne.Scalar", kOfEach, {m.Use(0, kOfEach, DType::kInt64)});
  const Storage count = m.Make("aten.sum.default", kNumber, {m.Use(mask, kOfEach, DType::kBool)});
  m.last_call().where = m.job.strings.Intern("count");
  return m.Of("aten.div.Tensor", {m.Over("aten.sum.default", m.given()), count});
}

TEST(SampleMeans, AMeanOverAMaskIsNotUnlessItCountsAlike) {
  const std::string why =
      "the loss is divided by a number over the samples of one micro-batch" + std::string(kAt);
  EXPECT_EQ(Why(OverMask), why);
  for (const bool alike : {true, false}) {
    EXPECT_EQ(Why([&](Maker& m) {
                m.job.counted["count"] = alike;
                return OverMask(m);
              }),
              alike ? "" : why);
  }
}

TEST(SampleMeans, AMaskSelectsAsMuchAsAMicroBatchHas) {
  const auto selected = [](Maker& m) {
    const Storage mask = m.Make("aten.ne.Scalar", kOfEach, {m.Use(0, kOfEach, DType::kInt64)});
    return m.Make("aten.index.Tensor", kOfEach,
                  {m.Use(m.given(), kOfEach),
                   Argument{.is = Argument::List{m.Use(mask, kOfEach, DType::kBool)}}});
  };
  EXPECT_EQ(
      Why([&](Maker& m) { return m.Over("aten.mean.default", selected(m)); }),
      "the loss is over what a mask selects, as much as one micro-batch has" + std::string(kAt));
  // As a mixture of experts does: what was selected goes back to its place.
  EXPECT_EQ(Why([&](Maker& m) {
              const Storage rows = selected(m);
              const Storage back = m.Make("aten.index_add.default", kOfEach,
                                          {m.Use(m.given(), kOfEach), Arg(std::int64_t{0}),
                                           m.Use(0, kOfEach, DType::kInt64), m.Use(rows, kOfEach)});
              return m.Over("aten.mean.default", back);
            }),
            "");
}

/// F.cross_entropy, of several targets a sample.
Storage CrossEntropy(Maker& m, bool weighted) {
  const Argument weight = weighted ? m.Use(m.given(), {Always(10)}) : Argument{};
  return m.Make("aten.nll_loss_forward.default", kNumber,
                {m.Use(m.given(), kOfEach), m.Use(m.given(), {Each(8)}, DType::kInt64), weight,
                 Arg(std::int64_t{1}), Arg(std::int64_t{-100})});
}

TEST(SampleMeans, IgnoredTargetsAreWhatTheCaptureSaw) {
  Maker unseen;
  const MicroBatchNumerics numerics = unseen.End(CrossEntropy(unseen, false));
  EXPECT_EQ(numerics.why, "");
  EXPECT_EQ(numerics.unknown, "train.py:7 in step");
  for (const bool alike : {true, false}) {
    Maker maker;
    maker.job.counted["train.py:7 in step"] = alike;
    const MicroBatchNumerics seen = maker.End(CrossEntropy(maker, false));
    EXPECT_EQ(seen.why.empty(), alike);
    EXPECT_EQ(seen.unknown, "");
  }
  EXPECT_EQ(
      Why([](Maker& m) { return CrossEntropy(m, true); }),
      "the loss is divided by the weights of the classes in one micro-batch" + std::string(kAt));
}

}  // namespace
}  // namespace plimsoll::sample_means_test
