// A model as an engine serves it: what its weights take, and each token that it remembers. From the
// configuration that Hugging Face's models have (config.json).
#pragma once

#include <string>

#include "base/bytes.h"
#include "base/result.h"

namespace plimsoll {

struct ServedModel {
  /// "Llama", "Qwen2"; the file's name where it does not say.
  std::string name;
  Bytes weights = 0;
  /// Of keys and values, in all layers.
  Bytes token = 0;
};

/// With weights and cache in the type that the file names; 16 bits unless it does.
Result<ServedModel> ReadServedModel(const std::string& path);

}  // namespace plimsoll
