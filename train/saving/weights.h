// A model's weights alone, as safetensors: to and from Python and other programs.
#pragma once

#include <torch/nn/module.h>

#include <filesystem>
#include <functional>
#include <string>

namespace plimsoll::train {

/// Parameters and buffers by their names. The file is there whole or not at all. A tensor that has
/// several names is written under the first.
void SaveWeights(const std::filesystem::path& path, const torch::nn::Module& model);

/// All or nothing: every parameter and buffer must be there with its sizes, and nothing else;
/// floating point types are converted. `rename` makes the file's name of the model's, for files of
/// other programs. Throws c10::Error with one sentence.
void LoadWeights(const std::filesystem::path& path, torch::nn::Module& model,
                 const std::function<std::string(const std::string&)>& rename = {});

}  // namespace plimsoll::train
