// In which order the ranks of a pipeline go through their micro-batches, as data.
#pragma once

#include <string>
#include <vector>

namespace plimsoll::train {

/// The model's layers are cut into stages x chunks parts, one after the other; part p is chunk
/// p / stages of rank p % stages.
struct PipelineShape {
  /// Ranks.
  int stages = 1;
  /// Parts of each rank: 1 is 1F1B, more its interleaved form, whose ranks wait less and keep more.
  int chunks = 1;
  int micro_batches = 1;

  int parts() const { return stages * chunks; }
};

/// The forward or the backward of one micro-batch through one part.
struct PipelineAction {
  bool backward = false;
  int chunk = 0;
  int micro_batch = 0;
  /// The rank whose result it waits for, and the one that waits for its own; -1: nobody.
  int from = -1;
  int to = -1;

  bool operator==(const PipelineAction&) const = default;
};

/// So many forwards a rank does before its first backward, but for the one just before it. At most
/// one more are alive at once.
int WarmUp(const PipelineShape& shape, int rank);

/// 1F1B: the warm-up, then a forward and a backward in turn. Interleaved: the same over chunks,
/// which micro-batches go through in groups, as Megatron-LM orders them; here their number need not
/// be a multiple of that of the stages. Throws c10::Error for a shape that cannot be.
std::vector<PipelineAction> Schedule(const PipelineShape& shape, int rank);

/// Who does what when, a line a rank, if a backward takes twice as long as a forward and sending
/// takes none: micro-batches from 0 on as digits and letters, forwards plain and backwards in
/// brackets, the chunk before the number where there are several.
std::string PictureOf(const PipelineShape& shape);

}  // namespace plimsoll::train
