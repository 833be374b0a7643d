#include "train/parallel/sharded/sharded.h"

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/container/modulelist.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "train/common/evaluating.h"
#include "train/common/metrics.h"
#include "train/light/lora.h"
#include "train/parallel/ranks/broadcast_model.h"

namespace plimsoll::train {
namespace {

namespace autograd = torch::autograd;

/// The modules of its blocks: a list that has as many.
std::vector<std::shared_ptr<torch::nn::Module>> BlocksOf(const torch::nn::Module& module,
                                                         const Checkpointable& checkpointable) {
  for (const auto& child : module.children()) {
    const auto* list = child->as<torch::nn::ModuleListImpl>();
    const bool blocks =
        list != nullptr && static_cast<int>(list->size()) == checkpointable.checkpoint_blocks();
    if (blocks) return {list->begin(), list->end()};
  }
  return {};
}

struct Piece {
  Batch rows;
  double weight = 0;
};

/// Those with something to learn from.
std::vector<Piece> PiecesOf(const Batch& batch, const Pieces& pieces) {
  TORCH_CHECK(pieces.rows >= 1, "a piece has at least one row");
  std::vector<Piece> found;
  for (std::int64_t begin = 0; begin < batch.size(); begin += pieces.rows) {
    Piece piece{batch.Rows(begin, std::min(begin + pieces.rows, batch.size()))};
    piece.weight = WeightOf(piece.rows, pieces);
    if (piece.weight > 0) found.push_back(std::move(piece));
  }
  return found;
}

/// For a rank that has no rows left while others have: it must take part, whatever it computes. In
/// evaluation, so that nothing is learnt from it.
Batch OneRow(const Batch& batch) {
  if (batch.size() > 0) return batch.Rows(0, 1);
  Batch row;
  for (const at::Tensor& tensor : batch.tensors) {
    std::vector<std::int64_t> sizes = tensor.sizes().vec();
    sizes[0] = 1;
    row.tensors.push_back(at::zeros(sizes, tensor.options()));
  }
  return row;
}

}  // namespace

/// Lives in the parameter.
class Sharded::Hook : public autograd::PostAccumulateGradHook {
 public:
  Hook(Sharded& owner, std::size_t group, std::size_t parameter)
      : owner_(owner), group_(group), parameter_(parameter) {}

  void operator()(const at::Tensor& /*parameter*/) override {
    owner_.TakeGradient(group_, parameter_);
  }

 private:
  Sharded& owner_;
  std::size_t group_;
  std::size_t parameter_;
};

/// Gathers the parameters of a block for its forward, releases them after it, and has them gathered
/// again when backward comes to the block's result.
class Sharded::Blocks : public BlockWatcher {
 public:
  explicit Blocks(Sharded& owner) : owner_(owner) {}

  void Enter(const Checkpointable& module, CheckpointPolicy::Range blocks,
             bool /*in_chain*/) override {
    for (int i = blocks.begin; i < blocks.end; ++i) owner_.GatherBlock({&module, i});
    owner_.BeginBlock({&module, blocks.end});
  }

  void Leave(const Checkpointable& module, CheckpointPolicy::Range blocks,
             const at::Tensor& result) override {
    for (int i = blocks.begin; i < blocks.end; ++i) owner_.ReleaseBlock({&module, i});
    if (!result.requires_grad()) return;
    result.register_hook([&owner = owner_, &module, blocks](const at::Tensor& gradient) {
      for (int i = blocks.begin; i < blocks.end; ++i) owner.GatherBlock({&module, i});
      owner.BeginBlock({&module, blocks.begin - 1});
      return gradient;
    });
  }

 private:
  Sharded& owner_;
};

Sharded::Sharded(torch::nn::Module& model, Ranks& ranks, const ShardedOptions& options)
    : model_(model), ranks_(ranks), shard_(options.shard), ahead_(options.ahead) {
  TORCH_CHECK(options.group >= 1, "a group of ", options.group, " bytes can hold no parameter.");
  BroadcastModel(model, ranks);
  MakeGroups(model, options);
  TORCH_CHECK(!groups_.empty(), "the model has no parameter that is trained.");
  complete_.resize(groups_.size());
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const auto& parameters = groups_[i]->parameters();
    for (std::size_t j = 0; j < parameters.size(); ++j) {
      autograd::impl::set_post_acc_grad_hooks(parameters[j], std::make_unique<Hook>(*this, i, j));
    }
  }
}

