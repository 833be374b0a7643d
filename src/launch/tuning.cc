#include "launch/tuning.h"

#include <fmt/format.h>

namespace plimsoll {

std::vector<std::string> Tuning::Words() const {
  std::vector<std::string> words;
  const auto add = [&](const char* name, const std::string& value) {
    words.insert(words.end(), {name, value});
  };
  if (full) words.emplace_back("--full");
  if (lora) add("--lora", fmt::format("{}", *lora));
  if (qlora) add("--qlora", fmt::format("{}", *qlora));
  if (targets) add("--targets", *targets);
  if (dropout) add("--lora-dropout", fmt::format("{}", *dropout));
  if (no_checkpointing) words.emplace_back("--no-checkpointing");
  return words;
}

}  // namespace plimsoll
