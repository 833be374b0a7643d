#include "train/parallel/pipeline/model_parallel.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <utility>

namespace plimsoll::train {
namespace {

std::vector<int> MeasuredSplit(const ModelLayers& layers, const std::vector<c10::Device>& devices,
                               const Batch& rows, double optimizer_state) {
  TORCH_CHECK(!devices.empty(), "a model needs a device.");
  const MeasureOptions options{
      .device = devices[0], .optimizer_state = optimizer_state, .shared_once = true};
  return SplitOverDevices(FirstOfShared(layers), MeasureLayers(layers, rows, options),
                          static_cast<int>(devices.size()));
}

}  // namespace

std::vector<int> FirstOfShared(const ModelLayers& layers) {
  std::vector<int> first(layers.size());
  std::iota(first.begin(), first.end(), 0);
  std::unordered_map<const void*, std::size_t> first_with;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (const at::Tensor& parameter : layers[i].parameters()) {
      const void* const key = parameter.unsafeGetTensorImpl();
      const int other = first[first_with.try_emplace(key, i).first->second];
      const auto [least, most] = std::minmax(other, first[i]);
      std::ranges::replace(first, int{most}, int{least});
    }
  }
  return first;
}

std::vector<int> SplitOverDevices(const std::vector<int>& first_of_shared,
                                  std::vector<LayerFigures> figures, int devices) {
  for (std::size_t i = 0; i < figures.size(); ++i) {
    const auto first = static_cast<std::size_t>(first_of_shared[i]);
    if (first == i) continue;
    figures[first].kept += std::exchange(figures[i].kept, 0);
    figures[first].saved += std::exchange(figures[i].saved, 0);
    figures[first].passing = std::max(figures[first].passing, std::exchange(figures[i].passing, 0));
  }
  return SplitStages(figures, {.stages = devices});
}

ModelParallel::ModelParallel(ModelLayers layers, const std::vector<c10::Device>& devices,
                             const Batch& rows, double optimizer_state)
    : ModelParallel(layers, devices, MeasuredSplit(layers, devices, rows, optimizer_state)) {}

ModelParallel::ModelParallel(ModelLayers layers, const std::vector<c10::Device>& devices,
                             const std::vector<int>& split)
    : layers_(std::move(layers)) {
  TORCH_CHECK(split.size() == devices.size(), "the split is over ", split.size(), " devices, not ",
              devices.size(), ".");
  for (std::size_t i = 0; i < split.size(); ++i) {
    TORCH_CHECK(split[i] >= 0, "a device cannot have ", split[i], " layers.");
    devices_.insert(devices_.end(), static_cast<std::size_t>(split[i]), devices[i]);
  }
  TORCH_CHECK(devices_.size() == layers_.size(), "the devices have ", devices_.size(),
              " layers together, the model has ", layers_.size(), ".");
  const std::vector<int> first = FirstOfShared(layers_);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    devices_[i] = devices_[static_cast<std::size_t>(first[i])];
    for (const auto& [name, module] : layers_[i].modules) module->to(devices_[i]);
    RegisterLayer(*this, layers_[i]);
  }
}

at::Tensor ModelParallel::Loss(const Batch& batch) const {
  std::unordered_map<c10::Device, Batch> rows;
  Tensors x;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const c10::Device device = devices_[i];
    if (!rows.contains(device)) rows[device] = batch.To(device);
    for (at::Tensor& tensor : x) tensor = tensor.to(device);
    x = layers_[i].forward(x, rows[device]);
  }
  return x[0];
}

}  // namespace plimsoll::train
