// measure REPEATS COMMAND [ARG…]
//
// Runs the command that often, its output thrown away, and prints one line of medians:
//   seconds  user_seconds  private_bytes  resident_bytes
// private_bytes is the peak of RssAnon, looked up every 2 ms: memory that is the process's own, and
// not pages of a mapped file that the system can drop at any time. resident_bytes counts those too.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace {

struct Cost {
  double seconds = 0;
  double user_seconds = 0;
  std::int64_t private_bytes = 0;
  std::int64_t resident_bytes = 0;
};

std::int64_t PrivateBytes(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("RssAnon:", 0) == 0) return std::atoll(line.c_str() + 8) * 1024;
  }
  return 0;  // the process has just ended
}

pid_t Start(char** command) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  const int nowhere = open("/dev/null", O_RDWR);
  dup2(nowhere, STDIN_FILENO);
  dup2(nowhere, STDOUT_FILENO);
  execvp(command[0], command);
  std::perror(command[0]);
  _exit(127);
}

// Exits when the command fails: there is nothing to measure then.
Cost Run(char** command) {
  Cost cost;
  const auto begin = std::chrono::steady_clock::now();
  const pid_t pid = Start(command);
  int status = 0;
  rusage usage{};
  // Polling would round the time up to its period, so a thread polls and this one waits.
  std::jthread poll([&](std::stop_token stop) {
    while (!stop.stop_requested()) {
      cost.private_bytes = std::max(cost.private_bytes, PrivateBytes(pid));
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  // WNOWAIT first: while the process is not reaped, its number cannot become another's.
  siginfo_t info{};
  waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT);
  cost.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  poll.request_stop();
  poll.join();
  wait4(pid, &status, 0, &usage);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    std::fprintf(stderr, "measure: %s failed\n", command[0]);
    std::exit(1);
  }
  cost.user_seconds = static_cast<double>(usage.ru_utime.tv_sec) +
                      static_cast<double>(usage.ru_utime.tv_usec) * 1e-6;
  cost.resident_bytes = std::int64_t{usage.ru_maxrss} * 1024;
  return cost;
}

template <typename T>
T Median(const std::vector<Cost>& costs, T Cost::*field) {
  std::vector<T> values;
  for (const Cost& cost : costs) values.push_back(cost.*field);
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const int repeats = argc > 2 ? std::atoi(argv[1]) : 0;
  if (repeats <= 0) {
    std::fprintf(stderr, "usage: measure REPEATS COMMAND [ARG…]\n");
    return 2;
  }
  std::vector<Cost> costs;
  for (int i = 0; i < repeats; ++i) costs.push_back(Run(argv + 2));
  std::printf("%.4f %.4f %lld %lld\n", Median(costs, &Cost::seconds),
              Median(costs, &Cost::user_seconds),
              static_cast<long long>(Median(costs, &Cost::private_bytes)),
              static_cast<long long>(Median(costs, &Cost::resident_bytes)));
  return 0;
}
