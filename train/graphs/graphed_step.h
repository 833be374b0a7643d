// A training step as a CUDA graph: the host launches it as a whole, which pays where the kernels
// are small.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string_view>

#include "train/checkpointing/checkpoint.h"
#include "train/data/batch.h"

namespace plimsoll::train {

/// The step does something that cannot be part of a CUDA graph, such as reading a number from the
/// device or drawing random numbers on the host. It can be run as it is.
class NotCapturable : public c10::Error {
 public:
  explicit NotCapturable(std::string_view why);
};

/// Forward and backward of one shape of batch. Its memory is the caching allocator's and counts in
/// the budget; it is held for the life of the object.
///
/// Whatever the step does on the host happens once, at the capture: numbers that it computes there
/// are the same ever after. Therefore the optimizer's step is not part of it (LibTorch's Adam
/// counts its steps on the host). Random numbers go on from replay to replay as they do without a
/// graph.
class GraphedStep {
 public:
  /// Computes a loss and calls backward on it; returns what is to be read afterwards.
  using Step = std::function<Tensors(const Batch&)>;

  /// Runs the step on `example` a few times, so that libraries choose their kernels, then captures
  /// it. Gradients, buffers and random numbers are as before afterwards, also where it fails: with
  /// NotCapturable, with c10::OutOfMemoryError, with what the step itself throws when it is run as
  /// it is, and where the batch is not on a CUDA device.
  GraphedStep(torch::nn::Module& model, Step step, const Batch& example, int warm_up = 3);
  ~GraphedStep();
  GraphedStep(const GraphedStep&) = delete;
  GraphedStep& operator=(const GraphedStep&) = delete;

  /// The step on this batch, which may be on the host. The parameters' gradients are then those of
  /// this batch alone: they take the place of what was there. The results are overwritten by the
  /// next replay.
  const Tensors& Replay(const Batch& batch);

 private:
  class Captured;
  std::unique_ptr<Captured> captured_;
};

/// Fails with what differs, if the graph captured for one batch cannot run on the other.
void CheckSameShapes(const Batch& captured, const Batch& given);

}  // namespace plimsoll::train
