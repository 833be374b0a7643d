#include "train/models/model_layers.h"

#include <set>
#include <utility>

namespace plimsoll::train {
namespace {

template <class TensorsOf>
Tensors EachOnce(const ModelLayer& layer, TensorsOf tensors_of) {
  Tensors found;
  std::set<const void*> seen;
  for (const auto& [name, module] : layer.modules) {
    for (const at::Tensor& tensor : tensors_of(*module)) {
      if (seen.insert(tensor.unsafeGetTensorImpl()).second) found.push_back(tensor);
    }
  }
  return found;
}

/// As the part at "blocks.3" of the module, whose "blocks" is made if it is not there.
void RegisterAt(torch::nn::Module& module, const std::string& path,
                const std::shared_ptr<torch::nn::Module>& child) {
  const std::size_t dot = path.find('.');
  const std::string name = path.substr(0, dot);
  const auto children = module.named_children();
  const auto* there = children.find(name);
  if (dot == std::string::npos) {
    // Another layer has it too.
    if (there == nullptr) module.register_module(name, child);
    return;
  }
  const auto inner = there == nullptr
                         ? module.register_module(name, std::make_shared<torch::nn::Module>())
                         : *there;
  RegisterAt(*inner, path.substr(dot + 1), child);
}

}  // namespace

Tensors ModelLayer::parameters() const {
  return EachOnce(*this, [](const torch::nn::Module& module) { return module.parameters(); });
}

Tensors ModelLayer::buffers() const {
  return EachOnce(*this, [](const torch::nn::Module& module) { return module.buffers(); });
}

void RegisterLayer(torch::nn::Module& model, const ModelLayer& layer) {
  for (const auto& [name, module] : layer.modules) RegisterAt(model, name, module);
}

ModelLayers LayersOfSequential(
    const torch::nn::Sequential& modules,
    std::function<at::Tensor(const at::Tensor& result, const Batch& rows)> loss) {
  ModelLayers layers;
  for (const torch::nn::AnyModule& module : *modules) {
    const auto forward = [module = module](const Tensors& given, const Batch& rows) mutable {
      return Tensors{module.forward(given.empty() ? rows.tensors[0] : given[0])};
    };
    layers.push_back({{{std::to_string(layers.size()), module.ptr()}}, forward});
  }
  layers.push_back({{}, [loss = std::move(loss)](const auto& given, const Batch& rows) {
                      return Tensors{loss(given[0], rows)};
                    }});
  return layers;
}

}  // namespace plimsoll::train
