// What the user says of values that a capture does not have: `--assume routing=worst,mask=0.25`.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace plimsoll {

/// How tokens are shared out among experts.
struct Routing {
  enum class Kind { kBalanced, kSkewed, kWorst };
  Kind kind = Kind::kBalanced;
  /// Of kSkewed: how many times its share the busiest expert gets.
  double factor = 1;

  bool operator==(const Routing&) const = default;
};

/// What is not stated is left to the capture.
struct Assumptions {
  std::optional<Routing> routing;
  /// How much a mask selects, from 0 to 1.
  std::optional<double> mask;
  /// Of the columns that go into layers in 8 bits: those that are kept in 16 bits too, from 0 to 1.
  std::optional<double> outliers;

  bool operator==(const Assumptions&) const = default;
};

/// Adds what is said in parts with commas between them, each of which may be said once. The one
/// place in the program that reads it; python/plimsoll/base/assumptions.py reads the same.
std::optional<Error> ReadAssumptions(std::string_view text, Assumptions& to);

/// As ReadAssumptions takes it; empty where nothing is stated.
std::string AsText(const Assumptions& assumptions);

}  // namespace plimsoll
