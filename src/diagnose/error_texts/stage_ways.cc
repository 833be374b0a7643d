// Ways to need less memory for a script of PyTorch's: in which order they help at each stage of a
// job, and which of them are open to it. What they are is in ways/torch_ways.cc.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "diagnose/error_texts/advice.h"
#include "diagnose/ways/engine_words.h"

namespace plimsoll {
namespace {

struct StageOrder {
  Stage stage;
  /// How many of the ways are about this stage alone: told before whatever else is found.
  std::size_t own;
  std::array<TorchWay, 16> ways;
};
// What helps most and costs least first. Where no batch is on the device, none is made smaller.
constexpr auto kStageOrders = std::to_array<StageOrder>({
    {Stage::kUnknown,
     0,
     {TorchWay::kAccumulate, TorchWay::kShorterSequences, TorchWay::kCheckpoint,
      TorchWay::kOffloadActivations, TorchWay::kAutocast, TorchWay::kSmallOptimizer,
      TorchWay::kShard, TorchWay::kZeroStage2, TorchWay::kZeroOffloadOptimizer,
      TorchWay::kZeroStage3, TorchWay::kZeroOffloadParameters}},
    {Stage::kForward,
     1,
     {TorchWay::kFlashAttention, TorchWay::kAccumulate, TorchWay::kShorterSequences,
      TorchWay::kCheckpoint, TorchWay::kOffloadActivations, TorchWay::kRolloutShare,
      TorchWay::kAutocast, TorchWay::kSmallOptimizer, TorchWay::kShard, TorchWay::kZeroStage2,
      TorchWay::kZeroOffloadOptimizer, TorchWay::kZeroStage3, TorchWay::kZeroOffloadParameters}},
    {Stage::kBackward,
     1,
     {TorchWay::kFlashAttention, TorchWay::kAccumulate, TorchWay::kShorterSequences,
      TorchWay::kCheckpoint, TorchWay::kOffloadActivations, TorchWay::kRolloutShare,
      TorchWay::kAutocast, TorchWay::kSmallOptimizer, TorchWay::kShard, TorchWay::kZeroStage2,
      TorchWay::kZeroOffloadOptimizer, TorchWay::kZeroStage3, TorchWay::kZeroOffloadParameters}},
    {Stage::kTransfer,
     0,
     {TorchWay::kAccumulate, TorchWay::kShorterSequences, TorchWay::kFreeBefore,
      TorchWay::kCheckpoint, TorchWay::kOffloadActivations, TorchWay::kRolloutShare,
      TorchWay::kAutocast, TorchWay::kSmallOptimizer, TorchWay::kShard, TorchWay::kZeroStage2,
      TorchWay::kZeroOffloadOptimizer, TorchWay::kZeroStage3, TorchWay::kZeroOffloadParameters}},
    {Stage::kLoss,
     2,
     {TorchWay::kChunkedLoss, TorchWay::kFewerLogits, TorchWay::kAccumulate,
      TorchWay::kShorterSequences, TorchWay::kCheckpoint, TorchWay::kOffloadActivations,
      TorchWay::kAutocast, TorchWay::kShard, TorchWay::kZeroStage2, TorchWay::kZeroOffloadOptimizer,
      TorchWay::kZeroStage3, TorchWay::kZeroOffloadParameters}},
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
      TorchWay::kFewerTrained, TorchWay::kOffloadOptimizer, TorchWay::kRolloutShare,
      TorchWay::kShardOptimizer, TorchWay::kZeroStage2, TorchWay::kZeroOffloadOptimizer,
      TorchWay::kZeroStage3, TorchWay::kZeroOffloadParameters, TorchWay::kZeroBuckets}},
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

struct ActivityOrder {
  Activity activity;
  std::array<TorchWay, 4> ways;
};
constexpr auto kActivityOrders = std::to_array<ActivityOrder>({
    {Activity::kProfileRun,
     {TorchWay::kServerTokens, TorchWay::kServerQuantized, TorchWay::kServerParallel}},
    {Activity::kSamplerWarmUp, {TorchWay::kServerSequences, TorchWay::kServerShare}},
    {Activity::kGraphCapture,
     {TorchWay::kServerGraphs, TorchWay::kServerShare, TorchWay::kServerEager}},
    {Activity::kCacheMade, {TorchWay::kServerShare}},
    {Activity::kWakeUp, {TorchWay::kServerWake, TorchWay::kServerShare}},
    {Activity::kVaeDecode, {TorchWay::kVaeTiles, TorchWay::kPipelineOffload}},
    {Activity::kVaeEncode, {TorchWay::kLatentsKept, TorchWay::kVaeTiles}},
    {Activity::kPromptEncoded, {TorchWay::kPromptsApart, TorchWay::kPipelineQuantized}},
    {Activity::kLogProbs, {TorchWay::kLogProbBatch, TorchWay::kChunkedLoss}},
    {Activity::kAdapterMerged, {TorchWay::kMergeElsewhere}},
});

// What a program is told that trains nothing.
constexpr auto kServerWays = std::to_array({TorchWay::kServerRoom, TorchWay::kServerQuantized,
                                            TorchWay::kServerParallel, TorchWay::kServerEager});
constexpr auto kPipelineWays =
    std::to_array({TorchWay::kAttentionInParts, TorchWay::kPipelineOffload,
                   TorchWay::kPipelineSmaller, TorchWay::kPipelineQuantized});

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
  return message.signs.frameworks.Has(Framework::kDeepSpeed) && message.zero_stage.value_or(0) > 0;
}

/// DeepSpeed shards by its own stages, and its optimizers handle the parameters in their own way.
bool IsOpenToEngine(TorchWay way, const OomMessage& message) {
  const bool deepspeed = message.signs.frameworks.Has(Framework::kDeepSpeed);
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
  const FrameworkSet& frameworks = signs.frameworks;
  const bool hf_trainer = frameworks.Has(Framework::kHfTrainer);
  const bool lightning = frameworks.Has(Framework::kLightning);
  switch (way) {
    case TorchWay::kFlashAttention:
    case TorchWay::kAttentionInParts:
      return signs.attention_scores;
    case TorchWay::kCheckpoint:
      return !signs.checkpoints;
    // Its tiles are told already.
    case TorchWay::kPipelineSmaller:
      return message.activity != Activity::kVaeDecode;
    // Of the inputs of checkpoints.
    case TorchWay::kOffloadActivations:
      return signs.checkpoints;
    // Where an engine generates on the same device.
    case TorchWay::kRolloutShare:
      return frameworks.Has(Framework::kVllm) || frameworks.Has(Framework::kVerl);
    case TorchWay::kAutocast:
      return !signs.autocast;
    // Its lines are those of transformers' models.
    case TorchWay::kQuantized:
      return hf_trainer || signs.transformers || !lightning;
    case TorchWay::kSmallerInput:
      return !hf_trainer;
    // Trainer evaluates without autograd.
    case TorchWay::kNoAutograd:
      return !hf_trainer;
    // Trainers let go of a step's tensors.
    case TorchWay::kFreeBefore:
      return !hf_trainer && !lightning;
    // The model of a Trainer computes its own loss.
    case TorchWay::kFewerLogits:
      return !hf_trainer;
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

/// Half of the batch in twice the passes, in the place of {batch} and {steps}; where the text does
/// not tell the batch, the least.
void PutBatch(const OomMessage& message, Remedy& remedy) {
  const bool told = message.device_batch && *message.device_batch > 1;
  const std::int64_t before = told ? *message.device_batch : 8;
  const std::int64_t batch = told ? before / 2 : 1;
  const std::int64_t passes = told ? message.accumulation.value_or(1) : 1;
  const std::int64_t steps = passes * ((before + batch - 1) / batch);
  std::string were;
  for (std::string& line : remedy.code) {
    const auto put = [&](std::string_view place, std::int64_t count, std::int64_t was) {
      const std::size_t at = line.find(place);
      if (at == std::string::npos) return;
      line.replace(at, place.size(), fmt::format("{}", count));
      were += fmt::format("{}{}", were.empty() ? "" : " and ", was);
    };
    put("{batch}", batch, before);
    put("{steps}", steps, passes);
  }
  if (told && !were.empty() && remedy.code.back().find('#') == std::string::npos) {
    remedy.code.back() += fmt::format(
        "   # {} {}", were.find(' ') == std::string::npos ? "it was" : "they were", were);
  }
}

/// Adam's two values for each parameter take 8 bytes in fp32, and 2 in 8 bits: what is saved at
/// most, where the text tells how many parameters are trained.
void PutSaving(const OomMessage& message, Remedy& remedy) {
  constexpr Bytes kSavedOfParameter = 6;
  if (remedy.lever != Lever::kOptimizer || !message.trained || IsSharded(message)) return;
  const bool eight_bits = std::ranges::any_of(remedy.code, [](const std::string& line) {
    return line.find("8bit") != std::string::npos || line.find("8Bit") != std::string::npos;
  });
  const Bytes saves = *message.trained * kSavedOfParameter;
  // What is not there yet is not counted as held.
  if (!eight_bits || saves > message.allocated.value_or(0)) return;
  remedy.saves = saves;
  remedy.at_most = true;
  remedy.basis = Basis::kEstimated;
}

struct ListedWays {
  std::vector<TorchWay> ways;
  /// So many are about this stage or activity alone.
  std::size_t own = 0;
};

ListedWays WaysOf(const OomMessage& message) {
  ListedWays listed;
  for (const ActivityOrder& order : kActivityOrders) {
    if (order.activity != message.activity) continue;
    for (TorchWay way : order.ways) {
      if (way != TorchWay::kEnd) listed.ways.push_back(way);
    }
  }
  listed.own = listed.ways.size();
  const auto add = [&](std::span<const TorchWay> ways) {
    for (TorchWay way : ways) {
      const bool told = std::ranges::find(listed.ways, way) != listed.ways.end();
      if (way != TorchWay::kEnd && !told) listed.ways.push_back(way);
    }
  };
  const Runner runner = RunnerOf(message);
  if (message.activity == Activity::kAdapterMerged) {
    // Nothing is trained there.
    add(std::to_array({TorchWay::kLayersOnHost}));
  } else if (runner == Runner::kVllm) {
    add(kServerWays);
  } else if (runner == Runner::kDiffusers) {
    add(kPipelineWays);
  } else {
    const StageOrder& order = OrderOf(message);
    add(std::span(order.ways).first(order.own));
    listed.own = listed.ways.size();
    add(order.ways);
  }
  return listed;
}

struct OpenWay {
  Remedy remedy;
  bool own;    // about this stage or activity alone
  bool typed;  // a switch of a framework
};

/// The ways that are open to the job. A switch comes first where there is one, and where nobody
/// edits a loop there is nothing else.
std::vector<OpenWay> OpenWays(const OomMessage& message) {
  FrameworkSet found = message.signs.frameworks;
  const Runner runner = RunnerOf(message);
  if (runner == Runner::kVllm) found.Add(Framework::kVllm);
  if (runner == Runner::kDiffusers) found.Add(Framework::kDiffusers);
  const std::vector<Framework> frameworks = SpokenBy(found);
  std::vector<OpenWay> open;
  const ListedWays listed = WaysOf(message);
  for (std::size_t i = 0; i < listed.ways.size(); ++i) {
    const TorchWay way = listed.ways[i];
    std::optional<Remedy> remedy = IsOpen(way, message) ? RemedyOf(way, frameworks) : std::nullopt;
    if (!remedy) continue;
    PutBatch(message, *remedy);
    PutSaving(message, *remedy);
    open.push_back({std::move(*remedy), i < listed.own, HasSwitch(way, frameworks)});
  }
  const auto first = std::ranges::find(open, true, &OpenWay::typed);
  if (first == open.end()) return open;
  if (TrainsByConfiguration(frameworks)) {
    std::erase_if(open, [](const OpenWay& way) { return !way.typed; });
  } else {
    first->own |= open.front().own;
    std::rotate(open.begin(), first, first + 1);
  }
  return open;
}

std::vector<Remedy> RemediesOf(const OomMessage& message, std::vector<OpenWay> open) {
  std::vector<Remedy> remedies;
  for (OpenWay& way : open) remedies.push_back(std::move(way.remedy));
  return RunnerOf(message) == Runner::kVllm ? InWordsOfJob(message, std::move(remedies)) : remedies;
}

}  // namespace

std::vector<Remedy> StageWays(const OomMessage& message) {
  return RemediesOf(message, OpenWays(message));
}

std::vector<Remedy> OwnWaysOfStage(const OomMessage& message) {
  const Runner runner = RunnerOf(message);
  if (!IsTorchScript(runner) && !IsOfFramework(runner)) return {};
  std::vector<OpenWay> open = OpenWays(message);
  std::erase_if(open, [](const OpenWay& way) { return !way.own; });
  return RemediesOf(message, std::move(open));
}

std::vector<Remedy> InWordsOfJob(const OomMessage& message, std::vector<Remedy> remedies) {
  return InEngineWords(std::move(remedies), message.signs.frameworks.List());
}

bool IsOfFramework(Runner runner) {
  return runner == Runner::kVllm || runner == Runner::kDiffusers;
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
