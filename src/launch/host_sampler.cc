#include "launch/host_sampler.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <map>
#include <thread>
#include <utility>

#include "launch/host_limits.h"
#include "launch/host_log.h"
#include "launch/live.h"
#include "launch/process_tree.h"

namespace plimsoll {
namespace {

using SteadyClock = std::chrono::steady_clock;

/// Each is a row of a sample; what smaller ones hold is added up.
constexpr std::size_t kMostRows = 512;
/// One descriptor each, and a shell allows 1,024.
constexpr std::size_t kMostWatched = 400;

double SystemNow() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

double SteadyNow() {
  return std::chrono::duration<double>(SteadyClock::now().time_since_epoch()).count();
}

int UtcOffset() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  return ::localtime_r(&now, &local) != nullptr ? static_cast<int>(local.tm_gmtoff) : 0;
}

std::string OwnHostName() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

/// A descriptor that can be read once the process is dead; -1 before Linux 5.3.
int Watch([[maybe_unused]] std::int64_t pid) {
#ifdef SYS_pidfd_open
  return static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0));
#else
  return -1;
#endif
}

/// linux/pidfd.h of Linux 6.15, which older systems do not have.
struct PidInfo {
  std::uint64_t mask = 0;
  std::uint64_t group = 0;
  std::array<std::uint32_t, 11> ids{};
  std::int32_t exit_code = 0;
};
static_assert(sizeof(PidInfo) == 64);
constexpr std::uint64_t kPidInfoExit = 8;

/// As wait() would have it of a dead process that is not our child. Until its parent has waited
/// for it, /proc says so; from Linux 6.15 on the descriptor does afterwards.
std::optional<int> StatusOf(std::int64_t pid, std::int64_t started, int watched) {
  const auto text = ReadKernelFile(fmt::format("/proc/{}/stat", pid), 1024);
  const auto stat = text ? ParseStat(*text) : std::nullopt;
  if (stat && stat->started == started && stat->state == 'Z') return stat->status;
  PidInfo info{.mask = kPidInfoExit};
  if (watched >= 0 && ::ioctl(watched, _IOWR(0xFF, 11, PidInfo), &info) == 0 &&
      (info.mask & kPidInfoExit) != 0) {
    return info.exit_code;
  }
  return std::nullopt;
}

HostDeath DeathOf(std::optional<int> status, double time) {
  HostDeath death{.time = time};
  if (status && WIFSIGNALED(*status)) death.signal = WTERMSIG(*status);
  if (status && WIFEXITED(*status)) death.code = WEXITSTATUS(*status);
  return death;
}

/// Processes that the kernel's log names as killed for lack of memory, where it can be read at
/// all: "Memory cgroup out of memory: Killed process 812 (python) total-vm:…".
std::vector<std::int64_t> NamedByKernel() {
  std::vector<std::int64_t> pids;
  const int log = ::open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (log < 0) return pids;
  std::array<char, 8192> record{};
  for (int i = 0; i < 100'000; ++i) {  // each read is one message; EPIPE: some were overwritten
    const ssize_t size = ::read(log, record.data(), record.size());
    if (size < 0 && errno == EPIPE) continue;
    if (size <= 0) break;
    const std::string_view text(record.data(), static_cast<std::size_t>(size));
    constexpr std::string_view kWords = "ut of memory: Killed process ";
    const std::size_t at = text.find(kWords);
    if (at == text.npos) continue;
    std::int64_t pid = 0;
    const char* const begin = text.data() + at + kWords.size();
    if (std::from_chars(begin, text.data() + text.size(), pid).ec == std::errc()) {
      pids.push_back(pid);
    }
  }
  ::close(log);
  return pids;
}

}  // namespace

class HostSampler::Work {
 public:
  Work(const RunFolder& folder, std::int64_t child)
      : hook_(folder.hook),
        log_((std::filesystem::path(folder.path) / kHostFile).string()),
        tree_(child, HostPlaces{}),
        child_(child) {
    HostRecord record{.host = OwnHostName(), .began = SystemNow(), .utc_offset = UtcOffset()};
    limits_.Describe(record);
    log_.Header(record);
    log_.Flush();
    Start();
  }

  ~Work() {
    Stop();
    for (const auto& [pid, seen] : seen_) {
      if (seen.watched >= 0) ::close(seen.watched);
    }
  }

  void End(const ChildEnd& ended) {
    Stop();
    const double now = SystemNow();
    NoteDeaths(0);
    HostDeath death{.time = now, .signal = ended.signal};
    if (!ended.signal) death.code = ended.code;
    log_.Death(child_, death);
    HostEnd end{.time = now, .code = ended.code, .signal = ended.signal, .kills = limits_.Kills()};
    // What it says of processes from before is of no interest.
    for (const std::int64_t pid : NamedByKernel()) {
      if (named_before_.contains(pid) || !ever_.contains(pid)) continue;
      end.named_by_kernel.push_back(pid);
    }
    log_.End(end);
    log_.Flush();
  }

