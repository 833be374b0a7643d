// What one process kept from another of its card, and what would have left enough.
#pragma once

#include <optional>
#include <vector>

#include "diagnose/neighbours/card_study.h"

namespace plimsoll {

/// One of them asked for memory that the card did not have.
struct Failure {
  std::size_t process = 0;
  Position at = 0;
  TimeUs time_us = 0;
  Bytes requested = 0;
  /// What the driver was asked for, and what it had.
  Bytes segment = 0;
  Bytes free = 0;
  /// Of every process at that moment.
  std::vector<CardShare> held;
  /// What all of them could have together: what they held, and what was free.
  Bytes room = 0;
  /// What the process needs to get through its turn: as in the turn before, where it had one.
  Bytes needs = 0;
  bool known_from_earlier_turn = false;
};

/// The last refusal that ended a process and that a full card explains.
std::optional<Failure> FindFailure(const std::vector<CardTrace>& traces, const CardReport& card);

std::vector<Finding> FindNeighbours(const std::vector<CardTrace>& traces, const CardReport& card,
                                    const std::optional<Failure>& failure);

}  // namespace plimsoll
