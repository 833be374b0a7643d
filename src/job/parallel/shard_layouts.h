// What a rank holds of a tensor that FSDP2 divides among several: dimension 0 in equal parts, the
// last ones padded.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "job/file/job.h"
#include "job/parallel/sharding.h"

namespace plimsoll {

class ShardLayouts {
 public:
  /// Adds to the step's layouts.
  ShardLayouts(Job& job, const Variant& variant, const Sharding& sharding)
      : job_(job),
        variant_(variant),
        ranks_(sharding.ranks),
        left_out_(sharding.left_out),
        computed_in_(sharding.policy ? std::optional(sharding.policy->param) : std::nullopt) {}

  /// The layout of the first rank's part; in fp32 what a policy computes in 16 bits.
  std::uint32_t ShardOf(std::uint32_t layout);
  /// All parts together, with the padding.
  Bytes PaddedBytes(const ModelTensor& tensor) const;
  /// A call of the optimizer: whatever has the shape of a parameter is a shard there.
  void ShardCall(CallRecord& call);

 private:
  void ShardUse(TensorUse& use);
  void ShardArgument(Argument& argument);
  bool LikeParameter(std::uint32_t layout);

  Job& job_;
  const Variant& variant_;
  const std::int64_t ranks_;
  const std::set<Storage> left_out_;
  const std::optional<DType> computed_in_;
  /// By layout.
  std::map<std::uint32_t, std::uint32_t> shard_of_;
  std::map<std::uint32_t, bool> like_parameter_;
};

}  // namespace plimsoll
