// Blocks whose results wait on the host: copied there in a stream of their own while the next
// blocks are computed, and back while those have their backward. As
// plimsoll.applying.waiting_blocks does it.
#pragma once

#include <optional>
#include <vector>

#include "job/file/job.h"
#include "job/transforms/checkpoint.h"

namespace plimsoll {

/// What of a block's forward leaves: saved for its own backward alone, and not small beside the
/// rest of it.
std::vector<Storage> LeavingOf(const Variant& variant, const CheckpointedForward& one);

/// Each leaves when its block is done; its memory is free when the module that it waits for is, and
/// it comes back when that one's backward begins. A block that waits for none after it stays.
Variant OffloadBlocks(Job& job, const Variant& variant, const CheckpointSegments& segments);

/// A call that copies between host and device beside the kernels; and what waits for it.
struct SideCopy {
  /// What is copied is ready, or gone, when it is done.
  std::vector<Storage> storages;
  /// Of each.
  std::vector<Number> bytes;
  /// To the host; else from there.
  bool leaves = false;
};
std::optional<SideCopy> SideCopyOf(const Job& job, const CallRecord& call);
/// A storage whose copy the computing stream waits for.
std::optional<Storage> CopyWaitedFor(const Job& job, const CallRecord& call);

}  // namespace plimsoll
