// Where to cut a model's layers, so that no stage takes long, or none is full.
#pragma once

#include <optional>
#include <vector>

#include "base/bytes.h"
#include "train/models/model_layers.h"

namespace plimsoll::train {

/// Of one layer.
struct LayerFigures {
  /// There all the time: parameters, their gradients, the optimizer's state, buffers.
  Bytes kept = 0;
  /// What forward leaves for backward, of one micro-batch.
  Bytes saved = 0;
  /// What it is given, which a stage that begins with it keeps too, of one micro-batch.
  Bytes given = 0;
  /// The most beside all that, while it is computed.
  Bytes passing = 0;
  /// Forward and backward of one micro-batch. Measured, so never the same twice.
  double seconds = 0;
};

struct StageSplitOptions {
  int stages = 1;
  int micro_batches = 1;
  enum class Aim {
    /// The fullest stage has as little as can be, and the others are as even as that allows. Only
    /// bytes decide, so that the choice is always the same.
    kMemory,
    /// The slowest stage takes as little time as can be; where several splits do, that of them
    /// whose fullest stage has least.
    kTime,
  };
  Aim aim = Aim::kMemory;
  /// Of each stage.
  std::optional<Bytes> limit;
};

/// What a stage of layers [begin, end) holds at its fullest. In 1F1B the first of S stages has S
/// micro-batches between their forwards and backwards, the last has one.
Bytes StageBytes(const std::vector<LayerFigures>& layers, const StageSplitOptions& options,
                 int stage, int begin, int end);

/// How many layers each stage gets, at least one: exactly the best. Throws c10::Error if there are
/// fewer layers than stages, or if no split keeps to the limit.
std::vector<int> SplitStages(const std::vector<LayerFigures>& layers,
                             const StageSplitOptions& options);

struct MeasureOptions {
  /// Where; the layers come back to where they were.
  c10::Device device = c10::kCPU;
  /// The optimizer's state takes so many times the parameters: 2 as Adam's, 1 as momentum.
  double optimizer_state = 2;
  /// Parameters that several layers share are kept by the first alone, as on one device; else by
  /// each of them.
  bool shared_once = false;
};

/// Runs each layer on the micro-batch, forward and backward, one at a time: the device need not
/// hold more than one. Leaves parameters, buffers and random numbers as they were.
std::vector<LayerFigures> MeasureLayers(const ModelLayers& layers, const Batch& micro_batch,
                                        const MeasureOptions& options = {});

}  // namespace plimsoll::train
