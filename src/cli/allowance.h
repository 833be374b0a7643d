// How much a peak may grow, as --fail-above has it: 200MiB, or 5% of what it was.
#pragma once

#include <optional>
#include <string>

#include "answer/change.h"
#include "base/result.h"

namespace plimsoll {

/// The most that a peak may grow: bytes, or parts of what it was.
struct Allowance {
  std::string text;
  std::optional<Bytes> bytes;
  double part = 0;

  bool Allows(const Change& peak) const;
};

std::optional<Error> ReadAllowance(const std::string& text, std::optional<Allowance>& to);

}  // namespace plimsoll
