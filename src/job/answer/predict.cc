#include "job/answer/predict.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "job/answer/held_by.h"
#include "job/answer/prediction_invariants.h"
#include "job/file/at_length.h"
#include "job/rules/workspace_lookup.h"

namespace plimsoll {
namespace {

constexpr std::size_t kMostHolders = 12;

/// The blocks that are alive after a request.
std::vector<std::uint32_t> AliveAt(const Lowered& lowered, std::size_t request) {
  std::vector<char> alive(lowered.blocks.size(), 0);
  for (std::size_t i = 0; i <= request && i < lowered.workload.requests.size(); ++i) {
    const Request& r = lowered.workload.requests[i];
    // What is borrowed is there at its own request only.
    alive[r.allocation] = r.kind == Request::Kind::kAllocate || (r.passes() && i == request);
  }
  std::vector<std::uint32_t> blocks;
  for (std::uint32_t b = 0; b < alive.size(); ++b) {
    if (alive[b]) blocks.push_back(b);
  }
  return blocks;
}

void AddAccount(const Lowered& lowered, const std::vector<std::uint32_t>& alive, Bytes nccl,
                Prediction& prediction) {
  std::array<Bytes, kCategoryCount> sums{};
  Bytes requested = 0;
  for (const std::uint32_t b : alive) {
    sums[static_cast<std::size_t>(lowered.blocks[b].category)] += lowered.blocks[b].requested;
    requested += lowered.blocks[b].requested;
  }
  const auto line = [&](AccountItem what, Bytes bytes) {
    if (bytes != 0) prediction.account.push_back({.what = what, .bytes = bytes});
  };
  for (const Category c : kCategories) line(ItemOf(c), sums[static_cast<std::size_t>(c)]);
  const Needs& needs = prediction.trial.needs;
  line(AccountItem::kRounding, needs.allocated.best - requested);
  line(AccountItem::kCached, needs.reserved.best - needs.allocated.best);
  line(AccountItem::kOutside, needs.device.best - needs.reserved.best - nccl);
  line(AccountItem::kNccl, nccl);
}

void AddPeak(const Trial& trial, Prediction& prediction) {
  prediction.peak = trial.lowered().moments[trial.shown().request];
  if (prediction.peak.call == LoweredBlock::kNoCall) return;
  const CallRecord& call = trial.setting().variant().calls[prediction.peak.call];
  const StringTable& strings = trial.setting().job->strings;
  prediction.peak_op = strings[call.op];
  prediction.peak_where = strings[call.where];
  prediction.peak_module = strings[call.module];
}

std::string LineOf(const Trial& trial, std::size_t request) {
  const Moment& moment = trial.lowered().moments[request];
  if (moment.call == LoweredBlock::kNoCall) return "";
  const StringTable& strings = trial.setting().job->strings;
  return std::string(strings[trial.setting().variant().calls[moment.call].where]);
}

Heaviest HeaviestOf(const Trial& trial, std::size_t part) {
  if (part < PartPeaks::kLater) return Heaviest::kNotOne;
  return trial.setting().variant().later[part - PartPeaks::kLater].heaviest;
}

void AddFailure(const Trial& trial, std::size_t request, Prediction& prediction) {
  const std::size_t part = PartPeaks::IndexOf(trial.lowered().moments[request]);
  prediction.fails_in = StageOfPart(trial, part);
  prediction.fails_at = LineOf(trial, request);
  prediction.fails_later = part >= PartPeaks::kLater;
  prediction.fails_with_heaviest = HeaviestOf(trial, part) != Heaviest::kNotOne;
}

/// Of a part of the job. Of one that trains nothing the host's memory is known of all its parts
/// together.
const HostPart* HostOf(const Prediction& prediction, std::size_t part) {
  if (!prediction.host) return nullptr;
  const std::vector<HostPart>& parts = prediction.host->parts;
  if (part < parts.size()) return &parts[part];
  return prediction.trains ? nullptr : &parts[PartPeaks::kSteps];
}

void AddStages(const Trial& trial, Prediction& prediction) {
  const std::vector<PartPeaks>& parts = trial.shown().parts;
  const Bytes outside = trial.setting().Outside().bytes;
  bool loaded = false;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Stage stage = StageOfPart(trial, i);
    // A job that trains nothing has no steps; what it computes without a model belongs to what was
    // before that.
    if (!prediction.trains && i == PartPeaks::kSteps) continue;
    if (stage == Stage::kUnknown && i > PartPeaks::kLater) stage = prediction.stages.back().stage;
    loaded |= stage == Stage::kLoad;
    const bool after_load = loaded && stage != Stage::kLoad;
    const Heaviest heaviest = HeaviestOf(trial, i);
    if (heaviest != Heaviest::kNotOne) prediction.heaviest = heaviest;
    const StageNeeds row{
        .stage = stage, .after_load = after_load, .heaviest = heaviest != Heaviest::kNotOne};
    auto at = std::ranges::find_if(prediction.stages, [&](const StageNeeds& known) {
      return known.stage == row.stage && known.after_load == row.after_load &&
             known.heaviest == row.heaviest;
    });
    if (at == prediction.stages.end()) at = prediction.stages.insert(at, row);
    at->parts.push_back(i);
    at->reserved = std::max(at->reserved, parts[i].reserved);
    at->device = at->reserved + outside;
    if (const HostPart* host = HostOf(prediction, i)) {
      at->host = std::max(at->host.value_or(0), host->resident());
      at->pinned = std::max(at->pinned.value_or(0), host->pinned);
    }
    if (parts[i].allocated <= at->allocated) continue;
    at->allocated = parts[i].allocated;
    at->where = parts[i].request ? LineOf(trial, *parts[i].request) : "";
  }
  if (parts.size() <= PartPeaks::kLater) prediction.stages.clear();
  if (trial.decided().failed) AddFailure(trial, *trial.decided().failed, prediction);
}

/// Docker's default.
constexpr Bytes kSharedOfContainers = 64 * kMiB;

/// What a card is that kernels were not measured on, or whose memory is not its own.
void AssumeOfCard(const Gpu& gpu, Prediction& prediction) {
  std::vector<std::string>& assumptions = prediction.assumptions;
  if (gpu.vendor == GpuVendor::kAmd) {
    assumptions.push_back(fmt::format(
        "{}: kernels, their workspaces and their times go by CUDA's rules and the rates of its "
        "data sheet; on ROCm nothing was measured, and what HIP takes outside PyTorch is a guess "
        "({} to {})",
        gpu.name, FormatBytes(gpu.context.low), FormatBytes(gpu.context.high)));
  }
  if (!gpu.unified) return;
  std::string text = fmt::format("{}: the host's memory is this one, {} in all", gpu.name,
                                 FormatBytes(gpu.Total()));
  text += gpu.system > 0
              ? fmt::format("; {} is what a system leaves after a fresh boot ({} at the least)",
                            FormatBytes(gpu.memory), FormatBytes(gpu.LeastMemory()))
              : std::string("; what the system holds of it is not known (give it as --beside)");
  if (prediction.host) {
    text += fmt::format(
        ". What the process takes of the host, {}, comes out of it too and is not "
        "counted above",
        FormatBytes(prediction.host->of_machine()));
  }
  assumptions.push_back(std::move(text));
}

/// Whose answer the workspaces of convolutions are that were not measured.
void AddAsked(const Trial& trial, Prediction& prediction) {
  const Setting& setting = trial.setting();
  const AskedWorkspaces* asked = setting.job->asked.get();
  if (!asked) return;
  if (AskedFor(*setting.job, setting.gpu)) {
    prediction.assumptions.push_back(
        fmt::format("workspaces of convolutions that were not measured are as cuDNN {} says for "
                    "this card, asked without it",
                    asked->cudnn));
    if (const std::optional<Bytes>& settled = prediction.trial.reserved_without_search) {
      prediction.assumptions.push_back(
          fmt::format("{} are reserved apart from the search for the fastest convolutions, and "
                      "from then on; nvidia-smi once a second seldom sees more",
                      FormatBytes(*settled)));
    }
  } else {
    prediction.assumptions.push_back(
        fmt::format("cuDNN was asked about {}, and not about {}: workspaces of convolutions that "
                    "were not measured are by rule",
                    asked->gpu, setting.gpu.name));
  }
}

/// Of a job that it does not end: how far it goes.
std::string UntilFull(const Growth& growth) {
  if (!growth.StaysWithin()) {
    return fmt::format("; it would take {} steps to fill the card", growth.steps);
  }
  const std::string until =
      fmt::format(", until {} has {} of them", growth.keeper->name, growth.keeper->most);
  if (growth.uncounted == 0) return until + ", and that is counted";
  return fmt::format("{}: {} beside what is counted, and there is room for it", until,
                     FormatBytes(growth.uncounted));
}

void AddGrowth(Prediction& prediction) {
  if (!prediction.growth || prediction.growth->EndsTheJob()) return;
  const Growth& growth = *prediction.growth;
  prediction.assumptions.push_back(
      fmt::format("{} {} more allocated than {}{}",
                  growth.branch.empty() ? "each step leaves" : growth.branch + " leaves",
                  FormatBytes(growth.bytes), growth.branch.empty() ? "the one before" : "it found",
                  UntilFull(growth)));
}

/// What is left reserved depends on sizes that are known nearly, or that values decide.
void AddDrawn(const Trial& trial, Prediction& prediction) {
  const std::vector<Bytes>& drawn = trial.drawn();
  if (drawn.empty()) return;
  const auto [least, most] = std::ranges::minmax(drawn);
  if (least == most) return;
  const std::set<std::string, std::less<>>& lines = trial.setting().job->selected_at;
  const std::string why =
      lines.empty() ? "which cached blocks suit batches of other sizes turns on a few bytes: with "
                      "workspaces of a block more or less"
                    : fmt::format("{}: with other shares in each step, drawn at random",
                                  fmt::join(lines, ", "));
  prediction.assumptions.push_back(fmt::format("{}, {} to {} are reserved in {} runs", why,
                                               FormatBytes(least), FormatBytes(most),
                                               drawn.size()));
}

void AddAssumptions(const Trial& trial, Prediction& prediction) {
  prediction.assumptions = trial.setting().job->notes;
  AssumeOfCard(trial.setting().gpu, prediction);
  std::string names;
  int count = 0;
  for (const auto& [name, calls] : trial.lowered().unknown) {
    names += (names.empty() ? "" : ", ") + name;
    count += calls;
  }
  if (count > 0) {
    prediction.assumptions.push_back(
        fmt::format("{} call{} of operators that were never measured count with their results "
                    "alone: {}",
                    count, count == 1 ? "" : "s", names));
  }
  if (trial.setting().variant().compiled) {
    const TorchVersion captured = TorchFor(*trial.setting().job, {});
    if (captured != prediction.torch) {
      prediction.assumptions.push_back(
          fmt::format("what is compiled is the code that torch {} writes; {} may write other code",
                      captured.ToText(), prediction.torch.ToText()));
    }
    prediction.assumptions.push_back(
        "how long Python takes for compiled code was not measured: a third of its time elsewhere");
  }
  AddAsked(trial, prediction);
  if (trial.lowered().left_out > 0) {
    prediction.assumptions.push_back(
        fmt::format("an evaluation keeps something of each batch, and {} of its batches were too "
                    "many to be counted",
                    trial.lowered().left_out));
  }
  if (trial.lowered().not_repeated > 0) {
    prediction.assumptions.push_back(
        "those that do the same were not put to the allocator: the last of the others asked for "
        "something else than the one before it");
  }
  if (trial.lowered().rounds_run < trial.lowered().rounds) {
    prediction.assumptions.push_back(fmt::format(
        "of {} tokens or batches that are alike {} were put to the allocator, evenly spread",
        trial.lowered().rounds, trial.lowered().rounds_run));
  }
  if (!prediction.trains) {
    prediction.assumptions.push_back(
        "how long it takes is not predicted: times are known of training steps");
  }
  if (prediction.host && prediction.host->shared() > kSharedOfContainers) {
    prediction.assumptions.push_back(
        fmt::format("the loaders' workers have {} of batches in /dev/shm; a container has {} there "
                    "unless it is started with --shm-size or --ipc=host",
                    FormatBytes(prediction.host->shared()), FormatBytes(kSharedOfContainers)));
  }
  AddDrawn(trial, prediction);
  AddGrowth(prediction);
}

}  // namespace

