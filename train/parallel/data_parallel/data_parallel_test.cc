#include "train/parallel/data_parallel/data_parallel.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>

#include "train/parallel/ranks/rank_processes_for_tests.h"
#include "train/parallel/training_for_tests.h"

namespace plimsoll::train::data_parallel_test {
namespace {

struct Way {
  std::string name;
  std::string model;
  std::int64_t rows_at_once = 100;
  bool send_bf16 = false;
  std::string checkpoint = "none";
};

const std::vector<Way> kWays{{"mlp", "mlp"},
                             {"mlp in pieces", "mlp", 1},
                             {"gpt in pieces", "gpt", 1},
                             {"gpt checkpointed", "gpt", 100, false, "every:2"},
                             {"mlp as bf16", "mlp", 100, true}};

/// Losses and parameters, as this rank has them. Each rank begins with parameters of its own.
void Train(Ranks& ranks, const Way& way, Findings& findings) {
  const auto model = SmallModel(way.model, ranks.rank() + 1);
  model->set_checkpoint_policy(CheckpointPolicy::Parse(way.checkpoint));
  // Several buckets even for small models.
  DataParallel parallel(*model, ranks,
                        {.bucket = 4 * kKiB, .first_bucket = 512, .send_bf16 = way.send_bf16});
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  std::vector<at::Tensor> losses;
  const Pieces pieces{.rows = way.rows_at_once,
                      .weight = [&](const Batch& rows) { return model->Weight(rows); }};
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad(/*set_to_none=*/step % 5 == 4);
    const Batch mine = RowsOf(WholeBatch(way.model, step), ranks.launch());
    losses.push_back(parallel.AccumulateGradients(
        [&](const Batch& rows) { return model->Loss(rows); }, mine, pieces));
    optimizer.step();
  }
  findings[way.name + ": losses"] = at::stack(losses);
  findings[way.name + ": parameters"] = Flat(model->parameters());
}

const RankTaskNamed kTrain("data parallel", [](const Launch& launch, const auto&) {
  Ranks ranks(launch);
  Findings findings;
  for (const Way& way : kWays) Train(ranks, way, findings);
  return findings;
});

TEST(DataParallel, EqualsOneRankOnTheWholeBatch) {
  Findings right;
  Ranks alone;
  for (const Way& way : kWays) Train(alone, way, right);
  for (const int size : SizesToTry()) {
    const auto outcomes = RunRanks({.task = "data parallel", .size = size});
    for (int rank = 0; rank < size; ++rank) {
      ASSERT_TRUE(outcomes[rank].good()) << outcomes[rank].error;
      for (const auto& [name, value] : right) {
        const bool rounded = name.find("bf16") != std::string::npos;
        const at::Tensor& found = outcomes[rank].findings.at(name);
        const double error = RelativeError(found, value);
        EXPECT_LT(error, rounded ? 1e-2 : 1e-6) << name << ", rank " << rank << " of " << size;
        EXPECT_TRUE(!rounded || error > 1e-6) << "nothing was rounded";
        EXPECT_TRUE(found.equal(outcomes[0].findings.at(name))) << "ranks differ: " << name;
      }
    }
  }
}

/// Two branches, of which a call takes one; and a buffer that each forward changes.
class TwoBranches : public torch::nn::Module {
 public:
  TwoBranches()
      : left_(register_module("left", torch::nn::Linear(3, 1))),
        right_(register_module("right", torch::nn::Linear(3, 1))),
        calls_(register_buffer("calls", at::zeros({1}))) {}

  at::Tensor Loss(const at::Tensor& x, bool left) {
    calls_ += x.sum().detach();
    return (left ? left_ : right_)(x).mean();
  }
  const at::Tensor& calls() const { return calls_; }

 private:
  torch::nn::Linear left_;
  torch::nn::Linear right_;
  at::Tensor calls_;
};

at::Tensor Gradients(const torch::nn::Module& model) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : model.parameters()) {
    gradients.push_back(parameter.grad().defined() ? parameter.grad() : at::zeros_like(parameter));
  }
  return Flat(gradients).clone();
}

/// So many storages hold the gradients.
std::size_t Storages(const torch::nn::Module& model) {
  std::set<const void*> storages;
  for (const at::Tensor& parameter : model.parameters()) {
    storages.insert(parameter.grad().storage().data());
  }
  return storages.size();
}

