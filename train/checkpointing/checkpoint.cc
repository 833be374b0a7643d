#include "train/checkpointing/checkpoint.h"

#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <memory>
#include <mutex>
#include <optional>

#include "train/checkpointing/autocast.h"
#include "train/checkpointing/capture.h"
#include "train/checkpointing/random_state.h"
#include "train/checkpointing/saved_tensors.h"

namespace plimsoll::train {
namespace {

thread_local std::shared_ptr<RecomputeWatcher> watching_recomputation;
/// Recomputations nest.
thread_local int recomputing = 0;

/// Something is computed again; tells the watcher, if there is one.
class Recomputing {
 public:
  explicit Recomputing(RecomputeWatcher* watcher) : watcher_(watcher) {
    ++recomputing;
    if (watcher_ != nullptr) watcher_->Begin();
  }
  ~Recomputing() {
    if (watcher_ != nullptr) watcher_->End();
    --recomputing;
  }
  Recomputing(const Recomputing&) = delete;
  Recomputing& operator=(const Recomputing&) = delete;

 private:
  RecomputeWatcher* watcher_;
};

/// Thrown out of the recomputation by the last tensor that is wanted: what follows it need not run.
struct AllRecomputed {};

c10::Device DeviceOf(const Tensors& inputs) {
  for (const at::Tensor& input : inputs) {
    if (input.defined() && input.is_cuda()) return input.device();
  }
  return c10::kCPU;
}

/// One call of Checkpoint: all that it takes to do it again, and what came of that.
class Frame {
 public:
  Frame(std::function<Tensors(const Tensors&)> function, const Tensors& inputs)
      : function_(std::move(function)),
        device_(DeviceOf(inputs)),
        random_(RandomState::Of(device_)),
        drawn_(DrawnInCapture(device_)),
        autocast_(AutocastState::Of(device_.type())),
        watcher_(watching_recomputation) {
    // Made under the outer scope: in a nested checkpoint the inputs are the outer one's to
    // recompute.
    for (const at::Tensor& input : inputs) inputs_.emplace_back(input, false);
  }

  const std::function<Tensors(const Tensors&)>& function() const { return function_; }

  /// After forward: whether the recomputation can have the same random numbers.
  void CheckRepeatable() const {
    TORCH_CHECK(drawn_ == DrawnInCapture(device_),
                "a checkpointed function that draws random numbers cannot be part of a CUDA graph");
  }

  std::size_t Expect(const at::Tensor& tensor) {
    expected_.push_back({tensor.sizes().vec(), tensor.options()});
    return expected_.size() - 1;
  }

  at::Tensor Take(std::size_t slot) {
    const std::lock_guard lock(mutex_);
    if (slot >= recomputed_.size() || !recomputed_[slot].defined()) Recompute();
    return std::exchange(recomputed_[slot], at::Tensor());
  }

  /// A tensor that the recomputation saves.
  void Found(const at::Tensor& tensor) {
    const std::size_t slot = recomputed_.size();
    TORCH_CHECK(slot < expected_.size(), Disagrees(), "it saves more than ", expected_.size(),
                " tensors.", Advice());
    const Expected& want = expected_[slot];
    TORCH_CHECK(tensor.sizes() == at::IntArrayRef(want.sizes) &&
                    tensor.scalar_type() == want.options.dtype().toScalarType() &&
                    tensor.device() == want.options.device(),
                Disagrees(), "saved tensor ", slot, " was ", want.options.dtype(), " ",
                at::IntArrayRef(want.sizes), " on ", want.options.device(), " and is now ",
                tensor.dtype(), " ", tensor.sizes(), " on ", tensor.device(), ".", Advice());
    recomputed_.push_back(tensor.detach());
    if (recomputed_.size() == expected_.size()) throw AllRecomputed();
  }

 private:
  struct Expected {
    std::vector<std::int64_t> sizes;
    at::TensorOptions options;
  };

  void Recompute();

  static const char* Disagrees() {
    return "a checkpointed function did something else when it was recomputed: ";
  }
  static const char* Advice() {
    return " It must not depend on anything that changes between forward and backward.";
  }

  std::function<Tensors(const Tensors&)> function_;
  c10::Device device_;
  RandomState random_;
  /// Only while a CUDA graph is captured.
  std::optional<std::uint64_t> drawn_;
  AutocastState autocast_;
  std::shared_ptr<RecomputeWatcher> watcher_;
  std::vector<torch::autograd::SavedVariable> inputs_;
  std::vector<Expected> expected_;
  /// Two branches of a graph may come back to it from two threads.
  std::mutex mutex_;
  /// Each is handed out once and then forgotten, so that memory falls as backward goes on.
  Tensors recomputed_;
};

class Dropped : public PackedTensor {
 public:
  Dropped(std::shared_ptr<Frame> frame, std::size_t slot) : frame_(std::move(frame)), slot_(slot) {}
  at::Tensor Unpack() override { return frame_->Take(slot_); }

 private:
  std::shared_ptr<Frame> frame_;
  std::size_t slot_;
};

class Drop : public SavedTensorPolicy {
 public:
  explicit Drop(std::shared_ptr<Frame> frame) : frame_(std::move(frame)) {}
  std::unique_ptr<PackedTensor> Pack(const at::Tensor& tensor) override {
    return std::make_unique<Dropped>(frame_, frame_->Expect(tensor));
  }

 private:
  std::shared_ptr<Frame> frame_;
};

/// Hands what is saved to the frame. The graph of the recomputation is thrown away, so nobody asks
/// for these again.
class Collect : public SavedTensorPolicy {
 public:
  explicit Collect(Frame& frame) : frame_(frame) {}
  std::unique_ptr<PackedTensor> Pack(const at::Tensor& tensor) override {
    frame_.Found(tensor);
    return nullptr;
  }

 private:
  Frame& frame_;
};

void Frame::Recompute() {
  recomputed_.clear();
  Tensors inputs;
  for (const auto& saved : inputs_) {
    const at::Tensor input = saved.unpack();
    inputs.push_back(input.defined() ? input.detach().requires_grad_(input.requires_grad())
                                     : input);
  }
  const Recomputing again(watcher_.get());
  const RandomStateScope random(device_, random_);
  const AutocastScope autocast(autocast_);
  const torch::autograd::AutoGradMode with_grad(true);
  const SavedTensorScope scope(std::make_shared<Collect>(*this));
  try {
    function_(inputs);
  } catch (const AllRecomputed&) {
  }
  TORCH_CHECK(recomputed_.size() == expected_.size(), Disagrees(), "it saves ", recomputed_.size(),
              " tensors, not ", expected_.size(), ".", Advice());
}

}  // namespace

bool IsRecomputing() { return recomputing > 0; }

RecomputeScope::RecomputeScope(std::shared_ptr<RecomputeWatcher> watcher)
    : outer_(std::exchange(watching_recomputation, std::move(watcher))) {}
RecomputeScope::~RecomputeScope() { watching_recomputation = std::move(outer_); }

Tensors Checkpoint(std::function<Tensors(const Tensors&)> function, const Tensors& inputs) {
  if (!torch::autograd::GradMode::is_enabled()) return function(inputs);
  const auto frame = std::make_shared<Frame>(std::move(function), inputs);
  const SavedTensorScope scope(std::make_shared<Drop>(frame));
  Tensors outputs = frame->function()(inputs);
  frame->CheckRepeatable();
  return outputs;
}

}  // namespace plimsoll::train
