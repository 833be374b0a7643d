// Ranks that are killed, stopped or cut off in the midst of a training that saves as it goes.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <torch/torch.h>

#include <filesystem>
#include <functional>
#include <thread>

#include "train/parallel/ranks/rank_processes_for_tests.h"
#include "train/parallel/training_for_tests.h"
#include "train/trainer/trainer.h"

namespace plimsoll::train::faults_test {
namespace {

namespace fs = std::filesystem;

constexpr int kFault = 2;

/// All that leads to other ranks, and nothing that leads to the store.
void CutConnections(std::uint16_t store_port) {
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    const int file = std::stoi(entry.path().filename());
    sockaddr_in there{};
    socklen_t size = sizeof there;
    if (getpeername(file, reinterpret_cast<sockaddr*>(&there), &size) != 0) continue;
    if (there.sin_family == AF_INET && ntohs(there.sin_port) != store_port) {
      shutdown(file, SHUT_RDWR);
    }
  }
}

void Fail(const std::string& how, const Launch& launch) {
  if (how == "killed") raise(SIGKILL);
  if (how == "stopped") raise(SIGSTOP);
  if (how == "cut off") CutConnections(launch.port);
  // Until it is killed.
  if (how == "hangs") std::this_thread::sleep_for(kAmpleLimit);
}

/// State file, steps, how rank 2 fails, in which step, after how many microseconds of it.
const RankTaskNamed kFaulty("faulty training", [](const Launch& launch, const auto& words) {
  const auto ranks = std::make_shared<Ranks>(launch, RanksOptions{.time_limit = kFaultLimit});
  const auto model = SmallModel("gpt", 1);
  Trainer trainer(
      model, AdamWForms(model->parameters(), torch::optim::AdamWOptions(0.01)),
      [model](const Batch& rows) { return model->Loss(rows); },
      TrainerOptions{.weight = [model](const Batch& rows) { return model->Weight(rows); },
                     .ranks = ranks});
  const fs::path path = words[0];
  if (fs::exists(path)) trainer.Load(path);
  std::vector<double> losses;
  std::jthread fault;
  while (trainer.steps() < std::stoi(words[1])) {
    const auto step = static_cast<int>(trainer.steps());
    if (launch.rank == kFault && words.size() > 2 && step == std::stoi(words[3])) {
      if (words[2] == "hangs" || words[2] == "throws") {
        Fail(words[2], launch);
        throw std::runtime_error("enough");
      }
      fault = std::jthread([&, after = std::stoll(words[4])] {
        std::this_thread::sleep_for(std::chrono::microseconds(after));
        Fail(words[2], launch);
      });
    }
    losses.push_back(trainer.Step(RowsOf(WholeBatch("gpt", step), launch)).loss);
    trainer.Save(path);
    if (fault.joinable()) fault.join();
  }
  return Findings{{"losses", at::tensor(losses)}};
});

/// One run with a fault, in a file of its own.
class Faulty {
 public:
  explicit Faulty(const std::string& name)
      : path_(fs::path(testing::TempDir()) / c10::str("faults.", getpid(), ".", name, ".state")) {
    fs::remove(path_);
  }
  ~Faulty() { fs::remove(path_); }
  Faulty(const Faulty&) = delete;
  Faulty& operator=(const Faulty&) = delete;

  std::vector<RankOutcome> Train(const std::string& how, int step, int microseconds) const {
    return RunRanks({.task = "faulty training",
                     .size = 4,
                     .words = {path_, "8", how, std::to_string(step), std::to_string(microseconds)},
                     .not_awaited = kFault});
  }

  /// From what was saved last.
  std::vector<RankOutcome> GoOn(int size) const {
    return RunRanks({.task = "faulty training", .size = size, .words = {path_, "8"}});
  }

 private:
  fs::path path_;
};

void ExpectNamed(const std::vector<RankOutcome>& outcomes, const std::string& said) {
  for (const int rank : {0, 1, 3}) {
    EXPECT_FALSE(outcomes[rank].late);
    EXPECT_NE(outcomes[rank].error.find(said), std::string::npos) << outcomes[rank].error;
  }
}

/// With three of the four.
void ExpectGoesOn(const Faulty& faulty) {
  static const at::Tensor right = Faulty("none").GoOn(1)[0].findings.at("losses");
  for (const RankOutcome& outcome : faulty.GoOn(3)) {
    ASSERT_TRUE(outcome.good()) << outcome.error;
    const at::Tensor& losses = outcome.findings.at("losses");
    EXPECT_LT(RelativeError(losses, right.slice(0, 8 - losses.numel(), 8)), 1e-6);
  }
}

void ARankIsStopped() {
  const Faulty faulty("stopped");
  ExpectNamed(faulty.Train("stopped", 3, 1000), "rank 2 does not answer any more; it was at: ");
  ExpectGoesOn(faulty);
}

void ARankHangs() {
  ExpectNamed(Faulty("hangs").Train("hangs", 3, 0), "rank 2 is behind the others, at: ");
}

void ARankIsCutOff() {
  const Faulty faulty("cut off");
  for (const RankOutcome& outcome : faulty.Train("cut off", 3, 0)) {
    EXPECT_FALSE(outcome.late);
    // Whoever notices first says so, and then it leaves.
    EXPECT_NE(outcome.error.find("every rank still answers, but a connection of rank "),
              std::string::npos)
        << outcome.error;
  }
  ExpectGoesOn(faulty);
}

void ARankThrowsBetweenSteps() {
  ExpectNamed(Faulty("throws").Train("throws", 3, 0), "rank 2 has left; it was at: ");
}

void ARankIsKilled(int moment, int moments) {
  const Faulty faulty(c10::str("killed ", moment));
  ExpectNamed(faulty.Train("killed", 1 + moment % 6, moment * 14000 / moments),
              "rank 2 does not answer any more; it was at: ");
  if (moment % 4 == 0) ExpectGoesOn(faulty);
}

TEST(Faults, OfOneRankAreNamedByTheOthersWhoGoOnWithoutIt) {
  std::vector<std::function<void()>> cases{ARankIsStopped, ARankHangs, ARankIsCutOff,
                                           ARankThrowsBetweenSteps};
  const int moments = Nightly(20, 2);
  for (int moment = 0; moment < moments; ++moment) {
    cases.emplace_back([=] { ARankIsKilled(moment, moments); });
  }
  SeveralAtOnce(cases, 4);
}

}  // namespace
}  // namespace plimsoll::train::faults_test
