#include "train/models/mlp.h"

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/modulelist.h>

#include "train/models/model_layers.h"

namespace plimsoll::train {

namespace nn = torch::nn;

Mlp::Mlp(const MlpOptions& options) : options_(options) {
  layers_ = {LightLinear(options.inputs, options.hidden),
             LightLinear(options.hidden, options.hidden / 2),
             LightLinear(options.hidden / 2, options.classes)};
  const auto layers = register_module("layers", nn::ModuleList());
  for (const LightLinear& layer : layers_) layers->push_back(layer);
}

at::Tensor Mlp::forward(const at::Tensor& inputs) {
  std::vector<Block> chain;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const bool last = i + 1 == layers_.size();
    chain.emplace_back([layer = layers_[i], last](const at::Tensor& in) mutable {
      return last ? layer(in) : layer(in).relu_();
    });
  }
  return RunChain(chain, inputs.flatten(1));
}

at::Tensor Mlp::Loss(const at::Tensor& inputs, const at::Tensor& labels) {
  return nn::functional::cross_entropy(forward(inputs), labels);
}

std::vector<ModelLayer> Mlp::AsLayers() const {
  ModelLayers layers;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const bool last = i + 1 == layers_.size();
    const auto forward = [layer = layers_[i], last](const Tensors& given,
                                                    const Batch& rows) mutable {
      const at::Tensor in = given.empty() ? rows.tensors[0].flatten(1) : given[0];
      if (!last) return Tensors{layer(in).relu_()};
      return Tensors{nn::functional::cross_entropy(layer(in), rows.tensors[1])};
    };
    layers.push_back({{{"layers." + std::to_string(i), layers_[i].ptr()}}, forward});
  }
  return layers;
}

}  // namespace plimsoll::train
