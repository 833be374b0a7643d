// A prediction as text and as JSON. Nothing is computed here.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "job/answer/compiled.h"
#include "job/answer/earlier_frees.h"
#include "job/answer/lengths.h"
#include "job/answer/max_batch.h"
#include "job/answer/predict.h"
#include "job/file/served_model.h"
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

/// All that is told of a job.
struct PredictAnswer {
  const Prediction& prediction;
  const std::optional<MaxBatch>& max_batch;
  const std::optional<EarlierFrees>& earlier_frees;
  /// What is left of the card for others is asked for.
  bool share = false;
  /// Served beside it.
  std::optional<ServedModel> engine = {};
  /// Of a job over a length too, where they are asked for.
  std::optional<MaxLength> longest = {};
  std::optional<Frontier> frontier = {};
  /// What its loader makes of its data, where that was looked at.
  std::shared_ptr<const EpochFacts> epoch = {};
  /// The same with torch.compile, or without, where both were captured.
  std::optional<Compiled> compiled = {};
};
std::string PredictText(const PredictAnswer& answer, const TextStyle& style);
/// Every request to the allocator, one line each.
std::string LoweredCsv(const Job& job, const Variant& variant, const Lowered& lowered);
std::string PredictJson(const PredictAnswer& answer);

}  // namespace plimsoll
