#include "diagnose/host/host_kills.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

namespace plimsoll {
namespace {

constexpr int kSignalKill = 9;
constexpr int kSignalBus = 7;
/// How a shell tells that the command it ran was ended by SIGKILL.
constexpr int kCodeOfKill = 128 + kSignalKill;
/// Within so many seconds two ends belong together: a sample, and time to notice.
constexpr double kTogether = 5;
/// Of the limit: what the kernel hardly lets a job have.
constexpr double kNearlyNothing = 0.05;
constexpr double kShmFull = 0.9;
constexpr double kShmMaybeFull = 0.5;
/// A job has a few shells in it; a file may say more.
constexpr int kMostShells = 16;
constexpr double kForever = std::numeric_limits<double>::infinity();

/// Whether /dev/shm was full.
struct ShmFill {
  bool maybe = false;
  bool surely = false;
};

class KillSearch {
 public:
  KillSearch(const HostSeries& series, const std::vector<ReportedEnd>& reported)
      : series_(series), record_(series.record()), reported_(reported) {
    if (record_.end) {
      named_.insert(record_.end->named_by_kernel.begin(), record_.end->named_by_kernel.end());
    }
    for (const ReportedEnd& end : reported) {
      const bool kernel =
          end.event == HostEvent::kKernelKill || end.event == HostEvent::kCgroupKill;
      if (kernel && end.pid) logged_.insert(*end.pid);
    }
  }

  std::vector<HostKill> Run() {
    for (const HostDeath& death : record_.deaths) {
      if (death.signal == kSignalKill) Add(death.process, death.time, kSignalKill);
      if (death.signal == kSignalBus && ShmAt(death.time).maybe) {
        Add(death.process, death.time, kSignalBus).shared_memory = true;
      }
    }
    TakeReported();
    int told = 0;
    for (const HostDeath& death : record_.deaths) {
      if (death.code == kCodeOfKill && ++told <= kMostShells) TakeChildOf(death);
    }
    TakeCounted();
    TakeBreakingOff();
    std::ranges::stable_sort(kills_, {}, &HostKill::time);
    for (std::size_t i = 0; i < kills_.size(); ++i) Judge(kills_[i], i);
    return std::move(kills_);
  }

 private:
  HostKill& Add(std::size_t process, double time, int signal) {
    const auto [known, fresh] = place_.emplace(process, kills_.size());
    if (!fresh) return kills_[known->second];
    return kills_.emplace_back(HostKill{.process = process, .time = time, .signal = signal});
  }

  double EndOf(std::size_t process) const {
    if (const HostDeath* const death = series_.DeathOf(process)) return death->time;
    const std::vector<HostPoint>& points = series_.of(process);
    return points.empty() ? record_.began : points.back().time;
  }

  /// How full /dev/shm was by the samples before and after.
  ShmFill ShmAt(double time) const {
    const auto after = std::ranges::upper_bound(record_.samples, time, {}, &HostSample::time);
    if (after == record_.samples.begin() || !record_.shm || *record_.shm <= 0) return {};
    const Bytes before = (after - 1)->shm.value_or(0);
    // What a dead process has put there stays.
    const Bytes most =
        std::max(before, after != record_.samples.end() ? after->shm.value_or(0) : before);
    const bool first = after - 1 == record_.samples.begin();
    const Bytes added = first ? 0 : before - (after - 2)->shm.value_or(0);
    const double share = double(most) / double(*record_.shm);
    return {.maybe = share >= kShmMaybeFull || *record_.shm - before < 2 * added,
            .surely = share >= kShmFull};
  }

  void TakeReported() {
    for (const ReportedEnd& end : reported_) {
      const std::optional<std::size_t> process = end.pid ? series_.Find(*end.pid) : std::nullopt;
      if (!process) continue;
      if (end.event == HostEvent::kWorkerLost) {
        // The text does not say why; that memory was full by then, the samples do.
        const HostDeath* const death = series_.DeathOf(*process);
        const bool unknown = death == nullptr || (!death->signal && !death->code);
        if (unknown && WasNearlyFull(series_, EndOf(*process))) {
          Add(*process, EndOf(*process), kSignalKill);
        }
        continue;
      }
      const bool bus = end.event == HostEvent::kSharedMemory;
      HostKill& kill = Add(*process, EndOf(*process), bus ? kSignalBus : kSignalKill);
      kill.shared_memory |= bus;
    }
  }

