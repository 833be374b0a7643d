// How much memory a JSON document takes as a tree, counted before the tree is made: one of a few
// megabytes, packed, can take gigabytes.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "base/input.h"
#include "base/read_budget.h"

namespace plimsoll {

/// Takes from a budget what nlohmann's tree would take from memory, and stops where that is spent.
class TreeSize {
 public:
  using json = nlohmann::json;

  explicit TreeSize(ReadBudget& budget) : budget_(budget) {}

  bool null() { return Take(0); }
  bool boolean(bool) { return Take(0); }
  bool number_integer(std::int64_t) { return Take(0); }
  bool number_unsigned(std::uint64_t) { return Take(0); }
  bool number_float(double, const std::string&) { return Take(0); }
  bool string(std::string& text) { return Take(sizeof(std::string) + text.size()); }
  bool binary(json::binary_t&) { return Take(0); }
  bool key(std::string& text) { return Take(kMapNode + text.size()); }
  bool start_object(std::size_t) { return Take(kContainer); }
  bool start_array(std::size_t) { return Take(kContainer); }
  bool end_object() { return true; }
  bool end_array() { return true; }
  /// Whoever parses it for good tells what is wrong.
  bool parse_error(std::size_t, const std::string&, const json::exception&) { return false; }

 private:
  static constexpr std::size_t kMapNode = 64;
  static constexpr std::size_t kContainer = 48;
  bool Take(std::size_t more) { return budget_.Take(sizeof(json) + more); }

  ReadBudget& budget_;
};

inline bool TreeIsTooLarge(const Input& input) {
  ReadBudget budget(input);
  TreeSize size(budget);
  nlohmann::json::sax_parse(input.bytes(), &size);
  return budget.spent();
}

}  // namespace plimsoll
