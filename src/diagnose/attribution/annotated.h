// What a program said of its blocks after it had made them (`annotate`, 2.14 and newer).
#pragma once

#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "answer/category.h"
#include "diagnose/phases/phases.h"

namespace plimsoll {

/// Of each block that something was said of: the texts, the oldest first, and not too many.
using BlockTexts = std::unordered_map<AllocationIndex, std::vector<StringId>>;

/// A text names the block that lies at its address at that moment, be it older than the record.
BlockTexts TextsOfBlocks(const Phases& phases);

/// What the name of a category means, as PyTorch's tools and programs spell it: "optimizer_state",
/// "Gradient", our own names.
std::optional<Category> CategoryNamed(std::string_view name);
/// What a sentence about a block says that it is for: "saved for backward of layers.3".
std::optional<Category> CategoryIn(std::string_view text);

}  // namespace plimsoll
