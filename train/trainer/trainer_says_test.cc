// What Trainer refuses, and what it says.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "train/optimizers/fused_adam.h"
#include "train/trainer/trainer_for_tests.h"

namespace plimsoll::train::trainer_says_test {
namespace {

namespace nn = torch::nn;
namespace optim = torch::optim;

/// What a call says when it refuses.
template <class Call>
std::string RefusalOf(Call call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return {};
}

/// Each row against all others.
at::Tensor Contrastive(nn::Sequential& model, const Batch& rows) {
  const at::Tensor x = nn::functional::normalize(model->forward(rows.tensors[0]));
  return nn::functional::cross_entropy(x.matmul(x.t()) * 10, torch::arange(rows.size()));
}

TEST(TrainerSays, RowsOfABatchAreChecked) {
  const SmallGpt gpt;
  const at::Tensor rows = gpt.Rows(4).tensors[0];
  const auto refusals = [&](const Batch& batch) {
    const std::string step = RefusalOf([&] { gpt.trainer->Step(batch); });
    EXPECT_EQ(RefusalOf([&] { gpt.trainer->Evaluate(batch); }), step);
    EXPECT_EQ(RefusalOf([&] { gpt.trainer->LeastBudget(batch); }), step);
    return step;
  };
  EXPECT_EQ(refusals({}), "the batch is empty");
  EXPECT_EQ(refusals({{rows.slice(0, 0, 0)}}), "the batch is empty");
  EXPECT_EQ(refusals({{rows, rows.slice(0, 0, 3)}}),
            "tensor 1 of the batch has 3 rows, and tensor 0 has 4");
  const char* const kNumber =
      " of the batch is a single number, and should have a row for each sample";
  EXPECT_EQ(refusals({{rows, torch::ones({})}}), c10::str("tensor 1", kNumber));
  EXPECT_EQ(refusals({{torch::ones({}), rows}}), c10::str("tensor 0", kNumber));
  EXPECT_EQ(refusals({{rows, at::Tensor()}}), "tensor 1 of the batch is not defined");
}

TEST(TrainerSays, AStepThatHalfPrecisionSkipsSaysWhy) {
  nn::Sequential model = Wide();
  double factor = 1;
  Trainer trainer(model.ptr(), std::make_shared<FusedAdamW>(model->parameters()),
                  [&](const Batch& rows) {
                    return model->forward(rows.tensors[0]).to(at::kFloat).square().mean() * factor;
                  },
                  {.precision = Precision::kFloat16});
  EXPECT_EQ(trainer.Step(WideBatch(4)).not_finite, "");
  const std::string before = TextOf(*model);
  // Gradients that fp16 cannot hold, of a loss that fp32 can.
  factor = 1e12;
  const StepReport report = trainer.Step(WideBatch(4));
  EXPECT_TRUE(report.skipped);
  EXPECT_EQ(report.not_finite, "0.weight");
  factor = std::numeric_limits<double>::infinity();
  EXPECT_EQ(trainer.Step(WideBatch(4)).not_finite, "loss");
  EXPECT_EQ(TextOf(*model), before);
}

TEST(TrainerSays, PiecesAreRefusedForALossThatComparesRows) {
  nn::Sequential model = Wide();
  // Of the first rows it is not a number, so that they show nothing.
  const auto loss = [&](const Batch& rows) {
    return Contrastive(model, rows) * (1 + 0 * rows.tensors[1].sum());
  };
  const auto optimizer = std::make_shared<FusedSgd>(model->parameters(), optim::SGDOptions(0.01));
  Batch batch = WideBatch(64);
  batch.tensors.push_back(torch::zeros({64}));
  batch.tensors[1].slice(0, 0, 11).fill_(NAN);
  const std::string before = TextOf(*model);
  Trainer trainer(model.ptr(), optimizer, loss, {.not_finite = NotFinite::kSkip, .micro_batch = 8});
  const std::string refusal = RefusalOf([&] { trainer.Step(batch); });
  EXPECT_TRUE(
      refusal.starts_with("micro_batch asks for pieces, and the loss cannot be made of "
                          "pieces: for 4 rows it is "))
      << refusal;
  // Where no rows show it, the next batch does.
  Batch nothing = batch;
  nothing.tensors[1] = torch::full({64}, NAN);
  EXPECT_TRUE(trainer.Step(nothing).skipped);
  EXPECT_NE(RefusalOf([&] { trainer.Step(batch); }), "");
  EXPECT_EQ(TextOf(*model), before);
}

TEST(TrainerSays, ALossThatNeedsManyRowsIsComparedOnMany) {
  nn::Sequential model = Wide();
  const auto loss = [&](const Batch& rows) {
    return Contrastive(model, rows) * (rows.size() < 8 ? NAN : 1.0);
  };
  Trainer trainer(model.ptr(), std::make_shared<FusedSgd>(model->parameters(), 0.01), loss,
                  {.micro_batch = 8});
  EXPECT_NE(RefusalOf([&] { trainer.Step(WideBatch(64)); }).find("for 16 rows it is "),
            std::string::npos);
}

TEST(TrainerSays, ALossThatComparesRowsIsNotSplit) {
  nn::Sequential model = Wide();
  const auto loss = [&](const Batch& rows) { return Contrastive(model, rows); };
  const auto optimizer = std::make_shared<FusedSgd>(model->parameters(), optim::SGDOptions(0.01));
  Bytes peak = 0;
  Bytes before = 0;
  {
    Trainer plain(model.ptr(), optimizer, loss);
    before = MemoryOf(c10::kCPU).figures().allocated;
    peak = plain.Step(WideBatch(512)).memory.peak_allocated;
  }
  {
    Trainer trainer(model.ptr(), optimizer, loss, {.budget = before + (peak - before) * 8 / 10});
    EXPECT_THROW(trainer.Step(WideBatch(512)), c10::Error);
  }
  Trainer trainer(
      model.ptr(), optimizer, loss,
      {.budget = before + (peak - before) * 8 / 10, .reduction = Reduction::kWholeBatch});
  try {
    trainer.Step(WideBatch(512));
    EXPECT_EQ(trainer.levers().micro_batch, 512);
  } catch (const DoesNotFit&) {
    // Honest too: there was nothing to give way with.
  }
}

TEST(TrainerSays, EvaluateIsASumWhereTheLossIs) {
  nn::Sequential model = Wide();
  const auto loss = [&](const Batch& rows) {
    return model->forward(rows.tensors[0]).square().mean(1).sum();
  };
  Trainer trainer(model.ptr(), std::make_shared<FusedSgd>(model->parameters(), 0.01), loss,
                  {.reduction = Reduction::kSum});
  const Batch batch = WideBatch(8);
  const double whole = loss(batch).item<double>();
  EXPECT_NEAR(trainer.Evaluate(batch), whole, 1e-6 * whole);
}

TEST(TrainerSays, ItNeedsAtLeastWhatIsHeldAndTheGradients) {
  const Bytes before = MemoryOf(c10::kCPU).figures().allocated;
  nn::Sequential model = Wide();
  const auto loss = [&](const Batch& rows) {
    return model->forward(rows.tensors[0]).square().mean();
  };
  const Bytes held = MemoryOf(c10::kCPU).figures().allocated;
  const Bytes parameters = held - before;
  const auto need = [&](auto optimizer, Bytes budget) -> DoesNotFit::Figures {
    try {
      Trainer trainer(model.ptr(), optimizer, loss, {.budget = budget});
      trainer.Step(WideBatch(8));
    } catch (const DoesNotFit& error) {
      EXPECT_NE(std::string(error.what_without_backtrace()).find("it takes at least "),
                std::string::npos);
      return error.figures();
    }
    ADD_FAILURE() << "it fits";
    return {};
  };
  const Bytes budget = held + parameters / 2;
  // Gradients, and the two of AdamW; on the host those are nothing here.
  const auto adamw = std::make_shared<FusedAdamW>(model->parameters());
  EXPECT_GE(need(adamw, budget).need, held + 3 * parameters);
  const Bytes with_forms = need(AdamWForms(model->parameters()), budget).need;
  EXPECT_GE(with_forms, held + parameters);
  EXPECT_LT(with_forms, held + 2 * parameters);
  // Also where the trainer cannot even be made.
  EXPECT_GE(need(adamw, held - 1).need, held + parameters);
}

}  // namespace
}  // namespace plimsoll::train::trainer_says_test
