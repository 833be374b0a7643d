#include "train/parallel/sharded/sharded_state.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <torch/torch.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <thread>

#include "train/optimizers/adam8bit.h"
#include "train/parallel/ranks/rank_processes_for_tests.h"
#include "train/parallel/training_for_tests.h"
#include "train/saving/state_tensors.h"

namespace plimsoll::train::sharded_state_test {
namespace {

namespace fs = std::filesystem;

/// Goes with the test.
class SaveFolder {
 public:
  SaveFolder() {
    std::string name = (fs::temp_directory_path() / "plimsoll_save.XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~SaveFolder() { fs::remove_all(path_); }
  SaveFolder(const SaveFolder&) = delete;
  SaveFolder& operator=(const SaveFolder&) = delete;
  std::string save() const { return (path_ / "save").string(); }
  std::vector<fs::path> parts() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(save() + ".parts")) {
      files.push_back(entry.path());
    }
    std::ranges::sort(files);
    return files;
  }

 private:
  fs::path path_;
};

/// A model with all that there can be to save, trained in one way or another.
class Training {
 public:
  Training(Ranks& ranks, const ShardedOptions& options, std::uint64_t seed = 1)
      : ranks_(ranks), model_(SmallModel("gpt", seed)) {
    model_->parameters()[1].requires_grad_(false);
    seen_ = model_->register_buffer("seen", at::full({2}, static_cast<double>(ranks.rank())));
    sharded_.emplace(*model_, ranks, options);
    // An epsilon with which it does not make much of small differences.
    using Options = torch::optim::AdamWOptions;
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(sharded_->parts(0), std::make_unique<Options>(Options(0.01).eps(0.1)));
    groups.emplace_back(sharded_->parts(1), std::make_unique<Options>(Options(0.02).eps(0.1)));
    optimizer_ = std::make_unique<torch::optim::AdamW>(groups, Options(0.01));
  }

  double Step(int step) {
    optimizer_->zero_grad();
    const Pieces pieces{.rows = 100,
                        .weight = [&](const Batch& rows) { return model_->Weight(rows); }};
    const Batch mine = RowsOf(WholeBatch("gpt", step), ranks_.launch());
    const at::Tensor loss = sharded_->AccumulateGradients(
        [&](const Batch& rows) { return model_->Loss(rows); }, mine, pieces);
    sharded_->Step(*optimizer_);
    seen_ += 1;
    return loss.item<double>();
  }

  /// All of it becomes something else.
  void Shift() {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& part : sharded_->parts()) part.detach().add_(1);
    sharded_->PartsChanged();
  }

  void Save(const std::string& path, const std::string& extra) {
    SaveSharded(path, *sharded_, {optimizer_.get()}, ranks_, extra);
  }
  std::string Load(const std::string& path) {
    return LoadSharded(path, *sharded_, {optimizer_.get()}, ranks_);
  }
  at::Tensor parameters() {
    const Sharded::Whole whole(*sharded_);
    return Flat(model_->parameters());
  }
  const at::Tensor& seen() const { return seen_; }

