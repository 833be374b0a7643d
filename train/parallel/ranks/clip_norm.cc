#include "train/parallel/ranks/clip_norm.h"

#include <ATen/ops/linalg_vector_norm.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <cmath>

namespace plimsoll::train {

double ClipNorm(const std::vector<NormPart>& parts, double most) {
  const at::NoGradGuard no_grad;
  double squares = 0;
  for (const NormPart& part : parts) {
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (const at::Tensor& parameter : part.parameters) {
      const at::Tensor& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      // On the device: only the sum is waited for.
      sum = sum.to(gradient.device());
      sum.add_(at::linalg_vector_norm(gradient).to(at::kDouble).square());
    }
    double value = sum.item<double>();
    for (Ranks* ranks : part.over) value = ranks->Sum(value);
    squares += value;
  }
  const double norm = std::sqrt(squares);
  // As torch's clip_grad_norm_.
  const double factor = most / (norm + 1e-6);
  // Not a number is handed on, as there.
  if (factor >= 1) return norm;
  for (const NormPart& part : parts) {
    for (const at::Tensor& parameter : part.parameters) {
      if (parameter.grad().defined()) parameter.mutable_grad().mul_(factor);
    }
  }
  return norm;
}

}  // namespace plimsoll::train
