#include "answer/shares.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace plimsoll {

std::string_view ShareBasisName(ShareBasis basis) {
  static constexpr std::array<std::string_view, 4> kBasisNames = {"budget", "limit", "capacity",
                                                                  "held"};
  return kBasisNames[static_cast<std::size_t>(basis)];
}

Whole WholeOf(const RankReport& rank) {
  if (rank.budget) return {ShareBasis::kBudget, *rank.budget};
  if (rank.limit) return {ShareBasis::kLimit, *rank.limit};
  if (rank.capacity) return {ShareBasis::kCapacity, *rank.capacity};
  Bytes held = 0;
  for (const AccountLine& line : rank.account) {
    held += line.what == AccountItem::kFree ? 0 : line.bytes;
  }
  return {ShareBasis::kHeld, held};
}

std::optional<double> ShareOf(const RankReport& rank, const AccountLine& line) {
  const Whole whole = WholeOf(rank);
  if (whole.bytes <= 0) return std::nullopt;
  const bool free = line.what == AccountItem::kFree;
  const bool of_process = whole.basis == ShareBasis::kBudget || whole.basis == ShareBasis::kLimit;
  if (whole.basis == ShareBasis::kHeld && free) return std::nullopt;
  if (of_process && !IsReserved(line.what) && !(free && line.bytes <= whole.bytes)) {
    return std::nullopt;
  }
  return std::clamp(double(line.bytes) / double(whole.bytes), 0.0, 1.0);
}

std::string WhatSharesAreOf(const Whole& whole) {
  if (whole.basis == ShareBasis::kHeld) return "shares are of what is held";
  return fmt::format("shares are of the {} of {}", ShareBasisName(whole.basis),
                     FormatBytes(whole.bytes));
}

void AddRoomLeft(RankReport& rank) {
  const std::optional<Bytes> allowed = rank.budget ? rank.budget : rank.limit;
  if (!allowed || rank.account.empty()) return;
  std::erase_if(rank.account,
                [](const AccountLine& line) { return line.what == AccountItem::kFree; });
  rank.account.push_back(
      {.what = AccountItem::kFree,
       .bytes = std::max<Bytes>(0, *allowed - rank.instant.reserved.value_or(0)),
       .confidence = Confidence::kHigh,
       .because = rank.budget ? "what is left of the budget" : "what is left of the limit"});
}

}  // namespace plimsoll
