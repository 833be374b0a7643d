#include "job/answer/question.h"

#include <algorithm>
#include <utility>

#include "job/file/at_length.h"

namespace plimsoll {
namespace {

/// A model from its configuration is captured at most so often in a search over lengths.
constexpr int kMostCaptures = 3;

PredictOptions OptionsOn(const Question& question, const Card& card, std::int64_t batch) {
  PredictOptions options = question.options;
  options.batch = batch;
  options.calibration = card.measured;
  options.host = card.host;
  return options;
}

Result<RankSet> RanksOn(const Question& question, const JobForms& forms) {
  return RankSet::Of(forms, question.card.gpu,
                     OptionsOn(question, question.card, question.PlainBatch()));
}

/// What was found over lengths.
struct OverLengths {
  std::optional<MaxLength> longest;
  std::optional<Frontier> frontier;
  /// Where the prediction moves to; 0: nowhere.
  std::int64_t length = 0;
};

/// Searches over lengths; with most tokens the batch moves too.
Result<OverLengths> SearchLengths(Question& question) {
  OverLengths found;
  if (!question.lengths) return found;
  const LengthDimension& lengths = *question.lengths;
  const RanksAtLength at = [&](std::int64_t length) -> Result<RankSet> {
    const Result<JobForms> forms = lengths.at(length);
    return forms ? RanksOn(question, *forms) : Result<RankSet>(forms.error());
  };
  if (question.most_tokens || question.trade_offs) {
    Result<Frontier> frontier = FindFrontier(at, lengths.captured, lengths.name);
    if (!frontier) return frontier.error();
    found.frontier = std::move(*frontier);
  }
  const bool moves = question.most_tokens && !question.length_is_given;
  if (const FrontierPoint* most = moves ? found.frontier->Most() : nullptr) {
    found.length = most->length;
    if (!question.batch) question.batch = most->sure.batch;
  }
  if (question.longest) {
    Result<MaxLength> longest = FindMaxLength(at, lengths.captured);
    if (!longest) return longest.error();
    found.longest = *longest;
    found.length =
        longest->sure > 0 ? longest->sure : std::max(longest->most, lengths.captured.front());
  }
  return found;
}

/// A length that was found beyond those that were captured: from some length on the model may do
/// something else.
std::optional<std::int64_t> FoundBeyond(const Question& question, const OverLengths& found) {
  if (!found.longest || !question.lengths->captured_around) return std::nullopt;
  const std::int64_t longest = found.longest->sure > 0 ? found.longest->sure : found.longest->most;
  const std::vector<std::int64_t>& captured = question.lengths->captured;
  const bool within = longest >= captured.front() && longest <= captured.back();
  return within || longest == 0 ? std::nullopt : std::optional(longest);
}

/// Searches over lengths and moves the question to what was found.
Result<OverLengths> MoveToLength(Question& question, const AnswerProgress& progress) {
  for (int captures = 1;; ++captures) {
    const bool searches = question.longest || question.most_tokens || question.trade_offs;
    if (question.lengths && searches) progress.next("trying lengths", 0);
    Result<OverLengths> found = SearchLengths(question);
    if (!found) return found;
    const std::optional<std::int64_t> beyond = FoundBeyond(question, *found);
    if (!beyond || captures == kMostCaptures) {
      if (found->length > 0 && !question.length_is_given) {
        Result<JobForms> forms = question.lengths->at(found->length);
        if (!forms) return forms.error();
        question.job = std::move(*forms);
      }
      return found;
    }
    progress.next("capturing it around what was found", 0);
    Result<Question> around = question.lengths->captured_around(*beyond);
    if (!around) return around.error();
    question = std::move(*around);
  }
}

/// The largest batch that fits, and the batch to predict.
std::optional<MaxBatch> SearchBatches(Question& question, const RankSet& ranks) {
  if (!question.largest) return std::nullopt;
  MaxBatch found = FindMaxBatch(ranks);
  const std::optional<std::int64_t>& own = question.job.first().own_batch;
  const std::int64_t largest = std::max<std::int64_t>(1, found.Shown());
  if (!question.batch) question.batch = question.at_largest ? largest : own.value_or(largest);
  return found;
}

Prediction PredictRanks(const RankTrials& trials) {
  Prediction prediction = Predict(trials.Fullest());
  prediction.unlimited_step_us = trials.UnlimitedStepMicroseconds();
  prediction.trial = trials.AtPaceOfSlowest(std::move(prediction.trial));
  prediction.ranks = trials.Needs();
  return prediction;
}

Result<PageAnswer> AnswerPage(const Question& question, std::int64_t batch,
                              std::optional<Frontier> frontier, const AnswerProgress& progress) {
  progress.next("predicting other batches and precisions", 0);
  const TradeOffProgress tell = [&](std::size_t done, std::size_t all) {
    if (done == 1) progress.next("predicting other batches and precisions", all);
    progress.advance();
  };
  Result<TradeOffTable> table =
      TradeOffs(question.job, question.card.gpu, OptionsOn(question, question.card, batch), tell);
  if (!table) return table.error();
  return PageAnswer{.trade_offs = std::move(*table), .frontier = std::move(frontier)};
}

}  // namespace

std::int64_t Question::PlainBatch() const {
  if (batch) return *batch;
  const Job& one = job.first();
  const bool own = longest || !one.sequence.empty();
  return OnlyBatch(one).value_or(own ? one.own_batch.value_or(1) : 1);
}

Result<Answer> AnswerQuestion(Question question, const AnswerProgress& progress) {
  Result<OverLengths> lengths = MoveToLength(question, progress);
  if (!lengths) return lengths.error();
  progress.next(question.largest ? "finding the largest batch" : "predicting", 0);
  const Result<RankSet> ranks = RanksOn(question, question.job);
  if (!ranks) return ranks.error();
  Answer answer{.max_batch = SearchBatches(question, *ranks),
                .share = question.share,
                .engine = question.engine,
                .longest = lengths->longest};
  const std::int64_t batch = question.PlainBatch();
  Result<RankTrials> trials = RankTrials::Of(ranks->WithBatch(batch));
  if (!trials) return trials.error();
  progress.next("predicting", 0);
  answer.prediction = PredictRanks(*trials);
  answer.trial = std::make_shared<const Trial>(std::move(*trials).TakeFullest());
  const Job& shown = *answer.trial->setting().job;
  if (question.earlier_frees) answer.earlier_frees = FindEarlierFrees(*answer.trial);
  if (question.most_tokens) answer.frontier = lengths->frontier;
  answer.epoch = shown.data;
  answer.compiled =
      FindCompiled(shown, question.card.gpu, OptionsOn(question, question.card, batch));
  if (question.trade_offs) {
    Result<PageAnswer> page = AnswerPage(question, batch, std::move(lengths->frontier), progress);
    if (!page) return page.error();
    answer.page = std::move(*page);
  }
  return answer;
}

Result<Trial> TrialOf(Question question, const AnswerProgress& progress) {
  const Result<OverLengths> lengths = MoveToLength(question, progress);
  if (!lengths) return lengths.error();
  progress.next("predicting", 0);
  const Result<RankSet> ranks = RanksOn(question, question.job);
  if (!ranks) return ranks.error();
  if (!question.batch) SearchBatches(question, *ranks);
  Result<RankTrials> trials = RankTrials::Of(ranks->WithBatch(question.PlainBatch()));
  if (!trials) return trials.error();
  return std::move(*trials).TakeFullest();
}

Result<CardsFound> AnswerForCards(const Question& question, const std::vector<Card>& cards,
                                  const AnswerProgress& progress) {
  const std::int64_t batch =
      question.batch.value_or(question.job.first().own_batch.value_or(question.PlainBatch()));
  progress.next("trying every card", cards.size());
  const RanksOnCard ranks_on = [&](const Card& card) {
    return RankSet::Of(question.job, card.gpu, OptionsOn(question, card, batch));
  };
  Result<CardsFound> found = TryCards(cards, ranks_on, progress.advance);
  if (found) found->batch = batch;
  return found;
}

}  // namespace plimsoll
