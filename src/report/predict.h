// A prediction as text and as JSON. Nothing is computed here.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "job/answer/question.h"
#include "report/format/style.h"

namespace plimsoll {

/// "step 2, backward of transformer.h.3.mlp, aten.mm.default (train.py:57 in forward)"
std::string InstantText(const Prediction& prediction);
/// "training, after loading": a row of the stages.
std::string StageTitle(const StageNeeds& stage);
/// "about 14.85 GiB resident at most, building the model: …", of one whose host is known.
std::string HostText(const Prediction& prediction);
/// What to change and what that saves, a sentence each; at the end what all of them save.
std::vector<std::string> EarlierFreeTexts(const EarlierFrees& frees, const Prediction& prediction);

std::string PredictText(const Answer& answer, const TextStyle& style);
/// Every request to the allocator, one line each.
std::string LoweredCsv(const Job& job, const Variant& variant, const Lowered& lowered);
std::string PredictJson(const Answer& answer);

}  // namespace plimsoll
