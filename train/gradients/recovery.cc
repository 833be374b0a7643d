#include "train/gradients/recovery.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>

namespace plimsoll::train {

bool IsOutOfMemory(const std::exception& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  // Libraries that allocate for themselves come with an error of their own.
  constexpr std::array kWords = {"CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED",
                                 "CUSPARSE_STATUS_ALLOC_FAILED", "CUDA error: out of memory",
                                 "CUDA out of memory"};
  const std::string_view text = error.what();
  return std::any_of(kWords.begin(), kWords.end(),
                     [&](const char* words) { return text.find(words) != text.npos; });
}

namespace {

/// Each from its own, those of a type in one kernel: batch normalization has three small
/// buffers a layer.
void CopyAll(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
  const torch::NoGradGuard no_grad;
  std::map<at::ScalarType, std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>> together;
  for (std::size_t i = 0; i < to.size(); ++i) {
    auto& [targets, sources] = together[to[i].scalar_type()];
    targets.push_back(to[i]);
    sources.push_back(from[i]);
  }
  for (auto& [type, tensors] : together) at::_foreach_copy_(tensors.first, tensors.second);
}

}  // namespace

StepUndo::StepUndo(torch::nn::Module& model, c10::Device device)
    : StepUndo(model, device, [&model] { ClearGradients(model); }) {
  for (const at::Tensor& parameter : model.parameters()) {
    TORCH_CHECK(!parameter.grad().defined(), "a step begins with gradients that are there already");
  }
}

StepUndo::StepUndo(torch::nn::Module& model, c10::Device device, std::function<void()> clear)
    : clear_(std::move(clear)), buffers_(model.buffers()), random_(RandomState::Of(device)) {
  for (const at::Tensor& buffer : buffers_) saved_buffers_.push_back(at::empty_like(buffer));
  CopyAll(saved_buffers_, buffers_);
}

void StepUndo::Undo() {
  clear_();
  for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i].detach().copy_(saved_buffers_[i]);
  random_.Restore();
  // A CPU backward that failed leaves the nodes that it had not come to in a queue of this thread,
  // with all that they saved, until the next one goes through.
  const torch::autograd::AutoGradMode with_grad(true);
  at::zeros({1}).requires_grad_().sum().backward();
}

void ClearGradients(torch::nn::Module& model) {
  for (at::Tensor& parameter : model.parameters()) parameter.mutable_grad() = at::Tensor();
}

}  // namespace plimsoll::train
