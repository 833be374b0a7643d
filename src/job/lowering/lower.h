// Lowers a step to what eager PyTorch asks of the allocator, in order: for a batch size, on a GPU,
// over several steps of training.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "allocator/replay/workload.h"
#include "hardware/gpu.h"
#include "job/calls/call.h"
#include "job/file/job.h"

namespace plimsoll {

struct LoweredBlock {
  Bytes requested = 0;
  Category category = Category::kTemporaries;
  /// Where it was made: an index into the variant's calls, or into its model tensors.
  std::uint32_t call = kNoCall;
  std::uint32_t model_tensor = kNoCall;
  /// It is not a result but something that the kernel takes beside.
  bool beside = false;
  /// 0 is the one of all that is in no graph.
  std::uint8_t pool = 0;

  static constexpr std::uint32_t kNoCall = 0xffffffffu;
};

/// When a request is made.
struct Moment {
  int step = -1;
  /// Into the variant's later parts; kSteps before them.
  int part = kSteps;
  /// Of a part that is repeated: how often it ran before.
  std::int64_t round = 0;
  Stage stage = Stage::kBuild;
  std::uint32_t call = LoweredBlock::kNoCall;

  static constexpr int kSteps = -1;
};

struct Lowered {
  Workload workload;
  /// By allocation.
  std::vector<LoweredBlock> blocks;
  /// By request.
  std::vector<Moment> moments;
  /// Operators of which nothing is known but their results, and how often they are called.
  std::map<std::string, int, std::less<>> unknown;
  /// No workspace has a likely size that differs from its upper one: both estimates are this.
  bool certain = true;
  /// Batches of loops behind the steps that were too many to be repeated.
  std::int64_t left_out = 0;
  /// Micro-batches that were said to repeat the one before them, and could not be seen to: they
  /// were not run.
  std::int64_t not_repeated = 0;
  /// Rounds of loops that grow: how many there are, and how many of them were run. Between those
  /// the others are taken to do the same.
  std::int64_t rounds = 0;
  std::int64_t rounds_run = 0;
  /// Whether any workspace is borrowed, which may be refused.
  bool borrows = false;
  /// Whether the fastest way of any call is searched for.
  bool searches = false;
};

/// Which of a workspace's sizes is taken.
enum class Estimate : std::uint8_t { kLikely, kUpper };

class Calibration;

struct LowerOptions {
  /// A micro-batch, of so many in a step: parts may take them together.
  std::int64_t batch = 1;
  int micro_batches = 1;
  int steps = 5;
  /// Whether what the job does after its steps is part of it.
  bool later = true;
  TorchVersion torch = {};
  const Calibration* calibration = nullptr;
  Estimate estimate = Estimate::kLikely;
  /// DrawnSizes.
  int draw = 0;
};

Lowered Lower(const Job& step, const Variant& variant, const Gpu& gpu, const LowerOptions& options);

}  // namespace plimsoll
