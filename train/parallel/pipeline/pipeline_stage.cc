#include "train/parallel/pipeline/pipeline_stage.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

namespace plimsoll::train {
namespace {

/// Which rank has each layer.
std::vector<int> RanksOfLayers(std::size_t layers, const std::vector<int>& split,
                               const PipelineShape& shape) {
  TORCH_CHECK(std::cmp_equal(split.size(), shape.parts()), "a pipeline of ", shape.stages,
              " stages with ", shape.chunks, " chunks each has ", shape.parts(), " parts, not ",
              split.size(), ".");
  std::vector<int> ranks;
  for (std::size_t part = 0; part < split.size(); ++part) {
    TORCH_CHECK(split[part] >= 1, "each part of a pipeline has a layer; part ", part, " has ",
                split[part], ".");
    ranks.insert(ranks.end(), static_cast<std::size_t>(split[part]),
                 static_cast<int>(part) % shape.stages);
  }
  TORCH_CHECK(ranks.size() == layers, "the parts of the pipeline have ", ranks.size(),
              " layers together, the model has ", layers, ".");
  return ranks;
}

}  // namespace

std::vector<int> EvenSplit(int layers, int parts) {
  TORCH_CHECK(parts >= 1 && layers >= parts, layers, " layers cannot be cut into ", parts,
              " parts.");
  std::vector<int> split;
  for (int i = 0; i < parts; ++i) split.push_back(layers * (i + 1) / parts - layers * i / parts);
  return split;
}

void StageModel::Add(const ModelLayer& layer) {
  RegisterLayer(*this, layer);
  ++layers_;
}

PipelineStage::PipelineStage(ModelLayers layers, const std::vector<int>& split,
                             const PipelineShape& shape, int rank, c10::Device device,
                             const CheckpointPolicy& checkpoint)
    : rank_(rank), device_(device) {
  FindTied(layers, RanksOfLayers(layers.size(), split, shape));
  int first = 0;
  for (int part = 0; part < shape.parts(); ++part) {
    const auto begin = layers.begin() + first;
    const int count = split[static_cast<std::size_t>(part)];
    if (part % shape.stages == rank) {
      chunks_.push_back({first, model_->checkpoint_blocks(), {begin, begin + count}});
      for (const ModelLayer& layer : chunks_.back().layers) model_->Add(layer);
    }
    first += count;
  }
  model_->set_checkpoint_policy(OwnPart(checkpoint));
  model_->to(device);
}

CheckpointPolicy PipelineStage::OwnPart(const CheckpointPolicy& of_whole) const {
  std::vector<CheckpointPolicy::Range> own;
  for (const Chunk& chunk : chunks_) {
    const auto count = static_cast<int>(chunk.layers.size());
    for (const auto& group : of_whole.Part(chunk.first_of_all, count).Groups(count)) {
      if (group.checkpointed) own.push_back({chunk.first + group.begin, chunk.first + group.end});
    }
  }
  return CheckpointPolicy::Plan(std::move(own));
}

void PipelineStage::FindTied(const ModelLayers& layers, const std::vector<int>& rank_of) {
  std::map<const void*, std::set<int>> holders;
  std::vector<at::Tensor> own;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (const at::Tensor& parameter : layers[i].parameters()) {
      auto& found = holders[parameter.unsafeGetTensorImpl()];
      if (found.insert(rank_of[i]).second && rank_of[i] == rank_) own.push_back(parameter);
    }
  }
  for (const at::Tensor& parameter : own) {
    const auto& found = holders.at(parameter.unsafeGetTensorImpl());
    if (found.size() > 1) tied_.push_back({parameter, {found.begin(), found.end()}});
  }
}

Tensors PipelineStage::Forward(int chunk, const Tensors& given, const Batch& whole) const {
  const Batch rows = whole.On(device_);
  const auto& [first_of_all, first, layers] = chunks_[static_cast<std::size_t>(chunk)];
  const int count = static_cast<int>(layers.size());
  const auto scope = scope_ ? scope_(rows) : nullptr;
  Tensors x = given;
  for (const auto& group : model_->checkpoint_policy().Part(first, count).Groups(count)) {
    const ModelLayer* begin = &layers[static_cast<std::size_t>(group.begin)];
    const ModelLayer* end = begin + (group.end - group.begin);
    const auto run = [begin, end, rows](Tensors y) {
      for (const ModelLayer* layer = begin; layer != end; ++layer) y = layer->forward(y, rows);
      return y;
    };
    x = group.checkpointed ? Checkpoint(run, x) : run(std::move(x));
  }
  return x;
}

}  // namespace plimsoll::train
