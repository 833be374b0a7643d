#include "train/program/split_model.h"

#include <map>

#include "train/data/loader.h"
#include "train/models/gpt.h"
#include "train/models/model_layers.h"
#include "train/parallel/pipeline/stage_split.h"

namespace plimsoll::train {
namespace {

/// By what a row takes in each layer. Bytes decide, not times, and not the optimizer: a run that
/// goes on must be cut as it was.
std::vector<int> MeasuredSplit(const ModelLayers& layers, const Flags& flags,
                               const std::shared_ptr<const Source>& source) {
  const int parts = flags.pipeline * flags.chunks;
  TORCH_CHECK(std::cmp_greater_equal(layers.size(), parts), "--pipeline: the ", flags.model,
              " has ", layers.size(), " layers, too few for ", parts, " parts");
  // An interleaved pipeline has several parts on a rank, which bytes alone do not tell how to cut.
  if (flags.chunks > 1 || flags.trainer.ranks->rank() != 0) return {};
  const Batch row = Loader(source, {.batch = 1, .shuffle = false, .workers = 0}).Next();
  const auto figures =
      MeasureLayers(layers, row.To(flags.trainer.device), {.device = flags.trainer.device});
  return SplitStages(figures, {.stages = parts, .micro_batches = 4 * parts});
}

SplitModel AsPipeline(const std::shared_ptr<TrainModel>& model, Flags& flags,
                      const std::shared_ptr<const Source>& source) {
  const ModelLayers layers = model->AsLayers();
  auto pipeline =
      std::make_shared<Pipeline>(layers, *flags.trainer.ranks,
                                 PipelineOptions{.stages = flags.pipeline,
                                                 .chunks = flags.chunks,
                                                 .split = MeasuredSplit(layers, flags, source),
                                                 .device = flags.trainer.device});
  flags.trainer.team.pipeline = pipeline;
  return {pipeline->shared_model(), pipeline->pipeline(), pipeline->pipelines()};
}

SplitModel InTensorParts(const std::shared_ptr<TrainModel>& model, Flags& flags) {
  const auto gpt = std::dynamic_pointer_cast<Gpt>(model);
  Ranks& ranks = *flags.trainer.ranks;
  const int shares = ranks.size() / flags.tensor;
  TeamOptions& team = flags.trainer.team;
  team.mesh = std::make_shared<Mesh>(ranks, MeshSizes{.data = shares, .tensor = flags.tensor});
  team.tensor = std::make_shared<TensorParallel>(*gpt, team.mesh->along(Dimension::kTensor));
  return {model, team.mesh->coordinate(Dimension::kData), shares};
}

/// Those that a module has, by name.
std::map<std::string, at::Tensor> TensorsOf(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : module.named_parameters()) tensors[item.key()] = item.value();
  for (const auto& item : module.named_buffers()) tensors[item.key()] = item.value();
  return tensors;
}

}  // namespace

void CollectLayers(TrainModel& model, Pipeline& pipeline, Ranks& ranks) {
  const at::NoGradGuard no_grad;
  const auto all = TensorsOf(model);
  const auto own = TensorsOf(pipeline.model());
  at::Tensor owners = at::full({static_cast<std::int64_t>(all.size())}, ranks.size(), at::kInt);
  std::int64_t index = 0;
  for (const auto& [name, tensor] : all) {
    if (own.contains(name)) owners[index] = ranks.rank();
    ++index;
  }
  ranks.Least(owners);
  index = 0;
  for (const auto& [name, tensor] : all) {
    const int owner = owners[index++].item<int>();
    at::Tensor sent = own.contains(name) ? own.at(name).detach().cpu() : tensor.detach();
    ranks.Broadcast({sent}, owner);
  }
}

SplitModel Split(const std::shared_ptr<TrainModel>& model, Flags& flags,
                 const std::shared_ptr<const Source>& source) {
  const Ranks& ranks = *flags.trainer.ranks;
  if (flags.pipeline > 1) return AsPipeline(model, flags, source);
  if (flags.tensor > 1) return InTensorParts(model, flags);
  return {model, ranks.rank(), ranks.size()};
}

}  // namespace plimsoll::train
