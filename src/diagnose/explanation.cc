#include "diagnose/explanation.h"

namespace plimsoll {

std::string_view CategoryName(Category category) {
  constexpr std::array<std::string_view, kCategoryCount> kNames = {
      "parameters",  "gradients", "optimizer_state", "activations", "inputs",
      "temporaries", "kept",      "unattributed"};
  return kNames[static_cast<std::size_t>(category)];
}

std::string_view ConfidenceName(Confidence confidence) {
  constexpr std::array<std::string_view, 3> kNames = {"high", "medium", "low"};
  return kNames[static_cast<std::size_t>(confidence)];
}

std::string_view SeverityName(Severity severity) {
  constexpr std::array<std::string_view, 4> kNames = {"high", "medium", "low", "info"};
  return kNames[static_cast<std::size_t>(severity)];
}

}  // namespace plimsoll
