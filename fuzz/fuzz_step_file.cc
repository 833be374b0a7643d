// A step file, all the way to a prediction: whatever is read can be lowered at any batch, and what
// must hold of every prediction holds.
#include "job/file/step_file.h"

#include "fuzz.h"
#include "job/answer/batching.h"
#include "job/answer/earlier_frees.h"
#include "job/answer/predict.h"
#include "job/answer/prediction_invariants.h"
#include "job/file/at_length.h"
#include "job/parallel/data_parallel.h"
#include "job/parallel/fully_sharded.h"
#include "job/parallel/pipeline.h"
#include "job/transforms/optimizer.h"

namespace plimsoll {
namespace {

void CheckPrediction(const Result<Prediction>& prediction) {
  if (!prediction) return CheckError(prediction.error());
  const std::vector<std::string> broken = BrokenInvariants(*prediction);
  for (const std::string& text : broken) std::fprintf(stderr, "%s\n", text.c_str());
  PLIMSOLL_CHECK(broken.empty());
}

void PredictAll(Job& job) {
  static const Gpu gpu = *FindGpu("2GiB");
  for (Variant& variant : job.variants) {
    const Lowered lowered = Lower(job, variant, gpu, {.batch = 5, .steps = 4});
    PLIMSOLL_CHECK(lowered.moments.size() == lowered.workload.requests.size());
  }
  for (const std::int64_t batch : {std::int64_t{5}, std::int64_t{1} << 24}) {
    CheckPrediction(Predict(job, gpu, {.batch = batch, .steps = 4}));
    CheckPrediction(Predict(job, gpu, {.batch = batch, .steps = 4, .limit = 30 * kMiB}));
  }
  const Result<Setting> setting = MakeSetting(job, gpu, {.batch = 3, .steps = 4});
  PLIMSOLL_CHECK(setting.ok());
  const std::optional<EarlierFrees> frees = FindEarlierFrees(Trial(*setting));
  PLIMSOLL_CHECK(!frees || !frees->changes.empty());
  const Variant plain = job.variants.front();
  job.variants.front() = AddFullySharded(job, plain, {.ranks = 3});
  CheckPrediction(Predict(job, gpu, {.batch = 2, .steps = 4}));
  using Zero = DataParallel::Zero;
  for (const DataParallel& options :
       {DataParallel{.views = true}, DataParallel{.zero = Zero::kState},
        DataParallel{.zero = Zero::kGradients}}) {
    job.variants.front() = AddDataParallel(job, plain, options);
    CheckPrediction(Predict(job, gpu, {.batch = 2, .steps = 4}));
  }
  for (const int chunks : {1, 2}) {
    Result<Variant> stage =
        AddPipeline(job, plain, {.stages = 2, .micro_batches = 4, .chunks = chunks});
    if (!stage) continue;
    job.variants.front() = std::move(*stage);
    CheckPrediction(Predict(job, gpu, {.batch = 2, .steps = 4}));
  }
  job.variants.front() = plain;
  Result<Variant> replaced = ReplaceOptimizer(job, job.variants.front(), {.name = "adam8bit"});
  PLIMSOLL_CHECK(replaced.ok());
  job.variants.front() = std::move(*replaced);
  CheckPrediction(Predict(job, gpu, {.batch = 1, .steps = 4}));
}

}  // namespace
}  // namespace plimsoll

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace plimsoll;
  return FuzzWith(ReadJob, data, size, [](Job& job) {
    if (HasLength(job)) {
      for (const std::int64_t length : {std::int64_t{1}, std::int64_t{7}, Forms::kLargestExtent}) {
        Job at = AtLength(job, length).job;
        CheckPrediction(Predict(at, *FindGpu("2GiB"), {.batch = 5, .steps = 4}));
      }
    }
    if (job.data) FindBatchings(*job.data);
    PredictAll(job);
  });
}
