// Ways to need less memory for a script of PyTorch's: in which order they help at each stage of a
// job, and which of them are open to it. What they are is in ways/torch_ways.cc.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "diagnose/error_texts/advice.h"

namespace plimsoll {
namespace {

struct StageOrder {
  Stage stage;
  /// How many of the ways are about this stage alone: told before whatever else is found.
  std::size_t own;
  std::array<TorchWay, 14> ways;
};
// What helps most and costs least first. Where no batch is on the device, none is made smaller.
constexpr auto kStageOrders = std::to_array<StageOrder>({
    {Stage::kUnknown,
     0,
     {TorchWay::kAccumulate, TorchWay::kShorterSequences, TorchWay::kCheckpoint,
      TorchWay::kAutocast, TorchWay::kSmallOptimizer, TorchWay::kShard, TorchWay::kZeroStage2,
      TorchWay::kZeroOffloadOptimizer, TorchWay::kZeroStage3, TorchWay::kZeroOffloadParameters}},
    {Stage::kForward,
     1,
     {TorchWay::kFlashAttention, TorchWay::kAccumulate, TorchWay::kShorterSequences,
      TorchWay::kCheckpoint, TorchWay::kAutocast, TorchWay::kSmallOptimizer, TorchWay::kShard,
      TorchWay::kZeroStage2, TorchWay::kZeroOffloadOptimizer, TorchWay::kZeroStage3,
      TorchWay::kZeroOffloadParameters}},
    {Stage::kBackward,
     1,
     {TorchWay::kFlashAttention, TorchWay::kAccumulate, TorchWay::kShorterSequences,
      TorchWay::kCheckpoint, TorchWay::kAutocast, TorchWay::kSmallOptimizer, TorchWay::kShard,
      TorchWay::kZeroStage2, TorchWay::kZeroOffloadOptimizer, TorchWay::kZeroStage3,
      TorchWay::kZeroOffloadParameters}},
    {Stage::kTransfer,
     0,
     {TorchWay::kAccumulate, TorchWay::kShorterSequences, TorchWay::kFreeBefore,
      TorchWay::kCheckpoint, TorchWay::kAutocast, TorchWay::kSmallOptimizer, TorchWay::kShard,
      TorchWay::kZeroStage2, TorchWay::kZeroOffloadOptimizer, TorchWay::kZeroStage3,
      TorchWay::kZeroOffloadParameters}},
    {Stage::kLoss,
     2,
     {TorchWay::kChunkedLoss, TorchWay::kFewerLogits, TorchWay::kAccumulate,
      TorchWay::kShorterSequences, TorchWay::kCheckpoint, TorchWay::kAutocast, TorchWay::kShard,
      TorchWay::kZeroStage2, TorchWay::kZeroOffloadOptimizer, TorchWay::kZeroStage3,
      TorchWay::kZeroOffloadParameters}},
    {Stage::kBuild,
     2,
     {TorchWay::kCopyOnHost, TorchWay::kLightWeights, TorchWay::kShardBuild,
      TorchWay::kLayersOnHost}},
    {Stage::kLoad,
     1,
     {TorchWay::kReadToHost, TorchWay::kQuantized, TorchWay::kLayersOnHost,
      TorchWay::kWeightsOverMore}},
    {Stage::kOptimizer,
     2,
     {TorchWay::kOptimizerState, TorchWay::kNoForeach, TorchWay::kOptimizerLater,
      TorchWay::kOffloadOptimizer, TorchWay::kShardOptimizer, TorchWay::kZeroStage2,
      TorchWay::kZeroOffloadOptimizer, TorchWay::kZeroStage3, TorchWay::kZeroOffloadParameters,
      TorchWay::kZeroBuckets}},
    {Stage::kAllGather,
     2,
     {TorchWay::kSmallerUnits, TorchWay::kFewerLive, TorchWay::kZeroOffloadParameters,
      TorchWay::kAccumulate, TorchWay::kShorterSequences, TorchWay::kCheckpoint,
      TorchWay::kAutocast}},
    {Stage::kEvaluation,
     4,
     {TorchWay::kEvalAccumulation, TorchWay::kPreprocessLogits, TorchWay::kLossOnly,
      TorchWay::kNoAutograd, TorchWay::kEvalBatch, TorchWay::kSmallerInput, TorchWay::kQuantized}},
    {Stage::kGeneration,
     0,
     {TorchWay::kGenerateWithoutAutograd, TorchWay::kFewerSequences, TorchWay::kSmallerCache,
      TorchWay::kQuantized, TorchWay::kLayersOnHost}},
    {Stage::kSave, 3, {TorchWay::kGatherOnHost, TorchWay::kSaveShards, TorchWay::kSaveOneByOne}},
});

const StageOrder& OrderOf(const OomMessage& message) {
  Stage stage = message.stage;
  // Graphs are captured for serving, hardly ever for training.
  const bool open = stage == Stage::kUnknown || stage == Stage::kForward;
  if (open && message.private_pools) stage = Stage::kEvaluation;
  const auto at = std::find_if(kStageOrders.begin(), kStageOrders.end(),
                               [&](const StageOrder& order) { return order.stage == stage; });
  return at == kStageOrders.end() ? kStageOrders.front() : *at;
}

/// ZeRO splits the optimizer's state, and takes few optimizers besides its own.
bool IsSharded(const OomMessage& message) {
  return message.signs.deepspeed && message.zero_stage.value_or(0) > 0;
}

/// DeepSpeed shards by its own stages, and its optimizers handle the parameters in their own way.
bool IsOpenToEngine(TorchWay way, const OomMessage& message) {
  const bool deepspeed = message.signs.deepspeed;
  const int stage = message.zero_stage.value_or(0);
  switch (way) {
    case TorchWay::kShard:
    case TorchWay::kShardOptimizer:
    case TorchWay::kOffloadOptimizer:
    case TorchWay::kNoForeach:
    case TorchWay::kSmallerUnits:
      return !deepspeed;
    case TorchWay::kFewerLive:
      return deepspeed;
    case TorchWay::kZeroStage2:
      return deepspeed && stage == 0;
    case TorchWay::kZeroStage3:
      return deepspeed && (stage == 1 || stage == 2);
    case TorchWay::kZeroOffloadParameters:
      return deepspeed && stage == 3;
    case TorchWay::kZeroOffloadOptimizer:
      return deepspeed && !message.signs.offloads_optimizer;
    case TorchWay::kZeroBuckets:
      return IsSharded(message);
    default:
      return true;
  }
}

/// Whether the text shows that the way is open to the job.
bool IsOpen(TorchWay way, const OomMessage& message) {
  const Signs& signs = message.signs;
  switch (way) {
    case TorchWay::kFlashAttention:
      return signs.attention_scores;
    case TorchWay::kCheckpoint:
      return !signs.checkpoints;
    case TorchWay::kAutocast:
      return !signs.autocast;
    // Its lines are those of transformers' models.
    case TorchWay::kQuantized:
      return signs.hf_trainer || signs.transformers || !signs.lightning;
    case TorchWay::kEvalAccumulation:
    case TorchWay::kPreprocessLogits:
    case TorchWay::kLossOnly:
    case TorchWay::kEvalBatch:
      return signs.hf_trainer;
    case TorchWay::kSmallerInput:
      return !signs.hf_trainer;
    // Trainer evaluates without autograd.
    case TorchWay::kNoAutograd:
      return !signs.hf_trainer;
    // Trainers let go of a step's tensors.
    case TorchWay::kFreeBefore:
      return !signs.hf_trainer && !signs.lightning;
    // The model of a Trainer computes its own loss.
    case TorchWay::kFewerLogits:
      return !signs.hf_trainer;
    case TorchWay::kAccumulate:
      return message.device_batch != 1;
    case TorchWay::kShorterSequences:
      return message.device_batch == 1;
    case TorchWay::kOptimizerState:
      return !signs.stepped_before && !IsSharded(message);
    case TorchWay::kOptimizerLater:
      return signs.stepped_before && !IsSharded(message);
    case TorchWay::kSmallOptimizer:
      return !IsSharded(message);
    case TorchWay::kCopyOnHost:
      return signs.deep_copy;
    case TorchWay::kLightWeights:
      return !signs.deep_copy;
    case TorchWay::kReadToHost:
      // Without a traceback, the text itself says that the weights are too large.
      return message.subject != "the weights";
    case TorchWay::kGatherOnHost:
    case TorchWay::kSaveShards:
      return signs.communicates;
    case TorchWay::kSaveOneByOne:
      return !signs.communicates;
    default:
      return IsOpenToEngine(way, message);
  }
}

/// What runs the loop, the one whose words come first in front.
std::vector<Framework> FrameworksOf(const Signs& signs) {
  std::vector<Framework> frameworks;
  if (signs.hf_trainer) frameworks.push_back(Framework::kHfTrainer);
  if (signs.lightning) frameworks.push_back(Framework::kLightning);
  if (signs.deepspeed) frameworks.push_back(Framework::kDeepSpeed);
  return frameworks;
}

/// Half of the batch in twice the passes, in the place of {batch} and {steps}; where the text does
/// not tell the batch, the least.
void PutBatch(const OomMessage& message, Remedy& remedy) {
  const bool told = message.device_batch && *message.device_batch > 1;
  const std::int64_t before = told ? *message.device_batch : 8;
  const std::int64_t batch = told ? before / 2 : 1;
  const std::int64_t passes = told ? message.accumulation.value_or(1) : 1;
  const std::int64_t steps = passes * ((before + batch - 1) / batch);
  for (std::string& line : remedy.code) {
    if (line.find("{batch}") == std::string::npos) continue;
    const auto put = [&line](std::string_view place, std::int64_t count) {
      line.replace(line.find(place), place.size(), fmt::format("{}", count));
    };
    put("{batch}", batch);
    put("{steps}", steps);
    if (told) line += fmt::format("   # they were {} and {}", before, passes);
  }
}

std::vector<Remedy> FirstWays(const OomMessage& message, std::size_t most) {
  std::vector<Remedy> remedies;
  const StageOrder& order = OrderOf(message);
  const std::vector<Framework> frameworks = FrameworksOf(message.signs);
  for (std::size_t i = 0; i < order.ways.size() && i < most; ++i) {
    if (order.ways[i] == TorchWay::kEnd) break;
    if (!IsOpen(order.ways[i], message)) continue;
    remedies.push_back(RemedyOf(order.ways[i], frameworks));
    PutBatch(message, remedies.back());
  }
  return remedies;
}

}  // namespace

std::vector<Remedy> StageWays(const OomMessage& message) {
  return FirstWays(message, OrderOf(message).ways.size());
}

std::vector<Remedy> OwnWaysOfStage(const OomMessage& message) {
  if (!IsTorchScript(RunnerOf(message))) return {};
  return FirstWays(message, OrderOf(message).own);
}

bool BatchMatters(const OomMessage& message) {
  switch (message.stage) {
    case Stage::kBuild:
    case Stage::kLoad:
    case Stage::kOptimizer:
    case Stage::kSave:
      return false;
    default:
      return true;
  }
}

}  // namespace plimsoll
