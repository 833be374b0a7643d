#include "train/parallel/ranks/local_launcher.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string_view>
#include <thread>

#include "train/parallel/ranks/roll_call.h"

extern char** environ;

namespace plimsoll::train {
namespace {

using Clock = std::chrono::steady_clock;

volatile sig_atomic_t signal_to_pass_on = 0;
void PassOn(int signal) { signal_to_pass_on = signal; }

/// RAII guard: SIGINT and SIGTERM are kept for the ranks.
class PassSignalsOn {
 public:
  PassSignalsOn() {
    signal_to_pass_on = 0;
    struct sigaction action = {};
    action.sa_handler = PassOn;
    sigaction(SIGINT, &action, &interrupt_);
    sigaction(SIGTERM, &action, &terminate_);
  }
  ~PassSignalsOn() {
    sigaction(SIGINT, &interrupt_, nullptr);
    sigaction(SIGTERM, &terminate_, nullptr);
  }
  PassSignalsOn(const PassSignalsOn&) = delete;
  PassSignalsOn& operator=(const PassSignalsOn&) = delete;

 private:
  struct sigaction interrupt_ = {};
  struct sigaction terminate_ = {};
};

/// This process's own, and what makes it a rank.
std::vector<std::string> EnvironmentOf(int rank, int ranks, int port) {
  std::map<std::string, std::string> ours = {
      {"RANK", std::to_string(rank)},
      {"LOCAL_RANK", std::to_string(rank)},
      {"WORLD_SIZE", std::to_string(ranks)},
      {"LOCAL_WORLD_SIZE", std::to_string(ranks)},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", std::to_string(port)},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
  };
  // All are here: no other network needs to be found.
  if (std::getenv("GLOO_SOCKET_IFNAME") == nullptr) ours["GLOO_SOCKET_IFNAME"] = "lo";
  // Each with all cores would be slower than one alone.
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
    ours["OMP_NUM_THREADS"] = std::to_string(std::max(1U, cores / static_cast<unsigned>(ranks)));
  }
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (!ours.contains(std::string(text.substr(0, text.find('='))))) variables.emplace_back(text);
  }
  for (const auto& [name, value] : ours) variables.push_back(name + "=" + value);
  return variables;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

pid_t Start(std::vector<std::string> arguments, std::vector<std::string> variables) {
  const std::vector<char*> words = Pointers(arguments);
  const std::vector<char*> environment = Pointers(variables);
  const pid_t child = fork();
  TORCH_CHECK(child >= 0, "a rank cannot be started: ", std::strerror(errno));
  if (child == 0) {
    // A group of its own, so that Ctrl-C on a terminal comes once, from this process.
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    execve("/proc/self/exe", words.data(), environment.data());
    _exit(127);
  }
  return child;
}

/// The ranks that run, and how the first that failed ended.
struct Running {
  std::map<pid_t, int> rank_of;
  int status = 0;
  Clock::time_point failed_at;
  /// It said itself what was wrong.
  bool ended_itself = false;
  /// In words, for the others.
  std::string failure;

  void SendAll(int signal) const {
    for (const auto& [process, rank] : rank_of) kill(process, signal);
  }

  void Reap() {
    int status_now = 0;
    for (pid_t ended = 0; (ended = waitpid(-1, &status_now, WNOHANG)) > 0;) {
      const auto found = rank_of.find(ended);
      if (found == rank_of.end()) continue;
      const int rank = found->second;
      rank_of.erase(found);
      const bool killed = WIFSIGNALED(status_now);
      const int code = killed ? 128 + WTERMSIG(status_now) : WEXITSTATUS(status_now);
      if (code == 0 || status != 0) continue;
      status = code;
      failed_at = Clock::now();
      ended_itself = !killed;
      failure = killed ? c10::str("rank ", rank, " was killed: ", strsignal(WTERMSIG(status_now)))
                       : c10::str("rank ", rank, " ended with exit code ", code);
      if (killed) std::fprintf(stderr, "%s\n", failure.c_str());
    }
  }
};

}  // namespace

void DoNotWaitForNames() { setenv("RES_OPTIONS", "timeout:1 attempts:1", 0); }

c10::intrusive_ptr<c10d::TCPStore> StoreOnThisMachine() {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

int RunOnThisMachine(int ranks, const std::vector<std::string>& arguments, int grace_seconds) {
  DoNotWaitForNames();
  const auto store = StoreOnThisMachine();
  const PassSignalsOn passing;
  Running running;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t process = Start(arguments, EnvironmentOf(rank, ranks, store->getPort()));
    running.rank_of[process] = rank;
  }
  bool told = false;
  while (!running.rank_of.empty()) {
    running.Reap();
    if (!told && running.status != 0) {
      TellThatRankEnded(*store, running.failure);
      told = true;
    }
    if (signal_to_pass_on != 0) {
      running.SendAll(signal_to_pass_on);
      signal_to_pass_on = 0;
    }
    // The others learn of an error at once, if they have met.
    constexpr int kMostAfterAnError = 30;
    const int grace =
        running.ended_itself ? std::min(grace_seconds, kMostAfterAnError) : grace_seconds;
    const bool waited = Clock::now() - running.failed_at > std::chrono::seconds(grace);
    if (running.status != 0 && waited) running.SendAll(SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return running.status;
}

}  // namespace plimsoll::train
