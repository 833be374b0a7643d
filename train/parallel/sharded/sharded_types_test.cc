// Sharded with parameters in bf16, and with parts on the host.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "train/budget/budget.h"
#include "train/parallel/ranks/rank_processes_for_tests.h"
#include "train/parallel/sharded/sharded.h"
#include "train/parallel/training_for_tests.h"

namespace plimsoll::train::sharded_types_test {
namespace {

constexpr int kRanks = 2;
constexpr int kFewSteps = 6;
const std::vector<Shard> kShards{Shard::kOptimizerState, Shard::kGradients, Shard::kParameters};

torch::optim::SGDOptions Momentum() { return torch::optim::SGDOptions(0.1).momentum(0.9); }

/// Of fp32 parameters, for what computes in bf16: the same arithmetic in one process, written out.
at::Tensor TrainByHand(bool send_bf16) {
  const auto model = SmallModel("gpt", 1);
  std::vector<at::Tensor> masters;
  for (const at::Tensor& parameter : model->parameters()) {
    masters.push_back(parameter.detach().clone().requires_grad_());
    parameter.set_data(parameter.detach().to(at::kBFloat16));
  }
  torch::optim::SGD optimizer(masters, Momentum());
  for (int step = 0; step < kFewSteps; ++step) {
    const Batch whole = WholeBatch("gpt", step);
    const double weight = model->Weight(whole);
    for (at::Tensor& master : masters) master.mutable_grad().reset();
    for (int rank = 0; rank < kRanks; ++rank) {
      const Batch mine = RowsOf(whole, {.rank = rank, .size = kRanks});
      model->zero_grad();
      (model->Loss(mine) * (model->Weight(mine) / weight)).backward();
      for (std::size_t i = 0; i < masters.size(); ++i) {
        const at::Tensor gradient = model->parameters()[i].grad();
        const at::Tensor sent = send_bf16 ? gradient.clone() : gradient.to(at::kFloat);
        at::Tensor& sum = masters[i].mutable_grad();
        // A gradient has the type of its tensor; sums in bf16 become fp32 exactly.
        sum = sum.defined() ? (sum.to(sent.scalar_type()) + sent).to(at::kFloat)
                            : sent.to(at::kFloat);
      }
    }
    optimizer.step();
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < masters.size(); ++i) model->parameters()[i].copy_(masters[i]);
  }
  return Flat(masters);
}

/// All ranks' parts, as one.
at::Tensor WholeOfParts(const Sharded& sharded, Ranks& ranks) {
  std::vector<at::Tensor> parts;
  for (const auto& group : sharded.groups()) {
    std::int64_t elements = 0;
    for (const at::Tensor& parameter : group->parameters()) elements += parameter.numel();
    at::Tensor whole = at::empty({group->part().numel() * ranks.size()});
    ranks.Gather(whole, group->part().detach().clone());
    parts.push_back(whole.narrow(0, 0, elements));
  }
  return Flat(parts);
}

at::Tensor Train(Ranks& ranks, const ShardedOptions& options) {
  const auto model = SmallModel("gpt", ranks.rank() + 1);
  Sharded sharded(*model, ranks, options);
  torch::optim::SGD optimizer(sharded.parts(), Momentum());
  const Pieces pieces{.rows = 100,
                      .weight = [&](const Batch& rows) { return model->Weight(rows); }};
  for (int step = 0; step < kFewSteps; ++step) {
    optimizer.zero_grad();
    sharded.AccumulateGradients([&](const Batch& rows) { return model->Loss(rows); },
                                RowsOf(WholeBatch("gpt", step), ranks.launch()), pieces);
    sharded.Step(optimizer);
  }
  const Sharded::Whole whole(sharded);
  const auto type = options.compute_dtype.value_or(at::kFloat);
  for (const at::Tensor& parameter : model->parameters()) {
    TORCH_CHECK(parameter.scalar_type() == type, "a parameter of another type");
  }
  return WholeOfParts(sharded, ranks);
}

/// The parameters that these parts are of, in the order of parts.
at::Tensor InOrderOfParts(const at::Tensor& parameters) {
  const auto model = SmallModel("gpt", 1);
  std::map<const void*, at::Tensor> values;
  std::int64_t at = 0;
  for (const at::Tensor& parameter : model->parameters()) {
    values[parameter.unsafeGetTensorImpl()] = parameters.narrow(0, at, parameter.numel());
    at += parameter.numel();
  }
  Ranks alone;
  const Sharded sharded(*model, alone);
  std::vector<at::Tensor> ordered;
  for (const auto& group : sharded.groups()) {
    for (const at::Tensor& one : group->parameters()) {
      ordered.push_back(values.at(one.unsafeGetTensorImpl()));
    }
  }
  return Flat(ordered);
}

/// By day one of them at a time.
bool IsTried(bool send_bf16, bool offload) { return IsNightly() || send_bf16 != offload; }

std::string NameOf(Shard shard, bool send_bf16, bool offload) {
  return c10::str("shard ", static_cast<int>(shard), send_bf16 ? ", sent as bf16" : "",
                  offload ? ", on the host" : "");
}

const RankTaskNamed kTypes("sharded types", [](const Launch& launch, const auto&) {
  Ranks ranks(launch);
  Findings findings;
  for (const Shard shard : kShards) {
    for (const bool send_bf16 : {false, true}) {
      for (const bool offload : {false, true}) {
        if (!IsTried(send_bf16, offload)) continue;
        findings[NameOf(shard, send_bf16, offload)] = Train(ranks, {.shard = shard,
                                                                    .compute_dtype = at::kBFloat16,
                                                                    .send_bf16 = send_bf16,
                                                                    .offload = offload});
      }
    }
    findings[NameOf(shard, false, false) + " fp32"] = Train(ranks, {.shard = shard});
    findings[NameOf(shard, false, true) + " fp32"] =
        Train(ranks, {.shard = shard, .offload = true});
  }
  return findings;
});

TEST(ShardedTypes, EqualTheSameArithmeticByHand) {
  const auto outcomes = RunRanks({.task = "sharded types", .size = kRanks});
  const at::Tensor right[] = {InOrderOfParts(TrainByHand(false)),
                              InOrderOfParts(TrainByHand(true))};
  for (const RankOutcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.good()) << outcome.error;
    for (const Shard shard : kShards) {
      for (const bool send_bf16 : {false, true}) {
        for (const bool offload : {false, true}) {
          if (!IsTried(send_bf16, offload)) continue;
          const std::string name = NameOf(shard, send_bf16, offload);
          const at::Tensor& found = outcome.findings.at(name);
          EXPECT_TRUE(found.equal(right[send_bf16 ? 1 : 0]))
              << name << " is off by " << RelativeError(found, right[send_bf16 ? 1 : 0]);
        }
      }
      EXPECT_TRUE(outcome.findings.at(NameOf(shard, false, false) + " fp32")
                      .equal(outcome.findings.at(NameOf(shard, false, true) + " fp32")))
          << "on the host it is the same";
    }
  }
}

