#include "train/light/layers.h"

#include <algorithm>
#include <set>

namespace plimsoll::train {
namespace {

namespace nn = torch::nn;

bool IsLight(const nn::Module& module) {
  return dynamic_cast<const LightLayer*>(&module) != nullptr;
}

bool IsLayer(const nn::Module& module) {
  return IsLight(module) || dynamic_cast<const nn::LinearImpl*>(&module) != nullptr ||
         dynamic_cast<const nn::Conv2dImpl*>(&module) != nullptr;
}

constexpr const char* kCalledByType =
    "is called by code that knows its type (declare it as LightLinear or LightConv2d, or put it "
    "into an nn::Sequential)";

class LayerSearch {
 public:
  std::vector<Layer> layers;

  void Visit(nn::Module& parent, const std::string& prefix) {
    const std::vector<std::string> names = parent.named_children().keys();
    auto* sequential = dynamic_cast<nn::SequentialImpl*>(&parent);
    for (std::size_t i = 0; i < names.size(); ++i) {
      const std::string name = prefix.empty() ? names[i] : prefix + "." + names[i];
      // Counted before anybody here holds it.
      const long holders = parent.named_children()[names[i]].use_count() - 1;
      const std::shared_ptr<nn::Module> child = parent.named_children()[names[i]];
      if (!seen_.insert(child.get()).second) continue;
      if (IsLayer(*child)) {
        Add(name, child, sequential, i, holders);
      } else {
        Visit(*child, name);
      }
    }
  }

 private:
  void Add(const std::string& name, const std::shared_ptr<nn::Module>& module,
           nn::SequentialImpl* sequential, std::size_t index, long holders) {
    Layer layer{.name = name, .module = module};
    // A Sequential holds each element twice: once to be called, once to be listed.
    constexpr long kHoldersInSequential = 2;
    if (sequential == nullptr) {
      layer.fixed = kCalledByType;
    } else if (holders > kHoldersInSequential) {
      layer.fixed =
          "is held by something beside its nn::Sequential too, which would go on with the old one";
    } else {
      layer.sequential = sequential;
      layer.index = index;
    }
    layers.push_back(std::move(layer));
  }

  std::set<const nn::Module*> seen_;
};

}  // namespace

std::vector<Layer> LayersOf(nn::Module& model) {
  LayerSearch search;
  search.Visit(model, "");
  return std::move(search.layers);
}

void Exchange(Layer& layer, const nn::AnyModule& to) {
  nn::SequentialImpl* sequential = layer.sequential;
  TORCH_CHECK(!layer.fixed && sequential != nullptr, "layer '", layer.name,
              "' cannot be exchanged");
  *(sequential->begin() + static_cast<std::ptrdiff_t>(layer.index)) = to;
  sequential->replace_module(sequential->named_children().keys()[layer.index], to.ptr());
  layer.module = to.ptr();
}

std::shared_ptr<LightLayer> Lighten(Layer& layer) {
  if (!IsLight(*layer.module)) {
    if (const auto linear = std::dynamic_pointer_cast<nn::LinearImpl>(layer.module)) {
      Exchange(layer, nn::AnyModule(std::make_shared<LightLinearImpl>(*linear)));
    } else {
      const auto convolution = std::dynamic_pointer_cast<nn::Conv2dImpl>(layer.module);
      Exchange(layer, nn::AnyModule(std::make_shared<LightConv2dImpl>(*convolution)));
    }
  }
  return std::dynamic_pointer_cast<LightLayer>(layer.module);
}

std::optional<std::string> WeightIsHeld(const nn::Module& module) {
  // The layer's member, its list of parameters, and the copy that is looked at here.
  constexpr std::size_t kHolders = 3;
  for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
    const bool is_own = parameter.key() == "weight" || parameter.key() == "bias";
    if (is_own && parameter.value().use_count() > kHolders) {
      return "has a " + parameter.key() +
             " that something else holds too (an optimizer, a tied layer, or a loss that still "
             "lives), and that would go on with the old one";
    }
  }
  return std::nullopt;
}

LightReport ChangeLayers(nn::Module& model, const std::vector<std::string>& patterns,
                         const std::function<std::optional<std::string>(const Layer&)>& cannot,
                         const std::function<std::string(Layer&)>& change) {
  LightReport report;
  report.before = FootprintOf(model);
  std::vector<Layer> wanted;
  std::size_t named = 0;
  for (Layer& layer : LayersOf(model)) {
    if (!NameMatchesAny(layer.name, patterns)) continue;
    ++named;
    std::optional<std::string> reason = cannot(layer);
    if (!reason && !IsLight(*layer.module)) reason = layer.fixed;
    if (reason) {
      report.skipped.push_back({layer.name, *reason});
    } else {
      wanted.push_back(std::move(layer));
    }
  }
  TORCH_CHECK(named > 0,
              "no linear layer or convolution of the model has a name that was asked for");
  for (Layer& layer : wanted) {
    const Footprint before = FootprintOf(*layer.module);
    std::string to = change(layer);
    report.changed.push_back({layer.name, std::move(to), before, FootprintOf(*layer.module)});
  }
  report.after = FootprintOf(model);
  return report;
}

bool NameMatches(std::string_view name, std::string_view pattern) {
  std::size_t at = 0;
  std::size_t in_pattern = 0;
  std::size_t star = std::string_view::npos;
  std::size_t after_star = 0;
  while (at < name.size()) {
    if (in_pattern < pattern.size() && pattern[in_pattern] == '*') {
      star = in_pattern++;
      after_star = at;
    } else if (in_pattern < pattern.size() && pattern[in_pattern] == name[at]) {
      ++in_pattern;
      ++at;
    } else if (star != std::string_view::npos) {
      in_pattern = star + 1;
      at = ++after_star;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', in_pattern) == std::string_view::npos;
}

bool NameMatchesAny(std::string_view name, const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return NameMatches(name, pattern); });
}

}  // namespace plimsoll::train
