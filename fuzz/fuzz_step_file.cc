// A step file, all the way to a prediction: whatever is read can be lowered at any batch, and what
// must hold of every prediction holds.
#include "step/file/step_file.h"

#include "fuzz.h"
#include "step/answer/earlier_frees.h"
#include "step/answer/predict.h"
#include "step/answer/prediction_invariants.h"
#include "step/transforms/data_parallel.h"
#include "step/transforms/fully_sharded.h"
#include "step/transforms/optimizer.h"
#include "step/transforms/pipeline.h"

namespace plimsoll {
namespace {

void CheckPrediction(const Result<Prediction>& prediction) {
  if (!prediction) return CheckError(prediction.error());
  const std::vector<std::string> broken = BrokenInvariants(*prediction);
  for (const std::string& text : broken) std::fprintf(stderr, "%s\n", text.c_str());
  PLIMSOLL_CHECK(broken.empty());
}

void PredictAll(Step& step) {
  static const Gpu gpu = *FindGpu("2GiB");
  for (Variant& variant : step.variants) {
    const Lowered lowered = Lower(step, variant, gpu, {.batch = 5, .steps = 4});
    PLIMSOLL_CHECK(lowered.moments.size() == lowered.workload.requests.size());
  }
  for (const std::int64_t batch : {std::int64_t{5}, std::int64_t{1} << 24}) {
    CheckPrediction(Predict(step, gpu, {.batch = batch, .steps = 4}));
    CheckPrediction(Predict(step, gpu, {.batch = batch, .steps = 4, .limit = 30 * kMiB}));
  }
  const Result<Setting> setting = MakeSetting(step, gpu, {.batch = 3, .steps = 4});
  PLIMSOLL_CHECK(setting.ok());
  const std::optional<EarlierFrees> frees = FindEarlierFrees(Trial(*setting));
  PLIMSOLL_CHECK(!frees || !frees->changes.empty());
  const Variant plain = step.variants.front();
  step.variants.front() = AddFullySharded(step, plain, {.ranks = 3});
  CheckPrediction(Predict(step, gpu, {.batch = 2, .steps = 4}));
  using Zero = DataParallel::Zero;
  for (const DataParallel& options :
       {DataParallel{.views = true}, DataParallel{.zero = Zero::kState},
        DataParallel{.zero = Zero::kGradients}}) {
    step.variants.front() = AddDataParallel(step, plain, options);
    CheckPrediction(Predict(step, gpu, {.batch = 2, .steps = 4}));
  }
  for (const int chunks : {1, 2}) {
    Result<Variant> stage =
        AddPipeline(step, plain, {.stages = 2, .micro_batches = 4, .chunks = chunks});
    if (!stage) continue;
    step.variants.front() = std::move(*stage);
    CheckPrediction(Predict(step, gpu, {.batch = 2, .steps = 4}));
  }
  step.variants.front() = plain;
  Result<Variant> replaced = ReplaceOptimizer(step, step.variants.front(), "adam8bit");
  PLIMSOLL_CHECK(replaced.ok());
  step.variants.front() = std::move(*replaced);
  CheckPrediction(Predict(step, gpu, {.batch = 1, .steps = 4}));
}

}  // namespace
}  // namespace plimsoll

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace plimsoll;
  return FuzzWith(ReadStep, data, size, PredictAll);
}
