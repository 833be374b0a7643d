// Several processes on one card: who was at work when, what each held, and what was not given back.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "timeline/timeline.h"

namespace plimsoll {

struct TimeRange {
  TimeUs begin = 0;
  TimeUs end = 0;
};

/// When a process asked for memory, by its record's clock.
struct Presence {
  TimeRange record;
  /// Without the long pauses between; in order.
  std::vector<TimeRange> busy;
};

/// A process of a card; its place in CardReport::processes is its number.
struct CardProcess {
  /// "trainer": what tells its file's name from the others'.
  std::string name;
  std::string file;
};

/// What one process held at a moment.
struct CardShare {
  Bytes reserved = 0;
  /// Of it in tensors.
  Bytes allocated = 0;
  /// Of it in whole free segments: empty_cache() gives them back.
  Bytes cached = 0;
};

/// One process at work, the others waiting.
struct Turn {
  std::size_t process = 0;
  TimeRange time;
  /// The program's own names for what it did, in order.
  std::vector<std::string> marks;
  /// The most that all held together in it, and what each held then.
  Bytes peak = 0;
  std::vector<Bytes> held;
};

/// One process has ended its turn, another begins.
struct HandOver {
  std::size_t from = 0;
  std::size_t to = 0;
  TimeUs time_us = 0;
  /// Of the other.
  TimeRange turn;
  /// What the one did last and the other does first: "after train", "in rollout.wake".
  std::string after;
  std::string before;
  /// Of every process, when the other begins.
  std::vector<CardShare> held;
  /// What those that wait keep and no tensor uses.
  Bytes not_given_back = 0;
};

struct CardReport {
  int device = 0;
  std::vector<CardProcess> processes;
  /// How it is known that they are of one card.
  std::string known_by;
  std::optional<Bytes> capacity;
  /// What the allocators of all of them could have together, where the driver's figures tell it.
  std::optional<Bytes> room;
  /// The first event of all: times are told from here.
  TimeUs began = 0;
  /// The most that all held together, and what each held then.
  Bytes peak = 0;
  TimeUs peak_at = 0;
  std::vector<Bytes> held_at_peak;
  /// They do not take turns.
  bool at_once = false;
  std::vector<Turn> turns;
  /// The last ones, where there are very many.
  std::vector<HandOver> hand_overs;
  std::size_t earlier_hand_overs = 0;

  /// Time since the beginning, in seconds.
  double Seconds(TimeUs time) const { return double(time - began) / 1e6; }
  /// The most that was kept at any hand-over.
  Bytes MostKept() const;
};

}  // namespace plimsoll
