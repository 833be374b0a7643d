// The processes that the tests of this folder run in, and main().
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <torch/serialize.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <sstream>
#include <thread>

#include "train/common/nightly_for_tests.h"
#include "train/parallel/ranks/local_launcher.h"
#include "train/parallel/ranks/rank_processes_for_tests.h"

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

/// What the starter is told of one run of ranks.
struct RankRun {
  RankProcesses processes;
  int port = 0;
  fs::path folder;
};

/// In the process of a rank.
int RunTask(const RankRun& run) {
  const Launch launch = LaunchFromEnvironment();
  const std::string rank = std::to_string(launch.rank);
  try {
    const Findings findings = Tasks().at(run.processes.task)(launch, run.processes.words);
    WriteFindings(run.folder / ("findings." + rank), findings);
    return 0;
  } catch (const std::exception& error) {
    Write(run.folder / ("error." + rank), error.what());
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

void SetEnvironment(int rank, const RankRun& run) {
  const std::string size = std::to_string(run.processes.size);
  const auto set = [](const char* name, const std::string& value) {
    setenv(name, value.c_str(), 1);
  };
  set("RANK", std::to_string(rank));
  set("LOCAL_RANK", std::to_string(rank));
  set("WORLD_SIZE", size);
  set("LOCAL_WORLD_SIZE", size);
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(run.port));
  set("GLOO_SOCKET_IFNAME", "lo");
  if (run.processes.store_is_kept) set("TORCHELASTIC_USE_AGENT_STORE", "True");
}

/// What a rank prints is of interest only where it crashes.
fs::path PrintedBy(int rank, const fs::path& folder) {
  return folder / ("printed." + std::to_string(rank));
}

pid_t Start(int rank, const RankRun& run) {
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int file = open(PrintedBy(rank, run.folder).c_str(), O_WRONLY | O_CREAT, 0600);
  dup2(file, STDOUT_FILENO);
  dup2(file, STDERR_FILENO);
  SetEnvironment(rank, run);
  at::set_num_threads(1);
  const int code = RunTask(run);
  // Most of what a short rank takes is that torch takes itself apart. By night it does, and a
  // sanitizer looks for what was lost: in two ranks, which the others are like.
  if (!IsNightly() || rank > 1) std::_Exit(code);
  std::exit(code);
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

/// A line for each value.
std::string Written(const RankRun& run) {
  std::ostringstream out;
  const RankProcesses& ranks = run.processes;
  out << ranks.task << '\n'
      << run.folder.string() << '\n'
      << run.port << ' ' << ranks.size << ' ' << ranks.store_is_kept << ' ' << ranks.not_awaited
      << ' ' << ranks.time_limit.count() << ' ' << ranks.words.size() << '\n';
  for (const std::string& word : ranks.words) out << word << '\n';
  return out.str();
}

/// Nothing at the end.
std::optional<RankRun> ReadRun(std::FILE* in) {
  const auto line = [in](std::string& to) {
    char* text = nullptr;
    std::size_t room = 0;
    const ssize_t length = getline(&text, &room, in);
    if (length > 0) to.assign(text, length - 1);
    std::free(text);
    return length > 0;
  };
  RankRun run;
  RankProcesses& ranks = run.processes;
  std::string folder;
  std::string numbers;
  if (!line(ranks.task) || !line(folder) || !line(numbers)) return std::nullopt;
  std::int64_t milliseconds = 0;
  std::size_t words = 0;
  std::istringstream(numbers) >> run.port >> ranks.size >> ranks.store_is_kept >>
      ranks.not_awaited >> milliseconds >> words;
  run.folder = folder;
  ranks.time_limit = std::chrono::milliseconds(milliseconds);
  ranks.words.resize(words);
  for (std::string& word : ranks.words) line(word);
  return run;
}

/// A process for each run, so that there can be several at once.
[[noreturn]] void BeRun(const RankRun& run) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGCHLD, SIG_DFL);
  std::vector<pid_t> children;
  for (int rank = 0; rank < run.processes.size; ++rank) children.push_back(Start(rank, run));
  std::ostringstream out;
  for (const RankOutcome& outcome : Await(children, run.processes)) {
    out << outcome.signal << ' ' << outcome.late << '\n';
  }
  Write(run.folder / "outcomes.part", out.str());
  fs::rename(run.folder / "outcomes.part", run.folder / "outcomes");
  std::_Exit(0);
}

/// Forks ranks: one that is started as a program takes a third of a second to load LibTorch. This
/// is a process forked before anything had threads.
[[noreturn]] void BeStarter(int asked) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGCHLD, SIG_IGN);
  std::FILE* in = fdopen(asked, "r");
  while (const std::optional<RankRun> run = ReadRun(in)) {
    if (fork() == 0) BeRun(*run);
  }
  std::_Exit(0);
}

/// What is written there is heard by the starter.
int starter = -1;

void MakeStarter() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe to the starter");
  if (fork() == 0) {
    close(ends[1]);
    BeStarter(ends[0]);
  }
  close(ends[0]);
  starter = ends[1];
}

/// What became of the processes, without what they wrote.
std::vector<RankOutcome> RunByStarter(const RankRun& run) {
  const std::string asked = Written(run);
  // So short that it arrives as a whole, whoever else asks.
  if (asked.size() > PIPE_BUF || write(starter, asked.data(), asked.size()) < 0) {
    throw std::runtime_error("the starter of ranks cannot be told");
  }
  const auto end = Clock::now() + run.processes.time_limit + std::chrono::minutes(1);
  while (!fs::exists(run.folder / "outcomes")) {
    if (Clock::now() > end) throw std::runtime_error("the starter of ranks does not answer");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  std::istringstream in(ReadAll(run.folder / "outcomes"));
  std::vector<RankOutcome> outcomes(run.processes.size);
  for (RankOutcome& outcome : outcomes) in >> outcome.signal >> outcome.late;
  return outcomes;
}

}  // namespace

RankTaskNamed::RankTaskNamed(const char* name, RankTask task) {
  TORCH_CHECK(Tasks().emplace(name, std::move(task)).second, "two tasks are named ", name);
}

std::vector<RankOutcome> RunRanks(const RankProcesses& processes) {
  const Folder folder;
  auto store = StoreOnThisMachine();
  const RankRun run{processes, store->getPort(), folder.path()};
  // The port stays free for rank 0, who keeps a store there.
  if (!processes.store_is_kept) store.reset();
  std::vector<RankOutcome> outcomes = RunByStarter(run);
  for (int rank = 0; rank < processes.size; ++rank) {
    const std::string number = std::to_string(rank);
    const bool crashed = outcomes[rank].signal != 0 && outcomes[rank].signal != SIGKILL;
    if (crashed) std::cerr << ReadAll(PrintedBy(rank, folder.path()));
    outcomes[rank].error = ReadAll(folder.path() / ("error." + number));
    outcomes[rank].findings = ReadFindings(folder.path() / ("findings." + number));
  }
  return outcomes;
}

void SeveralAtOnce(const std::vector<std::function<void()>>& cases, int at_once) {
  std::atomic<std::size_t> next = 0;
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < at_once; ++thread) {
    threads.emplace_back([&] {
      for (std::size_t i = next++; i < cases.size(); i = next++) cases[i]();
    });
  }
}

}  // namespace plimsoll::train

int main(int argc, char** argv) {
  plimsoll::train::DoNotWaitForNames();
  plimsoll::train::MakeStarter();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
