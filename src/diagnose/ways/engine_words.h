// vLLM inside of a framework that trains: what is a flag of its server is a key of that framework's
// configuration.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "diagnose/ways/switches.h"

namespace plimsoll {

/// A flag of `vllm serve`, and what it is called in a framework that runs the engine.
struct EngineWord {
  Framework framework;
  std::string_view flag;  // without its dashes
  std::string_view key;
  std::string_view source;
};
std::span<const EngineWord> EngineWords();

/// Remedies in flags of vLLM's as the outermost of the frameworks has them that runs the engine;
/// what it has no word for is left out. Unchanged where vLLM runs by itself.
std::vector<Remedy> InEngineWords(std::vector<Remedy> remedies,
                                  std::span<const Framework> frameworks);

}  // namespace plimsoll
