// Where every byte of a device is at one instant, line by line.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "answer/category.h"
#include "base/bytes.h"

namespace plimsoll {

/// What a line of an account stands for: first the categories of tensors, in their order, then what
/// the allocator holds besides them, then what lies outside it.
enum class AccountItem : std::uint8_t {
  kParameters,
  kGradients,
  kOptimizerState,
  kActivations,
  kInputs,
  kCache,
  kTemporaries,
  kWorkspaces,
  kKept,
  kUnattributed,
  kRounding,    // blocks are larger than the requests
  kPending,     // released; another stream still uses it
  kFragmented,  // free, but stuck in segments in use
  kCached,      // whole free segments
  kOutside,     // of this process, outside the allocator: context, NCCL, libraries
  kNccl,        // NCCL's part of that, where it is told apart
  kOtherProcesses,
  kFree,     // free on the device
  kUnnamed,  // in use on the device, by nobody whom an error text names
  kUnknown,  // of which an error text does not say whether it was in use
};
inline constexpr std::size_t kAccountItemCount = 20;

/// What an account adds up to, and what its shares are of.
enum class ShareBasis : std::uint8_t {
  kBudget,    // of `plimsoll run --budget`
  kLimit,     // that the program set for its process
  kCapacity,  // of the card
  kHeld,      // all that is accounted for, where none of them is known
};
/// As JSON has it: "budget".
std::string_view ShareBasisName(ShareBasis basis);

constexpr AccountItem ItemOf(Category category) { return static_cast<AccountItem>(category); }
static_assert(ItemOf(Category::kUnattributed) == AccountItem::kUnattributed);

/// As JSON has it: "other_processes".
std::string_view AccountItemName(AccountItem item);
/// As a table has it: "other processes".
std::string_view AccountItemLabel(AccountItem item);
/// As a sentence has it: "free pieces inside segments in use".
std::string_view AccountItemWords(AccountItem item);
/// Whether the allocator holds it: those lines add up to what is reserved.
bool IsReserved(AccountItem item);

/// How sure a line is: from measured behaviour, from weaker signs, or by elimination.
enum class Confidence : std::uint8_t { kHigh, kMedium, kLow };
std::string_view ConfidenceName(Confidence confidence);

struct AccountLine {
  AccountItem what = AccountItem::kUnattributed;
  Bytes bytes = 0;
  Confidence confidence = Confidence::kHigh;
  /// How that is known, in a few words.
  std::string because = {};
};

/// The bytes of one line; 0 where there is none.
Bytes BytesOf(const std::vector<AccountLine>& account, AccountItem what);

}  // namespace plimsoll
