// How ranks come to their store and to one another. Not for users.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <exception>
#include <string>

#include "train/parallel/ranks/launch.h"
#include "train/parallel/ranks/ranks.h"

namespace plimsoll::train {

/// Without the stack that torch's errors carry.
std::string FirstLine(const std::exception& error);

/// How often a rank says that it is there. Finding who is missing takes up to six of these, and is
/// part of the time limit.
std::chrono::milliseconds IntervalOf(std::chrono::milliseconds limit);
/// The time that a collective may take, so that the error comes within the limit.
std::chrono::milliseconds CollectiveLimit(std::chrono::milliseconds limit);

/// A connection to the store of all ranks; `keep`: this process keeps it. Throws RankError.
c10::intrusive_ptr<c10d::Store> OpenStore(const Launch& launch, bool keep,
                                          std::chrono::milliseconds limit);
/// Opened once, and there until the process ends: ranks that are quick may already meet for the
/// next group while this one still leaves the last.
void KeepStore(const Launch& launch, std::chrono::milliseconds limit);

/// One group of ranks, and which of them this one is.
struct GroupPlace {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  /// The first of all ranks, which have only just come. Some may need longer than they do later.
  bool first = false;
};
/// Returns when its ranks are connected.
c10::intrusive_ptr<c10d::ProcessGroup> MakeGroup(const GroupPlace& place, const Launch& launch,
                                                 const RanksOptions& options);

}  // namespace plimsoll::train
