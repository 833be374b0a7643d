// The layers of a model that can be made lighter, wherever they are.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "train/light/light_layer.h"
#include "train/light/report.h"

namespace plimsoll::train {

/// An nn::Linear, an nn::Conv2d, or a LightLayer.
struct Layer {
  /// As in named_modules().
  std::string name;
  std::shared_ptr<torch::nn::Module> module;
  /// Why another module cannot be put into its place; a sentence without its subject. Nothing if
  /// Exchange can.
  std::optional<std::string> fixed;

  /// Which element of which nn::Sequential it is, if it is not fixed.
  torch::nn::SequentialImpl* sequential = nullptr;
  std::size_t index = 0;
};

/// All of them, however deep: in Sequential, ModuleList, ModuleDict, modules of one's own. Once
/// each, in the order of named_modules().
///
/// A layer can be exchanged where it is an element of an nn::Sequential, which calls whatever it
/// holds, and where nobody else holds it. An element of a ModuleList or ModuleDict, or a member, is
/// called by code that knows its type; declared as LightLinear or LightConv2d it can still be
/// changed where it is.
std::vector<Layer> LayersOf(torch::nn::Module& model);

/// Puts `to` into the place of the layer, which must not be `fixed`. Code that looks the element up
/// by its type, as with Sequential::at<Conv2dImpl>, must then name the new one.
void Exchange(Layer& layer, const torch::nn::AnyModule& to);

/// Makes it a LightLayer with the same parameters, if it is none yet; it must not be `fixed`,
/// unless it is one. Returns it.
std::shared_ptr<LightLayer> Lighten(Layer& layer);

/// Why the weight and bias of the layer cannot be put away, for others in their place: something
/// beside the layer holds one of them. Nothing if they can.
std::optional<std::string> WeightIsHeld(const torch::nn::Module& module);

/// Changes the layers whose names match one of the patterns. `cannot` says why one is to stay as it
/// is, `change` returns what it has become. Nothing is changed before all have been looked at.
/// Throws c10::Error where no layer has such a name.
LightReport ChangeLayers(torch::nn::Module& model, const std::vector<std::string>& patterns,
                         const std::function<std::optional<std::string>(const Layer&)>& cannot,
                         const std::function<std::string(Layer&)>& change);

/// Whether a pattern, in which * stands for any characters, is all of the name.
bool NameMatches(std::string_view name, std::string_view pattern);
bool NameMatchesAny(std::string_view name, const std::vector<std::string>& patterns);

}  // namespace plimsoll::train
