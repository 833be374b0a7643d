#include "train/parallel/pipeline/pipeline.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>
#include <utility>

#include "train/budget/cpu_allocator.h"
#include "train/gradients/recovery.h"
#include "train/parallel/ranks/rank_processes_for_tests.h"
#include "train/parallel/training_for_tests.h"

namespace plimsoll::train::pipeline_test {
namespace {

constexpr double kMostNorm = 0.5;

struct Way {
  std::string name;
  std::string model;
  /// Of each micro-batch.
  std::int64_t rows = 1;
  /// 0: all ranks.
  int stages = 0;
  /// Parts in all; 0: one a rank.
  int parts = 0;
  std::string checkpoint = "none";
  std::vector<int> split = {};
  /// By day there is another like it, here or in the tests of memory.
  bool by_night = false;
};

/// The deep GPT has eight layers, the MLP three.
const std::vector<Way> kAllWays{
    {.name = "1F1B", .model = "deep gpt", .rows = 1, .by_night = true},
    {.name = "fewer micro-batches than stages", .model = "deep gpt", .rows = 4},
    {.name = "interleaved", .model = "deep gpt", .rows = 2, .parts = 8, .by_night = true},
    {.name = "interleaved, uneven", .model = "deep gpt", .rows = 3, .parts = 8},
    {.name = "two pipelines", .model = "deep gpt", .rows = 3, .stages = 2, .by_night = true},
    // Of four, one has no rows in some steps.
    {.name = "pipelines of a stage", .model = "gpt", .rows = 3, .stages = 1},
    // The first stage trains nothing.
    {.name = "frozen at first", .model = "frozen gpt", .rows = 3, .stages = 2},
    {.name = "mlp", .model = "mlp", .rows = 3, .stages = 2, .split = {1, 2}},
    {.name = "checkpointed", .model = "deep gpt", .rows = 3, .checkpoint = "every:2"},
    {.name = "a mask goes along", .model = "masked", .rows = 3, .stages = 2},
};

const std::vector<Way> kWays = [] {
  std::vector<Way> ways = kAllWays;
  std::erase_if(ways, [](const Way& way) { return way.by_night && !IsNightly(); });
  return ways;
}();

/// Three layers with a mask beside the hidden state, which only the first makes.
ModelLayers MaskedLayers() {
  namespace nn = torch::nn;
  torch::manual_seed(3);
  ModelLayers layers;
  nn::Linear in(12, 16), inner(16, 16), out(16, 5);
  layers.push_back({{{"in", in.ptr()}}, [in](const auto&, const Batch& rows) mutable {
                      const at::Tensor mask = rows.tensors[0].slice(1, 0, 1) > 0;
                      return Tensors{in(rows.tensors[0]).tanh(), mask};
                    }});
  layers.push_back({{{"inner", inner.ptr()}}, [inner](const Tensors& given, const auto&) mutable {
                      return Tensors{inner(given[0]) * given[1], given[1]};
                    }});
  layers.push_back({{{"out", out.ptr()}}, [out](const Tensors& given, const Batch& rows) mutable {
                      const at::Tensor logits = out(given[0] + given[1]);
                      return Tensors{nn::functional::cross_entropy(logits, rows.tensors[1])};
                    }});
  return layers;
}

struct ModelAsLayers {
  ModelLayers layers;
  WeightFunction weight;
};

ModelAsLayers LayersOfSmallModel(const std::string& name, std::uint64_t seed) {
  if (name == "masked") return {MaskedLayers(), nullptr};
  const auto model = SmallModel(name == "frozen gpt" ? "gpt" : name, seed);
  if (name == "frozen gpt") {
    for (const std::size_t layer : {0, 1}) {
      for (at::Tensor& one : model->AsLayers()[layer].parameters()) one.requires_grad_(false);
    }
  }
  // Without parameters: those that are not of this rank are to be let go.
  const auto like = std::make_shared<Gpt>(GptOptions{
      .vocabulary = 1, .context = 1, .width = 1, .layers = 0, .heads = 1, .padded = true});
  const bool tokens = name != "mlp";
  return {model->AsLayers(), [like, tokens](const Batch& rows) {
            return tokens ? like->Weight(rows) : static_cast<double>(rows.size());
          }};
}

Batch BatchOf(const Way& way, int step) {
  return WholeBatch(way.model == "masked" ? "mlp" : way.model, step);
}

torch::optim::SGD OptimizerOf(std::vector<at::Tensor> parameters) {
  return torch::optim::SGD(std::move(parameters), torch::optim::SGDOptions(0.1).momentum(0.9));
}

Findings ParametersOf(const torch::nn::Module& model) {
  Findings found;
  for (const auto& named : model.named_parameters()) found[named.key()] = named.value().detach();
  return found;
}

/// Losses and parameters by their names. One process, whole batches, nothing of this folder.
Findings TrainPlainly(const Way& way) {
  const ModelLayers layers = LayersOfSmallModel(way.model, 1).layers;
  Findings found;
  std::vector<at::Tensor> parameters;
  std::set<const void*> seen;
  for (const ModelLayer& layer : layers) {
    for (const auto& [path, module] : layer.modules) {
      for (const auto& named : module->named_parameters()) {
        if (!seen.insert(named.value().unsafeGetTensorImpl()).second) continue;
        parameters.push_back(named.value());
        found[path + "." + named.key()] = named.value().detach();
      }
    }
  }
  auto optimizer = OptimizerOf(parameters);
  std::vector<at::Tensor> losses;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const Batch batch = BatchOf(way, step);
    Tensors x;
    for (const ModelLayer& layer : layers) x = layer.forward(x, batch);
    x[0].backward();
    torch::nn::utils::clip_grad_norm_(parameters, kMostNorm);
    optimizer.step();
    losses.push_back(x[0].detach());
  }
  found["losses"] = at::stack(losses);
  return found;
}

PipelineOptions OptionsOf(const Way& way, const Ranks& ranks) {
  const int stages = way.stages == 0 ? ranks.size() : way.stages;
  return {.stages = stages,
          .chunks = way.parts == 0 ? 1 : way.parts / stages,
          .split = way.split,
          .checkpoint = CheckpointPolicy::Parse(way.checkpoint)};
}

Findings Train(Ranks& ranks, const Way& way) {
  const PipelineOptions options = OptionsOf(way, ranks);
  // The second pipeline gets what the first begins with.
  const int pipelines = ranks.size() / options.stages;
  ModelAsLayers model = LayersOfSmallModel(way.model, 1 + ranks.rank() % pipelines);
  const Pieces pieces{.rows = way.rows, .weight = model.weight};
  Pipeline pipeline(std::move(model.layers), ranks, options);
  auto optimizer = OptimizerOf(pipeline.model().parameters());
  std::vector<at::Tensor> losses;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const Launch among{.rank = pipeline.pipeline(), .size = pipeline.pipelines()};
    losses.push_back(pipeline.AccumulateGradients(RowsOf(BatchOf(way, step), among), pieces));
    pipeline.ClipNorm(kMostNorm);
    optimizer.step();
  }
  Findings found = ParametersOf(pipeline.model());
  found["losses"] = at::stack(losses);
  return found;
}

