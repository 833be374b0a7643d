#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cli/command/command.h"
#include "cli/next_steps.h"
#include "cli/terminal/metrics_client.h"
#include "cli/terminal/metrics_server.h"
#include "cli/terminal/screen.h"
#include "cli/terminal/terminal.h"
#include "driver/drivers.h"
#include "launch/live.h"
#include "report/watch.h"
#include "watch/metrics_text.h"
#include "watch/watcher.h"

namespace plimsoll {
namespace {

/// More often, and asking the driver would take time of its own.
constexpr double kShortestInterval = 0.1;

struct WatchFlags {
  bool json = false;
  bool once = false;
  double interval = 1;
  std::optional<std::int64_t> gpu;
  std::optional<std::int64_t> port;
  std::vector<std::string> from;
};

/// Signals wait until a sample is whole, so that nothing is cut in the middle and the cursor is
/// there again at the end. One that is ignored (nohup) stays so.
class Signals {
 public:
  Signals() {
    if (::pipe(pipe_) != 0) return;
    for (const int end : pipe_) ::fcntl(end, F_SETFL, O_NONBLOCK);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGWINCH}) {
      struct sigaction now = {};
      ::sigaction(signal, nullptr, &now);
      if (now.sa_handler != SIG_IGN) Note(signal);
    }
  }

  /// The one that came, or nothing once it is that time by the steady clock.
  static std::optional<int> Await(double until) {
    while (true) {
      const double left = std::min(std::max(0.0, until - Now().steady), kLongestWait);
      pollfd waiting{.fd = pipe_[0], .events = POLLIN, .revents = 0};
      // A whole millisecond more, or the last one would be spent turning round.
      const int ready = ::poll(&waiting, 1, static_cast<int>(left * 1000) + (left > 0 ? 1 : 0));
      unsigned char signal = 0;
      if (ready > 0 && ::read(pipe_[0], &signal, 1) == 1) return signal;
      if (Now().steady >= until) return std::nullopt;
    }
  }

  /// Does what the signal would have done.
  static void LetIt(int signal) {
    ::signal(signal, SIG_DFL);
    ::raise(signal);
    Note(signal);  // it was continued
  }

 private:
  static constexpr double kLongestWait = 3600;

  static void Note(int signal) {
    struct sigaction action = {};
    action.sa_handler = [](int number) {
      const int before = errno;
      const auto byte = static_cast<unsigned char>(number);
      // A full pipe has a signal in it already.
      [[maybe_unused]] const ssize_t written = ::write(pipe_[1], &byte, 1);
      errno = before;
    };
    action.sa_flags = SA_RESTART;
    ::sigaction(signal, &action, nullptr);
  }

  static inline int pipe_[2] = {-1, -1};
};

/// This machine: what its driver and its ranks say.
class OwnMachine {
 public:
  explicit OwnMachine(Drivers drivers) : drivers_(std::move(drivers)) {}

  std::size_t GpuCount() const { return drivers_.Read().size(); }
  WatchSample Take() { return watcher_.Take(Now(), drivers_.Read(), ReadLiveProcesses()); }

 private:
  Drivers drivers_;
  Watcher watcher_;
};

/// Machines that are asked for their metrics, all at once.
class OtherMachines {
 public:
  explicit OtherMachines(std::vector<MetricsAddress> addresses)
      : addresses_(std::move(addresses)), watchers_(addresses_.size()) {}

  WatchSample Take() {
    WatchSample sample{.time = Now().since_1970,
                       .machines = std::vector<WatchedMachine>(addresses_.size())};
    {
      std::vector<std::jthread> asking;
      for (std::size_t i = 0; i < addresses_.size(); ++i) {
        asking.emplace_back([&, i] { sample.machines[i] = Ask(i); });
      }
    }
    return sample;
  }

 private:
  WatchedMachine Ask(std::size_t i) {
    WatchedMachine machine{.name = addresses_[i].Name()};
    const Result<std::string> text = FetchMetrics(addresses_[i]);
    Result<std::vector<WatchedGpu>> gpus =
        text ? ReadMetrics(*text) : Result<std::vector<WatchedGpu>>(text.error());
    if (gpus) {
      machine.gpus = watchers_[i].Follow(Now(), *std::move(gpus));
    } else {
      machine.failure = gpus.error().ToLine();
    }
    return machine;
  }

  std::vector<MetricsAddress> addresses_;
  std::vector<Watcher> watchers_;
};

class Watch {
 public:
  Watch(const WatchFlags& flags, std::function<WatchSample()> take)
      : flags_(flags), take_(std::move(take)) {}

  int Run() {
    if (!flags_.once) return Loop();
    const WatchSample sample = Take();
    const int code =
        flags_.json ? Print(WatchJson(sample)) : PrintWithNext(TextOf(sample, false), Next(sample));
    const auto failed = [](const WatchedMachine& machine) { return !machine.failure.empty(); };
    return std::ranges::any_of(sample.machines, failed) ? kUnusable : code;
  }

 private:
  WatchSample Take() {
    WatchSample sample = take_();
    if (!flags_.gpu) return sample;
    const auto other = [&](const WatchedGpu& gpu) { return gpu.index != *flags_.gpu; };
    std::erase_if(sample.gpus, other);
    for (WatchedMachine& machine : sample.machines) std::erase_if(machine.gpus, other);
    return sample;
  }

