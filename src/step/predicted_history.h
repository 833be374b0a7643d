// A predicted run as a History: the same that recorded runs come to, so that one page shows both.
#pragma once

#include "base/result.h"
#include "hardware/gpu.h"
#include "step/file/step.h"
#include "step/predict.h"
#include "timeline/history.h"

namespace plimsoll {

/// The run behind the best figures of Predict with the same arguments. Its events are the requests
/// to the allocator, without times; its categories are the purposes.
Result<History> PredictedHistory(const Step& step, const Gpu& gpu, const PredictOptions& options);

}  // namespace plimsoll
