#include "train/light/masks.h"

#include <torch/types.h>

#include <sstream>

#include "train/light/layers.h"

namespace plimsoll::train {
namespace {

std::int64_t CountOf(double fraction, std::int64_t weights) {
  return static_cast<std::int64_t>(fraction * static_cast<double>(weights));
}

}  // namespace

WeightMasks::WeightMasks(torch::nn::Module& model, MaskOptions options)
    : options_(std::move(options)) {
  for (const auto& parameter : model.named_parameters()) {
    const at::Tensor& tensor = parameter.value();
    if (!NameMatchesAny(parameter.key(), options_.parameters) || tensor.dim() < 2 ||
        !tensor.is_floating_point() || tensor.numel() == 0) {
      continue;
    }
    const auto options_of_mask = tensor.options().dtype(at::kBool).requires_grad(false);
    masked_.push_back({parameter.key(), tensor,
                       std::make_shared<at::Tensor>(at::ones(tensor.sizes(), options_of_mask)),
                       std::nullopt});
  }
  TORCH_CHECK(!masked_.empty(), "no weight of the model has a name that was asked for");
  for (Masked& masked : masked_) {
    if (!masked.parameter.requires_grad()) continue;
    masked.hook = masked.parameter.register_hook([mask = masked.mask](const at::Tensor& gradient) {
      return gradient.mul(mask->to(gradient.device()));
    });
  }
}

WeightMasks::~WeightMasks() {
  for (const Masked& masked : masked_) {
    if (masked.hook) masked.parameter.remove_hook(*masked.hook);
  }
}

void WeightMasks::PruneTogether(std::span<const Masked> parameters, std::int64_t count) {
  std::vector<at::Tensor> magnitudes;
  for (const Masked& masked : parameters) {
    // What is masked already comes first.
    magnitudes.push_back(
        at::where(*masked.mask, masked.parameter.detach().abs().to(at::kFloat), -1).flatten());
  }
  const at::Tensor all = at::cat(magnitudes);
  magnitudes.clear();
  const at::Tensor order = std::get<1>(all.sort(/*stable=*/true, /*dim=*/0, /*descending=*/false));
  const at::Tensor keep = at::ones(all.sizes(), all.options().dtype(at::kBool));
  keep.index_fill_(0, order.narrow(0, 0, count), false);
  std::int64_t begin = 0;
  for (const Masked& masked : parameters) {
    const std::int64_t weights = masked.mask->numel();
    masked.mask->logical_and_(keep.narrow(0, begin, weights).view(masked.mask->sizes()));
    begin += weights;
  }
}

MaskReport WeightMasks::Prune(double fraction) {
  TORCH_CHECK(fraction >= 0 && fraction <= 1, "a fraction of ", fraction,
              " of the weights is not in [0, 1]");
  std::int64_t weights = 0;
  for (const Masked& masked : masked_) {
    TORCH_CHECK(masked.parameter.detach().isfinite().all().item<bool>(), "the weights of '",
                masked.name, "' are not finite, and have no smallest");
    weights += masked.mask->numel();
  }
  if (options_.global) {
    PruneTogether(masked_, CountOf(fraction, weights));
  } else {
    for (const Masked& masked : masked_) {
      PruneTogether({&masked, 1}, CountOf(fraction, masked.parameter.numel()));
    }
  }
  Apply();
  return Report();
}

void WeightMasks::Apply() {
  for (const Masked& masked : masked_) {
    if (masked.mask->device() != masked.parameter.device()) {
      *masked.mask = masked.mask->to(masked.parameter.device());
    }
    // Not a product: what is masked becomes zero, even where there is no number.
    masked.parameter.detach().masked_fill_(masked.mask->logical_not(), 0);
  }
}

MaskReport WeightMasks::Report() const {
  MaskReport report;
  for (const Masked& masked : masked_) {
    const std::int64_t weights = masked.mask->numel();
    const std::int64_t zeros = weights - masked.mask->sum().item<std::int64_t>();
    report.parameters.push_back({masked.name, weights, zeros});
    report.weights += weights;
    report.zeros += zeros;
    report.masks += weights;
  }
  return report;
}

std::vector<std::pair<std::string, at::Tensor>> WeightMasks::masks() const {
  std::vector<std::pair<std::string, at::Tensor>> masks;
  for (const Masked& masked : masked_) masks.emplace_back(masked.name, *masked.mask);
  return masks;
}

std::string MaskReport::ToString() const {
  std::ostringstream out;
  for (const Parameter& parameter : parameters) {
    out << parameter.name << ": " << parameter.zeros << " of " << parameter.weights
        << " weights are zero\n";
  }
  out << "together: " << zeros << " of " << weights
      << " weights are zero, which saves no memory; the masks take " << FormatBytes(masks) << '\n';
  return out.str();
}

}  // namespace plimsoll::train
