// A process that somebody killed because the host's memory was full, or that was simply killed.
#include <algorithm>
#include <cstdlib>

#include "base/text.h"
#include "readers/wordings/wordings.h"

namespace plimsoll {
namespace {

std::string_view LineOf(std::string_view before) {
  before.remove_prefix(before.rfind('\n') + 1);
  const std::size_t first = before.find_first_not_of(" \t");
  return first == std::string_view::npos ? std::string_view() : before.substr(first);
}

/// The number in front of the end of `before`, as "4242" in "line 3:  4242 ".
std::optional<std::int64_t> NumberAtEnd(std::string_view before) {
  while (!before.empty() && before.back() == ' ') before.remove_suffix(1);
  const std::size_t last = before.find_last_not_of("0123456789");
  before.remove_prefix(last == std::string_view::npos ? 0 : last + 1);
  if (before.empty() || before.size() > 9) return {};
  return std::atoll(std::string(before).c_str());
}

/// "4242 (python) total-vm:81788928kB, anon-rss:64000000kB".
bool ReadVictim(Scanner& scanner, OomMessage& message) {
  ProcessUse process;
  process.pid = scanner.Integer();
  if (!process.pid) return false;
  if (scanner.Literal(", UID")) scanner.Integer();
  scanner.Literal(",");
  if (scanner.Literal("(")) message.subject = scanner.Until(")", 32);
  if (scanner.SkipPast("anon-rss:", 80)) scanner.Size(process.bytes);
  // Shared memory counts too: DataLoader workers pass their batches through it.
  for (std::string_view part : {", file-rss:", ", shmem-rss:"}) {
    std::optional<Bytes> bytes;
    if (scanner.Literal(part) && scanner.Size(bytes) && bytes && process.bytes) {
      *process.bytes += *bytes;
    }
  }
  message.processes.push_back(process);
  return true;
}

/// The path of a control group, up to the first blank or comma.
std::string ReadCgroup(const Scanner& scanner) {
  std::string_view ahead = scanner.Ahead(300);
  ahead.remove_prefix(std::min(ahead.size(), ahead.find_first_not_of(" \t")));
  return std::string(ahead.substr(0, ahead.find_first_of(" \t\r\n,\"'")));
}

}  // namespace

/// "Out of memory: Killed process 4242 (python) total-vm:81788928kB, anon-rss:64000000kB, …"; until
/// Linux 5.2 "Kill process 4242 (python) score 900 or sacrifice child". With "Memory cgroup" in
/// front it was the limit of a container or a job.
bool ReadKernelKill(Scanner& scanner, std::string_view before, OomMessage& message) {
  message.host = before.ends_with("Memory cgroup o") || before.ends_with("emory cgroup O")
                     ? HostEvent::kCgroupKill
                     : HostEvent::kKernelKill;
  scanner.Literal("ed");
  if (!scanner.Literal("process")) return scanner.ended();
  return ReadVictim(scanner, message) || scanner.ended();
}

/// "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),…,task=python,pid=4242,uid=1000"
bool ReadKernelConstraint(Scanner& scanner, std::string_view, OomMessage& message) {
  message.host =
      scanner.Literal("CONSTRAINT_MEMCG") ? HostEvent::kCgroupKill : HostEvent::kKernelKill;
  // Looked for as it is first: a hostile text of nothing but such beginnings must not take minutes.
  const std::string_view ahead = scanner.Ahead(1000);
  if (ahead.find("oom_memcg=") != std::string_view::npos && scanner.SkipPast(",oom_memcg=", 400) &&
      message.host == HostEvent::kCgroupKill) {
    message.cgroup = ReadCgroup(scanner);
  }
  if (ahead.find("task=") == std::string_view::npos) return true;
  if (!scanner.SkipPast(",task=", 600)) return true;
  message.subject = scanner.Until(",", 32);
  if (!scanner.Literal(",pid=")) return true;
  if (auto pid = scanner.Integer()) message.processes.push_back({.pid = pid, .bytes = {}});
  return true;
}

/// "oom_reaper: reaped process 4242 (python), now anon-rss:0kB": the figures are those afterwards.
bool ReadReaper(Scanner& scanner, std::string_view, OomMessage& message) {
  message.host = HostEvent::kKernelKill;
  if (!scanner.SkipPast("reaped process", 4)) return false;
  if (auto pid = scanner.Integer()) message.processes.push_back({.pid = pid, .bytes = {}});
  if (scanner.Literal("(")) message.subject = scanner.Until(")", 32);
  return true;
}

/// "Task in /docker/4f2a killed as a result of limit of /docker/4f2a": older kernels.
bool ReadCgroupLimit(Scanner& scanner, std::string_view, OomMessage& message) {
  message.host = HostEvent::kCgroupKill;
  message.cgroup = ReadCgroup(scanner);
  return true;
}

/// "python invoked oom-killer: gfp_mask=…"
bool ReadInvoked(Scanner& scanner, std::string_view, OomMessage& message) {
  message.host = HostEvent::kKernelKill;
  return scanner.AnyOf({"oom-killer", "oom killer"});
}

/// "memory: usage 16777216kB, limit 16777216kB, failcnt 42"
bool ReadCgroupUsage(Scanner& scanner, std::string_view, OomMessage& message) {
  message.host = HostEvent::kCgroupKill;
  return scanner.Size(message.allocated) && scanner.Literal(", limit") &&
         scanner.Size(message.allowed) && scanner.Literal(", failcnt");
}

/// "Detected 1 oom_kill event in StepId=4242.0."; older "oom-kill event(s) in step 4242.batch
/// cgroup."
bool ReadSlurm(Scanner& scanner, std::string_view, OomMessage& message) {
  message.host = HostEvent::kSlurmKill;
  if (!scanner.Integer()) return false;
  if (!scanner.AnyOf({"oom_kill event", "oom-kill event"})) return false;
  scanner.Literal("(s)");
  scanner.Literal("s");
  if (!scanner.Literal("in") || !scanner.AnyOf({"StepId=", "step"})) return true;
  const std::optional<std::int64_t> job = scanner.Integer();
  if (!job) return true;
  message.subject = "StepId=" + std::to_string(*job);
  for (std::string_view step : {".batch", ".extern", ".interactive"}) {
    if (scanner.Literal(step)) message.subject += step;
  }
  if (!scanner.Literal(".")) return true;
  if (auto step = scanner.Integer()) message.subject += "." + std::to_string(*step);
  return true;
}

/// "Exceeded job memory limit", "exceeded memory limit (20971520 > 16777216), being killed" (in
/// KiB).
bool ReadSlurmLimit(Scanner& scanner, std::string_view, OomMessage& message) {
  message.host = HostEvent::kSlurmKill;
  if (!scanner.Literal("(")) return true;
  const std::optional<std::int64_t> used = scanner.Integer();
  const bool more = scanner.Literal(">");
  const std::optional<std::int64_t> limit = more ? scanner.Integer() : std::nullopt;
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  if (used && limit && *used < kMost && *limit < kMost) {
    message.allocated = *used * kKiB;
    message.allowed = *limit * kKiB;
  }
  return true;
}

/// The state of a job, as sacct, seff and srun print it: "OUT_OF_MEMORY".
bool ReadSlurmState(Scanner&, std::string_view before, OomMessage& message) {
  message.host = HostEvent::kSlurmKill;
  for (std::string_view sign :
       {"slurm", "srun", "State", "JobID", "Job ID", "COMPLETED", "FAILED"}) {
    if (Contains(before, sign)) return !before.ends_with('_');
  }
  return false;
}

/// PBS's "mem 67108864kb exceeded limit 62914560kb", LSF's "TERM_MEMLIMIT".
bool ReadBatchLimit(Scanner& scanner, std::string_view before, OomMessage& message) {
  message.host = HostEvent::kBatchKill;
  const std::optional<std::int64_t> limit = scanner.Integer();
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  if (!limit || *limit > kMost || !scanner.Literal("kb")) return false;
  message.allowed = *limit * kKiB;
  if (before.ends_with("kb ")) before.remove_suffix(3);
  if (auto used = NumberAtEnd(before)) message.allocated = *used * kKiB;
  return true;
}

bool ReadLsf(Scanner&, std::string_view, OomMessage& message) {
  message.host = HostEvent::kBatchKill;
  return true;
}

/// "OOMKilled"; docker inspect prints "OOMKilled": false of healthy ones.
bool ReadKubernetes(Scanner& scanner, std::string_view, OomMessage& message) {
  message.host = HostEvent::kKubernetesKill;
  return !scanner.AnyOf({"\": false", ": false", "=false"});
}

/// "The node was low on resource: memory."
bool ReadEvicted(Scanner& scanner, std::string_view, OomMessage& message) {
  message.host = HostEvent::kNodePressure;
  return scanner.Literal("memory");
}

/// "N Workers (tasks / actors) killed due to memory pressure (OOM)".
bool ReadRaySummary(Scanner&, std::string_view, OomMessage& message) {
  message.host = HostEvent::kRayKill;
  return true;
}

/// "Task was killed due to the node running low on memory. Memory on the node (…) where the task
/// (…) was running was 32.53GB / 33.28GB (0.977449), which exceeds the memory usage threshold of
/// 0.95."
bool ReadRayTask(Scanner& scanner, std::string_view, OomMessage& message) {
  message.host = HostEvent::kRayKill;
  if (!scanner.SkipPast("was running was", 600) || !scanner.Size(message.allocated)) return true;
  if (!scanner.Literal("/") || !scanner.Size(message.capacity)) return true;
  if (!scanner.SkipPast("memory usage threshold of", 60) || !message.capacity) return true;
  const double share = std::atof(scanner.Until(" ,;RTC", 10).c_str());
  if (share > 0 && share <= 1) {
    message.allowed = static_cast<Bytes>(share * static_cast<double>(*message.capacity));
  }
  return true;
}

/// "DataLoader worker (pid 4242) is killed by signal: Killed." or "Bus error."; other signals are
/// not about memory. "(pid(s) 4242) exited unexpectedly" does not say why.
bool ReadDataLoader(Scanner& scanner, std::string_view, OomMessage& message) {
  if (!scanner.Literal("(pid")) return false;
  scanner.Literal("(s)");
  if (auto pid = scanner.Integer()) message.processes.push_back({.pid = pid, .bytes = {}});
  message.subject = "DataLoader worker";
  if (Scanner ahead = scanner; ahead.SkipPast("exited unexpectedly", 64)) {
    scanner = ahead;
    message.host = HostEvent::kWorkerLost;
    return true;
  }
  if (!scanner.SkipPast("is killed by signal:", 64)) return scanner.ended();
  if (scanner.Literal("Bus error")) {
    message.host = HostEvent::kSharedMemory;
    return true;
  }
  message.host = HostEvent::kWorkerKilled;
  return scanner.Literal("Killed");
}

/// "exitcode: -9", "exitcode  : -9 (pid: 4242)", "return code = -9", "Exit Code: 137".
bool ReadExitCode(Scanner& scanner, std::string_view, OomMessage& message) {
  message.host = HostEvent::kKilled;
  scanner.AnyOf({":", "=", "of"});
  const bool killed = scanner.AnyOf({"-9", "137"});
  const std::optional<std::int64_t> more = killed ? scanner.Integer() : std::nullopt;
  return killed && !more;
}

/// "Signal 9 (SIGKILL) received by PID 4242", "died with <Signals.SIGKILL: 9>", "terminated with
/// signal SIGKILL", "signal: killed", "interrupted by signal 9".
bool ReadSignal(Scanner& scanner, std::string_view, OomMessage& message) {
  message.host = HostEvent::kKilled;
  if (scanner.SkipPast("received by PID", 16)) {
    if (auto pid = scanner.Integer()) message.processes.push_back({.pid = pid, .bytes = {}});
  }
  return true;
}

/// The shell's "Killed" alone on its line, "run.sh: line 3:  4242 Killed   python train.py", "zsh:
/// killed     python train.py", "[1]+  Killed   python train.py".
bool ReadShellKilled(Scanner& scanner, std::string_view before, OomMessage& message) {
  message.host = HostEvent::kKilled;
  const std::string_view line = LineOf(before);
  if (line.empty() || line == "> " || line.ends_with("$ ")) return scanner.AtLineEnd();
  const bool shell = Contains(line, ": line ") || line.starts_with("zsh:");
  const bool job = line.starts_with("[") && Contains(line, "]") && line.size() < 24;
  if (auto pid = NumberAtEnd(line); pid && (shell || job)) {
    message.processes.push_back({.pid = pid, .bytes = {}});
  }
  return shell || job;
}

/// systemd-oomd's "Killed /user.slice/… due to memory pressure for /user.slice/… being 62.11% >
/// 50.00%".
bool ReadSystemd(Scanner&, std::string_view before, OomMessage& message) {
  message.host = HostEvent::kSystemdKill;
  return Contains(LineOf(before), "Killed /");
}

/// systemd-oomd's "Killed /user.slice/… due to memory used (61203456000) / total (67353593344) and
/// swap used (2147479552) / total (2147483648) being more than 90.00%".
bool ReadSystemdShare(Scanner& scanner, std::string_view before, OomMessage& message) {
  message.host = HostEvent::kSystemdKill;
  if (!Contains(before, "Killed /") && !Contains(before, "Marked /")) return false;
  const std::optional<std::int64_t> used = scanner.Integer();
  if (!used || !scanner.Literal(") / total (")) return scanner.ended();
  const std::optional<std::int64_t> total = scanner.Integer();
  if (!total || *total == 0 || *used > *total) return scanner.ended();
  message.allocated = used;
  message.capacity = total;
  if (!scanner.SkipPast("being more than", 100)) return true;
  const double percent = std::atof(scanner.Until("%", 8).c_str());
  if (percent > 0 && percent <= 100) {
    message.allowed = static_cast<Bytes>(percent / 100 * static_cast<double>(*total));
  }
  return true;
}

/// earlyoom's "sending SIGTERM to process 4711 uid 1000 "python": badness 1210, VmRSS 59210 MiB".
bool ReadEarlyOom(Scanner& scanner, std::string_view, OomMessage& message) {
  message.host = HostEvent::kEarlyOomKill;
  ProcessUse process{.pid = scanner.Integer(), .bytes = {}};
  if (!process.pid || !scanner.Literal("uid") || !scanner.Integer()) return scanner.ended();
  if (scanner.Literal("\"")) message.subject = scanner.Until("\"", 32);
  if (scanner.SkipPast("VmRSS", 160)) scanner.Size(process.bytes);
  message.processes.push_back(process);
  return true;
}

/// Of a node's events: "System OOM encountered, victim process: python, pid: 4711".
bool ReadSystemOom(Scanner& scanner, std::string_view, OomMessage& message) {
  message.host = HostEvent::kKernelKill;
  message.subject = scanner.Until(",\n", 32);
  if (!scanner.Literal(", pid:")) return true;
  if (auto pid = scanner.Integer()) message.processes.push_back({.pid = pid, .bytes = {}});
  return true;
}

/// "Worker tcp://10.0.0.5:4711 (pid=59029) exceeded 95% memory budget. Restarting...".
bool ReadDask(Scanner&, std::string_view before, OomMessage& message) {
  message.host = HostEvent::kDaskKill;
  const std::string_view line = LineOf(before);
  const std::size_t pid = line.rfind("(pid=");
  const std::size_t close = line.find(')', pid == std::string_view::npos ? 0 : pid);
  if (pid != std::string_view::npos && close != std::string_view::npos) {
    message.processes.push_back({.pid = NumberAtEnd(line.substr(0, close)), .bytes = {}});
  }
  return Contains(line, "Worker") && line.ends_with("% ");
}

/// HTCondor's "Job has gone over cgroup memory limit of 65536 megabytes. Last measured usage: 65012
/// megabytes.".
bool ReadCondor(Scanner& scanner, std::string_view, OomMessage& message) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  message.host = HostEvent::kBatchKill;
  const std::optional<std::int64_t> limit = scanner.Integer();
  if (!limit || *limit > kMost || !scanner.Literal("megabytes")) return scanner.ended();
  message.allowed = *limit * kMiB;
  if (!scanner.AnyOf({". Last measured usage:", ". Peak usage:"})) return true;
  const std::optional<std::int64_t> used = scanner.Integer();
  if (used && *used <= kMost) message.allocated = *used * kMiB;
  return true;
}

/// The kernel's second line until Linux 5.2: "Killed process 4242 (python) total-vm:98123456kB,
/// anon-rss:60123456kB".
bool ReadKilledProcess(Scanner& scanner, std::string_view, OomMessage& message) {
  message.host = HostEvent::kKernelKill;
  return ReadVictim(scanner, message) && message.processes.back().bytes;
}

/// Ray's object store lies in shared memory: "ObjectStoreFullError: Failed to put object …".
bool ReadRayStore(Scanner&, std::string_view, OomMessage& message) {
  message.host = HostEvent::kSharedMemory;
  message.subject = "Ray";
  return true;
}

}  // namespace plimsoll
