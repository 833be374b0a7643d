// Fine-tuning by low-rank adapters: a model's weights stay as they are, small matrices beside them
// are trained (LoRA); and the frozen weights in 8 bits below them.
#pragma once

#include <torch/nn/module.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "train/light/light_layer.h"
#include "train/light/report.h"

namespace plimsoll::train {

struct LoraOptions {
  AdapterOptions adapter;
  /// Which linear layers and convolutions get an adapter, by their names in named_modules(); *
  /// stands for any characters.
  std::vector<std::string> layers = {"*"};
  /// Parameters that are trained beside the adapters, by their names in named_parameters().
  std::vector<std::string> also_train;
};

/// Gives adapters to the layers and freezes all other parameters of the model but those of
/// `also_train`. The model computes what it did before. To be called before the optimizer is made,
/// which gets TrainedParameters.
///
/// Elements of an nn::Sequential are exchanged for light ones with the same parameters; elsewhere a
/// layer must be declared as a light one (train/light/light_layer.h), or the report says that it
/// stays. Throws c10::Error if no layer could get one, and then nothing has changed.
LightReport AddLora(torch::nn::Module& model, const LoraOptions& options = {});

/// All adapters of the model. See LightLayer.
void MergeLora(torch::nn::Module& model);
void UnmergeLora(torch::nn::Module& model);

/// Puts the weights of layers into 8 bits, before or after AddLora; weights and biases are frozen.
/// Those that are trained by themselves (also_train) should be left out.
LightReport QuantizeWeights(torch::nn::Module& model,
                            const std::vector<std::string>& layers = {"*"});

/// Those that require a gradient, each once.
std::vector<at::Tensor> TrainedParameters(const torch::nn::Module& model);

/// The adapters and all else that is trained, by name: what a fine-tuned model is beyond its base.
std::vector<std::pair<std::string, at::Tensor>> TunedParameters(torch::nn::Module& model);

/// Those alone, to a file of the format of training states, whole or not at all; and into a model
/// with the same adapters, all or nothing (c10::Error names what differs). Merged ones are not
/// saved or loaded.
void SaveTuned(const std::filesystem::path& path, torch::nn::Module& model);
void LoadTuned(const std::filesystem::path& path, torch::nn::Module& model);

}  // namespace plimsoll::train