 private:
  Ranks& ranks_;
  std::shared_ptr<TrainModel> model_;
  at::Tensor seen_;
  std::optional<Sharded> sharded_;
  std::unique_ptr<torch::optim::AdamW> optimizer_;
};

int KindOf(const at::Tensor& parameter) { return parameter.dim() > 1 ? 1 : 0; }

ShardedOptions OptionsOf(Shard shard, Bytes group = kKiB) {
  return {.shard = shard, .group = group, .kind = KindOf};
}

/// From the save at a path, if there is one, to a step; saves it again. Words: path, first step,
/// last step, shard, size of groups.
const RankTaskNamed kPeriod("sharded period", [](const Launch& launch, const auto& words) {
  Ranks ranks(launch);
  const int begin = std::stoi(words[1]);
  // What is loaded is not what is there.
  Training training(ranks, OptionsOf(static_cast<Shard>(std::stoi(words[3])), std::stoi(words[4])),
                    begin == 0 ? 1 : 7);
  if (begin > 0) {
    EXPECT_EQ(training.Load(words[0]), "step " + words[1]);
  }
  std::vector<double> losses;
  for (int step = begin; step < std::stoi(words[2]); ++step) losses.push_back(training.Step(step));
  training.Save(words[0], "step " + words[2]);
  return Findings{{"losses", at::tensor(losses, at::kDouble)},
                  {"parameters", training.parameters()},
                  {"seen", training.seen()}};
});

TEST(ShardedState, GoesOnWithOtherNumbersOfRanks) {
  Ranks alone;
  Training right(alone, OptionsOf(Shard::kGradients));
  SaveFolder folder;
  struct Period {
    int ranks, begin, end;
    Shard shard;
    int group;
  };
  for (const Period& period :
       {Period{4, 0, 4, Shard::kParameters, 1024}, Period{3, 4, 8, Shard::kOptimizerState, 300},
        Period{3, 8, 10, Shard::kParameters, 300}, Period{1, 10, 14, Shard::kParameters, 1 << 20},
        Period{2, 14, 18, Shard::kGradients, 1024}}) {
    std::vector<double> losses;
    for (int step = period.begin; step < period.end; ++step) losses.push_back(right.Step(step));
    const auto outcomes = RunRanks(
        {.task = "sharded period",
         .size = period.ranks,
         .words = {folder.save(), std::to_string(period.begin), std::to_string(period.end),
                   std::to_string(static_cast<int>(period.shard)), std::to_string(period.group)}});
    for (const RankOutcome& outcome : outcomes) {
      ASSERT_TRUE(outcome.good()) << outcome.error;
      EXPECT_LT(RelativeError(outcome.findings.at("losses"), at::tensor(losses, at::kDouble)),
                1e-6);
      EXPECT_LT(RelativeError(outcome.findings.at("parameters"), right.parameters()), 1e-6);
      EXPECT_TRUE(outcome.findings.at("seen").equal(right.seen()) || period.begin == 0);
    }
    EXPECT_EQ(folder.parts().size(), static_cast<std::size_t>(period.ranks)) << "old ones are left";
    EXPECT_EQ(ExtraOfSharded(folder.save()), "step " + std::to_string(period.end));
  }
}

/// Its first line.
std::string ErrorOf(const std::function<void()>& function) {
  try {
    function();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "none";
}

void ExpectError(const std::string& error, const std::string& file, const std::string& says) {
  EXPECT_NE(error.find(file), std::string::npos) << error;
  EXPECT_NE(error.find(says), std::string::npos) << error;
  EXPECT_EQ(error.find('\n'), std::string::npos) << error;
}

TEST(ShardedState, RefusesWhatIsNotTheSave) {
  Ranks alone;
  Training training(alone, OptionsOf(Shard::kGradients));
  training.Step(0);
  SaveFolder folder;
  SaveFolder another;
  training.Save(another.save(), "");
  training.Save(folder.save(), "x");
  const at::Tensor before = training.parameters();
  const std::string file = folder.parts()[0].string();
  const std::string kept = file + ".kept";
  const auto load = [&] { return ErrorOf([&] { training.Load(folder.save()); }); };
  EXPECT_EQ(load(), "none");

  fs::rename(file, kept);
  ExpectError(load(), file, "No such file");
  fs::copy(another.parts()[0], file);
  ExpectError(load(), file, "checksum");
  fs::remove(file);
  fs::copy(kept, file);
  fs::resize_file(file, fs::file_size(file) - 1);
  ExpectError(load(), file, "bytes");
  fs::remove(file);
  fs::rename(kept, file);
  EXPECT_EQ(load(), "none");

  StateSaver plain;
  plain.AddValue("steps", std::int64_t{3});
  plain.Write(folder.save());
  ExpectError(load(), folder.save(), "there is no 'sharded save' in it");
  ExpectError(ErrorOf([&] { training.Load(folder.save() + "x"); }), folder.save() + "x",
              "No such file");
  EXPECT_TRUE(training.parameters().equal(before));
}

TEST(ShardedState, RefusesAnotherModelOrOptimizer) {
  Ranks alone;
  SaveFolder folder;
  Training(alone, OptionsOf(Shard::kGradients)).Save(folder.save(), "");
  const auto mlp = SmallModel("mlp", 1);
  Sharded sharded(*mlp, alone);
  torch::optim::AdamW adam(sharded.parts());
  const auto error = ErrorOf([&] { LoadSharded(folder.save(), sharded, {&adam}, alone); });
  ExpectError(error, folder.save(), "another model");

  const auto gpt = SmallModel("gpt", 1);
  gpt->parameters()[1].requires_grad_(false);
  gpt->register_buffer("seen", at::zeros({2}));
  Sharded same(*gpt, alone);
  torch::optim::SGD sgd(same.parts(), 0.1);
  const auto other = ErrorOf([&] { LoadSharded(folder.save(), same, {&sgd}, alone); });
  ExpectError(other, "optimizer", "AdamW");
  const auto none = ErrorOf([&] { LoadSharded(folder.save(), same, {}, alone); });
  ExpectError(none, folder.save(), "1 optimizers");
}

TEST(ShardedState, AStateInBlocksNeedsTheSameParts) {
  Ranks alone;
  SaveFolder folder;
  const auto step = [&](Sharded& sharded, TrainModel& model, AdamW8bit& optimizer) {
    optimizer.zero_grad();
    sharded.AccumulateGradients([&](const Batch& rows) { return model.Loss(rows); },
                                WholeBatch("gpt", 0), {.rows = 8});
    sharded.Step(optimizer);
  };
  const auto make = [](std::uint64_t seed) {
    torch::manual_seed(seed);
    return std::make_shared<Gpt>(GptOptions{
        .vocabulary = 17, .context = 6, .width = 32, .layers = 1, .heads = 2, .padded = true});
  };
  const auto first = make(1);
  Sharded saved(*first, alone);
  AdamW8bit optimizer(saved.parts());
  step(saved, *first, optimizer);
  SaveSharded(folder.save(), saved, {&optimizer}, alone);
  step(saved, *first, optimizer);

  const auto second = make(2);
  Sharded loaded(*second, alone);
  AdamW8bit same(loaded.parts());
  LoadSharded(folder.save(), loaded, {&same}, alone);
  step(loaded, *second, same);
  EXPECT_TRUE(Flat(first->parameters()).equal(Flat(second->parameters())));

  const auto third = make(3);
  Sharded otherwise(*third, alone, {.group = kKiB});
  AdamW8bit other(otherwise.parts());
  const auto error = ErrorOf([&] { LoadSharded(folder.save(), otherwise, {&other}, alone); });
  ExpectError(error, folder.save(), "saved with");
}

/// One rank cannot load: nothing changes anywhere. Words: path.
const RankTaskNamed kMissing("sharded missing", [](const Launch& launch, const auto& words) {
  Ranks ranks(launch);
  Training training(ranks, OptionsOf(Shard::kParameters));
  training.Step(0);
  training.Save(words[0], "");
  training.Step(1);
  const at::Tensor before = training.parameters();
  ranks.Barrier();
  if (launch.rank == 1) {
    for (const auto& entry : fs::directory_iterator(words[0] + ".parts")) {
      if (entry.path().string().ends_with(".1")) fs::remove(entry.path());
    }
  }
  ranks.Barrier();
  const std::string error = ErrorOf([&] { training.Load(words[0]); });
  EXPECT_NE(error.find(launch.rank == 1 ? "No such file" : "on rank 1 of 2"), std::string::npos)
      << error;
  if (testing::Test::HasFailure()) throw std::runtime_error(error);
  const bool same = training.parameters().equal(before);
  // Nor can it save where there is no folder.
  const std::string nowhere = "/proc/none/save";
  const std::string save_error = ErrorOf([&] { training.Save(nowhere, ""); });
  TORCH_CHECK(save_error.find(nowhere) != std::string::npos, save_error);
  return Findings{{"same", at::tensor(same ? 1 : 0)}};
});

TEST(ShardedState, IsLoadedByAllRanksOrNone) {
  SaveFolder folder;
  for (const RankOutcome& outcome :
       RunRanks({.task = "sharded missing", .size = 2, .words = {folder.save()}})) {
    ASSERT_TRUE(outcome.good()) << outcome.error;
    EXPECT_EQ(outcome.findings.at("same").item<int>(), 1);
  }
}

/// Saves again and again. Words: path, rank to be killed, microseconds after its first save.
const RankTaskNamed kKilled("sharded killed", [](const Launch& launch, const auto& words) {
  Ranks ranks(launch, {.time_limit = kFaultLimit});
  Training training(ranks, OptionsOf(Shard::kParameters));
  training.Save(words[0], "0");
  std::jthread killer;
  if (launch.rank == std::stoi(words[1])) {
    killer = std::jthread([after = std::stoi(words[2])] {
      std::this_thread::sleep_for(std::chrono::microseconds(after));
      kill(getpid(), SIGKILL);
    });
  }
  for (int step = 0; step < 1000; ++step) {
    training.Shift();
    training.Save(words[0], std::to_string(step + 1));
  }
  return Findings{};
});

TEST(ShardedState, ARankThatIsKilledLeavesTheLastSave) {
  constexpr int kAtOnce = 3;
  Ranks alone;
  int unfinished = 0;
  // Until some of them came while a save was on its way.
  for (int kill = 0; kill < Nightly(6, 3) || (unfinished == 0 && kill < 1000); kill += kAtOnce) {
    std::array<SaveFolder, kAtOnce> folders;
    std::vector<std::function<void()>> cases;
    for (int rank = 0; rank < kAtOnce; ++rank) {
      cases.emplace_back([rank, after = 500 + (kill + rank) % 9 * 2777, &folders] {
        const auto outcomes = RunRanks(
            {.task = "sharded killed",
             .size = 3,
             .words = {folders[rank].save(), std::to_string(rank), std::to_string(after)}});
        EXPECT_EQ(outcomes[rank].signal, SIGKILL) << outcomes[rank].error;
      });
    }
    SeveralAtOnce(cases, kAtOnce);
    for (const SaveFolder& folder : folders) {
      if (folder.parts().size() != 3) ++unfinished;
      Training loaded(alone, OptionsOf(Shard::kGradients), 5);
      const int steps = std::stoi(loaded.Load(folder.save()));
      Training right(alone, OptionsOf(Shard::kGradients));
      for (int step = 0; step < steps; ++step) right.Shift();
      EXPECT_TRUE(loaded.parameters().equal(right.parameters())) << "save " << steps;
    }
  }
  EXPECT_GT(unfinished, 0);
}

}  // namespace
}  // namespace plimsoll::train::sharded_state_test
