// What memory is for. `explain` finds it in a record, `predict` knows it from the step: one list
// for both, for the page and for JSON.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace plimsoll {

/// What an allocation is for.
enum class Category : std::uint8_t {
  kParameters,  // and buffers
  kGradients,
  kOptimizerState,
  kActivations,
  kInputs,
  kCache,         // keys and values that a model keeps from token to token; only a prediction tells
  kTemporaries,   // made and dropped within a phase or a call; in a record, workspaces too
  kWorkspaces,    // what a library keeps for good; only a prediction can tell it from temporaries
  kKept,          // grows with the steps
  kUnattributed,  // of a use that the record does not show
};
inline constexpr std::size_t kCategoryCount = 10;
inline constexpr std::array<Category, kCategoryCount> kCategories = {
    Category::kParameters,  Category::kGradients,  Category::kOptimizerState,
    Category::kActivations, Category::kInputs,     Category::kCache,
    Category::kTemporaries, Category::kWorkspaces, Category::kKept,
    Category::kUnattributed};

/// As JSON has it: "optimizer_state".
std::string_view CategoryName(Category category);
/// As a table has it: "optimizer state".
std::string_view CategoryLabel(Category category);

}  // namespace plimsoll