Sharded::~Sharded() {
  for (const auto& group : groups_) {
    for (const at::Tensor& parameter : group->parameters()) {
      autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
    }
  }
}

void Sharded::MakeGroups(torch::nn::Module& model, const ShardedOptions& options) {
  std::set<const void*> in_block;
  std::vector<std::pair<BlockKey, std::vector<at::Tensor>>> blocks(1);
  // The model itself need not be in a shared_ptr.
  std::vector<const torch::nn::Module*> modules{&model};
  for (const auto& module : model.modules(/*include_self=*/false)) modules.push_back(module.get());
  for (const torch::nn::Module* module : modules) {
    const auto* checkpointable = dynamic_cast<const Checkpointable*>(module);
    if (checkpointable == nullptr) continue;
    int number = 0;
    for (const auto& block : BlocksOf(*module, *checkpointable)) {
      auto& own =
          blocks.emplace_back(BlockKey{checkpointable, number++}, std::vector<at::Tensor>{}).second;
      for (const at::Tensor& parameter : TrainedParameters(*block)) {
        // A block within a block, or one that shares its parameters: the first has them.
        if (in_block.insert(parameter.unsafeGetTensorImpl()).second) own.push_back(parameter);
      }
    }
  }
  for (const at::Tensor& parameter : TrainedParameters(model)) {
    if (!in_block.contains(parameter.unsafeGetTensorImpl())) blocks[0].second.push_back(parameter);
  }
  for (const auto& [key, parameters] : blocks) AddGroups(key, parameters, options);
}

void Sharded::AddGroups(const BlockKey& block, std::vector<at::Tensor> parameters,
                        const ShardedOptions& options) {
  const auto kind = [&](const at::Tensor& one) { return options.kind ? options.kind(one) : 0; };
  std::stable_sort(parameters.begin(), parameters.end(),
                   [&](const auto& a, const auto& b) { return kind(a) < kind(b); });
  const GroupForm form{.shard = options.shard,
                       .compute_dtype = options.compute_dtype,
                       .send_bf16 = options.send_bf16,
                       .offload = options.offload};
  std::vector<at::Tensor> group;
  Bytes bytes = 0;
  const auto close = [&] {
    if (group.empty()) return;
    groups_of_[block].push_back(groups_.size());
    kinds_.push_back(kind(group[0]));
    groups_.push_back(std::make_unique<FlatGroup>(std::move(group), ranks_, form));
    group.clear();
    bytes = 0;
  };
  for (const at::Tensor& parameter : parameters) {
    const bool other = !group.empty() && (group[0].dtype() != parameter.dtype() ||
                                          group[0].device() != parameter.device() ||
                                          kind(group[0]) != kind(parameter));
    if (other || bytes >= options.group) close();
    group.push_back(parameter);
    bytes += static_cast<Bytes>(parameter.nbytes());
  }
  close();
}

std::vector<at::Tensor> Sharded::parts() const {
  std::vector<at::Tensor> parts;
  for (const auto& group : groups_) parts.push_back(group->part());
  return parts;
}

std::vector<at::Tensor> Sharded::parts(int kind) const {
  std::vector<at::Tensor> parts;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (kinds_[i] == kind) parts.push_back(groups_[i]->part());
  }
  return parts;
}

void Sharded::GatherBlock(const BlockKey& block) {
  const auto found = groups_of_.find(block);
  if (found == groups_of_.end()) return;
  for (const std::size_t group : found->second) groups_[group]->Gather();
}

void Sharded::BeginBlock(const BlockKey& block) {
  const auto found = groups_of_.find(block);
  if (!ahead_ || found == groups_of_.end()) return;
  for (const std::size_t group : found->second) groups_[group]->BeginGather();
}