  bool DescendsFrom(std::size_t process, std::int64_t pid) const {
    for (int depth = 0; depth < 64; ++depth) {
      const std::int64_t parent = record_.processes[process].parent;
      if (parent == pid) return true;
      const std::optional<std::size_t> above = series_.Find(parent);
      if (!above || *above == process) return false;
      process = *above;
    }
    return false;
  }

  /// Of those that ended without a word about then, the one that held most.
  std::optional<std::size_t> VanishedBefore(double time, std::int64_t ancestor) const {
    std::optional<std::size_t> most;
    Bytes held = -1;
    const HostTotal* const total = series_.TotalAt(time);
    const double last = total != nullptr ? total->time : time;
    for (std::size_t i = 0; i < record_.processes.size(); ++i) {
      const HostDeath* const death = series_.DeathOf(i);
      if (death != nullptr && (death->signal || death->code)) continue;
      const std::vector<HostPoint>& points = series_.of(i);
      if (points.empty() || points.back().time > time) continue;
      // One that a sample of that time still has is alive, unless a shell says the contrary.
      const bool alive = death == nullptr && points.back().time >= last;
      if (alive && ancestor == 0) continue;
      if (EndOf(i) < time - kTogether || (ancestor != 0 && !DescendsFrom(i, ancestor))) continue;
      if (points.back().share.resident <= held) continue;
      most = i;
      held = points.back().share.resident;
    }
    return most;
  }

  /// A shell says of the command that it ran that it was killed.
  void TakeChildOf(const HostDeath& death) {
    const auto told = [&](const HostKill& kill) {
      return kill.time <= death.time + 1 && kill.time >= death.time - kTogether;
    };
    if (std::ranges::any_of(kills_, told)) return;
    const auto child = VanishedBefore(death.time, record_.processes[death.process].pid);
    Add(child.value_or(death.process), death.time, kSignalKill);
  }

  OomKills KillsAtEnd() const {
    if (record_.end) return record_.end->kills;
    return record_.samples.empty() ? record_.kills : record_.samples.back().kills;
  }

  /// The kernel counted one more, and nobody saw whom.
  void TakeCounted() {
    if (record_.end) {
      for (const std::int64_t pid : record_.end->named_by_kernel) {
        if (const auto process = series_.Find(pid)) Add(*process, EndOf(*process), kSignalKill);
      }
    }
    if (!kills_.empty() || Rise(-kForever) == 0) return;
    double time = record_.end ? record_.end->time : kForever;
    for (const HostSample& sample : record_.samples) {
      if (sample.kills.group.value_or(0) <= record_.kills.group.value_or(0)) continue;
      time = sample.time;
      break;
    }
    if (const auto process = VanishedBefore(time, 0)) {
      Add(*process, EndOf(*process), kSignalKill);
      unseen_.insert(*process);
    }
  }

  /// Where the whole container is killed at once, `plimsoll run` is too.
  void TakeBreakingOff() {
    if (record_.end || !kills_.empty() || record_.samples.empty()) return;
    const double last = record_.samples.back().time;
    if (!WasNearlyFull(series_, last)) return;
    for (std::size_t i = 0; i < record_.processes.size(); ++i) {
      if (record_.processes[i].role != HostRole::kMain) continue;
      Add(i, last, kSignalKill);
      return;
    }
  }

  /// By how much the control group's count went up from before that time to the end.
  std::int64_t Rise(double time) const {
    OomKills before = record_.kills;
    for (const HostSample& sample : record_.samples) {
      if (sample.time >= time) break;
      before = sample.kills;
    }
    const OomKills after = KillsAtEnd();
    return after.group && before.group ? *after.group - *before.group : 0;
  }

  bool KernelSays(const HostKill& kill, std::string& because) const {
    const std::int64_t pid = record_.processes[kill.process].pid;
    if (named_.contains(pid)) {
      because =
          fmt::format("the kernel's log says that it killed process {} for lack of memory", pid);
      return true;
    }
    if (!logged_.contains(pid)) return false;
    because = fmt::format("the kernel says so of process {} in the log that was given", pid);
    return true;
  }

