#include "job/answer/compiled.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "files/input.h"
#include "job/answer/predict.h"
#include "job/file/step_file.h"

namespace plimsoll {
namespace {

Job ReadCompiled(const std::string& name) {
  Result<Input> input =
      Input::Open(std::string(PLIMSOLL_TEST_DATA) + "/compiled/" + name + ".step.json.gz");
  EXPECT_TRUE(input.ok());
  Result<Job> job = ReadJob(*input);
  EXPECT_TRUE(job.ok());
  return std::move(*job);
}

struct Measured {
  const char* model;
  std::int64_t batch;
  Bytes allocated;
  Bytes reserved;
  Bytes eager_reserved;
};

/// tests/data/compiled/measured.json.
constexpr Measured kMeasured[] = {
    {"mlp", 4096, 1210060800, 1245708288, 1547698176},
    {"gpt2_bf16", 8, 3225118720, 3925868544, 5995757568},
    {"resnet50_bf16", 64, 3293996032, 3485466624, 3833593856},
    {"bert_bf16", 16, 2915276288, 2975858688, 3844079616},
    {"tab_graphs", 4096, 1556057088, 1931476992, 1958739968},
};

TEST(Compiled, TakesWhatWasMeasured) {
  const Gpu gpu = *FindGpu("H200");
  for (const Measured& measured : kMeasured) {
    const Job job = ReadCompiled(measured.model);
    const PredictOptions options{.batch = measured.batch, .steps = 5};
    const Result<Prediction> compiled = Predict(job, gpu, options);
    ASSERT_TRUE(compiled.ok());
    const auto off = [](Bytes a, Bytes b) { return std::abs(double(a) / double(b) - 1); };
    EXPECT_LT(off(compiled->trial.needs.allocated.best, measured.allocated), 0.005)
        << measured.model;
    EXPECT_LT(off(compiled->trial.needs.reserved.best, measured.reserved), 0.01) << measured.model;

    const std::optional<Compiled> both = FindCompiled(job, gpu, options);
    ASSERT_TRUE(both);
    EXPECT_TRUE(both->is);
    EXPECT_LT(off(both->other.reserved.best, measured.eager_reserved), 0.01) << measured.model;
  }
}

TEST(Compiled, IsToldBesideTheJobInEagerMode) {
  const Job job = ReadCompiled("resnet50_bf16");
  const std::optional<Compiled> eager =
      FindCompiled(job, *FindGpu("H200"), {.batch = 64, .precision = "eager"});
  ASSERT_TRUE(eager);
  EXPECT_FALSE(eager->is);
  // The cache of an H200, which is written between the runs of a kernel that is timed.
  EXPECT_EQ(eager->timing, 60 * kMiB);
}

TEST(Compiled, NothingWhereOneOfThemIsMissing) {
  Job job = ReadCompiled("mlp");
  job.variants.pop_back();
  EXPECT_FALSE(FindCompiled(job, *FindGpu("H200"), {.batch = 4096}));
}

}  // namespace
}  // namespace plimsoll
