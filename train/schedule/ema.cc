#include "train/schedule/ema.h"

#include <torch/types.h>

#include <algorithm>

namespace plimsoll::train {

Ema::Ema(torch::nn::Module& model, const EmaOptions& options) : options_(options) {
  TORCH_CHECK(options.decay >= 0 && options.decay < 1, "a decay of ", options.decay,
              " is not in [0, 1)");
  for (const auto& item : model.named_parameters()) Add("parameter " + item.key(), item.value());
  for (const auto& item : model.named_buffers()) Add("buffer " + item.key(), item.value());
}

void Ema::Add(const std::string& name, const at::Tensor& tensor) {
  const bool known = std::any_of(averages_.begin(), averages_.end(),
                                 [&](const Average& other) { return other.model.is_same(tensor); });
  if (known || !tensor.defined()) return;
  const at::Tensor data = tensor.detach();
  const bool widened = data.is_floating_point() && data.element_size() < 4;
  averages_.push_back({name, tensor, widened ? data.to(at::kFloat) : data.clone()});
}

void Ema::Update() {
  TORCH_CHECK(!*swapped_, "averages cannot be updated while they are swapped in");
  for (const Average& average : averages_) {
    const bool alike = average.model.sizes() == average.average.sizes() &&
                       average.model.device() == average.average.device();
    TORCH_CHECK(alike, average.name, " has another size or device than its average");
  }
  const auto done = static_cast<double>(updates_);
  const double decay =
      options_.warm_up ? std::min(options_.decay, (1 + done) / (10 + done)) : options_.decay;
  const torch::NoGradGuard no_grad;
  for (Average& average : averages_) {
    if (average.average.is_floating_point()) {
      average.average.lerp_(average.model.detach().to(average.average.scalar_type()), 1 - decay);
    } else {
      average.average.copy_(average.model);
    }
  }
  ++updates_;
}

Ema::Swapped Ema::SwapIn() {
  TORCH_CHECK(!*swapped_, "the averages are swapped in already");
  // All that can fail comes before the first change.
  std::vector<at::Tensor> data;
  Swapped swapped;
  for (const Average& average : averages_) {
    data.push_back(average.average.to(average.model.scalar_type()));
    swapped.originals_.push_back({average.model, average.model.variable_data()});
  }
  for (std::size_t i = 0; i < data.size(); ++i) averages_[i].model.set_data(data[i]);
  *swapped_ = true;
  swapped.swapped_ = swapped_;
  return swapped;
}

Ema::Swapped::~Swapped() {
  if (!swapped_) return;
  for (Original& original : originals_) original.tensor.set_data(original.data);
  *swapped_ = false;
}

std::vector<std::pair<std::string, at::Tensor>> Ema::tensors() const {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const Average& average : averages_) tensors.emplace_back(average.name, average.average);
  return tensors;
}

void Ema::set_updates(std::int64_t updates) {
  TORCH_CHECK(updates >= 0, "there cannot have been ", updates, " updates");
  updates_ = updates;
}

}  // namespace plimsoll::train
