#include "train/parallel/tensor/tensor_parallel.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>

#include "train/parallel/data_parallel/data_parallel.h"
#include "train/parallel/ranks/clip_norm.h"
#include "train/parallel/ranks/mesh.h"
#include "train/parallel/ranks/rank_processes_for_tests.h"
#include "train/parallel/sharded/sharded.h"
#include "train/parallel/training_for_tests.h"

namespace plimsoll::train::tensor_parallel_test {
namespace {

constexpr double kMostNorm = 0.5;
const std::string kModel = "four heads";

struct Way {
  std::string name;
  /// So many ranks, of which so many have different rows; the others share the model.
  int ranks = 2;
  int data = 1;
  Outside outside = Outside::kWhole;
  std::int64_t rows_at_once = 100;
  std::string checkpoint = "none";
  bool chunked = false;
};

const std::vector<Way> kAllWays{
    {"2 whole, in pieces", 2, 1, Outside::kWhole, 5},
    {"2 sequence, in pieces, checkpointed, loss in chunks", 2, 1, Outside::kSequence, 5, "every:2",
     true},
    {"4 whole, checkpointed", 4, 1, Outside::kWhole, 100, "all"},
    {"4 sequence", 4, 1, Outside::kSequence},
    {"2 x 2 whole", 4, 2},
    {"2 x 2 sequence, in pieces, checkpointed", 4, 2, Outside::kSequence, 3, "all", true}};

/// By day one of each: two ranks, four, and two by two.
const std::vector<Way> kWays = [] {
  if (IsNightly()) return kAllWays;
  return std::vector<Way>{kAllWays[1], kAllWays[2], kAllWays[5]};
}();

Batch RowsFor(int step, Mesh& mesh) {
  Launch place;
  place.rank = mesh.coordinate(Dimension::kData);
  place.size = mesh.size(Dimension::kData);
  return RowsOf(WholeBatch(kModel, step), place);
}

torch::optim::SGD MakeOptimizer(const std::vector<at::Tensor>& parameters) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
}

/// One process, whole batches, nothing of this folder.
Findings TrainPlainly() {
  const auto model = SmallModel(kModel, 1);
  auto optimizer = MakeOptimizer(model->parameters());
  std::vector<at::Tensor> losses;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = model->Loss(WholeBatch(kModel, step));
    loss.backward();
    torch::nn::utils::clip_grad_norm_(model->parameters(), kMostNorm);
    optimizer.step();
    losses.push_back(loss.detach());
  }
  return {{"losses", at::stack(losses)}, {"parameters", Flat(model->parameters())}};
}

/// A model of which each rank begins with parameters of its own.
std::shared_ptr<Gpt> ModelOf(const Ranks& ranks, const Way& way) {
  auto model = std::dynamic_pointer_cast<Gpt>(SmallModel(kModel, ranks.launch().rank + 1));
  model->set_checkpoint_policy(CheckpointPolicy::Parse(way.checkpoint));
  model->loss()->set_chunked(way.chunked);
  return model;
}

void Note(const std::string& name, const std::vector<at::Tensor>& losses, const Gpt& model,
          Findings& findings) {
  findings[name + ": losses"] = at::stack(losses);
  findings[name + ": parameters"] = Flat(model.parameters());
}

void Train(Ranks& ranks, const Way& way, Findings& findings) {
  Mesh mesh(ranks, {.data = way.data, .tensor = ranks.size() / way.data});
  const auto model = ModelOf(ranks, way);
  TensorParallel tensor(*model, mesh.along(Dimension::kTensor), {.outside = way.outside});
  DataParallel data(*model, mesh.along(Dimension::kData), {.bucket = kKiB, .first_bucket = 512});
  auto optimizer = MakeOptimizer(model->parameters());
  std::vector<at::Tensor> losses;
  const Pieces pieces{.rows = way.rows_at_once,
                      .weight = [&](const Batch& rows) { return model->Weight(rows); }};
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad(/*set_to_none=*/step % 5 == 4);
    losses.push_back(data.AccumulateGradients([&](const Batch& rows) { return model->Loss(rows); },
                                              RowsFor(step, mesh), pieces));
    tensor.ClipNorm(kMostNorm);
    optimizer.step();
  }
  const TensorParallel::WholeModel whole(tensor);
  Note(way.name, losses, *model, findings);
}

