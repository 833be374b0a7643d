// The figures of one message, put in relation: what this process holds, what others hold, what is
// left. Everything that is judged or printed later comes from here, so that no two places of an
// answer have different numbers.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "answer/explanation.h"
#include "answer/shares.h"
#include "timeline/message.h"

namespace plimsoll {

/// Contexts, libraries and NCCL together take so much of a device beside the allocator, as a rule.
inline constexpr Bytes kUsualOutside = 5 * kGiB / 2;
/// And so much where one process has one GPU: 115 to 600 MiB in public texts, 771 MiB measured.
inline constexpr Bytes kUsualOutsideAlone = 1229 * kMiB;

/// A size in a sentence.
inline std::string S(Bytes bytes) { return FormatBytes(bytes); }

/// How far a printed size may be off: half a unit of its second decimal.
Bytes RoundingOf(Bytes printed);

/// Whose the memory is that is in use and that the message names nobody for.
enum class Unnamed : std::uint8_t {
  kNothing,    // nothing beyond the rounding of the figures, or it cannot be told
  kDriver,     // little: drivers keep some for themselves
  kContext,    // this process's own, outside the allocator: it is counted in `outside`
  kStrangers,  // more than that: other processes, as a rule
};

struct Figures {
  explicit Figures(const OomMessage& m);

  const OomMessage& message;

  std::optional<Bytes> capacity;
  std::optional<Bytes> free;
  std::optional<Bytes> requested;
  /// In tensors: without the free lists of private pools, which the message adds in.
  std::optional<Bytes> tensors;
  std::optional<Bytes> pools;
  std::optional<Bytes> reserved_free;
  /// tensors + pools + reserved_free.
  std::optional<Bytes> reserved;
  /// What the allocator holds: reserved, or the tensors where only they are told.
  std::optional<Bytes> held;

  /// What this process uses, by the driver's count; `own_pid` where only the arithmetic tells that
  /// a line with a pid is this process (in a container the driver knows it by another pid).
  std::optional<Bytes> own;
  std::optional<std::int64_t> own_pid;
  std::vector<ProcessUse> others;
  std::optional<Bytes> others_sum;

  /// Of this process, outside the allocator: the context, NCCL, other libraries.
  std::optional<Bytes> outside;
  /// In use, and nobody's whom the message names.
  Bytes unnamed = 0;
  Unnamed whose = Unnamed::kNothing;
  /// Named processes, where the text does not tell which of them is this one, if any.
  std::optional<Bytes> unassigned;
  /// What was missing: requested less free, at least 0. Empty: not known.
  std::optional<Bytes> missing;
  /// The most that a difference of these figures can be off by.
  Bytes slack = 0;

  /// More held than the card has: Windows lends it the host's memory.
  bool oversubscribed = false;
  /// The driver had clearly more free than was asked for.
  bool free_suffices = false;
  /// The figures for the processes exceed the card; they are left out.
  bool contradictory = false;
  /// What PyTorch holds and what is free exceed the card; what is free is left out of the account.
  bool free_contradicts = false;
  /// What `capacity` is: the device's memory, or the memory limit of this process.
  ShareBasis capacity_of = ShareBasis::kCapacity;

  /// Whether the message comes from one of PyTorch's allocators for a device.
  bool IsTorch() const;
  /// Whether `held` is all that the allocator holds, and not only what is in tensors.
  bool HeldIsAll() const;
  /// What other processes hold, named or not.
  Bytes Strangers() const {
    return others_sum.value_or(0) + (whose == Unnamed::kStrangers ? unnamed : 0);
  }
  std::string_view WholeWord() const {
    return capacity_of == ShareBasis::kLimit ? "limit" : "device";
  }
  /// Part of the capacity, from 0 to 1.
  double ShareOfDevice(Bytes bytes) const {
    return capacity && *capacity > 0 ? double(bytes) / double(*capacity) : 0;
  }

 private:
  void FindReserved();
  void FindMissing();
  const ProcessUse* FindOwnProcess() const;
  void SplitProcesses();
  void DropContradictions();
  void FindOutside();
};

/// The same figures with the process's memory limit as the capacity: only what PyTorch holds counts
/// towards it. Empty where the text does not say the limit or what PyTorch holds, or where they
/// contradict each other.
std::optional<Figures> WithinLimit(const Figures& f);

}  // namespace plimsoll