void Sharded::ReleaseBlock(const BlockKey& block) {
  const auto found = groups_of_.find(block);
  if (found == groups_of_.end()) return;
  for (const std::size_t group : found->second) groups_[group]->Release();
}

void Sharded::TakeGradient(std::size_t group, std::size_t parameter) {
  if (!groups_[group]->TakeGradient(parameter, counts_)) return;
  // All that needs these parameters in this backward is done.
  groups_[group]->Release();
  complete_[group] = true;
  std::size_t ready = begun_;
  while (ready > 0 && complete_[ready - 1]) --ready;
  if (send_) BeginSums(ready);
}

/// Two at a time, so that whole gradients do not pile up.
void Sharded::BeginSums(std::size_t down_to) {
  constexpr std::size_t kAtOnce = 2;
  while (begun_ > down_to) {
    if (on_their_way_.size() == kAtOnce) {
      groups_[on_their_way_.front()]->FinishSum();
      on_their_way_.pop_front();
    }
    --begun_;
    groups_[begun_]->BeginSum();
    on_their_way_.push_back(begun_);
  }
}

void Sharded::ForgetPass() {
  for (const auto& group : groups_) group->NewPass();
  std::fill(complete_.begin(), complete_.end(), false);
  begun_ = groups_.size();
  on_their_way_.clear();
}

void Sharded::Pass(const std::function<void()>& forward_and_backward) {
  ForgetPass();
  if (shard_ == Shard::kParameters) {
    GatherBlock({});
  } else {
    // Where a step was abandoned. All of them, since not every rank has rows for all blocks.
    GatherAll();
  }
  forward_and_backward();
  // Those without a gradient too.
  if (send_) BeginSums(0);
  for (const std::size_t group : on_their_way_) groups_[group]->FinishSum();
  on_their_way_.clear();
  for (const auto& group : groups_) group->Release();
}

at::Tensor Sharded::Forward(const LossFunction& loss, const Batch& rows) {
  Blocks blocks(*this);
  const WatchBlocks watch(blocks);
  return loss(rows);
}

at::Tensor Sharded::Backward(const LossFunction& loss, const Batch& rows, const Pieces& pieces,
                             double share) {
  const at::Tensor value = Forward(loss, rows) * share;
  (pieces.scale ? pieces.scale(value) : value).backward();
  return value.detach();
}

/// What all ranks have together.
struct Sharded::Plan {
  double weight = 0;
  /// The most that a rank has to make.
  std::size_t passes = 0;
};

Sharded::Plan Sharded::PlanOfAll(double weight, std::size_t passes) {
  // A trial is made with any batch.
  if (alone_) return {weight, std::max<std::size_t>(passes, 1)};
  at::Tensor all = at::zeros({ranks_.size() + 1}, at::kDouble);
  all[ranks_.rank()] = static_cast<double>(passes);
  all[ranks_.size()] = weight;
  ranks_.Sum(all);
  weight = all[ranks_.size()].item<double>();
  TORCH_CHECK(weight > 0, "there is nothing to learn from in this batch: its weight is ", weight);
  return {weight, static_cast<std::size_t>(all.narrow(0, 0, ranks_.size()).max().item<double>())};
}

at::Tensor Sharded::AddAll(const LossFunction& loss, const Batch& batch, const Pieces& pieces) {
  const std::vector<Piece> mine = PiecesOf(batch, pieces);
  double weight = 0;
  for (const Piece& piece : mine) weight += piece.weight;
  const Plan plan = PlanOfAll(weight, mine.size());
  const FlatGroup& any = *groups_[0];
  at::Tensor sum = at::zeros({}, at::TensorOptions(any.device()).dtype(any.part().scalar_type()));
  for (std::size_t pass = 0; pass < plan.passes; ++pass) {
    send_ = shard_ != Shard::kOptimizerState || pass + 1 == plan.passes;
    counts_ = pass < mine.size();
    Pass([&] {
      if (counts_) {
        const bool mean = pieces.reduction != Reduction::kSum;
        sum += Backward(loss, mine[pass].rows, pieces, mean ? mine[pass].weight / plan.weight : 1);
      } else if (shard_ == Shard::kParameters) {
        // Blocks are gathered by all ranks, or by none.
        const Evaluating evaluating(model_);
        const UncountedMetrics uncounted;
        Backward(loss, OneRow(batch), pieces, 0);
      }
    });
  }
  if (!alone_) ranks_.Sum(sum);
  return sum;
}

