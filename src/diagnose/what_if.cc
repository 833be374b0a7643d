#include "diagnose/what_if.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "allocator/replay/replay_check.h"
#include "diagnose/pack_trace.h"
#include "packing/bound.h"
#include "packing/solve.h"

namespace plimsoll {
namespace {

/// What the search may visit, and how much it may look at there: more than most traces need, and
/// counts rather than a time, so that every machine gives the same answer.
constexpr std::uint64_t kPackingNodes = 100'000;
constexpr std::uint64_t kPackingWork = 400'000'000;
/// Only a very slow machine comes near it.
constexpr double kLongestPacking = 30;
constexpr std::size_t kMostPinned = 5;

Result<const AnalysedTrace*> ChooseTrace(const AnalysedRecording& analysed,
                                         std::optional<int> device) {
  const Recording& recording = analysed.recording;
  const AnalysedTrace* chosen = nullptr;
  // A device of which the record does not say what was held cannot be replayed.
  const auto rank = [](const AnalysedTrace& trace) {
    const std::size_t events = trace.timeline.events.size();
    return std::pair(events > 0 && trace.ledger.has_segments, events);
  };
  for (const auto& trace : analysed.traces) {
    if (device && trace->timeline.device != *device) continue;
    if (chosen == nullptr || rank(*trace) > rank(*chosen)) chosen = trace.get();
  }
  if (chosen == nullptr && device && !recording.timelines.empty()) {
    return Error{.message = fmt::format("there is no device {} in it", *device),
                 .file = recording.file};
  }
  if (chosen == nullptr) {
    return Error{
        .message = fmt::format("it holds no allocator events ({})", recording.format),
        .file = recording.file,
        .hint = "replaying needs a memory snapshot: docs/recording.md tells how to get one"};
  }
  return chosen;
}

Error NoEvents(const Recording& recording) {
  return {.message = "the snapshot holds segments but no events",
          .file = recording.file,
          .hint = "call torch.cuda.memory._record_memory_history() before the job starts"};
}

Bytes FinalReserved(const Timeline& timeline) {
  Bytes sum = 0;
  for (const Segment& s : timeline.segments) sum += s.size;
  return sum;
}

std::int64_t DriverCallsOf(const Timeline& timeline) {
  return std::count_if(timeline.events.begin(), timeline.events.end(), [](const Event& e) {
    return e.action == Action::kSegmentAlloc || e.action == Action::kSegmentFree ||
           e.action == Action::kSegmentMap || e.action == Action::kSegmentUnmap;
  });
}

/// The event after the last one of each step.
std::vector<EventIndex> StepEnds(const ReplayableJob& job, int every) {
  std::vector<EventIndex> ends;
  int step = 0;
  for (const StepReport& s : job.trace->sweep.steps) {
    if (++step % every == 0) ends.push_back(static_cast<EventIndex>(s.last_event + 1));
  }
  return ends;
}

/// Runs once more, up to the request that matters, and looks at what is held then.
void AddFragmentation(const ReplayableJob& job, const ReplayOptions& options,
                      ReplayReport& report) {
  const std::vector<Request>& requests = job.verified().workload.requests;
  if (requests.empty()) return;
  std::size_t at = report.replayed.peak_request;
  for (std::size_t i = 0; report.replayed.oom_event && i < requests.size(); ++i) {
    if (requests[i].event != *report.replayed.oom_event) continue;
    const bool asks =
        requests[i].kind == Request::Kind::kAllocate || requests[i].kind == Request::Kind::kRefused;
    if (asks) at = i;
  }
  AssumedDriver driver(job.trace->timeline);
  Replayer replayer(job.verified().workload, options, driver);
  replayer.Run(at);
  report.fragmentation = Fragments(replayer, job.trace->ledger, requests[at]);
  report.fragmentation_event = requests[at].event;
  const StackAnalysis& stacks = job.trace->stacks;
  if (report.replayed.oom_event) {
    report.oom_where = stacks.WhereOf(job.trace->timeline.events[*report.replayed.oom_event].stack);
  }
  for (const Pinned& pinned : report.fragmentation.pinned) {
    if (report.pinned.size() == kMostPinned) break;
    if (pinned.segment_size <= kSmallSegment) continue;
    const Allocation& a = job.trace->ledger.allocations[pinned.allocation];
    PinnedReport& row = report.pinned.emplace_back();
    row.pinned = pinned;
    row.requested = a.requested;
    row.where = stacks.WhereOf(a.stack);
    if (a.made != kBefore) row.made = a.made;
    if (a.released != kNotYet) row.released = a.released;
  }
}

void AddBounds(const ReplayableJob& job, ReplayReport& report) {
  const Problem problem = PackingProblem(job.trace->timeline, job.trace->ledger);
  report.lower_bound = MostAlive(problem);
  report.packed = report.lower_bound;
  const Result<PackResult> packed =
      Pack(problem,
           {.seconds = kLongestPacking, .most_nodes = kPackingNodes, .most_work = kPackingWork});
  if (!packed) return;
  report.packed = packed->packing.height;
  report.packed_is_least = packed->optimal;
}

void AddCommonCaveats(const ReplayableJob& job, std::vector<std::string>& caveats) {
  const Verification& v = job.verified();
  if (!v.Exact()) {
    caveats.push_back(fmt::format(
        "the model does not decide all as the record did ({} of {} addresses differ, first at "
        "event {}), so its figures are close rather than exact",
        v.address_mismatches, v.allocations, v.first ? v.first->event : 0));
  }
  if (v.workload.fatal) {
    caveats.push_back(
        "the record ends where the job ran out of memory: what would have come after "
        "that is not in it");
  }
  const bool waits =
      std::any_of(v.workload.requests.begin(), v.workload.requests.end(),
                  [](const Request& r) { return r.kind == Request::Kind::kCompleteFree; });
  if (waits) {
    caveats.push_back("frees that wait for another stream complete when they did in the record");
  }
}

void AddCaveats(const ReplayableJob& job, const ReplayOptions& options, ReplayReport& report) {
  AddCommonCaveats(job, report.caveats);
  if (report.replayed.refusals_served > 0) {
    report.caveats.push_back(fmt::format(
        "{} request{} that the record refused {} served here; the job might then work differently "
        "(cuDNN takes a faster algorithm with a larger workspace), which no record can tell: each "
        "is taken as given back at once",
        report.replayed.refusals_served, report.replayed.refusals_served == 1 ? "" : "s",
        report.replayed.refusals_served == 1 ? "is" : "are"));
  }
  if (report.replayed.oom_event && !job.verified().workload.fatal) {
    report.caveats.push_back(
        "a library may survive a refusal (cuDNN falls back to a smaller "
        "workspace); the replay ends at the first one");
  }
  const AllocatorSettings& settings = options.rules.settings;
  const auto ignored = [&](bool set, std::string_view key) {
    if (set)
      report.caveats.push_back(fmt::format("{} is read, but the model does not act on it", key));
  };
  ignored(settings.throw_on_cudamalloc_oom, "throw_on_cudamalloc_oom");
  ignored(settings.graph_capture_record_stream_reuse, "graph_capture_record_stream_reuse");
  ignored(settings.expandable_segments_reserve.has_value(), "expandable_segments_reserve");
  if (!KeepsEarlier(job.verified().workload, options) && !job.verified().workload.earlier.empty()) {
    report.caveats.push_back(fmt::format(
        "the record begins in the middle of the run: what was alive then ({} blocks) is "
        "asked for anew, in order of address",
        job.verified().workload.earlier.size()));
  }
}

Result<AllocatorRules> RulesFor(const ReplayableJob& job, const WhatIfOptions& options) {
  const TorchVersion version = options.torch.value_or(job.verified().torch);
  AllocatorRules rules = job.verified().rules;
  rules.version = RulesOf(version);
  if (options.conf) {
    Result<AllocatorSettings> settings = ParseAllocatorSettings(*options.conf, version);
    if (!settings) return settings.error();
    rules.settings = std::move(*settings);
  }
  if (!rules.settings.native) {
    return Error{.message =
                     "backend:cudaMallocAsync is the driver's own allocator, of which there "
                     "is no model",
                 .hint = "leave backend out"};
  }
  if (options.conf && rules.settings.per_process_memory_fraction && !options.limit) {
    return Error{.message =
                     "per_process_memory_fraction is a share of the device's memory, which no "
                     "snapshot states",
                 .hint = "give --limit instead: the fraction times what nvidia-smi shows"};
  }
  return rules;
}

/// A job may be said to fit if the record holds all of it, or a whole step at least.
bool IsComplete(const ReplayableJob& job) {
  return !job.trace->phases.fatal || job.trace->phases.complete_steps > 0;
}

}  // namespace

Result<ReplayableJob> PrepareJob(const AnalysedRecording& analysed, const WhatIfOptions& options) {
  const Result<const AnalysedTrace*> trace = ChooseTrace(analysed, options.device);
  if (!trace) return trace.error();
  return PrepareJob(analysed.recording, **trace, options);
}

Result<ReplayableJob> PrepareJob(const Recording& recording, const AnalysedTrace& trace,
                                 const WhatIfOptions& options) {
  if (trace.timeline.events.empty()) return NoEvents(recording);
  if (!trace.ledger.has_segments) {
    return Error{
        .message =
            fmt::format("it does not say what was held from the driver ({})", recording.format),
        .file = recording.file,
        .hint = "replaying needs a memory snapshot: docs/recording.md tells how to get one"};
  }
  if (!AllocatorRules::From(trace.timeline.settings).settings.native) {
    return Error{.message =
                     "it was recorded with backend:cudaMallocAsync, the driver's own "
                     "allocator, of which there is no model",
                 .file = recording.file};
  }
  ReplayableJob job{.file = recording.file, .trace = &trace};
  const bool limited = options.limit || options.capacity;
  const bool other_torch = options.verify && options.torch;
  if (limited || other_torch) {
    VerifyOptions given{.limit = options.limit, .capacity = options.capacity};
    if (other_torch) given.torch = options.torch;
    Verification verified = Verify(trace.timeline, trace.ledger, given);
    // The limits that are asked about need not be those of the recorded run.
    const bool take = options.verify || verified.Exact() ||
                      (!trace.verified().Exact() &&
                       verified.address_mismatches <= trace.verified().address_mismatches);
    if (take) job.under_given_limits = std::make_unique<const Verification>(std::move(verified));
  }
  job.limits = job.verified().limits;
  if (limited) {
    job.limits.limit = options.limit;
    job.limits.capacity = options.capacity;
  }
  return job;
}

Result<ReplayReport> ReplayJob(const ReplayableJob& job, const WhatIfOptions& options) {
  Result<AllocatorRules> rules = RulesFor(job, options);
  if (!rules) return rules.error();
  const bool same = rules->settings == job.verified().rules.settings;
  ReplayOptions replay{.rules = *rules, .limits = job.limits, .keep_earlier_segments = same};
  if (options.empty_cache_every > 0) {
    replay.empty_cache_before = StepEnds(job, options.empty_cache_every);
    if (replay.empty_cache_before.empty()) {
      return Error{.message =
                       "no training steps were found in it, so there is nothing to empty the "
                       "cache after",
                   .file = job.file};
    }
  }
  ReplayReport report{.file = job.file,
                      .device = job.trace->timeline.device,
                      .events = static_cast<std::int64_t>(job.trace->timeline.events.size()),
                      .torch = options.torch.value_or(job.verified().torch),
                      .recorded_torch = job.verified().torch,
                      .empty_cache_every = options.empty_cache_every,
                      .settings = FormatSettings(rules->settings),
                      .recorded_settings = FormatSettings(job.verified().rules.settings),
                      .recorded_peak_reserved = job.trace->ledger.peak_reserved,
                      .recorded_final_reserved = FinalReserved(job.trace->timeline),
                      .recorded_driver_calls = DriverCallsOf(job.trace->timeline),
                      .limits = job.limits};
  const Verification& v = job.verified();
  report.allocations = v.allocations;
  report.address_mismatches = v.address_mismatches;
  report.segment_events = v.segment_events;
  report.segment_mismatches = v.segment_mismatches;
  report.refusal_mismatches = v.refusal_mismatches;
  report.final_block_differences = v.final_block_differences;
  report.first_mismatch = v.first;
  report.assumed = options.assumed;
  report.inferred = v.inferred;

  ReplayLog log;
  report.replayed = Replay(job.trace->timeline, v.workload, replay, &log);
  report.fault = CheckReplay(log, report.replayed.counters);
  AddFragmentation(job, replay, report);
  AddBounds(job, report);
  ReplayOptions anywhere = replay;
  anywhere.limits.limit = options.limit;
  report.smallest_capacity = SmallestCapacity(job.trace->timeline, v.workload, anywhere);
  report.complete = IsComplete(job);
  AddCaveats(job, replay, report);
  return report;
}

TuneReport TuneJob(const ReplayableJob& job, const WhatIfOptions& options,
                   const std::function<void(std::size_t done, std::size_t total)>& progress) {
  TuneReport report{.file = job.file,
                    .device = job.trace->timeline.device,
                    .torch = options.torch.value_or(job.verified().torch),
                    .limits = job.limits,
                    .recorded_peak_reserved = job.trace->ledger.peak_reserved};
  report.lower_bound = MostAlive(PackingProblem(job.trace->timeline, job.trace->ledger));
  report.assumed = options.assumed;
  report.inferred = job.verified().inferred;
  TuneOptions tune{.limits = job.limits,
                   .version = RulesOf(report.torch),
                   .common_only = options.common_only,
                   .progress = progress};
  report.result = Tune(job.trace->timeline, job.verified(), tune);
  report.complete = IsComplete(job);
  AddCommonCaveats(job, report.caveats);
  return report;
}

}  // namespace plimsoll
