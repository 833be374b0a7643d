// One question has one answer, whichever way it is asked.
#include "job/answer/question.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "job/lowering/job_for_tests.h"

namespace plimsoll::question_test {
namespace {

using testing_job::Each;
using testing_job::JobMaker;
using testing_job::kMiBOfFloats;
using testing_job::WithRoom;

/// `fixed` MiB of parameters and `each` MiB for every sample, of which a tenth is kept if it leaks.
std::shared_ptr<const Job> StepOf(std::int64_t fixed, std::int64_t each, bool leaks = false) {
  JobMaker maker;
  maker.Parameter(fixed * kMiBOfFloats);
  for (int i = 0; i < 3; ++i) {
    maker.BeginStep();
    maker.Begin(Stage::kForward);
    const Storage a = maker.Make("aten.relu.default", Each(each * kMiBOfFloats));
    if (leaks) maker.Make("aten.addmm.default", Each(each * kMiBOfFloats / 10));
    maker.Begin(Stage::kBackward);
    maker.Free(a);
  }
  return std::make_shared<const Job>(std::move(maker.job));
}

/// A stage that is the fullest at batch 1 and another that is from batch 9 on.
JobForms TwoStages() {
  JobForms forms(StepOf(200, 8));
  forms.jobs.push_back(StepOf(40, 28));
  return forms;
}

Question About(JobForms forms, Bytes room) {
  return {.job = std::move(forms), .card = {.gpu = WithRoom(room)}, .earlier_frees = false};
}

Answer At(Question question, std::int64_t batch) {
  question.batch = batch;
  Result<Answer> answer = AnswerQuestion(std::move(question));
  EXPECT_TRUE(answer.ok());
  return std::move(*answer);
}

TEST(Question, TheFullestStageIsThatOfTheBatch) {
  const Question question = About(TwoStages(), 4 * kGiB);
  const Answer small = At(question, 1);
  ASSERT_EQ(small.prediction.ranks.size(), 2);
  EXPECT_TRUE(small.prediction.ranks[0].shown);
  EXPECT_EQ(small.prediction.trial.needs.device.best, small.prediction.ranks[0].device);
  const Answer large = At(question, 32);
  EXPECT_TRUE(large.prediction.ranks[1].shown);
  EXPECT_EQ(large.prediction.trial.needs.device.best, large.prediction.ranks[1].device);
}

TEST(Question, TheLargestBatchFitsOnEveryStage) {
  for (const Bytes room : {300 * kMiB, 500 * kMiB, kGiB}) {
    Question question = About(TwoStages(), room);
    question.largest = true;
    question.at_largest = true;
    const Result<Answer> found = AnswerQuestion(question);
    ASSERT_TRUE(found.ok());
    const std::int64_t sure = found->max_batch->sure.batch;
    const std::int64_t most = found->max_batch->most.batch;
    ASSERT_GE(sure, 1) << room;
    EXPECT_EQ(found->prediction.batch, sure);
    question.largest = false;
    EXPECT_TRUE(At(question, sure).prediction.trial.surely_fits) << room;
    EXPECT_TRUE(At(question, most).prediction.Runs()) << room;
    EXPECT_FALSE(At(question, most + 1).prediction.Runs()) << room;
  }
}

TEST(Question, AStageThatRunsOutIsShownBeforeOneThatNeedsMoreAndFits) {
  const Answer answer = At(About(TwoStages(), 300 * kMiB), 32);
  EXPECT_FALSE(answer.prediction.trial.fits);
  const std::vector<RankNeeds>& ranks = answer.prediction.ranks;
  const auto shown = std::ranges::find_if(ranks, &RankNeeds::shown);
  ASSERT_NE(shown, ranks.end());
  EXPECT_FALSE(shown->fits);
}

TEST(Question, StagesThatWaitTakeLonger) {
  JobForms forms = TwoStages();
  const double alone = At(About(forms, 4 * kGiB), 8).prediction.trial.step_us;
  forms.waiting = 0.25;
  const Answer answer = At(About(forms, 4 * kGiB), 8);
  EXPECT_DOUBLE_EQ(answer.prediction.trial.step_us, 1.25 * alone);
  EXPECT_DOUBLE_EQ(answer.prediction.unlimited_step_us, 1.25 * alone);
}

TEST(Question, CardsAnswerAsEachOfThemByName) {
  Question question = About(TwoStages(), kGiB);
  question.batch = 20;
  const std::vector<Card> cards = {
      {.gpu = WithRoom(300 * kMiB)}, {.gpu = WithRoom(600 * kMiB)}, {.gpu = WithRoom(2 * kGiB)}};
  const Result<CardsFound> found = AnswerForCards(question, cards);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->batch, 20);
  ASSERT_EQ(found->cards.size(), cards.size());
  for (std::size_t i = 0; i < cards.size(); ++i) {
    question.card = cards[i];
    const Prediction alone = At(question, 20).prediction;
    EXPECT_EQ(found->cards[i].fits, alone.Runs()) << i;
    EXPECT_EQ(found->cards[i].surely_fits, alone.trial.surely_fits) << i;
    EXPECT_EQ(found->cards[i].device, alone.trial.needs.device.best) << i;
    EXPECT_DOUBLE_EQ(found->cards[i].step_us, alone.trial.step_us) << i;
  }
}

TEST(Question, AJobThatLeaksFitsOnNoCard) {
  Question question = About(StepOf(40, 8, /*leaks=*/true), kGiB);
  question.batch = 4;
  const Result<CardsFound> found = AnswerForCards(question, {question.card});
  ASSERT_TRUE(found.ok());
  EXPECT_FALSE(found->cards.front().fits);
  EXPECT_FALSE(found->cards.front().surely_fits);
  EXPECT_FALSE(At(question, 4).prediction.Runs());
}

TEST(Question, TheLargestBatchOfAJobThatLeaksLasts) {
  Question question = About(StepOf(40, 8, /*leaks=*/true), kGiB);
  question.largest = true;
  question.at_largest = true;
  const Result<Answer> answer = AnswerQuestion(question);
  ASSERT_TRUE(answer.ok());
  // Every step leaves more, at every batch: none lasts, and the first steps of many batches fit.
  EXPECT_EQ(answer->max_batch->most.batch, 0);
  EXPECT_EQ(answer->max_batch->sure.batch, 0);
  EXPECT_GT(answer->max_batch->first_steps, 50);
  EXPECT_EQ(answer->prediction.batch, answer->max_batch->first_steps);
  EXPECT_FALSE(answer->prediction.Runs());
}

}  // namespace
}  // namespace plimsoll::question_test
