#include "train/parallel/tensor/tensor_parallel.h"

#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>
#include <torch/types.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "train/checkpointing/checkpoint.h"
#include "train/checkpointing/random_state.h"
#include "train/parallel/ranks/broadcast_model.h"
#include "train/parallel/ranks/clip_norm.h"
#include "train/parallel/ranks/collectives.h"

namespace plimsoll::train {
namespace {

void ShareRandomState(c10::Device device, Ranks& ranks) {
  const RandomState state = RandomState::Of(device);
  std::vector<at::Tensor> tensors{state.cpu()};
  if (state.cuda().defined()) tensors.push_back(state.cuda());
  ranks.Broadcast(tensors);
  state.Restore();
}

void CheckIsPlain(const LightLinearImpl& layer) {
  TORCH_CHECK(!layer.has_adapter() && !layer.quantized(),
              "a layer with an adapter, or in 8 bits, cannot be split among ranks.");
}

void CheckIsPlain(const EmbeddingTableImpl& table) {
  const auto& options = table.options;
  TORCH_CHECK(!options.padding_idx() && !options.max_norm() && !options.scale_grad_by_freq() &&
                  !options.sparse(),
              "an embedding with options beside its size cannot be split among ranks.");
}

/// Nothing is changed before all has been looked at.
torch::nn::Module& Checked(Gpt& model, const Ranks& ranks) {
  const GptOptions& options = model.options();
  TORCH_CHECK(options.heads % ranks.size() == 0, "a GPT's ", options.heads,
              " heads cannot be split evenly among ", ranks.size(), " ranks.");
  TORCH_CHECK(options.vocabulary >= ranks.size(), "a GPT's vocabulary of ", options.vocabulary,
              " cannot be split among ", ranks.size(), " ranks.");
  for (GptBlock& block : model.blocks()) {
    for (const LightLinearImpl* layer :
         {&block->qkv(), &block->project(), &block->up(), &block->down()}) {
      CheckIsPlain(*layer);
    }
  }
  return model;
}

/// With groups each as a dimension of its own, the length of a part is in the one after it.
at::Tensor InGroups(const at::Tensor& tensor, std::int64_t dimension, std::int64_t groups) {
  return tensor.unflatten(dimension, {groups, tensor.size(dimension) / groups});
}

/// The product of outputs that are this rank's. What was gathered for it is gathered again in
/// backward instead of being kept.
at::Tensor ColumnProduct(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         Outside outside, Ranks& ranks) {
  const auto product = [weight, bias, outside, &ranks](const at::Tensor& given) {
    return at::linear(EnterSplit(given, outside, ranks), weight, bias);
  };
  return outside == Outside::kSequence ? CheckpointOne(product, x) : product(x);
}

at::Tensor RowProduct(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      Outside outside, Ranks& ranks) {
  const at::Tensor sum = LeaveSplit(at::linear(x, weight), outside, ranks);
  return bias.defined() ? sum + bias.to(sum.scalar_type()) : sum;
}

}  // namespace

TensorParallel::TensorParallel(torch::nn::Module& model, Ranks& ranks,
                               const TensorParallelOptions& options)
    : model_(model),
      ranks_(ranks),
      outside_(options.outside),
      split_parameters_(std::make_shared<std::set<const void*>>()) {
  const std::vector<at::Tensor> parameters = model.parameters();
  if (ranks.alone() || parameters.empty()) return;
  BroadcastModel(model, ranks);
  ShareRandomState(parameters.front().device(), ranks);
  if (outside_ == Outside::kSequence) SumGradientsOfParts();
}

TensorParallel::TensorParallel(Gpt& model, Ranks& ranks, const TensorParallelOptions& options)
    : TensorParallel(Checked(model, ranks), ranks, options) {
  if (ranks.alone()) return;
  for (GptBlock& block : model.blocks()) {
    SplitColumns(block->qkv(), {.groups = 3});
    SplitRows(block->project());
    SplitColumns(block->up());
    SplitRows(block->down());
  }
  SplitTable(model.tokens(), model.loss().get());
  SplitPositions(model.positions());
  Add([&model, rank = ranks.rank(), outside = outside_](bool split) {
    DropoutParts parts;
    if (split) parts.heads = rank;
    if (split && outside == Outside::kSequence) parts.positions = rank;
    model.set_dropout_parts(parts);
  });
}

/// A parameter that is not split sees this rank's positions only.
void TensorParallel::SumGradientsOfParts() {
  for (const at::Tensor& parameter : model_.parameters()) {
    if (!parameter.requires_grad()) continue;
    // Of one backward, before it is added to what is there.
    parameter.register_hook([&ranks = ranks_, split = split_parameters_,
                             key = parameter.unsafeGetTensorImpl()](const at::Tensor& gradient) {
      return split->contains(key) ? gradient : SumOverRanks(gradient, ranks);
    });
  }
}

void TensorParallel::Add(Switch layer) {
  layer(/*split=*/true);
  layers_.push_back(std::move(layer));
}

void TensorParallel::SplitColumns(LightLinearImpl& layer, const Columns& columns) {
  CheckIsPlain(layer);
  TORCH_CHECK(!columns.gather || (outside_ == Outside::kWhole && columns.groups == 1),
              "outputs are gathered only in one group, and where the sequence is not split.");
  if (ranks_.alone()) return;
  const std::int64_t outputs = layer.weight.size(0);
  SplitParameter(layer.weight, 0, columns.groups);
  if (layer.bias.defined()) SplitParameter(layer.bias, 0, columns.groups);
  const auto product = [&ranks = ranks_, outside = outside_, outputs, gather = columns.gather](
                           const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
    const at::Tensor part = ColumnProduct(x, weight, bias, outside, ranks);
    return gather ? GatherFromRanks(part, -1, outputs, Then::kSame, ranks) : part;
  };
  Add([&layer, product](bool split) {
    layer.set_product(split ? LightLinearImpl::Product(product) : nullptr);
  });
}

void TensorParallel::SplitRows(LightLinearImpl& layer) {
  CheckIsPlain(layer);
  if (ranks_.alone()) return;
  SplitParameter(layer.weight, 1);
  const auto product = [&ranks = ranks_, outside = outside_](
                           const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
    return RowProduct(x, weight, bias, outside, ranks);
  };
  Add([&layer, product](bool split) {
    layer.set_product(split ? LightLinearImpl::Product(product) : nullptr);
  });
}

void TensorParallel::SplitTable(EmbeddingTableImpl& table, VocabularyLossImpl* loss) {
  CheckIsPlain(table);
  if (ranks_.alone()) return;
  const std::int64_t rows = table.weight.size(0);
  SplitParameter(table.weight, 0);
  const auto lookup = [&ranks = ranks_, outside = outside_, rows](const at::Tensor& numbers,
                                                                  const at::Tensor& weight) {
    return LookUp(numbers, weight, rows, outside, ranks);
  };
  Add([&table, lookup](bool split) {
    table.set_lookup(split ? EmbeddingTableImpl::Lookup(lookup) : nullptr);
  });
  if (loss == nullptr) return;
  Add([loss, vocabulary = VocabularyOver(ranks_, rows, outside_)](bool split) {
    loss->set_split(split ? vocabulary : nullptr);
  });
}

void TensorParallel::SplitPositions(EmbeddingTableImpl& table) {
  CheckIsPlain(table);
  if (ranks_.alone() || outside_ == Outside::kWhole) return;
  const auto lookup = [&ranks = ranks_](const at::Tensor& numbers, const at::Tensor& weight) {
    CheckSequence(numbers.size(-1), ranks);
    const Part part = PartOf(numbers.size(-1), ranks);
    return at::embedding(weight, numbers.narrow(-1, part.begin, part.size));
  };
  Add([&table, lookup](bool split) {
    table.set_lookup(split ? EmbeddingTableImpl::Lookup(lookup) : nullptr);
  });
}

const TensorParallel::Split* TensorParallel::Find(const at::Tensor& parameter) const {
  const auto found = std::ranges::find_if(
      splits_, [&](const Split& split) { return split.parameter.is_same(parameter); });
  return found == splits_.end() ? nullptr : &*found;
}

void TensorParallel::SplitParameter(const at::Tensor& parameter, std::int64_t dimension,
                                    std::int64_t groups) {
  const std::int64_t length = parameter.size(dimension);
  TORCH_CHECK(!IsSplit(parameter), "a parameter of the model is split twice.");
  TORCH_CHECK(groups >= 1 && length % groups == 0 && length / groups >= ranks_.size(),
              "a layer with ", length, dimension == 0 ? " outputs" : " inputs", " in ", groups,
              groups == 1 ? " group" : " groups", " cannot be split among ", ranks_.size(),
              " ranks.");
  splits_.push_back({parameter, dimension, groups, length});
  split_parameters_->insert(parameter.unsafeGetTensorImpl());
  parameter.mutable_grad() = at::Tensor();
  // A copy, so that the whole is freed.
  parameter.set_data(OwnPart(parameter, parameter.detach()).clone());
}

at::Tensor TensorParallel::OwnPart(const at::Tensor& parameter, const at::Tensor& whole) const {
  const Split* split = Find(parameter);
  if (split == nullptr) return whole;
  const auto [begin, size] = PartOf(split->length / split->groups, ranks_);
  return InGroups(whole, split->dimension, split->groups)
      .narrow(split->dimension + 1, begin, size)
      .flatten(split->dimension, split->dimension + 1);
}

at::Tensor TensorParallel::WholeOf(const at::Tensor& parameter, const at::Tensor& part) const {
  const Split* split = Find(parameter);
  if (split == nullptr) return part;
  const at::NoGradGuard no_grad;
  return GatherFromRanks(InGroups(part, split->dimension, split->groups), split->dimension + 1,
                         split->length / split->groups, Then::kSame, ranks_)
      .flatten(split->dimension, split->dimension + 1)
      .contiguous();
}

double TensorParallel::ClipNorm(double most) {
  NormPart split{.over = {&ranks_}};
  NormPart same;
  for (const at::Tensor& parameter : model_.parameters()) {
    (IsSplit(parameter) ? split : same).parameters.push_back(parameter);
  }
  return train::ClipNorm({split, same}, most);
}

TensorParallel::WholeModel::WholeModel(TensorParallel& parallel) : parallel_(parallel) {
  std::vector<at::Tensor> wholes;
  for (const Split& split : parallel.splits_) {
    parts_.push_back(split.parameter.tensor_data());
    wholes.push_back(parallel.WholeOf(split.parameter, parts_.back()));
  }
  // Nothing has changed if memory runs out above.
  for (std::size_t i = 0; i < wholes.size(); ++i) {
    parallel.splits_[i].parameter.set_data(wholes[i]);
  }
  for (const Switch& layer : parallel.layers_) layer(/*split=*/false);
  // It has copies of the weights as they were.
  at::autocast::clear_cache();
}

TensorParallel::WholeModel::~WholeModel() {
  for (const Switch& layer : parallel_.layers_) layer(/*split=*/true);
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const at::Tensor& parameter = parallel_.splits_[i].parameter;
    parts_[i].copy_(parallel_.OwnPart(parameter, parameter.detach()));
    parameter.set_data(parts_[i]);
  }
  at::autocast::clear_cache();
}

}  // namespace plimsoll::train
