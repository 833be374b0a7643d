// How a model is fine-tuned that is given by its configuration or by its name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace plimsoll {

/// As transformers' Trainer, PEFT and bitsandbytes do it (python/plimsoll/models). Where no way is
/// chosen, a plain loop trains all of the model.
struct Tuning {
  bool full = false;
  /// The rank of LoRA, over weights as they are or in 4 bits.
  std::optional<std::int64_t> lora;
  std::optional<std::int64_t> qlora;
  /// Ends of the names of the layers that LoRA is for, with commas; all linear ones unless given.
  std::optional<std::string> targets;
  std::optional<double> dropout;
  bool no_checkpointing = false;

  /// How many ways are chosen.
  int Ways() const { return (full ? 1 : 0) + (lora ? 1 : 0) + (qlora ? 1 : 0); }
  /// The flags that say so, of the program and of the Python package alike.
  std::vector<std::string> Words() const;
};

}  // namespace plimsoll
