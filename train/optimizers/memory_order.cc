#include "train/optimizers/memory_order.h"

#include <ATen/ops/empty_strided.h>

namespace plimsoll::train {

bool SameOrder(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return false;
  // Strides of dimensions with one element say nothing, and differ freely.
  if (a.is_contiguous() && b.is_contiguous()) return true;
  return a.strides() == b.strides() && a.is_non_overlapping_and_dense();
}

at::Tensor InOrderOf(const at::Tensor& tensor, const at::Tensor& model) {
  if (SameOrder(tensor, model) && tensor.scalar_type() == model.scalar_type() &&
      tensor.device() == model.device()) {
    return tensor;
  }
  return at::empty_strided(model.sizes(), model.strides(), model.options().requires_grad(false))
      .copy_(tensor);
}

at::Tensor Flat(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_non_overlapping_and_dense(), "a tensor of sizes ", tensor.sizes(),
              " and strides ", tensor.strides(), " has gaps or elements that share memory");
  return tensor.detach().as_strided({tensor.numel()}, {1});
}

at::Tensor GradientInOrder(const at::Tensor& parameter) {
  const at::Tensor& gradient = parameter.grad();
  TORCH_CHECK(!gradient.is_sparse(), "this optimizer does not support sparse gradients");
  TORCH_CHECK(parameter.is_non_overlapping_and_dense(), "a parameter of sizes ", parameter.sizes(),
              " and strides ", parameter.strides(), " has gaps or elements that share memory");
  return InOrderOf(gradient.detach(), parameter);
}

}  // namespace plimsoll::train
