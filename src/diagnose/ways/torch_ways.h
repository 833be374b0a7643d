// What can be changed in a job of PyTorch's so that it needs less memory, and how that is typed: in
// a loop of one's own, or as a switch of the framework that runs the loop (switches.h). One table
// for answers from logs and from records.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "answer/finding.h"
#include "timeline/framework.h"

namespace plimsoll {

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
  // Of some frameworks alone: there is no line of one's own loop for them.
  kOffloadActivations,
  kLogProbBatch,
  kMergeElsewhere,
  kFewerTrained,
  kRolloutShare,
  kServerRoom,
  kServerQuantized,
  kServerParallel,
  kServerEager,
  kServerSequences,
  kServerTokens,
  kServerShare,
  kServerGraphs,
  kServerWake,
  kPipelineOffload,
  kPipelineSmaller,
  kPipelineQuantized,
  kVaeTiles,
  kPromptsApart,
  kLatentsKept,
  kAttentionInParts,
};

/// What a way is, whoever runs the loop.
struct WayFacts {
  TorchWay way;
  Lever lever;
  std::string_view change;
  /// For a loop of one's own: lines, separated by line ends.
  std::string_view code = {};
  std::string_view costs = {};
  /// There is nothing to type in a loop of one's own.
  bool of_frameworks = false;
};
std::span<const WayFacts> AllWays();
const WayFacts& FactsOf(TorchWay way);

/// Whose words are used, the outermost first. Whoever writes a configuration has no use for an
/// argument of a class of Python's; but the files and launchers beneath are configured too.
std::vector<Framework> SpokenBy(const FrameworkSet& found);

/// Whether one of them trains by a configuration, so that nobody edits a loop.
bool TrainsByConfiguration(std::span<const Framework> frameworks);

/// Whether one of the frameworks has a switch for the way.
bool HasSwitch(TorchWay way, std::span<const Framework> frameworks);

/// The way as the first of the frameworks has it that has a switch for it, else as a line of one's
/// own loop; nothing where there is neither.
std::optional<Remedy> RemedyOf(TorchWay way, std::span<const Framework> frameworks);

/// The lines of a table's text.
std::vector<std::string> LinesOf(std::string_view text);

/// A remedy whose effect no figure proves.
Remedy Rule(std::string change, Lever lever = Lever::kOther, std::vector<std::string> code = {},
            std::string costs = {});

}  // namespace plimsoll