Stage StageOfPart(const Trial& trial, std::size_t part) {
  if (part == PartPeaks::kBuild) return Stage::kBuild;
  if (part == PartPeaks::kSteps) return Stage::kStep;
  return trial.setting().variant().later[part - PartPeaks::kLater].stage;
}

std::vector<Holder> HoldersAtPeak(const Trial& trial) {
  return HeldBy(trial, AliveAt(trial.lowered(), trial.shown().request));
}

std::vector<NotFollowed> NotFollowedBy(const Setting& setting) {
  const Job& job = *setting.job;
  std::vector<NotFollowed> found = job.not_followed;
  if (found.empty() && !job.lost_at.empty()) {
    found.push_back({.what = fmt::format("nothing could be seen from {} on", job.lost_at)});
  }
  const auto has = [&](Heaviest looked) {
    return std::ranges::find(setting.variant().later, looked, &Part::heaviest) !=
           setting.variant().later.end();
  };
  if (has(Heaviest::kOfFirst)) {
    found.push_back({.what = "the data were looked at in part: other batches may be heavier"});
  } else if (job.sizes_change && job.sequence.empty() && !has(Heaviest::kOfAll)) {
    found.push_back({.what = "the data decide the sizes of batches: others may be heavier"});
  }
  return found;
}

