#include "diagnose/attribution/annotated.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/text.h"

namespace plimsoll {
namespace {

struct CategoryWord {
  std::string_view word;
  Category category;
};
/// A gradient of a weight is a gradient, a state of it is a state: the first that is found counts.
constexpr auto kCategoryWords = std::to_array<CategoryWord>({
    {"saved for backward", Category::kActivations},
    {"saved_for_backward", Category::kActivations},
    {"saved tensor", Category::kActivations},
    {"activation", Category::kActivations},
    {"optimizer", Category::kOptimizerState},
    {"optimiser", Category::kOptimizerState},
    {"exp_avg", Category::kOptimizerState},
    {"momentum", Category::kOptimizerState},
    {"gradient", Category::kGradients},
    {".grad", Category::kGradients},
    {"parameter", Category::kParameters},
    {"weight", Category::kParameters},
});

constexpr auto kCategoryNames = std::to_array<CategoryWord>({
    {"parameter", Category::kParameters},
    {"gradient", Category::kGradients},
    {"optimizer_state", Category::kOptimizerState},
    {"activation", Category::kActivations},
    {"input", Category::kInputs},
    {"temporary", Category::kTemporaries},
    {"autograd_detail", Category::kTemporaries},
});

}  // namespace

BlockTexts TextsOfBlocks(const Phases& p) {
  constexpr std::size_t kMostTexts = 8;
  BlockTexts texts;
  if (p.timeline.notes.empty()) return texts;
  // Of each address the allocation that lives there, in the order of the events.
  std::unordered_map<Address, AllocationIndex> live;
  for (AllocationIndex a = 0; a < p.ledger.allocations.size(); ++a) {
    if (p.at(a).made == kBefore) live[p.at(a).address] = a;
  }
  auto note = p.timeline.notes.begin();
  for (EventIndex i = 0; i < p.timeline.events.size(); ++i) {
    const Event& e = p.timeline.events[i];
    if (e.action == Action::kAlloc && p.ledger.allocation_of_event[i] != Ledger::kNoAllocation) {
      live[e.address] = p.ledger.allocation_of_event[i];
    }
    while (note != p.timeline.notes.end() && note->event < i) ++note;
    const bool noted = note != p.timeline.notes.end() && note->event == i;
    if (e.action != Action::kAnnotate || !noted) continue;
    const auto found = live.find(e.address);
    if (found == live.end()) continue;
    std::vector<StringId>& own = texts[found->second];
    if (own.size() < kMostTexts) own.push_back(note->text);
  }
  return texts;
}

std::optional<Category> CategoryNamed(std::string_view name) {
  const std::string lower = Lower(name);
  for (const Category category : kCategories) {
    if (lower == CategoryName(category) && category != Category::kUnattributed) return category;
  }
  for (const CategoryWord& row : kCategoryNames) {
    if (lower == row.word) return row.category;
  }
  return std::nullopt;
}

std::optional<Category> CategoryIn(std::string_view text) {
  if (const std::optional<Category> named = CategoryNamed(text)) return named;
  const std::string lower = Lower(text);
  for (const CategoryWord& row : kCategoryWords) {
    if (lower.find(row.word) != std::string::npos) return row.category;
  }
  return std::nullopt;
}

}  // namespace plimsoll
