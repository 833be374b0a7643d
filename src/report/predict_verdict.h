// What a prediction comes to, in sentences: whether the job fits, for how long, and what else
// would.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "job/answer/lengths.h"
#include "job/answer/max_batch.h"
#include "job/answer/predict.h"
#include "job/answer/verdict.h"
#include "report/format/range_json.h"

namespace plimsoll {

/// "`if step == 10:` was not reached (train.py:41)"
std::string TextOf(const NotFollowed& part);
/// Objects with what, file and line, as a verdict's `unknown`.
Json NotFollowedJson(const std::vector<NotFollowed>& parts);
/// The decision in one sentence, then the rest of the verdict. What was asked first: a batch of
/// one's own before the largest that there is room for.
std::vector<std::string> Headlines(const Prediction& p, const std::optional<MaxBatch>& max_batch);
/// The same in one line.
std::string PredictVerdict(const Prediction& p, const std::optional<MaxBatch>& max_batch);
/// "The largest length that fits for certain on RTX 4090 at batch 8 is 4096."
std::string Longest(const Prediction& p, const MaxLength& m);
/// "118.2 ms"
std::string Milliseconds(double us);

}  // namespace plimsoll
