// What is asked about a job, in one struct, and the one function that answers it. Every command
// that predicts goes through here, so that one question has one answer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "job/answer/cards.h"
#include "job/answer/compiled.h"
#include "job/answer/earlier_frees.h"
#include "job/answer/lengths.h"
#include "job/answer/max_batch.h"
#include "job/answer/predict.h"
#include "job/answer/rank_set.h"
#include "job/answer/trade_offs.h"
#include "job/file/served_model.h"

namespace plimsoll {

struct Question;

/// The second dimension of a job that was captured over batch and length.
struct LengthDimension {
  /// What the user calls it.
  std::string name;
  std::vector<std::int64_t> captured;
  /// The forms of the job at a length, changed as asked.
  std::function<Result<JobForms>(std::int64_t length)> at;
  /// The same question of a job captured anew around a length, of a model that is made from its
  /// configuration; null for all others.
  std::function<Result<Question>(std::int64_t length)> captured_around = {};
};

struct Question {
  /// At the length in question, where the job has one.
  JobForms job;
  std::optional<LengthDimension> lengths = {};
  Card card;
  /// All but the batch and what belongs to the card.
  PredictOptions options = {};

  /// The batch to predict. Where none is given: the largest that fits (`at_largest`), else the
  /// script's own, else the largest.
  std::optional<std::int64_t> batch = {};
  bool at_largest = false;
  /// Search for the largest batch, and predict there unless `batch` says otherwise.
  bool largest = false;
  /// Search for the longest sequence at the batch, or for the length with most tokens in a step.
  bool longest = false;
  bool most_tokens = false;
  /// The length is given: a search does not move the prediction to another one.
  bool length_is_given = false;
  /// What else could be trained with, for the page.
  bool trade_offs = false;
  bool earlier_frees = true;
  /// What others may have of the card, and what an engine with this model could do there.
  bool share = false;
  std::optional<ServedModel> engine = {};

  /// The batch of a question that searches for none.
  std::int64_t PlainBatch() const;
};

/// For the page alone.
struct PageAnswer {
  TradeOffTable trade_offs;
  std::optional<Frontier> frontier = {};
};

struct Answer {
  Prediction prediction;
  std::optional<MaxBatch> max_batch = {};
  std::optional<EarlierFrees> earlier_frees = {};
  bool share = false;
  std::optional<ServedModel> engine = {};
  /// Where the question is about lengths.
  std::optional<MaxLength> longest = {};
  std::optional<Frontier> frontier = {};
  /// What the script's loader makes of its data, where that was looked at.
  std::shared_ptr<const EpochFacts> epoch = {};
  /// The same with torch.compile, or without, where both were captured.
  std::optional<Compiled> compiled = {};
  std::optional<PageAnswer> page = {};
  /// Of the rank that is shown. Not thread-safe.
  std::shared_ptr<const Trial> trial = {};
};

/// Hears what is done: its name with the number of pieces (0: one), then each finished piece.
struct AnswerProgress {
  std::function<void(const std::string& what, std::size_t pieces)> next = [](const std::string&,
                                                                             std::size_t) {};
  std::function<void()> advance = [] {};
};

Result<Answer> AnswerQuestion(Question question, const AnswerProgress& progress = {});

/// The run alone that the answer shows: of the fullest rank.
Result<Trial> TrialOf(Question question, const AnswerProgress& progress = {});

/// The same question about every card.
Result<CardsFound> AnswerForCards(const Question& question, const std::vector<Card>& cards,
                                  const AnswerProgress& progress = {});

}  // namespace plimsoll
