// A prediction as text and as JSON. Nothing is computed here.
#pragma once

#include <optional>
#include <string>

#include "report/text.h"
#include "step/max_batch.h"
#include "step/predict.h"

namespace plimsoll {

/// "step 2, backward of transformer.h.3.mlp, aten.mm.default (train.py:57 in forward)"
std::string InstantText(const Prediction& prediction);
/// What to know first, in one or two sentences.
std::string PredictVerdict(const Prediction& prediction, const std::optional<MaxBatch>& max_batch);
std::string PredictText(const Prediction& prediction, const std::optional<MaxBatch>& max_batch,
                        const TextStyle& style);
/// Every request to the allocator, one line each.
std::string LoweredCsv(const Step& step, const Variant& variant, const Lowered& lowered);
std::string PredictJson(const Prediction& prediction, const std::optional<MaxBatch>& max_batch);

}  // namespace plimsoll
