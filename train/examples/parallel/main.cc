// A small GPT, trained by as many ranks as a launcher starts, or by one without any: what
// docs/parallel.md shows. The tests run it, and compare the document's blocks with the lines here.
//   parallel [data|agreed|sharded|pipeline|tensor|trainer|stages|heads|devices]
#include <torch/torch.h>

#include <cstdio>
#include <memory>
#include <string>

#include "train/data/loader.h"
#include "train/data/synthetic.h"
#include "train/models/gpt.h"
#include "train/parallel/data_parallel/agreed_gradients.h"
#include "train/parallel/data_parallel/balanced_sampler.h"
#include "train/parallel/data_parallel/data_parallel.h"
#include "train/parallel/pipeline/model_parallel.h"
#include "train/parallel/pipeline/pipeline.h"
#include "train/parallel/pipeline/stage_split.h"
#include "train/parallel/ranks/mesh.h"
#include "train/parallel/ranks/ranks.h"
#include "train/parallel/sharded/sharded.h"
#include "train/parallel/tensor/tensor_parallel.h"
#include "train/trainer/trainer.h"

using namespace plimsoll::train;
using plimsoll::kMiB;

namespace {

// The step's batch has 8 rows in all, however many ranks share them.
constexpr int kRows = 8;
constexpr int kSteps = 10;
const GptOptions kGpt{.vocabulary = 32, .context = 16, .width = 16, .layers = 2, .heads = 2};

void Report(const Ranks& ranks, int step, const torch::Tensor& loss) {
  if (ranks.rank() == 0) std::printf("step %d: loss %.4f\n", step, loss.item<double>());
}

void TrainDataParallel(Gpt& model, Ranks& ranks, const Source& source) {
  BalancedSampler sampler(source, ranks.size(), {.batch = kRows / ranks.size()});
  DataParallel parallel(model, ranks);
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    ranks.Doing("step " + std::to_string(step));
    Batch mine = source.Get(sampler.Next()[ranks.rank()], {});
    optimizer.zero_grad(/*set_to_none=*/false);
    torch::Tensor loss = parallel.AccumulateGradients(
        [&](const Batch& rows) { return model.Loss(rows); }, mine, {.rows = 4});
    optimizer.step();
    Report(ranks, step, loss);
  }
}

void TrainInAgreement(Gpt& model, Ranks& ranks, const Source& source) {
  BalancedSampler sampler(source, ranks.size(), {.batch = kRows / ranks.size()});
  DataParallel parallel(model, ranks);
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  std::int64_t rows_at_once = kRows;
  for (int step = 0; step < kSteps; ++step) {
    Batch mine = source.Get(sampler.Next()[ranks.rank()], {});
    AgreedGradients agreed = AccumulateInAgreement(
        model, ranks, parallel, [&](const Batch& rows) { return model.Loss(rows); }, mine,
        {.rows = rows_at_once});
    rows_at_once = agreed.rows;
    optimizer.step();
    Report(ranks, step, agreed.loss);
  }
}

