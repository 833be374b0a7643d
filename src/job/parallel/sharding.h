// How FSDP2 divides a model among ranks, as people say it.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "base/result.h"
#include "job/file/job.h"

namespace plimsoll {

/// torch's MixedPrecisionPolicy: computed in `param`, summed up over the ranks in `reduce`. Shards
/// of parameters and gradients, and the optimizer's state, are fp32.
struct MixedPrecision {
  DType param = DType::kBFloat16;
  DType reduce = DType::kFloat32;
};

struct Sharding {
  /// reshard_after_forward=False: which blocks keep their whole parameters for the backward.
  enum class Keep : std::uint8_t { kNone, kLast, kAll };

  /// At least 2.
  std::int64_t ranks = 2;
  Keep keep = Keep::kNone;
  /// The model is built on the meta device, so that it is never whole on this one.
  bool meta = false;
  std::optional<MixedPrecision> policy = {};
  /// Else that of the captured job.
  std::optional<Backend> backend = {};
  /// How far neighbours are apart in the order of all ranks.
  std::int64_t apart = 1;
  /// Groups of ranks that have the same shards, whose gradients are summed up then (HSDP).
  std::int64_t replicas = 1;
  /// Around a stage of a pipeline: parameters stay whole after a backward, and gradients are added
  /// up whole, until all micro-batches are done.
  bool in_pipeline = false;
  /// Parameters that are not sharded, with their gradients and state (ignored_params).
  std::set<Storage> left_out = {};
};

/// "4", then any of ":keep" or ":keep_last", ":meta", ":bf16" or ":fp16" (a MixedPrecisionPolicy
/// that reduces in fp32), ":reduce_half" (it reduces in those 16 bits), ":gloo" or ":nccl".
Result<Sharding> ParseSharding(std::string_view text);
/// As ParseSharding takes it.
std::string ShardingText(const Sharding& sharding);

/// Why the variant cannot be sharded so: under a policy its parameters have to be captured in the
/// type that it computes in.
std::optional<Error> CannotShard(const Job& job, const Variant& variant, const Sharding& sharding);

/// What is assumed of the job, in words for the user: which modules are blocks among it.
std::string DescribeSharding(const Job& job, const Variant& variant, const Sharding& sharding);

}  // namespace plimsoll
