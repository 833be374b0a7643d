// Pipeline parallelism: the blocks of a model on several GPUs, one after the other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "job/file/job.h"

namespace plimsoll {

struct Pipeline {
  /// GPUs; at least 2.
  int stages = 2;
  /// In each step of the optimizer. The captured batch is one of them.
  int micro_batches = 4;
  /// Pieces of the model on each GPU: 1 is 1F1B, more is its interleaved form.
  int chunks = 1;
  /// Where they are not as even as may be: the block that each piece but the first begins with,
  /// from 0, growing.
  std::vector<int> cuts = {};
  /// Which of the GPUs, from 0; that with the largest peak unless given.
  std::optional<int> stage = {};
  /// How far neighbours are apart in the order of all ranks.
  std::int64_t apart = 1;
};

/// "4:16" (stages, micro-batches), "4:16:interleaved2" (two pieces on each GPU), "4:16:cuts1-3-6"
/// (pieces that begin with these blocks); ":stage0" behind any of them (that GPU).
Result<Pipeline> ParsePipeline(std::string_view text);
/// As ParsePipeline takes it.
std::string PipelineText(const Pipeline& pipeline);

/// The GPU that AddPipeline takes. To find the fullest takes as long as all else.
Result<int> ShownStage(const Job& job, const Variant& variant, const Pipeline& pipeline);

/// The variant as one GPU of the pipeline runs it. Adds to the step's strings.
Result<Variant> AddPipeline(Job& job, const Variant& variant, const Pipeline& pipeline);

/// What is assumed of the job, in words for the user.
std::string DescribePipeline(const Job& job, const Variant& variant, const Pipeline& pipeline,
                             int stage);

}  // namespace plimsoll
