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
  const ShareBasis of = rank.account_of;
  if (of == ShareBasis::kBudget && rank.budget) return {of, *rank.budget};
  if (of == ShareBasis::kLimit && rank.limit) return {of, *rank.limit};
  if (of == ShareBasis::kCapacity && rank.capacity) return {of, *rank.capacity};
  Bytes held = 0;
  for (const AccountLine& line : rank.account) {
    const bool held_by_none = line.what == AccountItem::kFree || line.what == AccountItem::kUnknown;
    held += held_by_none ? 0 : line.bytes;
  }
  return {ShareBasis::kHeld, held};
}

/// Whether all lines are parts of the whole: Apple's limit counts what lies outside PyTorch too.
static bool AddsUpTo(const Whole& whole, const std::vector<AccountLine>& account) {
  Bytes sum = 0;
  for (const AccountLine& line : account) sum += line.bytes;
  return sum == whole.bytes;
}

std::optional<double> ShareOf(const RankReport& rank, const AccountLine& line) {
  const Whole whole = WholeOf(rank);
  if (whole.bytes <= 0) return std::nullopt;
  const bool free = line.what == AccountItem::kFree;
  if (whole.basis == ShareBasis::kHeld && (free || line.what == AccountItem::kUnknown)) {
    return std::nullopt;
  }
  const bool of_process = whole.basis == ShareBasis::kBudget || whole.basis == ShareBasis::kLimit;
  const bool counts = IsReserved(line.what) || free || line.what == AccountItem::kUnknown;
  if (of_process && !counts && !AddsUpTo(whole, rank.account)) return std::nullopt;
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
  rank.account_of = rank.budget ? ShareBasis::kBudget : ShareBasis::kLimit;
  std::erase_if(rank.account,
                [](const AccountLine& line) { return line.what == AccountItem::kFree; });
  rank.account.push_back(
      {.what = AccountItem::kFree,
       .bytes = std::max<Bytes>(0, *allowed - rank.instant.reserved.value_or(0)),
       .confidence = Confidence::kHigh,
       .because = rank.budget ? "what is left of the budget" : "what is left of the limit"});
}

}  // namespace plimsoll
