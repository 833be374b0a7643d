// What the shares of an account are of: one basis for the terminal, JSON, the page and notebooks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "answer/explanation.h"

namespace plimsoll {

struct Whole {
  ShareBasis basis = ShareBasis::kHeld;
  Bytes bytes = 0;
};

/// What `rank.account_of` names; what is held where its size is not known.
Whole WholeOf(const RankReport& rank);

/// Empty where a line lies outside of that whole: memory outside the allocator and other
/// processes are no part of a process's limit.
std::optional<double> ShareOf(const RankReport& rank, const AccountLine& line);

/// "shares are of the budget of 8.00 GiB".
std::string WhatSharesAreOf(const Whole& whole);

/// Makes the account one of the budget or the limit: what is left of it is the last line, instead
/// of what is free on the device. Changes nothing where there is neither.
void AddRoomLeft(RankReport& rank);

}  // namespace plimsoll
