// The variable of a program that keeps a tensor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"

namespace plimsoll {

struct Owner {
  /// As the program spells it: "trainer.callbacks[3].outputs[*] in main (train.py:57)".
  std::string name = {};
  Bytes bytes = 0;
  std::int64_t count = 0;
};

/// Those that differ in their indices alone become one, with "*" for each index that differs; the
/// largest first.
std::vector<Owner> FoldedOwners(const std::vector<Owner>& owners);

/// "held by losses[*]", with how much of the whole that is where it is less than all of it.
std::string OwnerText(const Owner& owner, Bytes whole);

}  // namespace plimsoll