void TrainSharded(Gpt& model, Ranks& ranks, const Source& source) {
  BalancedSampler sampler(source, ranks.size(), {.batch = kRows / ranks.size()});
  Sharded sharded(model, ranks, {.shard = Shard::kParameters});
  torch::optim::SGD optimizer(sharded.parts(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    Batch mine = source.Get(sampler.Next()[ranks.rank()], {});
    optimizer.zero_grad();
    torch::Tensor loss = sharded.AccumulateGradients(
        [&](const Batch& rows) { return model.Loss(rows); }, mine, {.rows = 4});
    sharded.ClipNorm(1.0);
    sharded.Step(optimizer);
    Report(ranks, step, loss);
  }
}

void TrainPipeline(Ranks& ranks, const Source& source) {
  ModelLayers layers = Gpt(kGpt).AsLayers();
  Batch two = source.Get(std::vector<std::int64_t>{0, 1}, {});
  std::vector<LayerFigures> figures = MeasureLayers(layers, two);
  Pipeline pipeline(std::move(layers), ranks,
                    {.split = SplitStages(figures, {.stages = ranks.size(), .micro_batches = 4})});
  BalancedSampler sampler(source, pipeline.pipelines(), {.batch = kRows / pipeline.pipelines()});
  torch::optim::SGD optimizer(pipeline.model().parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    Batch rows = source.Get(sampler.Next()[pipeline.pipeline()], {});
    optimizer.zero_grad();
    torch::Tensor loss = pipeline.AccumulateGradients(rows, {.rows = 2});
    pipeline.ClipNorm(1.0);
    optimizer.step();
    Report(ranks, step, loss);
  }
}

void TrainWithTrainer(const std::shared_ptr<const Source>& source) {
  torch::manual_seed(1);
  auto model = std::make_shared<Gpt>(kGpt);
  auto loss = [model](const Batch& rows) { return model->Loss(rows); };
  auto ranks = std::make_shared<Ranks>(LaunchFromEnvironment());
  Trainer trainer(model, AdamWForms(model->parameters()), loss,
                  {.budget = kMiB, .ranks = ranks, .team = {.shard = Shard::kParameters}});
  Loader loader(source, {.batch = kRows, .rank = ranks->rank(), .ranks = ranks->size()});
  while (trainer.steps() < kSteps) {
    StepReport report = trainer.Step(loader.Next());
    Report(*ranks, static_cast<int>(report.step), torch::tensor(report.loss));
  }
}

void Train(Trainer& trainer, Loader& loader, const Ranks& ranks) {
  while (trainer.steps() < kSteps) {
    StepReport report = trainer.Step(loader.Next());
    Report(ranks, static_cast<int>(report.step), torch::tensor(report.loss));
  }
}

void TrainStagesWithTrainer(const std::shared_ptr<const Source>& source) {
  torch::manual_seed(1);
  auto ranks = std::make_shared<Ranks>(LaunchFromEnvironment());
  auto pipeline = std::make_shared<Pipeline>(Gpt(kGpt).AsLayers(), *ranks);
  Trainer trainer(pipeline->shared_model(), AdamWForms(pipeline->model().parameters()),
                  /*loss=*/nullptr, {.ranks = ranks, .team = {.pipeline = pipeline}});
  Loader loader(source,
                {.batch = kRows, .rank = pipeline->pipeline(), .ranks = pipeline->pipelines()});
  Train(trainer, loader, *ranks);
}

void TrainHeadsWithTrainer(const std::shared_ptr<const Source>& source) {
  torch::manual_seed(1);
  auto model = std::make_shared<Gpt>(kGpt);
  auto loss = [model](const Batch& rows) { return model->Loss(rows); };
  auto ranks = std::make_shared<Ranks>(LaunchFromEnvironment());
  auto mesh = std::make_shared<Mesh>(*ranks, MeshSizes{.data = 1, .tensor = ranks->size()});
  auto tensor = std::make_shared<TensorParallel>(*model, mesh->along(Dimension::kTensor));
  Trainer trainer(model, AdamWForms(model->parameters()), loss,
                  {.ranks = ranks, .team = {.tensor = tensor, .mesh = mesh}});
  Loader loader(source, {.batch = kRows,
                         .rank = mesh->coordinate(Dimension::kData),
                         .ranks = mesh->size(Dimension::kData)});
  Train(trainer, loader, *ranks);
}

void TrainTensorParallel(Ranks& ranks, const Source& source) {
  Mesh mesh(ranks, {.data = 1, .tensor = ranks.size()});
  BalancedSampler sampler(source, 1, {.batch = kRows});
  torch::manual_seed(1);
  Gpt model(kGpt);
  TensorParallel tensor(model, mesh.along(Dimension::kTensor), {.outside = Outside::kSequence});
  DataParallel data(model, mesh.along(Dimension::kData));
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    Batch mine = source.Get(sampler.Next()[mesh.coordinate(Dimension::kData)], {});
    optimizer.zero_grad(/*set_to_none=*/false);
    torch::Tensor loss = data.AccumulateGradients(
        [&](const Batch& rows) { return model.Loss(rows); }, mine, {.rows = 4});
    tensor.ClipNorm(1.0);
    optimizer.step();
    Report(ranks, step, loss);
  }
  TensorParallel::WholeModel whole(tensor);  // to be saved, loaded or evaluated, as on one rank
}

void ComputeOnSeveralDevices(const std::vector<c10::Device>& devices, const Batch& rows) {
  ModelParallel model(Gpt(kGpt).AsLayers(), devices, rows);
  torch::Tensor loss = model.Loss(rows);
  loss.backward();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string way = argc > 1 ? argv[1] : "data";
    const std::shared_ptr<const Source> source =
        SyntheticText({.size = 80, .context = 16, .vocabulary = 32});
    if (way == "trainer") {
      TrainWithTrainer(source);
      return 0;
    }
    if (way == "stages") {
      TrainStagesWithTrainer(source);
      return 0;
    }
    if (way == "heads") {
      TrainHeadsWithTrainer(source);
      return 0;
    }
    Ranks ranks(LaunchFromEnvironment(), {.time_limit = std::chrono::minutes(2)});
    torch::manual_seed(1);
    Gpt model(kGpt);
    if (way == "tensor") {
      TrainTensorParallel(ranks, *source);
    } else if (way == "pipeline") {
      TrainPipeline(ranks, *source);
    } else if (way == "devices") {
      ComputeOnSeveralDevices({c10::kCPU, c10::kCPU},
                              source->Get(std::vector<std::int64_t>{0, 1}, {}));
    } else if (way == "sharded") {
      TrainSharded(model, ranks, *source);
    } else if (way == "agreed") {
      TrainInAgreement(model, ranks, *source);
    } else {
      TrainDataParallel(model, ranks, *source);
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "parallel: %s\n", error.what());
    return 1;
  }
}
