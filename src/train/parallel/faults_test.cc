// Ranks that are killed, stopped or cut off in the midst of a training that saves as it goes.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <torch/torch.h>

#include <filesystem>
#include <thread>

#include "train/parallel/rank_processes_for_tests.h"
#include "train/parallel/training_for_tests.h"
#include "train/trainer.h"

namespace plimsoll::train {
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
  if (how == "hangs") std::this_thread::sleep_for(std::chrono::minutes(1));
}

/// State file, steps, how rank 2 fails, in which step, after how many microseconds of it.
const RankTaskNamed kFaulty("faulty training", [](const Launch& launch, const auto& words) {
  const auto ranks =
      std::make_shared<Ranks>(launch, RanksOptions{.time_limit = std::chrono::milliseconds(3000)});
  const auto model = SmallModel("gpt", 1);
  Trainer trainer(
      model, AdamWForms(model->parameters(), torch::optim::AdamWOptions(0.01)),
      [model](const Batch& rows) { return model->Loss(rows); },
      TrainerOptions{.weight = [model](const Batch& rows) { return model->Weight(rows); },
                     .ranks = ranks});
  const fs::path path = words[0];
  if (fs::exists(path)) trainer.Load(path);
  std::vector<double> losses;
  std::thread fault;
  while (trainer.steps() < std::stoi(words[1])) {
    const auto step = static_cast<int>(trainer.steps());
    if (launch.rank == kFault && words.size() > 2 && step == std::stoi(words[3])) {
      if (words[2] == "hangs" || words[2] == "throws") {
        Fail(words[2], launch);
        throw std::runtime_error("enough");
      }
      fault = std::thread([&, after = std::stoll(words[4])] {
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

class Faults : public testing::Test {
 protected:
  Faults()
      : path_(fs::path(testing::TempDir()) /
              (std::string("faults.") + std::to_string(getpid()) + ".state")) {
    const auto outcomes = RunRanks({.task = "faulty training", .size = 1, .words = {Fresh(), "8"}});
    EXPECT_TRUE(outcomes[0].good()) << outcomes[0].error;
    right_ = outcomes[0].findings.at("losses");
  }
  ~Faults() override { fs::remove(path_); }

  std::string Fresh() const {
    fs::remove(path_);
    return path_;
  }

  std::vector<RankOutcome> Train(const std::string& how, int step, int microseconds) const {
    return RunRanks(
        {.task = "faulty training",
         .size = 4,
         .words = {Fresh(), "8", how, std::to_string(step), std::to_string(microseconds)},
         .not_awaited = kFault,
         .time_limit = std::chrono::seconds(30)});
  }

  static void ExpectNamed(const std::vector<RankOutcome>& outcomes, const std::string& said) {
    for (const int rank : {0, 1, 3}) {
      EXPECT_FALSE(outcomes[rank].late);
      EXPECT_NE(outcomes[rank].error.find(said), std::string::npos) << outcomes[rank].error;
    }
  }

  /// With three ranks, from what was saved last.
  void ExpectGoesOn() const {
    if (!fs::exists(path_)) return;
    for (const RankOutcome& outcome :
         RunRanks({.task = "faulty training", .size = 3, .words = {path_, "8"}})) {
      ASSERT_TRUE(outcome.good()) << outcome.error;
      const at::Tensor& losses = outcome.findings.at("losses");
      EXPECT_LT(RelativeError(losses, right_.slice(0, 8 - losses.numel(), 8)), 1e-6);
    }
  }

  fs::path path_;
  at::Tensor right_;
};

TEST_F(Faults, ARankIsKilledAtTwentyMoments) {
  for (int moment = 0; moment < 20; ++moment) {
    const auto outcomes = Train("killed", 1 + moment % 6, moment * 700);
    ExpectNamed(outcomes, "rank 2 does not answer any more; it was at: ");
    if (moment % 5 == 0) ExpectGoesOn();
  }
}

TEST_F(Faults, ARankIsStopped) {
  ExpectNamed(Train("stopped", 3, 1000), "rank 2 does not answer any more; it was at: ");
  ExpectGoesOn();
}

TEST_F(Faults, ARankHangs) {
  ExpectNamed(Train("hangs", 3, 0), "rank 2 is behind the others, at: ");
  ExpectGoesOn();
}

TEST_F(Faults, ARankThrowsBetweenSteps) {
  ExpectNamed(Train("throws", 3, 0), "rank 2 has left; it was at: ");
  ExpectGoesOn();
}

TEST_F(Faults, ARankIsCutOff) {
  for (const int microseconds : {0, 2000}) {
    const auto outcomes = Train("cut off", 3, microseconds);
    for (const RankOutcome& outcome : outcomes) {
      EXPECT_FALSE(outcome.late);
      const bool told = outcome.error.find("but a connection of rank ") != std::string::npos ||
                        outcome.error.find("has left") != std::string::npos;
      EXPECT_TRUE(told) << outcome.error;
    }
    ExpectGoesOn();
  }
}

}  // namespace
}  // namespace plimsoll::train
