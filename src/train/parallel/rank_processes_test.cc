// The processes that the tests of this folder run in, and main().
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <torch/serialize.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <thread>

#include "train/parallel/rank_processes_for_tests.h"

namespace plimsoll::train {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

std::map<std::string, RankTask>& Tasks() {
  static std::map<std::string, RankTask> tasks;
  return tasks;
}

std::string ReadAll(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void Write(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<long>(bytes.size()));
}

void WriteFindings(const fs::path& path, const Findings& findings) {
  c10::Dict<std::string, at::Tensor> dict;
  for (const auto& [name, tensor] : findings) dict.insert(name, tensor.detach().clone());
  const std::vector<char> bytes = torch::pickle_save(dict);
  Write(path, {bytes.begin(), bytes.end()});
}

Findings ReadFindings(const fs::path& path) {
  const std::string bytes = ReadAll(path);
  Findings findings;
  if (bytes.empty()) return findings;
  const auto dict = torch::pickle_load({bytes.begin(), bytes.end()}).toGenericDict();
  for (const auto& entry : dict) {
    findings[entry.key().toStringRef()] = entry.value().toTensor();
  }
  return findings;
}

/// In the process of a rank: --rank-task NAME FOLDER WORDS...
int RunTask(const std::vector<std::string>& arguments) {
  const fs::path folder = arguments[1];
  const Launch launch = LaunchFromEnvironment();
  const std::string rank = std::to_string(launch.rank);
  try {
    const Findings findings =
        Tasks().at(arguments[0])(launch, {arguments.begin() + 2, arguments.end()});
    WriteFindings(folder / ("findings." + rank), findings);
    return 0;
  } catch (const std::exception& error) {
    Write(folder / ("error." + rank), error.what());
    return 1;
  }
}

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / "plimsoll_ranks.XXXXXX") {
    std::string name = path_;
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder for the ranks");
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> EnvironmentOf(int rank, int port, const RankProcesses& processes) {
  std::vector<std::string> variables{
      "RANK=" + std::to_string(rank),
      "LOCAL_RANK=" + std::to_string(rank),
      "WORLD_SIZE=" + std::to_string(processes.size),
      "LOCAL_WORLD_SIZE=" + std::to_string(processes.size),
      "MASTER_ADDR=127.0.0.1",
      "MASTER_PORT=" + std::to_string(port),
      "OMP_NUM_THREADS=1",
      "GLOO_SOCKET_IFNAME=lo",
  };
  if (processes.store_is_kept) variables.emplace_back("TORCHELASTIC_USE_AGENT_STORE=True");
  for (const char* name : {"PATH", "LD_LIBRARY_PATH", "TMPDIR", "ASAN_OPTIONS", "LSAN_OPTIONS"}) {
    if (const char* value = std::getenv(name)) variables.push_back(std::string(name) + "=" + value);
  }
  return variables;
}

/// What a rank prints is of interest only where it crashes.
fs::path PrintedBy(int rank, const fs::path& folder) {
  return folder / ("printed." + std::to_string(rank));
}

pid_t Start(int rank, int port, const RankProcesses& processes, const fs::path& folder) {
  const std::string printed = PrintedBy(rank, folder);
  std::vector<std::string> words{"parallel_test", "--rank-task", processes.task, folder};
  words.insert(words.end(), processes.words.begin(), processes.words.end());
  std::vector<std::string> variables = EnvironmentOf(rank, port, processes);
  const std::vector<char*> arguments = Pointers(words);
  const std::vector<char*> environment = Pointers(variables);
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int file = open(printed.c_str(), O_WRONLY | O_CREAT, 0600);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    execve("/proc/self/exe", arguments.data(), environment.data());
    _exit(127);
  }
  return child;
}

/// Waits for all; kills those that are left at the end of the time.
std::vector<RankOutcome> Await(const std::vector<pid_t>& children, const RankProcesses& processes) {
  const auto begin = Clock::now();
  std::vector<RankOutcome> outcomes(children.size());
  std::vector<bool> ended(children.size());
  const auto left = [&] { return std::count(ended.begin(), ended.end(), false); };
  bool late = false;
  while (left() > 0) {
    const auto passed = Clock::now() - begin;
    for (std::size_t i = 0; i < children.size(); ++i) {
      int status = 0;
      if (ended[i] || waitpid(children[i], &status, WNOHANG) != children[i]) continue;
      ended[i] = true;
      outcomes[i].signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      outcomes[i].late = late;
      outcomes[i].seconds = std::chrono::duration<double>(passed).count();
    }
    late = late || passed > processes.time_limit;
    for (std::size_t i = 0; i < children.size(); ++i) {
      const bool unwanted = left() == 1 && static_cast<int>(i) == processes.not_awaited;
      if (!ended[i] && (late || unwanted)) kill(children[i], SIGKILL);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return outcomes;
}

/// A port that was free a moment ago.
int FreePort() {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options)->getPort();
}

}  // namespace

RankTaskNamed::RankTaskNamed(const char* name, RankTask task) {
  Tasks().emplace(name, std::move(task));
}

std::vector<RankOutcome> RunRanks(const RankProcesses& processes) {
  const Folder folder;
  c10::intrusive_ptr<c10d::TCPStore> store;
  int port = 0;
  if (processes.store_is_kept) {
    c10d::TCPStoreOptions options;
    options.port = 0;
    options.isServer = true;
    options.waitWorkers = false;
    store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
    port = store->getPort();
  } else {
    port = FreePort();
  }
  std::vector<pid_t> children;
  for (int rank = 0; rank < processes.size; ++rank) {
    children.push_back(Start(rank, port, processes, folder.path()));
  }
  std::vector<RankOutcome> outcomes = Await(children, processes);
  for (int rank = 0; rank < processes.size; ++rank) {
    const std::string number = std::to_string(rank);
    const bool crashed = outcomes[rank].signal != 0 && outcomes[rank].signal != SIGKILL;
    if (crashed) std::cerr << ReadAll(PrintedBy(rank, folder.path()));
    outcomes[rank].error = ReadAll(folder.path() / ("error." + number));
    outcomes[rank].findings = ReadFindings(folder.path() / ("findings." + number));
  }
  return outcomes;
}

}  // namespace plimsoll::train

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() >= 3 && arguments[0] == "--rank-task") {
    return plimsoll::train::RunTask({arguments.begin() + 1, arguments.end()});
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