 private:
  struct Seen {
    std::int64_t started = 0;
    int watched = -1;
  };

  void Start() {
    if (::pipe2(stop_.data(), O_CLOEXEC) != 0) return;
    // Signals are the other thread's, which passes them on.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { Run(); });
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void Stop() {
    if (!thread_.joinable()) return;
    ::close(stop_[1]);
    thread_.join();
    ::close(stop_[0]);
  }

  void Run() {
    const std::vector<std::int64_t> named = NamedByKernel();
    named_before_.insert(named.begin(), named.end());
    for (double next = SteadyNow();; next = std::max(next + 1, SteadyNow())) {
      while (SteadyNow() < next) {
        if (NoteDeaths(next - SteadyNow())) return;
      }
      Take();
    }
  }

  /// Waits so many seconds for a process to die; true: there is nothing more to wait for.
  bool NoteDeaths(double seconds) {
    std::vector<pollfd> polled = {{.fd = thread_.joinable() ? stop_[0] : -1, .events = POLLIN}};
    std::vector<std::int64_t> pids;
    for (const auto& [pid, seen] : seen_) {
      if (seen.watched < 0) continue;
      polled.push_back({.fd = seen.watched, .events = POLLIN});
      pids.push_back(pid);
    }
    const int wait = static_cast<int>(seconds * 1000) + (seconds > 0 ? 1 : 0);
    if (::poll(polled.data(), polled.size(), wait) <= 0) return false;
    for (std::size_t i = 0; i < pids.size(); ++i) {
      if (polled[i + 1].revents != 0) Bury(pids[i]);
    }
    log_.Flush();
    return polled[0].revents != 0;
  }

  void Bury(std::int64_t pid) {
    const auto found = seen_.find(pid);
    if (found == seen_.end()) return;
    const Seen seen = found->second;
    seen_.erase(found);
    // How the job's own first process ended, we are told by waiting for it.
    if (pid != child_) {
      log_.Death(pid, DeathOf(StatusOf(pid, seen.started, seen.watched), SystemNow()));
    }
    if (seen.watched >= 0) ::close(seen.watched);
  }

  void Take() {
    tree_.Look(ReadReportsOf(hook_), SteadyNow());
    std::map<std::int64_t, TreeProcess>& tree = tree_.processes();
    std::vector<std::int64_t> gone;
    for (const auto& [pid, seen] : seen_) {
      const auto now = tree.find(pid);
      const bool same = now != tree.end() && now->second.process.started == seen.started;
      if (!same) gone.push_back(pid);
    }
    for (const std::int64_t pid : gone) Bury(pid);
    std::vector<HostShare> rows;
    for (auto& [pid, known] : tree) {
      Meet(known);
      known.share.process = static_cast<std::size_t>(pid);
      rows.push_back(known.share);
    }
    std::ranges::sort(rows, std::greater<>(), &HostShare::resident);
    HostSample sample{.time = SystemNow()};
    limits_.Measure(sample);
    for (std::size_t i = kMostRows; i < rows.size(); ++i) sample.others += rows[i].resident;
    rows.resize(std::min(rows.size(), kMostRows));
    sample.held = std::move(rows);
    // The job may be over: a sample of nothing says nothing.
    if (!sample.held.empty()) log_.Sample(sample);
    log_.Flush();
  }

  void Meet(TreeProcess& known) {
    const HostProcess& process = known.process;
    const auto [at, fresh] = seen_.emplace(process.pid, Seen{.started = process.started});
    if (fresh) {
      ever_.insert(process.pid);
      const bool room = seen_.size() <= kMostWatched && process.pid != child_;
      if (room) at->second.watched = Watch(process.pid);
    }
    if (std::exchange(known.news, false)) log_.Process(process);
  }

  std::string hook_;
  HostLimits limits_;
  HostLog log_;
  ProcessTree tree_;
  std::int64_t child_;
  std::map<std::int64_t, Seen> seen_;
  std::set<std::int64_t> ever_;
  std::set<std::int64_t> named_before_;
  std::array<int, 2> stop_ = {-1, -1};
  std::thread thread_;
};

HostSampler::HostSampler(const RunFolder& folder) : folder_(folder) {}
HostSampler::~HostSampler() = default;

void HostSampler::Begin(std::int64_t child) { work_ = std::make_unique<Work>(folder_, child); }

void HostSampler::End(const ChildEnd& end) {
  if (work_) work_->End(end);
}

}  // namespace plimsoll