  /// Where there are processes, and none tells what PyTorch has.
  static std::vector<NextStep> Next(const WatchSample& sample) {
    bool any = false;
    for (const WatchedGpu& gpu : sample.gpus) {
      for (const WatchedProcess& process : gpu.processes) {
        if (process.reported) return {};
        any = true;
      }
    }
    return any ? AfterWatch() : std::vector<NextStep>{};
  }

  static std::string TextOf(const WatchSample& sample, bool with_time) {
    return WatchText(sample, with_time, StyleOfStdout());
  }

  int Loop() {
    const Signals signals;
    std::optional<MetricsServer> server;
    if (flags_.port) {
      Result<MetricsServer> started = MetricsServer::Start(static_cast<int>(*flags_.port));
      if (!started) return Complain(started.error());
      server.emplace(std::move(*started));
    }
    Screen screen;
    bool said = false;
    double next = Now().steady;
    while (true) {
      if (Now().steady >= next) {
        const WatchSample sample = Take();
        if (server) {
          server->Set(WatchMetrics(sample));
          if (!said) SayAddress(*server);
          said = true;
        } else if (!Show(sample, screen)) {
          return kUnusable;
        }
        next = std::max(next + flags_.interval, Now().steady);
      }
      const std::optional<int> signal = signals.Await(next);
      if (!signal) continue;
      if (*signal == SIGWINCH) {
        screen.Restart();
        next = Now().steady;
        continue;
      }
      screen.Leave();
      if (*signal == SIGINT) return kFine;
      signals.LetIt(*signal);
    }
  }

  bool Show(const WatchSample& sample, Screen& screen) {
    if (flags_.json) return Print(WatchJson(sample)) == kFine;
    std::string text = TextOf(sample, true);
    if (screen.is_terminal()) {
      text += fmt::format("every {} s, trends after 10 s; Ctrl-C ends\n", flags_.interval);
    } else {
      text += "\n";
    }
    return screen.Draw(text);
  }

  static void SayAddress(const MetricsServer& server) {
    std::fputs(
        fmt::format("plimsoll: metrics at http://127.0.0.1:{}/metrics\n", server.port()).c_str(),
        stderr);
  }

  WatchFlags flags_;
  std::function<WatchSample()> take_;
};

int WatchOthers(const WatchFlags& flags) {
  constexpr std::size_t kMostMachines = 256;
  if (flags.from.size() > kMostMachines) {
    return Complain({.message = fmt::format("{} machines are too many", flags.from.size()),
                     .hint = fmt::format("name {} at most", kMostMachines)});
  }
  std::vector<MetricsAddress> addresses;
  for (const std::string& text : flags.from) {
    Result<MetricsAddress> address = ParseMetricsAddress(text);
    if (!address) return Complain(address.error());
    addresses.push_back(*std::move(address));
  }
  OtherMachines machines(std::move(addresses));
  return Watch(flags, [&] { return machines.Take(); }).Run();
}

int RunWatch(const WatchFlags& flags) {
  if (flags.interval < kShortestInterval) {
    return Complain({.message = fmt::format("--interval {} is too short", flags.interval),
                     .hint = fmt::format("give {} seconds or more", kShortestInterval)});
  }
  if (flags.port && (flags.once || flags.json)) {
    return Complain({.message = "--prometheus goes with neither --once nor --json",
                     .hint = "it answers until it is ended, in a format of its own"});
  }
  if (flags.port && !flags.from.empty()) {
    return Complain({.message = "--prometheus does not go with --from",
                     .hint = "Prometheus can ask each machine itself"});
  }
  if (!flags.from.empty()) return WatchOthers(flags);
  Result<Drivers> drivers = Drivers::Load();
  if (!drivers) return Complain(drivers.error());
  OwnMachine machine(std::move(*drivers));
  const std::size_t gpus = machine.GpuCount();
  if (flags.gpu && static_cast<std::size_t>(*flags.gpu) >= gpus) {
    return Complain({.message = fmt::format("there is no GPU {}", *flags.gpu),
                     .hint = fmt::format("the driver sees {}, counted from 0", gpus)});
  }
  return Watch(flags, [&] { return machine.Take(); }).Run();
}

}  // namespace

Command AddWatch(Flags& declare) {
  auto flags = std::make_shared<WatchFlags>();
  declare.Switch("--once", flags->once, "one sample, and end");
  declare.Switch("--json", flags->json,
                 "one JSON document a sample, each on one line (docs/json.md)");
  declare.Seconds("--interval", flags->interval,
                  "between two samples; 1 unless given, 0.1 at least");
  declare.Count("--gpu", "INDEX", flags->gpu, "only this GPU, as nvidia-smi counts them");
  declare.Count("--prometheus", "PORT", flags->port,
                "print nothing and answer http://127.0.0.1:PORT/metrics instead; 0 takes a port "
                "that is free and names it",
                0, 65535);
  declare.Texts("--from", "URL", flags->from,
                "instead of this machine those that serve --prometheus there; may be given again: "
                "--from http://node1:9835/metrics --from node2:9835");
  declare.Examples(
      "  plimsoll watch   every GPU and its processes, drawn anew each second\n"
      "  plimsoll watch --once --json   one sample, for a script\n"
      "  plimsoll watch --prometheus 9835   for Prometheus, on this machine alone\n"
      "Processes under plimsoll run also tell what PyTorch has reserved and allocated. A time "
      "until "
      "full is told only where memory grows steadily.");
  return [flags] { return RunWatch(*flags); };
}

}  // namespace plimsoll
