// What the shares of an account are of: one basis for the terminal, JSON, the page and notebooks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "answer/explanation.h"

namespace plimsoll {

enum class ShareBasis : std::uint8_t {
  kBudget,    // of `plimsoll run --budget`
  kLimit,     // that the program set for its process
  kCapacity,  // of the card
  kHeld,      // all that is accounted for, where none of them is known
};
/// As JSON has it: "budget".
std::string_view ShareBasisName(ShareBasis basis);

struct Whole {
  ShareBasis basis = ShareBasis::kHeld;
  Bytes bytes = 0;
};

/// What a process may take: its budget or limit where it has one, else the card.
Whole WholeOf(const RankReport& rank);

/// Nothing where a line lies outside of that whole: a limit on a process says nothing of what lies
/// outside its allocator or of what is free on the device.
std::optional<double> ShareOf(const RankReport& rank, const AccountLine& line);

/// "shares are of the budget of 8.00 GiB".
std::string WhatSharesAreOf(const Whole& whole);

/// What is left of the budget or the limit becomes the account's last line, instead of what is free
/// on the device; nothing where there is neither.
void AddRoomLeft(RankReport& rank);

}  // namespace plimsoll