const RankTaskNamed kBranches("branches", [](const Launch& launch, const auto&) {
  Ranks ranks(launch);
  Findings findings;
  torch::manual_seed(launch.rank);
  TwoBranches model;
  DataParallel parallel(model, ranks, {.unused_parameters = true});
  const at::Tensor mine = at::full({2, 3}, launch.rank + 1.0);
  const auto backward = [&](bool left) {
    parallel.Forward([&] { return model.Loss(mine, left); }).backward();
  };
  backward(/*left=*/launch.rank == 0);
  findings["one each"] = Gradients(model);
  findings["storages"] = at::tensor(static_cast<std::int64_t>(Storages(model)));
  model.zero_grad(/*set_to_none=*/false);
  {
    const DataParallel::NoSync alone(parallel);
    backward(true);
    findings["alone"] = Gradients(model);
  }
  backward(false);
  findings["both"] = Gradients(model);
  model.zero_grad(/*set_to_none=*/false);
  {
    const DataParallel::NoSync alone(parallel);
    backward(true);
    backward(false);
  }
  parallel.Reduce();
  findings["reduced"] = Gradients(model);
  findings["calls"] = model.calls().clone();
  backward(true);
  findings["calls later"] = model.calls().clone();
  return findings;
});

TEST(DataParallel, UnusedParametersNoSyncAndBuffers) {
  const auto outcomes = RunRanks({.task = "branches", .size = 2});
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(outcomes[rank].good()) << outcomes[rank].error;
    const Findings& found = outcomes[rank].findings;
    // By branch: three weights, one bias. The input is 1 on rank 0 and 2 on rank 1; the mean is of
    // both.
    const auto left_and_right = [](float left_weight, float left_bias, float right_weight,
                                   float right_bias) {
      return at::tensor({left_weight, left_weight, left_weight, left_bias, right_weight,
                         right_weight, right_weight, right_bias});
    };
    EXPECT_TRUE(found.at("one each").equal(left_and_right(0.5, 0.5, 1, 0.5)));
    EXPECT_EQ(found.at("storages").item<std::int64_t>(), 1) << "views of one bucket";
    EXPECT_TRUE(found.at("alone").equal(left_and_right(rank == 0 ? 1 : 2, 1, 0, 0)));
    EXPECT_TRUE(found.at("both").equal(left_and_right(1.5, 1, 1.5, 1)));
    EXPECT_TRUE(found.at("reduced").equal(left_and_right(1.5, 1, 1.5, 1)));
    // A step begins with what rank 0 has, and goes on with what the rank's own rows add.
    const double before = outcomes[0].findings.at("calls").item<double>();
    const double own = (rank + 1) * 6;
    EXPECT_EQ(found.at("calls later").item<double>(), before + own);
  }
}

const RankTaskNamed kUnused("unused", [](const Launch& launch, const auto&) {
  Ranks ranks(launch);
  TwoBranches model;
  DataParallel parallel(model, ranks);
  const Batch mine{{at::ones({2, 3})}};
  parallel.AccumulateGradients(
      [&](const Batch& rows) { return model.Loss(rows.tensors[0], /*left=*/true); }, mine,
      {.rows = 2});
  return Findings();
});

TEST(DataParallel, SaysAtOnceThatAParameterIsUnused) {
  for (const auto& outcome : RunRanks({.task = "unused", .size = 2})) {
    EXPECT_FALSE(outcome.good());
    EXPECT_NE(outcome.error.find("'right.weight' got no gradient"), std::string::npos)
        << outcome.error;
  }
}

const RankTaskNamed kDifferent("different models", [](const Launch& launch, const auto&) {
  Ranks ranks(launch, {.time_limit = kFaultLimit});
  torch::nn::Linear model(3, launch.rank + 1);
  const DataParallel parallel(*model, ranks);
  return Findings{};
});

TEST(DataParallel, ModelsThatDifferAreRefused) {
  const auto outcomes = RunRanks({.task = "different models", .size = 2});
  EXPECT_NE(outcomes[1].error, "");
  EXPECT_FALSE(outcomes[0].late);
  EXPECT_FALSE(outcomes[1].late);
}

}  // namespace
}  // namespace plimsoll::train::data_parallel_test