const RankTaskNamed kTrain("tensor parallel", [](const Launch& launch, const auto&) {
  Ranks ranks(launch);
  Findings findings;
  for (const Way& way : kWays) {
    if (way.ranks == launch.size) Train(ranks, way, findings);
  }
  return findings;
});

void ExpectAsOneRank(const std::vector<RankOutcome>& outcomes, const Findings& right) {
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    ASSERT_TRUE(outcomes[rank].good()) << outcomes[rank].error;
    for (const auto& [name, found] : outcomes[rank].findings) {
      const at::Tensor& value = right.at(name.substr(name.rfind(": ") + 2));
      EXPECT_LT(RelativeError(found, value), 1e-6)
          << name << ", rank " << rank << " of " << outcomes.size();
      EXPECT_TRUE(found.equal(outcomes[0].findings.at(name))) << "ranks differ: " << name;
    }
  }
}

TEST(TensorParallel, EqualsOneRankOnTheWholeBatch) {
  const Findings right = TrainPlainly();
  for (const int size : {2, 4}) {
    const auto outcomes = RunRanks({.task = "tensor parallel", .size = size});
    ExpectAsOneRank(outcomes, right);
    const auto ways = std::ranges::count(kWays, size, &Way::ranks);
    EXPECT_EQ(outcomes[0].findings.size(), 2 * static_cast<std::size_t>(ways));
    EXPECT_GT(ways, 0);
  }
}

TEST(TensorParallel, OneAloneTrainsAsEver) {
  Ranks alone;
  Findings found;
  Train(alone, {.name = "alone", .outside = Outside::kSequence, .checkpoint = "all"}, found);
  const Findings right = TrainPlainly();
  EXPECT_LT(RelativeError(found.at("alone: parameters"), right.at("parameters")), 1e-6);
}

/// Each data rank keeps a part of the part that tensor parallel leaves it.
const RankTaskNamed kSharded("tensor parallel sharded", [](const Launch& launch, const auto&) {
  Ranks ranks(launch);
  Mesh mesh(ranks, {.data = 2, .tensor = 2});
  Ranks& data = mesh.along(Dimension::kData);
  const Way way{.name = "sharded", .checkpoint = "all"};
  const auto model = ModelOf(ranks, way);
  TensorParallel tensor(*model, mesh.along(Dimension::kTensor), {.outside = Outside::kSequence});
  const auto kind = [&](const at::Tensor& parameter) { return tensor.IsSplit(parameter) ? 1 : 0; };
  Sharded sharded(*model, data, {.shard = Shard::kParameters, .kind = kind});
  auto optimizer = MakeOptimizer(sharded.parts());
  std::vector<at::Tensor> losses;
  const Pieces pieces{.rows = 3, .weight = [&](const Batch& rows) { return model->Weight(rows); }};
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    losses.push_back(sharded.AccumulateGradients(
        [&](const Batch& rows) { return model->Loss(rows); }, RowsFor(step, mesh), pieces));
    ClipNorm(
        {{sharded.parts(0), {&data}}, {sharded.parts(1), {&data, &mesh.along(Dimension::kTensor)}}},
        kMostNorm);
    sharded.Step(optimizer);
  }
  const Sharded::Whole gathered(sharded);
  const TensorParallel::WholeModel whole(tensor);
  Findings findings;
  Note(way.name, losses, *model, findings);
  return findings;
});

TEST(TensorParallel, GoesWithSharded) {
  ExpectAsOneRank(RunRanks({.task = "tensor parallel sharded", .size = 4}), TrainPlainly());
}

}  // namespace
}  // namespace plimsoll::train::tensor_parallel_test