/// Of two calls in one step.
Findings GradientsOfTwoCalls(Ranks& ranks) {
  ModelAsLayers model = LayersOfSmallModel("gpt", 1);
  Pipeline pipeline(std::move(model.layers), ranks, {.stages = 2});
  const Launch among{.rank = pipeline.pipeline(), .size = pipeline.pipelines()};
  for (const int step : {0, 1}) {
    pipeline.AccumulateGradients(RowsOf(WholeBatch("gpt", step), among),
                                 {.rows = 3, .weight = model.weight});
  }
  Findings found;
  for (const auto& named : pipeline.model().named_parameters()) {
    found["two calls: " + named.key()] = named.value().grad();
  }
  return found;
}

const RankTaskNamed kTrain("pipeline", [](const Launch& launch, const auto&) {
  Ranks ranks(launch);
  Findings findings = GradientsOfTwoCalls(ranks);
  for (const Way& way : kWays) {
    for (const auto& [name, value] : Train(ranks, way)) findings[way.name + ": " + name] = value;
  }
  return findings;
});

TEST(Pipeline, EqualsOneRankOnTheWholeBatch) {
  Findings right;
  for (const Way& way : kWays) {
    for (const auto& [name, value] : TrainPlainly(way)) right[way.name + ": " + name] = value;
  }
  const auto model = SmallModel("gpt", 1);
  for (const int step : {0, 1}) model->Loss(WholeBatch("gpt", step)).backward();
  for (const auto& named : model->named_parameters()) {
    right["two calls: " + named.key()] = named.value().grad();
  }
  for (const int size : SizesToTry()) {
    const auto outcomes = RunRanks({.task = "pipeline", .size = size});
    std::set<std::string> missing;
    for (const auto& [name, value] : right) missing.insert(name);
    for (int rank = 0; rank < size; ++rank) {
      ASSERT_TRUE(outcomes[rank].good()) << outcomes[rank].error;
      for (const auto& [name, value] : outcomes[rank].findings) {
        // Of zeros there are no parts.
        EXPECT_TRUE(value.equal(right.at(name)) || RelativeError(value, right.at(name)) < 1e-6)
            << name << ", rank " << rank << " of " << size;
        missing.erase(name);
      }
    }
    EXPECT_TRUE(missing.empty()) << "no rank has " << *missing.begin();
    for (const Way& way : kWays) {
      if (way.model != "deep gpt" || way.stages != 0) continue;
      const std::string tied = way.name + ": tokens.weight";
      EXPECT_TRUE(outcomes.front().findings.at(tied).equal(outcomes.back().findings.at(tied)));
      // Each has its own.
      EXPECT_FALSE(outcomes.back().findings.contains(way.name + ": positions.weight"));
      EXPECT_FALSE(outcomes.front().findings.contains(way.name + ": norm.weight"));
    }
  }
}

