// Everything that a run of a job depends on.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "allocator/model/caching_allocator.h"
#include "allocator/settings/settings.h"
#include "base/result.h"
#include "hardware/cluster.h"
#include "hardware/gpu.h"
#include "job/file/job.h"
#include "job/rules/calibration.h"
#include "job/time/step_time.h"

namespace plimsoll {

/// What can be chosen about a run besides the job and the card.
struct PredictOptions {
  std::int64_t batch = 1;
  /// In a step, where the captured micro-batch is split.
  int micro_batches = 1;
  /// As many as the job has before what it does then, where that is known.
  std::optional<std::int64_t> steps = {};
  /// One of the step's variants; the first unless given.
  std::optional<std::string> precision = {};
  /// A PYTORCH_CUDA_ALLOC_CONF string.
  std::string conf = {};
  /// The release that will run it; that of the capture unless given.
  std::optional<TorchVersion> torch = {};
  /// What was measured on the GPU; null for the rules alone.
  std::shared_ptr<const Calibration> calibration = {};
  /// The per-process memory fraction, in bytes.
  std::optional<Bytes> limit = {};
  /// What the host has for the process.
  std::optional<Bytes> host_room = {};
  /// For the time of collectives.
  Cluster cluster = {};
  /// For the time that issuing calls takes.
  HostModel host = {};
};

/// The variant that the options name.
Result<const Variant*> ChooseVariant(const Job& job, const PredictOptions& options);
TorchVersion TorchFor(const Job& job, const PredictOptions& options);

struct Setting {
  std::shared_ptr<const Job> job;
  /// Into the step's variants.
  std::size_t precision = 0;
  std::int64_t batch = 1;
  int micro_batches = 1;
  int steps = 5;
  /// The steps are given: else an epoch has fewer of a larger batch.
  bool steps_are_given = false;
  /// Whether what the job does after its steps is asked about, too.
  bool later = true;
  Gpu gpu;
  AllocatorRules rules;
  TorchVersion torch;
  std::shared_ptr<const Calibration> calibration = {};
  DeviceLimits limits;
  /// For the ranks of the step's collectives; nothing with another backend.
  ContextSize nccl = {};
  Cluster cluster = {};
  HostModel host = {};
  std::optional<Bytes> host_room = {};

  const Variant& variant() const { return job->variants[precision]; }
  /// The same with another batch, or of another form of the job.
  Setting WithBatch(std::int64_t other) const;
  Setting WithStep(std::shared_ptr<const Job> other) const;

  /// The context, and NCCL beside it.
  ContextSize Outside() const;
  /// What the allocator may ask for: the limit, or what is left of the card.
  Bytes Room() const;
  /// What it can hold at most. With expandable segments PyTorch compares what it asks for with the
  /// limit, and then maps whole pages for it: up to one more.
  Bytes Most() const;
  /// Up to 2.11 the allocator breaks ties by address, and where a driver puts a segment differs
  /// from process to process.
  bool AddressesMatter() const { return torch <= TorchVersion{2, 11}; }
  /// A run that stays below its limits by itself may meet them all the same: it collects garbage
  /// before them; or a request for an expandable segment is compared with the limit as if all of it
  /// were to be mapped, though a part is, and a segment has no more addresses than the card needs.
  bool MeetsLimitsEarly() const {
    return rules.settings.garbage_collection_threshold > 0 || rules.settings.expandable_segments;
  }
};

/// An error where the step has no such precision, or for settings of the allocator that there is no
/// model of.
Result<Setting> MakeSetting(std::shared_ptr<const Job> job, const Gpu& gpu,
                            const PredictOptions& options);
/// Of a copy of the step, in the precision that is meant.
Result<Setting> MakeSetting(const Job& job, const Gpu& gpu, const PredictOptions& options);

/// How long a step takes where these calls are refused their workspaces.
StepDuration DurationOf(const Setting& setting, const RefusedCalls& refused = {});

}  // namespace plimsoll
