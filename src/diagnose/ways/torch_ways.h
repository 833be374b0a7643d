// What can be changed in a job of PyTorch's so that it needs less memory, and how that is typed: in
// a loop of one's own, or as an argument of the framework that runs the loop. One table for answers
// from logs and from records.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "answer/finding.h"

namespace plimsoll {

/// What runs the training loop. Whoever uses one has no loop to edit.
enum class Framework : std::uint8_t {
  kOwnLoop,
  kHfTrainer,  // transformers' Trainer, and what is built on it
  kLightning,
  kDeepSpeed,  // its engine in a loop of the user's own
};

enum class TorchWay : std::uint8_t {
  kEnd,  // of a list
  kAccumulate,
  kCheckpoint,
  kAutocast,
  kSmallOptimizer,
  kShard,
  kFlashAttention,
  kChunkedLoss,
  kFewerLogits,
  kFreeBefore,
  kCopyOnHost,
  kLightWeights,
  kShardBuild,
  kLayersOnHost,
  kReadToHost,
  kQuantized,
  kWeightsOverMore,
  kOptimizerState,
  kNoForeach,
  kOffloadOptimizer,
  kShardOptimizer,
  kEvalAccumulation,
  kPreprocessLogits,
  kLossOnly,
  kEvalBatch,
  kNoAutograd,
  kSmallerInput,
  kGenerateWithoutAutograd,
  kFewerSequences,
  kSmallerCache,
  kGatherOnHost,
  kSaveShards,
  kSaveOneByOne,
  kSmallerUnits,
  kFewerLive,
  kShorterSequences,
  kOptimizerLater,
  kZeroStage2,
  kZeroStage3,
  kZeroOffloadOptimizer,
  kZeroOffloadParameters,
  kZeroBuckets,
};

/// The way as the first of the frameworks has it that has words of its own for it, else as a line
/// of one's own loop.
Remedy RemedyOf(TorchWay way, std::span<const Framework> frameworks);

/// The lines of a table's text.
std::vector<std::string> LinesOf(std::string_view text);

/// A remedy whose effect no figure proves.
Remedy Rule(std::string change, Lever lever = Lever::kOther, std::vector<std::string> code = {},
            std::string costs = {});

}  // namespace plimsoll
