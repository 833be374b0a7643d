#include "job/file/served_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <optional>

#include "files/input.h"
#include "files/json.h"

namespace plimsoll {
namespace {

/// No model has numbers beyond it, and products of four stay numbers.
constexpr std::int64_t kMostOfModel = std::int64_t{1} << 20;
constexpr std::int64_t kMostParameters = std::int64_t{1} << 48;

/// The first of these that the configuration has.
std::optional<std::int64_t> Find(const Json& config, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const std::optional<std::int64_t> value = config[name].integer();
    if (value && *value >= 1 && *value <= kMostOfModel) return value;
  }
  return std::nullopt;
}

/// Of mixtures: how many experts each layer has, all of which lie on the card.
std::int64_t FeedForward(const Json& config, std::int64_t width) {
  const std::int64_t inner =
      Find(config, {"intermediate_size", "n_inner", "ffn_dim"}).value_or(4 * width);
  const std::int64_t experts =
      Find(config, {"num_local_experts", "num_experts", "n_routed_experts"}).value_or(0);
  // A gate beside the two products, but for the models that have n_embd or ffn_dim.
  const bool gated = !config["n_embd"].integer() && !config["ffn_dim"].integer();
  const std::int64_t products = gated ? 3 : 2;
  if (experts == 0) return products * width * inner;
  const std::int64_t of_expert = Find(config, {"moe_intermediate_size"}).value_or(inner);
  const std::int64_t shared = Find(config, {"n_shared_experts"}).value_or(0);
  return std::min(products * width * of_expert * (experts + shared), kMostParameters);
}

struct Heads {
  std::int64_t count = 1;
  std::int64_t key_value = 1;
  std::int64_t size = 1;
};

std::int64_t ElementsOfToken(const Json& config, const Heads& heads) {
  // Latent attention remembers what keys and values are made from.
  if (const auto latent = Find(config, {"kv_lora_rank"})) {
    return *latent + Find(config, {"qk_rope_head_dim"}).value_or(64);
  }
  return 2 * heads.key_value * heads.size;
}

Bytes ElementBytes(const Json& config) {
  for (const char* name : {"torch_dtype", "dtype"}) {
    const std::string* type = config[name].text();
    if (type == nullptr) continue;
    if (*type == "float32") return 4;
    if (type->starts_with("float8")) return 1;
  }
  return 2;
}

}  // namespace

Result<ServedModel> ReadServedModel(const std::string& path) {
  const Result<Input> input = Input::Open(path);
  if (!input) return input.error();
  const Result<Json> document = ReadJson(*input);
  if (!document) return document.error();
  const Json& inner = (*document)["text_config"];
  const Json& config = inner.is_object() ? inner : *document;
  const auto width = Find(config, {"hidden_size", "n_embd", "d_model"});
  const auto layers = Find(config, {"num_hidden_layers", "n_layer", "num_layers"});
  const auto count = Find(config, {"num_attention_heads", "n_head", "num_heads"});
  const auto words = Find(config, {"vocab_size"});
  if (!width || !layers || !count || !words) {
    return Error{.message =
                     "it has no hidden_size, num_hidden_layers, num_attention_heads and "
                     "vocab_size",
                 .file = path,
                 .hint = "the config.json of a language model is wanted"};
  }
  const Heads heads{
      .count = *count,
      .key_value = Find(config, {"num_key_value_heads"}).value_or(*count),
      .size = Find(config, {"head_dim"}).value_or(std::max<std::int64_t>(1, *width / *count))};
  const std::int64_t attention = *width * heads.size * 2 * (heads.count + heads.key_value);
  const std::int64_t layer =
      std::min(attention + FeedForward(config, *width) + 2 * *width, kMostParameters);
  const bool tied =
      config["tie_word_embeddings"].boolean().value_or(config["n_embd"].integer().has_value());
  const double parameters = double(*layers) * double(layer) +
                            double(*words) * double(*width) * (tied ? 1 : 2) + double(*width);
  const Bytes element = ElementBytes(config);
  const std::string* type = config["model_type"].text();
  return ServedModel{
      .name = type != nullptr ? *type : std::filesystem::path(path).filename().string(),
      .weights = static_cast<Bytes>(std::min(parameters, double(kMostParameters))) * element,
      .token = *layers * ElementsOfToken(config, heads) * element};
}

}  // namespace plimsoll