/// Rank 2 throws in the second step.
const RankTaskNamed kFault("fault in a pipeline", [](const Launch& launch, const auto&) {
  Ranks ranks(launch, {.time_limit = kFaultLimit});
  ModelLayers layers = SmallModel("gpt", 1)->AsLayers();
  int calls = 0;
  for (ModelLayer& layer : layers) {
    layer.forward = [&, forward = layer.forward](const Tensors& given, const Batch& rows) {
      if (launch.rank == 2 && ++calls == 5) throw std::runtime_error("an error of its own");
      return forward(given, rows);
    };
  }
  Pipeline pipeline(std::move(layers), ranks);
  for (int step = 0; step < 3; ++step) {
    ranks.Doing("step " + std::to_string(step));
    pipeline.AccumulateGradients(WholeBatch("gpt", 0), {.rows = 2});
  }
  return Findings{};
});

TEST(Pipeline, ARankThatThrowsIsNamedByTheOthers) {
  const auto outcomes = RunRanks({.task = "fault in a pipeline", .size = 4});
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_FALSE(outcomes[rank].late);
    const std::string said = rank == 2 ? "an error of its own" : "rank 2 has left";
    EXPECT_NE(outcomes[rank].error.find(said), std::string::npos) << outcomes[rank].error;
  }
}

TEST(Pipeline, OneAloneTrainsAsEver) {
  Ranks alone;
  for (const Way& way : kWays) {
    if (way.stages != 0 || way.rows != 3) continue;
    Way one = way;
    one.parts = 0;
    const Findings right = TrainPlainly(way);
    const Findings found = Train(alone, one);
    EXPECT_EQ(found.size(), right.size());
    for (const auto& [name, value] : found) {
      EXPECT_LT(RelativeError(value, right.at(name)), 1e-6) << way.name << ": " << name;
    }
  }
}

}  // namespace
}  // namespace plimsoll::train::pipeline_test
