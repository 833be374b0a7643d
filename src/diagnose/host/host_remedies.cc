#include "diagnose/host/host_remedies.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "diagnose/error_texts/causes.h"
#include "diagnose/ways/torch_ways.h"

namespace plimsoll {
namespace {

/// Less is not worth a line.
constexpr Bytes kWorthPinned = 128 * kMiB;

bool IsWorker(const HostProcess& process) {
  return process.role == HostRole::kLoaderWorker || process.role == HostRole::kWorker;
}

/// The same as a text would be told that says it: so that one limit is raised in one way.
OomMessage AsMessage(const HostSeries& series, const HostReport& report, const HostKill& kill) {
  OomMessage m{.source = MessageSource::kHostMemory, .host = HostEvent::kKilled};
  const bool certain = kill.certainty == KillCertainty::kCertain;
  if (certain) m.host = HostEvent::kKernelKill;
  if (report.limit_kind == HostLimitKind::kGroup) {
    m.host = HostEvent::kCgroupKill;
    m.allowed = report.limit;
    if (series.record().group) m.cgroup = series.record().group->path;
  } else {
    m.allocated = report.together;
  }
  if (kill.shared_memory) m.host = HostEvent::kSharedMemory;
  return m;
}

struct WorkersOfParent {
  std::int64_t count = 0;
  Bytes own = 0;
};

/// Half of the workers, and what they held.
std::optional<Remedy> FewerWorkers(const HostSeries& series, const HostReport& report) {
  std::map<std::int64_t, WorkersOfParent> parents;
  bool named = true;
  for (std::size_t i = 0; i < report.processes.size(); ++i) {
    const HostProcessReport& process = report.processes[i];
    if (!process.then || !IsWorker(process.process)) continue;
    WorkersOfParent& workers = parents[process.process.parent];
    ++workers.count;
    workers.own += series.PointAt(i, report.instant)->own;
    named &= process.process.role == HostRole::kLoaderWorker;
  }
  std::int64_t most = 0;
  Bytes saves = 0;
  for (const auto& [pid, workers] : parents) {
    most = std::max(most, workers.count);
    saves += workers.own / workers.count * (workers.count - workers.count / 2);
  }
  if (most < 2) return std::nullopt;
  Remedy remedy =
      Rule(fmt::format("{} DataLoader {} instead of {}", most / 2, most < 4 ? "worker" : "workers",
                       most),
           Lever::kLoaderWorkers,
           {fmt::format("DataLoader(dataset, num_workers={}, prefetch_factor=2)", most / 2)});
  remedy.saves = saves;
  remedy.basis = Basis::kEstimated;
  remedy.costs = "the step may wait for its data";
  // What they share with their parent stays.
  remedy.at_most = true;
  if (!named) remedy.remark = "if these processes are the workers of a DataLoader";
  return remedy;
}

std::optional<Remedy> NoPinnedMemory(const HostReport& report) {
  Bytes pinned = 0;
  for (const HostProcessReport& process : report.processes) {
    if (process.then) pinned += process.then->pinned.value_or(0);
  }
  if (pinned < kWorthPinned) return std::nullopt;
  Remedy remedy = Rule("no pinned memory", Lever::kOther, {"DataLoader(..., pin_memory=False)"});
  remedy.saves = std::min(pinned, report.together);
  remedy.at_most = true;
  remedy.basis = Basis::kRecorded;
  remedy.costs = "copies to the GPU wait for the host";
  return remedy;
}

/// Ranks that grew at the same time, as where each reads the weights.
std::optional<Remedy> OneRankAfterTheOther(const HostReport& report) {
  std::vector<const HostGrowth*> grown;
  for (const HostProcessReport& process : report.processes) {
    const bool rank = process.process.role == HostRole::kRank;
    if (rank && process.then && process.growth) grown.push_back(&*process.growth);
  }
  if (grown.size() < 2) return std::nullopt;
  Bytes sum = 0;
  Bytes largest = 0;
  double latest_begin = 0;
  double earliest_end = grown.front()->until;
  for (const HostGrowth* growth : grown) {
    sum += growth->to - growth->from;
    largest = std::max(largest, growth->to - growth->from);
    latest_begin = std::max(latest_begin, growth->since);
    earliest_end = std::min(earliest_end, growth->until);
  }
  if (latest_begin >= earliest_end) return std::nullopt;
  Remedy remedy = Rule(
      "one rank after the other, where each reads the same to give it to its GPU", Lever::kOther,
      {"for turn in range(torch.distributed.get_world_size()):",
       "    if turn == torch.distributed.get_rank():",
       "        model = load().to(device)   # your own lines", "    torch.distributed.barrier()"});
  remedy.saves = std::min(sum - largest, report.together);
  remedy.at_most = true;
  remedy.basis = Basis::kEstimated;
  return remedy;
}

Remedy SeeWhoSentIt() {
  return Rule("see who sent the signal: a person, a scheduler at its time limit, a launcher",
              Lever::kOther,
              {"sacct -j JOB -o JobID,State,ExitCode,Elapsed,Timelimit   # Slurm",
               "kubectl describe pod POD   # Kubernetes: Last State, Events",
               "journalctl -u systemd-oomd -u earlyoom"});
}

}  // namespace

std::vector<Remedy> HostRemedies(const HostSeries& series, const HostReport& report,
                                 const HostKill& kill) {
  if (kill.certainty == KillCertainty::kUnlikely) return {SeeWhoSentIt()};
  const OomMessage message = AsMessage(series, report, kill);
  std::vector<Remedy> remedies;
  Opinion opinion = OfHost(Figures(message));
  if (!opinion.found) return remedies;
  for (Remedy& remedy : opinion.found->remedies) {
    if (remedy.lever == Lever::kLoaderWorkers) {
      std::optional<Remedy> fewer = FewerWorkers(series, report);
      if (fewer && kill.shared_memory) {
        // What they hold is not what they have put there.
        fewer->saves.reset();
        fewer->basis = Basis::kRule;
        fewer->at_most = false;
      }
      if (fewer) remedies.push_back(std::move(*fewer));
      if (kill.shared_memory) continue;
      if (auto unpinned = NoPinnedMemory(report)) remedies.push_back(std::move(*unpinned));
      if (auto turns = OneRankAfterTheOther(report)) remedies.push_back(std::move(*turns));
    } else {
      remedies.push_back(std::move(remedy));
    }
  }
  return remedies;
}

}  // namespace plimsoll
