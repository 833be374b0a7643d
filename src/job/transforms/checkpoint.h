// Activation checkpointing of chosen modules, as torch.utils.checkpoint does it without reentrance:
// what a module saves for its backward is dropped at its end, and made again when its backward
// begins. A selective checkpoint keeps what single calls made, and repeats the others.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "job/file/job.h"
#include "job/transforms/checkpoint_blocks.h"

namespace plimsoll {

/// One forward of a segment, and the backward that belongs to it. Moments are indices of events.
struct CheckpointedForward {
  /// Made by the segment, read by its own backward and by others: those have the first one, and the
  /// segment's backward one that is made again.
  struct Copy {
    Storage storage = 0;
    std::vector<std::size_t> own_uses;
    /// After which event the others are done with it; freed when nothing was checkpointed.
    std::size_t released = 0;
    std::size_t freed = 0;
  };
  struct Input {
    Storage storage = 0;
    std::size_t freed = 0;
  };

  std::size_t segment = 0;
  std::vector<std::size_t> calls;
  /// Of the calls, those that are not repeated: what they made is kept.
  std::set<std::size_t> kept;
  /// What they made and the backward reads; and what nobody would hold but for the repetition,
  /// which reads it: by when it was freed.
  std::set<Storage> kept_saved;
  std::map<Storage, std::size_t> kept_passing;
  /// Where the backward begins.
  std::size_t backward = 0;
  /// Saved for the segment's backward alone, and the last event of the forward that needs it.
  std::map<Storage, std::size_t> dropped;
  /// Of those, what a variable of the user's holds for longer than it is read.
  std::set<Storage> in_variables;
  std::vector<Copy> copied;
  /// What it reads and did not make.
  std::vector<Input> inputs;
  /// The first and the last event of the backward that has to do with what is made again.
  std::size_t first_need = static_cast<std::size_t>(-1);
  std::size_t last_need = 0;
  /// The last call that is repeated.
  std::size_t stop = 0;

  bool Needs(Storage storage) const {
    return dropped.contains(storage) ||
           std::any_of(copied.begin(), copied.end(),
                       [&](const Copy& copy) { return copy.storage == storage; });
  }
};

/// What checkpointing each segment would change; segments may overlap here. Those that save nothing
/// are left out.
std::vector<CheckpointedForward> FindCheckpointed(const Job& job, const Variant& variant,
                                                  const CheckpointSegments& segments);

/// The variant with these checkpointed; modules that it does not have are passed over. No segment
/// may be part of another. Adds to the step's strings.
Variant AddCheckpointing(Job& job, const Variant& variant, const CheckpointSegments& segments);

}  // namespace plimsoll