/// Bytes for each element of the model, between steps.
TEST(ShardedTypes, HoldWhatTheyShould) {
  Ranks alone;
  struct Row {
    ShardedOptions options;
    double parameters, gradients;
  };
  const auto bf16 = at::kBFloat16;
  for (const Row& row :
       {Row{{.shard = Shard::kGradients}, 4, 4},
        Row{{.shard = Shard::kGradients, .compute_dtype = bf16}, 6, 4},
        Row{{.shard = Shard::kParameters, .compute_dtype = bf16}, 4, 4},
        Row{{.shard = Shard::kOptimizerState, .compute_dtype = bf16}, 6, 8},
        Row{{.shard = Shard::kParameters, .offload = true}, 0, 0},
        Row{{.shard = Shard::kGradients, .offload = true}, 4, 0},
        Row{{.shard = Shard::kGradients, .compute_dtype = bf16, .offload = true}, 2, 0}}) {
    const auto model = SmallModel("gpt", 1);
    const auto elements = static_cast<double>(Flat(model->parameters()).numel());
    const Budget budget(c10::kCPU, std::nullopt);
    const Bytes before = budget.figures().allocated;
    Sharded sharded(*model, alone, row.options);
    const auto counted = static_cast<double>(budget.figures().allocated - before);
    sharded.AccumulateGradients([&](const Batch& rows) { return model->Loss(rows); },
                                WholeBatch("gpt", 0), {.rows = 8});
    EXPECT_EQ(static_cast<double>(sharded.parameter_bytes()) / elements, row.parameters);
    EXPECT_EQ(static_cast<double>(sharded.gradient_bytes()) / elements, row.gradients);
    // The model's own, in fp32, are gone.
    EXPECT_NEAR(counted / elements, row.parameters - 4, 0.5);
  }
}

}  // namespace
}  // namespace plimsoll::train::sharded_types_test
