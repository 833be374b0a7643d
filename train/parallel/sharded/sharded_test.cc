#include "train/parallel/sharded/sharded.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "train/parallel/ranks/rank_processes_for_tests.h"
#include "train/parallel/training_for_tests.h"

namespace plimsoll::train::sharded_test {
namespace {

struct Way {
  std::string name;
  std::string model;
  std::int64_t rows_at_once = 100;
  std::string checkpoint = "none";
};

const std::vector<Way> kWays{{"mlp", "mlp"},
                             {"gpt in pieces", "gpt", 2},
                             {"gpt checkpointed", "gpt", 100, "all"},
                             {"gpt checkpointed, two blocks at once", "gpt", 100, "every:2"}};
const std::vector<Shard> kShards{Shard::kOptimizerState, Shard::kGradients, Shard::kParameters};

/// Only parameters that come and go could be missing where something is computed again.
bool IsTried(const Way& way, Shard shard) {
  const bool all = shard == Shard::kParameters;
  // By day each way and each shard once.
  if (!IsNightly() && way.checkpoint == "none") return all == (way.model == "mlp");
  return way.checkpoint == "none" || all;
}

std::string NameOf(const Way& way, Shard shard) {
  return way.name + ", shard " + std::to_string(static_cast<int>(shard));
}

constexpr double kMostNorm = 0.5;

/// Matrices decay, the rest does not.
int KindOf(const at::Tensor& parameter) { return parameter.dim() > 1 ? 1 : 0; }

std::unique_ptr<torch::optim::SGD> MakeOptimizer(const std::vector<at::Tensor>& plain,
                                                 const std::vector<at::Tensor>& decaying) {
  const auto momentum = torch::optim::SGDOptions(0.1).momentum(0.9);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(plain, std::make_unique<torch::optim::SGDOptions>(momentum));
  auto decay = momentum;
  groups.emplace_back(decaying,
                      std::make_unique<torch::optim::SGDOptions>(decay.weight_decay(0.1)));
  return std::make_unique<torch::optim::SGD>(groups, momentum);
}

/// Of all ranks.
struct Trained {
  at::Tensor losses;
  at::Tensor parameters;
};

/// One process, whole batches, nothing of this folder.
Trained TrainPlainly(const Way& way) {
  const auto model = SmallModel(way.model, 1);
  std::vector<at::Tensor> kinds[2];
  for (const at::Tensor& parameter : model->parameters()) {
    kinds[KindOf(parameter)].push_back(parameter);
  }
  const auto optimizer = MakeOptimizer(kinds[0], kinds[1]);
  std::vector<at::Tensor> losses;
  for (int step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    const at::Tensor loss = model->Loss(WholeBatch(way.model, step));
    loss.backward();
    torch::nn::utils::clip_grad_norm_(model->parameters(), kMostNorm);
    optimizer->step();
    losses.push_back(loss.detach());
  }
  return {at::stack(losses), Flat(model->parameters())};
}

Trained Train(Ranks& ranks, const Way& way, Shard shard) {
  const auto model = SmallModel(way.model, ranks.rank() + 1);
  model->set_checkpoint_policy(CheckpointPolicy::Parse(way.checkpoint));
  // A block in several groups, and in one.
  const Bytes group = way.model == "mlp" ? kKiB / 2 : kMiB;
  Sharded sharded(*model, ranks, {.shard = shard, .group = group, .kind = KindOf});
  const auto optimizer = MakeOptimizer(sharded.parts(0), sharded.parts(1));
  std::vector<at::Tensor> losses;
  const Pieces pieces{.rows = way.rows_at_once,
                      .weight = [&](const Batch& rows) { return model->Weight(rows); }};
  for (int step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    const Batch mine = RowsOf(WholeBatch(way.model, step), ranks.launch());
    losses.push_back(sharded.AccumulateGradients(
        [&](const Batch& rows) { return model->Loss(rows); }, mine, pieces));
    sharded.ClipNorm(kMostNorm);
    sharded.Step(*optimizer);
  }
  const Sharded::Whole whole(sharded);
  return {at::stack(losses), Flat(model->parameters())};
}

const RankTaskNamed kTrain("sharded", [](const Launch& launch, const auto&) {
  Ranks ranks(launch);
  Findings findings;
  for (const Way& way : kWays) {
    for (const Shard shard : kShards) {
      if (!IsTried(way, shard)) continue;
      const Trained trained = Train(ranks, way, shard);
      findings[NameOf(way, shard) + ": losses"] = trained.losses;
      findings[NameOf(way, shard) + ": parameters"] = trained.parameters;
    }
  }
  return findings;
});

TEST(Sharded, EqualsOneRankOnTheWholeBatch) {
  Findings right;
  for (const Way& way : kWays) {
    const Trained trained = TrainPlainly(way);
    for (const Shard shard : kShards) {
      if (!IsTried(way, shard)) continue;
      right[NameOf(way, shard) + ": losses"] = trained.losses;
      right[NameOf(way, shard) + ": parameters"] = trained.parameters;
    }
  }
  for (const int size : SizesToTry()) {
    const auto outcomes = RunRanks({.task = "sharded", .size = size});
    for (int rank = 0; rank < size; ++rank) {
      ASSERT_TRUE(outcomes[rank].good()) << outcomes[rank].error;
      for (const auto& [name, value] : right) {
        const at::Tensor& found = outcomes[rank].findings.at(name);
        EXPECT_LT(RelativeError(found, value), 1e-6) << name << ", rank " << rank << " of " << size;
        EXPECT_TRUE(found.equal(outcomes[0].findings.at(name))) << "ranks differ: " << name;
      }
    }
  }
}

TEST(Sharded, OneAloneTrainsAsEver) {
  Ranks alone;
  const Way& way = kWays.back();
  const Trained right = TrainPlainly(way);
  for (const Shard shard : kShards) {
    const Trained found = Train(alone, way, shard);
    EXPECT_LT(RelativeError(found.parameters, right.parameters), 1e-6) << NameOf(way, shard);
  }
}

std::int64_t StateBytes(const torch::optim::Optimizer& optimizer) {
  std::int64_t bytes = 0;
  for (const auto& [key, state] : optimizer.state()) {
    const auto& adam = static_cast<const torch::optim::AdamWParamState&>(*state);
    bytes += static_cast<std::int64_t>(adam.exp_avg().nbytes() + adam.exp_avg_sq().nbytes());
  }
  return bytes;
}

/// What this rank holds after backward, and while the loss is computed, in parts of one rank's.
Findings HeldBy(Ranks& ranks, Shard shard) {
  const auto model = std::make_shared<Gpt>(
      GptOptions{.vocabulary = 64, .context = 8, .width = 32, .layers = 6, .heads = 2});
  const auto whole = static_cast<double>(Flat(model->parameters()).nbytes());
  Sharded sharded(*model, ranks, {.shard = shard});
  torch::optim::AdamW optimizer(sharded.parts());
  const at::Tensor tokens = at::randint(64, {2, 8});
  const auto part = [&](Bytes bytes) { return at::tensor(static_cast<double>(bytes) / whole); };
  Findings findings;
  const auto loss = [&](const Batch& rows) {
    const at::Tensor value = model->Loss(rows);
    findings["after forward"] = part(sharded.parameter_bytes());
    return value;
  };
  sharded.AccumulateGradients(loss, {{tokens, tokens}}, {.rows = 2});
  findings["parameters"] = part(sharded.parameter_bytes());
  findings["gradients"] = part(sharded.gradient_bytes());
  sharded.Step(optimizer);
  findings["state"] = part(StateBytes(optimizer) / 2);
  bool seen = true;
  try {
    model->parameters()[0].sum();
  } catch (const std::exception&) {
    seen = false;
  }
  findings["seen"] = at::tensor(seen ? 1.0 : 0.0);
  return findings;
}

const RankTaskNamed kMemory("sharded memory", [](const Launch& launch, const auto&) {
  Ranks ranks(launch);
  Findings findings;
  for (const Shard shard : kShards) {
    for (const auto& [name, value] : HeldBy(ranks, shard)) {
      findings[name + std::to_string(static_cast<int>(shard))] = value;
    }
  }
  return findings;
});

TEST(Sharded, EachRankHoldsItsPart) {
  constexpr double kPart = 0.27;
  const auto outcomes = RunRanks({.task = "sharded memory", .size = 4});
  for (const RankOutcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.good()) << outcome.error;
    const auto held = [&](const char* name) { return outcome.findings.at(name).item<double>(); };
    for (const char* name :
         {"state1", "state2", "state3", "gradients2", "gradients3", "parameters3"}) {
      EXPECT_LT(held(name), kPart) << name;
    }
    // The parts, and what is in no block.
    EXPECT_LT(held("after forward3"), 0.4);
    EXPECT_EQ(held("seen2"), 1);
    EXPECT_EQ(held("seen3"), 0) << "an error and no crash where parameters are not there";
  }
}

}  // namespace
}  // namespace plimsoll::train::sharded_test
