// What the exports share: a run's name, and its memory event by event.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "report/exports/exports.h"

namespace plimsoll {

/// "rank 3, cuda:0".
std::string RunName(const ExportedRun& run);

/// A JSON string with its quotes. Names come from the user's code and may hold any bytes.
std::string JsonText(std::string_view text);

/// Something that begins or ends at an event.
struct HistoryChange {
  /// In the order in which those of one event are applied: what ends makes room first.
  enum class Kind : std::uint8_t { kRelease, kFree, kSpanEnd, kSpanBegin, kReserved, kMake };
  Position at = kBefore;
  Kind kind = Kind::kMake;
  /// Of a block, a span or a figure, according to the kind.
  std::uint32_t index = 0;
};

/// All of them, in order.
std::vector<HistoryChange> ChangesOf(const History& history);

/// What is held after the changes so far.
class HeldMemory {
 public:
  explicit HeldMemory(const History& history)
      : history_(history), by_category_(history.categories.size()) {}

  void Apply(const HistoryChange& change);

  /// Blocks with what rounding added to them.
  Bytes allocated() const { return allocated_; }
  /// As in the account (diagnose/account.cc): without spans what the record states, but at least
  /// what is allocated or awaits another stream.
  Bytes reserved() const;
  /// What the program asked for; `rounding` is the rest of what is allocated.
  const std::vector<Bytes>& by_category() const { return by_category_; }
  Bytes rounding() const { return rounding_; }

 private:
  void Add(const HistoryBlock& block, Bytes sign);

  const History& history_;
  std::vector<Bytes> by_category_;
  Bytes rounding_ = 0;
  Bytes allocated_ = 0;
  Bytes pending_ = 0;
  Bytes in_spans_ = 0;
  Bytes stated_ = 0;
};

}  // namespace plimsoll