Prediction Predict(const Trial& trial) {
  const Setting& setting = trial.setting();
  Prediction prediction;
  prediction.file = setting.job->file;
  prediction.model = setting.job->model;
  prediction.precision = setting.variant().precision;
  prediction.settings = FormatSettings(setting.rules.settings);
  prediction.gpu = setting.gpu;
  prediction.torch = setting.torch;
  prediction.batch = setting.batch;
  prediction.passes = setting.variant().passes;
  prediction.sizes_change = setting.job->sizes_change;
  prediction.lost_at = setting.job->lost_at;
  prediction.not_followed = NotFollowedBy(setting);
  prediction.length = setting.job->length;
  if (HasLength(*setting.job)) prediction.length_name = NameOfLength(*setting.job);
  prediction.steps = setting.steps;
  prediction.trains = Trains(setting.variant());
  prediction.limit = setting.limits.limit;
  prediction.trial = trial.WithRanges();
  prediction.unlimited_step_us = DurationOf(setting).us;
  prediction.reserved_after_step = trial.shown().reserved_after_step;

  const std::vector<std::uint32_t> alive = AliveAt(trial.lowered(), trial.shown().request);
  AddPeak(trial, prediction);
  prediction.cache = FindServedCache(trial);
  prediction.unquantized = FindUnquantized(trial.setting());
  prediction.peak_token = TokenAt(setting, prediction.peak);
  prediction.host = FindHostNeeds(setting);
  if (prediction.host) prediction.host_stage = StageOfPart(trial, prediction.host->most);
  if (!prediction.trains && prediction.host_stage == Stage::kStep) {
    prediction.host_stage = prediction.cache ? Stage::kGeneration : Stage::kEvaluation;
  }
  prediction.host_room = setting.host_room;
  AddStages(trial, prediction);
  AddAccount(trial.lowered(), alive, setting.nccl.bytes, prediction);
  prediction.holders = HoldersAtPeak(trial);
  KeepLargest(prediction.holders, kMostHolders);
  prediction.growth = FindGrowth(trial);
  // Another evaluation does not help a job that grows in its steps.
  const bool grows = prediction.growth && prediction.growth->EndsTheJob();
  if (!grows && prediction.trains) prediction.evaluation = FindEvaluationChanges(trial);
  if (!setting.job->sequence.empty()) {
    prediction.own_batches = prediction.reserved_after_step.size();
    if (!grows) prediction.size_changes = FindSizeChanges(trial);
  }
  if (prediction.growth) KeepLargest(prediction.growth->holders, kMostHolders);
  AddAssumptions(trial, prediction);
#ifndef NDEBUG
  PLIMSOLL_CHECK(BrokenInvariants(prediction).empty());
#endif
  return prediction;
}

Result<Prediction> Predict(const Job& job, const Gpu& gpu, const PredictOptions& options) {
  Result<Setting> setting = MakeSetting(job, gpu, options);
  if (!setting) return setting.error();
  const Result<Trial> trial = Trial::Of(std::move(*setting));
  if (!trial) return trial.error();
  return Predict(*trial);
}

}  // namespace plimsoll
