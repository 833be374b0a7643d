#include "train/light/lora.h"

#include <torch/types.h>

#include <algorithm>
#include <set>

#include "train/light/layers.h"
#include "train/saving/state_tensors.h"

namespace plimsoll::train {
namespace {

namespace nn = torch::nn;

std::vector<std::pair<std::string, std::shared_ptr<LightLayer>>> Adapted(nn::Module& model) {
  std::vector<std::pair<std::string, std::shared_ptr<LightLayer>>> adapted;
  for (const Layer& layer : LayersOf(model)) {
    auto light = std::dynamic_pointer_cast<LightLayer>(layer.module);
    if (light && light->has_adapter()) adapted.emplace_back(layer.name, std::move(light));
  }
  return adapted;
}

std::optional<std::string> CannotHaveAdapter(const Layer& layer) {
  if (const auto* light = dynamic_cast<const LightLayer*>(layer.module.get())) {
    return light->CannotAdapt();
  }
  const auto* convolution = dynamic_cast<const nn::Conv2dImpl*>(layer.module.get());
  if (convolution != nullptr && convolution->options.groups() != 1) return "has groups";
  return std::nullopt;
}

bool CanGetAdapter(const Layer& layer, const LoraOptions& options) {
  const bool light = dynamic_cast<const LightLayer*>(layer.module.get()) != nullptr;
  return NameMatchesAny(layer.name, options.layers) && !CannotHaveAdapter(layer) &&
         (light || !layer.fixed);
}

void CheckLora(nn::Module& model, const LoraOptions& options) {
  CheckAdapter(options.adapter);
  const std::vector<Layer> layers = LayersOf(model);
  TORCH_CHECK(std::any_of(layers.begin(), layers.end(),
                          [&](const Layer& layer) { return CanGetAdapter(layer, options); }),
              "no layer of the model can get an adapter: a layer that was asked for must be in an "
              "nn::Sequential, or be a LightLinear or LightConv2d without one");
}

void FreezeAllBut(nn::Module& model, const std::vector<std::string>& trained) {
  std::set<const void*> adapters;
  for (const auto& [name, layer] : Adapted(model)) {
    adapters.insert(layer->adapter_down().unsafeGetTensorImpl());
    adapters.insert(layer->adapter_up().unsafeGetTensorImpl());
  }
  for (auto& parameter : model.named_parameters()) {
    at::Tensor& tensor = parameter.value();
    if (adapters.contains(tensor.unsafeGetTensorImpl()) || !tensor.is_floating_point()) continue;
    const bool keep = NameMatchesAny(parameter.key(), trained);
    tensor.set_requires_grad(keep);
    if (!keep) tensor.mutable_grad() = at::Tensor();
  }
}

void CheckThatNoneIsMerged(nn::Module& model) {
  for (const auto& [name, layer] : Adapted(model)) {
    TORCH_CHECK(!layer->merged(), "the adapter of '", name, "' is merged: take it out first");
  }
}

}  // namespace

LightReport AddLora(nn::Module& model, const LoraOptions& options) {
  CheckLora(model, options);
  const Footprint before = FootprintOf(model);
  LightReport report = ChangeLayers(model, options.layers, CannotHaveAdapter, [&](Layer& layer) {
    Lighten(layer)->AddAdapter(options.adapter);
    return "adapter of rank " + std::to_string(options.adapter.rank);
  });
  FreezeAllBut(model, options.also_train);
  report.before = before;
  report.after = FootprintOf(model);
  return report;
}

void MergeLora(nn::Module& model) {
  CheckThatNoneIsMerged(model);
  for (const auto& [name, layer] : Adapted(model)) {
    TORCH_CHECK(!layer->quantized(), "'", name,
                "' is in 8 bits, and no adapter can be merged into that");
  }
  for (const auto& [name, layer] : Adapted(model)) layer->Merge();
}

void UnmergeLora(nn::Module& model) {
  for (const auto& [name, layer] : Adapted(model)) {
    if (layer->merged()) layer->Unmerge();
  }
}

LightReport QuantizeWeights(nn::Module& model, const std::vector<std::string>& layers) {
  const auto cannot = [](const Layer& layer) -> std::optional<std::string> {
    const auto* light = dynamic_cast<const LightLayer*>(layer.module.get());
    const auto reason = light != nullptr
                            ? light->CannotQuantize()
                            : Int8Weight::Cannot(layer.module->named_parameters(false)["weight"]);
    return reason ? reason : WeightIsHeld(*layer.module);
  };
  return ChangeLayers(model, layers, cannot, [](Layer& layer) {
    Lighten(layer)->Quantize();
    return std::string("weight in 8 bits");
  });
}

std::vector<at::Tensor> TrainedParameters(const nn::Module& model) {
  std::vector<at::Tensor> trained;
  std::set<const void*> seen;
  for (const at::Tensor& parameter : model.parameters()) {
    if (parameter.requires_grad() && seen.insert(parameter.unsafeGetTensorImpl()).second) {
      trained.push_back(parameter);
    }
  }
  return trained;
}

std::vector<std::pair<std::string, at::Tensor>> TunedParameters(nn::Module& model) {
  std::set<const void*> wanted;
  for (const at::Tensor& parameter : TrainedParameters(model)) {
    wanted.insert(parameter.unsafeGetTensorImpl());
  }
  for (const auto& [name, layer] : Adapted(model)) {
    wanted.insert(layer->adapter_down().unsafeGetTensorImpl());
    wanted.insert(layer->adapter_up().unsafeGetTensorImpl());
  }
  std::vector<std::pair<std::string, at::Tensor>> tuned;
  for (const auto& parameter : model.named_parameters()) {
    if (wanted.erase(parameter.value().unsafeGetTensorImpl()) > 0) {
      tuned.emplace_back(parameter.key(), parameter.value());
    }
  }
  return tuned;
}

void SaveTuned(const std::filesystem::path& path, nn::Module& model) {
  CheckThatNoneIsMerged(model);
  StateSaver saver;
  for (const auto& [name, layer] : Adapted(model)) {
    saver.AddValue("alpha " + name, layer->adapter().alpha);
  }
  for (const auto& [name, tensor] : TunedParameters(model)) saver.AddTensor(name, tensor);
  saver.Write(path);
}

void LoadTuned(const std::filesystem::path& path, nn::Module& model) {
  CheckThatNoneIsMerged(model);
  StateLoader loader = StateLoader::Open(path);
  for (const auto& [name, layer] : Adapted(model)) {
    const double alpha = loader.Number("alpha " + name);
    if (alpha != layer->adapter().alpha) {
      loader.Fail("the adapter of '" + name + "' was trained with another alpha than it has here");
    }
  }
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  for (const auto& [name, tensor] : TunedParameters(model)) {
    copies.emplace_back(tensor, loader.Tensor(name, tensor.sizes(), tensor.scalar_type()));
  }
  loader.CheckThatNothingIsLeft();
  for (auto& [to, from] : copies) to.detach().copy_(from);
}

}  // namespace plimsoll::train
