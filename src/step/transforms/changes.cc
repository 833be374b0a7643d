#include "step/transforms/changes.h"

#include "step/transforms/accumulate.h"
#include "step/transforms/checkpoint.h"
#include "step/transforms/data_parallel.h"
#include "step/transforms/optimizer.h"

namespace plimsoll {

std::optional<Error> Apply(Step& step, const Changes& changes) {
  if (changes.accumulate > 1) {
    if (std::optional<Error> error = CannotAccumulate(step)) return error;
  }
  if (changes.sharding && changes.data_parallel) {
    return Error{.message = "FSDP and DDP are two ways to train on several GPUs",
                 .hint = "choose one of them"};
  }
  if (changes.sharding) {
    if (std::optional<Error> error = KeepShardable(step, *changes.sharding)) return error;
    step.notes.push_back(DescribeSharding(step, step.variants.front(), *changes.sharding));
  }
  if (changes.tf32) step.matmul_tf32 = *changes.tf32;
  for (Variant& variant : step.variants) {
    if (changes.checkpoint) {
      const Result<CheckpointSegments> segments =
          ParseCheckpointing(*changes.checkpoint, CheckpointBlocks(step, variant));
      if (!segments) return segments.error();
      variant = AddCheckpointing(step, variant, *segments);
    }
    // Sharding first, so that another optimizer is one of shards too.
    if (changes.sharding) variant = AddFullySharded(step, variant, *changes.sharding);
    if (changes.optimizer) {
      Result<Variant> replaced = ReplaceOptimizer(step, variant, *changes.optimizer);
      if (!replaced) return replaced.error();
      variant = std::move(*replaced);
    }
    if (changes.data_parallel) variant = AddDataParallel(step, variant);
    // Last: whatever a pass does with its gradients, the next one does as well.
    variant = AddAccumulation(step, variant, changes.accumulate);
  }
  return std::nullopt;
}

}  // namespace plimsoll
