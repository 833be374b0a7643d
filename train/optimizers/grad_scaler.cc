#include "train/optimizers/grad_scaler.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/utils.h>

#include <utility>

#include "train/optimizers/optimizer_step.h"

namespace plimsoll::train {
namespace {

/// Gradients that one kernel can take together.
struct Bucket {
  c10::Device device;
  at::ScalarType dtype;
  std::vector<at::Tensor> gradients;
};

void AddTo(std::vector<Bucket>& buckets, const at::Tensor& gradient) {
  TORCH_CHECK(gradient.scalar_type() != at::kHalf,
              "a gradient is fp16 and would overflow when it is unscaled: keep parameters in fp32 "
              "and use autocast");
  for (Bucket& bucket : buckets) {
    if (bucket.device != gradient.device() || bucket.dtype != gradient.scalar_type()) continue;
    bucket.gradients.push_back(gradient);
    return;
  }
  buckets.push_back({gradient.device(), gradient.scalar_type(), {gradient}});
}

std::vector<Bucket> GradientsOf(const torch::optim::Optimizer& optimizer) {
  std::vector<Bucket> buckets;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      const at::Tensor& gradient = parameter.grad();
      AddTo(buckets, gradient.is_sparse() ? gradient._values() : gradient);
    }
  }
  return buckets;
}

/// What one device needs to look for infinities and to divide.
struct Unscaling {
  at::Tensor found;
  at::Tensor inverse;
};

}  // namespace

GradScaler::GradScaler(GradScalerOptions options)
    : options_(options), first_scale_(options.initial_scale) {
  TORCH_CHECK(options.growth_factor > 1, "the growth factor must be above 1, not ",
              options.growth_factor);
  TORCH_CHECK(options.backoff_factor < 1, "the backoff factor must be below 1, not ",
              options.backoff_factor);
}

void GradScaler::PlaceOn(c10::Device device) {
  if (scale_.defined()) return;
  at::Tensor scale = at::full({}, first_scale_, at::TensorOptions(at::kFloat).device(device));
  growth_tracker_ = at::full({}, first_growth_tracker_, at::TensorOptions(at::kInt).device(device));
  scale_ = std::move(scale);
}

at::Tensor GradScaler::Scale(const at::Tensor& loss) {
  if (!options_.enabled) return loss;
  PlaceOn(loss.device());
  return loss * scale_.to(loss.device(), /*non_blocking=*/true);
}

void GradScaler::Unscale(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) return;
  TORCH_CHECK(scale_.defined(), "gradients are unscaled before any loss was scaled");
  const auto known = progress_.find(&optimizer);
  TORCH_CHECK(known == progress_.end() || !known->second.stepped,
              "gradients are unscaled after the step of this optimizer; Update() comes first");
  TORCH_CHECK(known == progress_.end(),
              "gradients of this optimizer were unscaled already since the last Update()");
  const torch::NoGradGuard no_grad;
  std::vector<Bucket> buckets = GradientsOf(optimizer);
  // All memory first: then gradients are divided all or none.
  const at::Tensor inverse = scale_.to(at::kDouble).reciprocal().to(at::kFloat);
  std::vector<Unscaling> unscalings;
  for (const Bucket& bucket : buckets) {
    unscalings.push_back({at::zeros({}, at::TensorOptions(at::kFloat).device(bucket.device)),
                          inverse.to(bucket.device, /*non_blocking=*/true)});
  }
  Progress progress;
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    at::_amp_foreach_non_finite_check_and_unscale_(buckets[i].gradients, unscalings[i].found,
                                                   unscalings[i].inverse);
    progress.found.push_back(unscalings[i].found);
  }
  progress_[&optimizer] = std::move(progress);
}

bool GradScaler::Step(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) {
    StepOrNothing(optimizer);
    return true;
  }
  if (!progress_.contains(&optimizer)) Unscale(optimizer);
  Progress& progress = progress_.at(&optimizer);
  TORCH_CHECK(!progress.stepped, "this optimizer has stepped already since the last Update()");
  TORCH_CHECK(!progress.found.empty(), "no parameter of this optimizer has a gradient");
  bool finite = true;
  for (const at::Tensor& found : progress.found) finite = finite && found.item<float>() == 0;
  if (finite) StepOrNothing(optimizer);
  progress.stepped = true;
  return finite;
}

bool GradScaler::FoundFinite() const {
  for (const auto& [optimizer, progress] : progress_) {
    for (const at::Tensor& found : progress.found) {
      if (found.item<float>() != 0) return false;
    }
  }
  return true;
}

void GradScaler::FoundElsewhere() {
  for (auto& [optimizer, progress] : progress_) {
    for (at::Tensor& found : progress.found) found.fill_(1);
  }
}

void GradScaler::Update() {
  if (!options_.enabled) return;
  const torch::NoGradGuard no_grad;
  at::Tensor found;
  for (const auto& [optimizer, progress] : progress_) {
    for (const at::Tensor& one : progress.found) {
      const at::Tensor here = one.to(scale_.device(), /*non_blocking=*/true);
      found = found.defined() ? found + here : here;
    }
  }
  TORCH_CHECK(found.defined(), "no optimizer has stepped since the last Update()");
  at::_amp_update_scale_(scale_, growth_tracker_, found, options_.growth_factor,
                         options_.backoff_factor, options_.growth_interval);
  progress_.clear();
}

double GradScaler::scale() const {
  if (!options_.enabled) return 1;
  return scale_.defined() ? scale_.item<double>() : first_scale_;
}

GradScaler::State GradScaler::state() const {
  return {.scale = scale(),
          .growth_factor = options_.growth_factor,
          .backoff_factor = options_.backoff_factor,
          .growth_interval = options_.growth_interval,
          .growth_tracker = growth_tracker_.defined() ? growth_tracker_.item<std::int32_t>()
                                                      : first_growth_tracker_};
}

void GradScaler::Load(const State& state) {
  if (!options_.enabled) return;
  options_.growth_factor = state.growth_factor;
  options_.backoff_factor = state.backoff_factor;
  options_.growth_interval = state.growth_interval;
  first_scale_ = state.scale;
  first_growth_tracker_ = static_cast<std::int32_t>(state.growth_tracker);
  scale_ = growth_tracker_ = at::Tensor();
  progress_.clear();
}

}  // namespace plimsoll::train
