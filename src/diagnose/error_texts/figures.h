// The figures of one message, put in relation: what this process holds, what others hold, what is
// left. Everything that is judged or printed later comes from here.
#pragma once

#include <optional>
#include <vector>

#include "answer/explanation.h"
#include "timeline/message.h"

namespace plimsoll {

/// How far a printed size may be off: half a unit of its second decimal.
Bytes RoundingOf(Bytes printed);

struct Figures {
  explicit Figures(const OomMessage& m);

  const OomMessage& message;

  /// Of the device; of an MPS or MPS-like budget, the budget.
  std::optional<Bytes> capacity;
  std::optional<Bytes> free;
  std::optional<Bytes> requested;
  /// In tensors: without the free lists of private pools, which the message adds in.
  std::optional<Bytes> tensors;
  std::optional<Bytes> pools;
  std::optional<Bytes> reserved_free;
  /// tensors + pools + reserved_free.
  std::optional<Bytes> reserved;

  /// What this process uses, by the driver's count; `own_pid` where only the arithmetic tells that
  /// a line with a pid is this process (in a container the driver knows it by another pid).
  std::optional<Bytes> own;
  std::optional<std::int64_t> own_pid;
  std::vector<ProcessUse> others;
  std::optional<Bytes> others_sum;

  /// own - reserved: the context, NCCL, other libraries.
  std::optional<Bytes> outside;
  /// Used on the device but by nobody whom the message names. May be negative by rounding.
  std::optional<Bytes> unnamed;
  /// The most that a difference of these figures can be off by.
  Bytes slack = 0;

  /// More held than the card has: Windows lends it the host's memory.
  bool oversubscribed = false;
  /// The driver had clearly more free than was asked for.
  bool free_suffices = false;

  bool IsTorch() const;

 private:
  void FindOwnProcess();
};

}  // namespace plimsoll
