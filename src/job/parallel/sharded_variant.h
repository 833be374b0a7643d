// A variant while it is divided among ranks: as it was captured, how it is divided, and what writes
// it anew.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "job/file/job.h"
#include "job/parallel/collective.h"
#include "job/parallel/shard_layouts.h"
#include "job/parallel/sharding.h"
#include "job/transforms/job_editor.h"
#include "job/transforms/shard_groups.h"

namespace plimsoll {

/// Buffers of gathering and shards of gradients are made in streams of their own, and the allocator
/// keeps what is free apart by stream. Gathering is asked for in another stream than the one that
/// the buffer is made in.
enum class ShardStream : std::uint8_t { kCompute, kGather, kReduce, kAskToGather };

struct ShardedVariant {
  ShardedVariant(Job& whole, const Variant& captured, const Sharding& how);

  std::size_t GroupOf(const CallRecord& call) const;
  const std::vector<std::uint32_t>& ParametersOf(std::size_t group) const;

  /// Of so many bytes as they are computed with: as shards have them, and as they are reduced.
  Bytes AsKept(Bytes bytes) const;
  Bytes AsReduced(Bytes bytes) const;

  Storage Make(std::string_view what, Bytes bytes, ShardStream stream, Category category);
  /// What a collective over `bytes` makes.
  Storage MakeBy(Collective::Kind kind, Bytes bytes, std::string_view what, Bytes made,
                 ShardStream stream, Category category);
  /// Gloo copies the whole of what it gathers, and of what it reduces, in the stream that asks for
  /// it.
  void CopyByGloo(Bytes bytes, ShardStream stream);

  Job& job;
  const Variant& old;
  const Sharding sharding;
  const ShardGroups groups;
  ShardLayouts layouts;
  JobEditor edit;
};

}  // namespace plimsoll