  /// `place`: how many were killed before. The kernel's count is of the first ones; what a
  /// launcher then ends is not among them.
  void Judge(HostKill& kill, std::size_t place) const {
    if (kill.shared_memory) {
      kill.certainty = ShmAt(kill.time).surely ? KillCertainty::kCertain : KillCertainty::kLikely;
      kill.because = "a bus error is how the kernel answers a write to /dev/shm without room";
      return;
    }
    kill.certainty = KillCertainty::kCertain;
    if (KernelSays(kill, kill.because)) return;
    const OomKills after = KillsAtEnd();
    const std::int64_t rise =
        after.group && record_.kills.group ? *after.group - *record_.kills.group : std::int64_t{0};
    if (static_cast<std::int64_t>(place) < rise) {
      kill.because = fmt::format(
          "the kernel's count of processes killed for lack of memory in the job's control group "
          "went from {} to {}",
          *record_.kills.group, *after.group);
      if (!unseen_.contains(kill.process)) return;
      // The group may have others in it.
      kill.certainty = KillCertainty::kLikely;
      kill.because += "; this is the largest process of the job that vanished then";
      return;
    }
    JudgeByFill(kill, after);
  }

  void JudgeByFill(HostKill& kill, const OomKills& after) const {
    const bool full = WasNearlyFull(series_, kill.time);
    const bool whole = record_.end.has_value();
    const bool machine_rose =
        after.machine && record_.kills.machine && *after.machine > *record_.kills.machine;
    // The kernel counts when it kills: a count that was read afterwards and is the same is proof.
    if (whole && after.group && record_.kills.group) {
      kill.certainty = KillCertainty::kUnlikely;
      kill.because =
          "the kernel's count of processes killed for lack of memory in the job's control group "
          "did not change";
    } else if (whole && after.machine && record_.kills.machine && !machine_rose) {
      kill.certainty = KillCertainty::kUnlikely;
      kill.because =
          "the kernel's count of processes killed for lack of memory on this machine did not "
          "change";
    } else if (machine_rose) {
      kill.certainty = KillCertainty::kLikely;
      kill.because = fmt::format(
          "the kernel killed {} of this machine's processes for lack of memory meanwhile; it does "
          "not say here whose",
          *after.machine - *record_.kills.machine);
    } else {
      kill.certainty = full ? KillCertainty::kLikely : KillCertainty::kUnlikely;
      kill.because = "the kernel's count of such kills could not be read";
    }
    if (!whole) {
      kill.because =
          "the record breaks off there, so that `plimsoll run` was killed as well, or still runs";
    }
    if (kill.certainty == KillCertainty::kUnlikely && full) {
      kill.because +=
          "; memory was nearly full all the same, and systemd-oomd, earlyoom or a batch system "
          "kill before the kernel does";
    }
  }

  const HostSeries& series_;
  const HostRecord& record_;
  const std::vector<ReportedEnd>& reported_;
  std::vector<HostKill> kills_;
  /// Where each process is among them.
  std::map<std::size_t, std::size_t> place_;
  /// Of whom nobody saw that it was by a signal.
  std::set<std::size_t> unseen_;
  /// By the kernel's log as it was read when the job ended, and by a log that was given.
  std::set<std::int64_t> named_;
  std::set<std::int64_t> logged_;
};

}  // namespace

bool WasNearlyFull(const HostSeries& series, double time) {
  const HostTotal* const total = series.TotalAt(time);
  if (total == nullptr || !total->left) return false;
  const std::optional<Bytes> limit = series.LimitOf(total->kind);
  if (limit && double(*total->left) < kNearlyNothing * double(*limit)) return true;
  // What was added in the last second comes twice more before the next sample.
  const bool first = total == &series.totals().front();
  return !first && *total->left < 2 * (total->together - (total - 1)->together);
}

std::vector<HostKill> KillsIn(const HostSeries& series, const std::vector<ReportedEnd>& reported) {
  return KillSearch(series, reported).Run();
}

}  // namespace plimsoll
