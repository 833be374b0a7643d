#include "train/common/not_finite.h"

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <utility>
#include <vector>

namespace plimsoll::train {
namespace {

/// Multiplies by one, which changes nothing, and says whether all are finite.
bool AllFinite(const std::vector<at::Tensor>& gradients) {
  const auto options = at::TensorOptions(at::kFloat).device(gradients[0].device());
  at::Tensor found = at::zeros({}, options);
  at::_amp_foreach_non_finite_check_and_unscale_(gradients, found, at::full({}, 1.0, options));
  return found.item<float>() == 0;
}

}  // namespace

NotFiniteError::NotFiniteError(std::string tensor, std::int64_t step)
    : c10::Error({__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)},
                 tensor == "loss"
                     ? c10::str("the loss of step ", step, " is not finite; nothing was changed")
                     : c10::str("the gradient of '", tensor, "' is not finite in step ", step,
                                ", though the loss is; nothing was changed")),
      tensor_(std::move(tensor)) {}

std::optional<std::string> FindNotFinite(NamedTensors gradients) {
  const torch::NoGradGuard no_grad;
  // Those that one kernel can take together.
  std::vector<std::vector<at::Tensor>> buckets;
  std::erase_if(gradients, [](const auto& named) { return named.second.numel() == 0; });
  for (auto& [name, gradient] : gradients) {
    if (gradient.is_sparse()) gradient = gradient._values();
    bool added = false;
    for (auto& bucket : buckets) {
      const bool same = bucket[0].device() == gradient.device() &&
                        bucket[0].scalar_type() == gradient.scalar_type();
      if (same) bucket.push_back(gradient);
      added = added || same;
    }
    if (!added) buckets.push_back({gradient});
  }
  bool finite = true;
  for (const auto& bucket : buckets) finite = finite && AllFinite(bucket);
  if (finite) return std::nullopt;
  for (const auto& [name, gradient] : gradients) {
    if (!AllFinite({gradient})) return name;
  }
  return std::nullopt;
}

}  // namespace plimsoll::train