at::Tensor Sharded::AccumulateGradients(const LossFunction& loss, const Batch& batch,
                                        const Pieces& pieces) {
  return ranks_.Guard([&] { return AddAll(loss, batch, pieces); });
}

double Sharded::Evaluate(const LossFunction& loss, const Batch& batch, const Pieces& pieces) {
  const at::NoGradGuard no_grad;
  return ranks_.Guard([&] {
    const std::vector<Piece> mine = PiecesOf(batch, pieces);
    double weight = 0;
    for (const Piece& piece : mine) weight += piece.weight;
    const Plan plan = PlanOfAll(weight, mine.size());
    const bool mean = pieces.reduction != Reduction::kSum;
    send_ = false;
    double sum = 0;
    for (std::size_t pass = 0; pass < plan.passes; ++pass) {
      Pass([&] {
        if (pass < mine.size()) {
          const double share = mean ? mine[pass].weight / plan.weight : 1;
          sum += share * Forward(loss, mine[pass].rows).item<double>();
        } else if (shard_ == Shard::kParameters) {
          const UncountedMetrics uncounted;
          Forward(loss, OneRow(batch));
        }
      });
    }
    return alone_ ? sum : ranks_.Sum(sum);
  });
}

double Sharded::ClipNorm(double most) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const auto& group : groups_) {
    if (group->part().grad().defined()) gradients.push_back(group->part().grad());
  }
  double squares = 0;
  if (!gradients.empty()) {
    // Asked for once: a GPU is waited for.
    const at::Tensor norms = at::stack(at::_foreach_norm(gradients)).to(at::kDouble);
    squares = norms.dot(norms).item<double>();
  }
  const double norm = std::sqrt(alone_ ? squares : ranks_.Sum(squares));
  // As torch's clip_grad_norm_.
  const double factor = most / (norm + 1e-6);
  if (factor < 1 && !gradients.empty()) at::_foreach_mul_(gradients, factor);
  return norm;
}

void Sharded::GatherAll() {
  for (const auto& group : groups_) group->BeginGather();
  for (const auto& group : groups_) group->Gather();
}

void Sharded::Step(torch::optim::Optimizer& optimizer) {
  optimizer.step();
  PartsChanged();
}

void Sharded::PartsChanged() {
  if (shard_ == Shard::kParameters) return;
  for (const auto& group : groups_) group->Changed();
  GatherAll();
}

void Sharded::ClearGradients() {
  for (const auto& group : groups_) group->DropGradients();
}

void Sharded::Abandon() {
  ForgetPass();
  for (const auto& group : groups_) group->Abandon();
}

Sharded::Whole::Whole(Sharded& sharded) : sharded_(sharded) { sharded.GatherAll(); }

Sharded::Whole::~Whole() {
  for (const auto& group : sharded_.groups_) group->Release();
}

Sharded::Alone::Alone(Sharded& sharded) : sharded_(sharded) {
  for (const auto& group : sharded.groups_) group->BeginAlone();
  sharded.alone_ = true;
}

Sharded::Alone::~Alone() {
  sharded_.alone_ = false;
  sharded_.ForgetPass();
  for (const auto& group : sharded_.groups_) group->EndAlone();
}

Bytes Sharded::parameter_bytes() const {
  Bytes bytes = 0;
  for (const auto& group : groups_) bytes += group->parameter_bytes();
  return bytes;
}

Bytes Sharded::gradient_bytes() const {
  Bytes bytes = 0;
  for (const auto& group : groups_) bytes += group->gradient_bytes();
  return bytes;
}

}  // namespace plimsoll::train
