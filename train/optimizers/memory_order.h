// Tensors as they lie in memory: kernels that go through several at once need them in one order.
#pragma once

#include <ATen/core/Tensor.h>

namespace plimsoll::train {

/// Whether the elements of both lie in the same order, without gaps.
bool SameOrder(const at::Tensor& a, const at::Tensor& b);

/// The tensor itself where it has the model's order, type and device; otherwise a copy that does.
at::Tensor InOrderOf(const at::Tensor& tensor, const at::Tensor& model);

/// One dimension over the same memory. The tensor must have no gaps and no element twice.
at::Tensor Flat(const at::Tensor& tensor);

/// The gradient of a parameter, in the parameter's order; an error says what cannot be stepped.
at::Tensor GradientInOrder(const at::Tensor& parameter);

}  // namespace plimsoll::train
