#include "recompute/checkpoint_choice.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>

#include "base/nightly_for_tests.h"
#include "files/input.h"
#include "job/answer/predict.h"
#include "job/file/step_file.h"
#include "job/rules/calibration.h"
#include "job/transforms/checkpoint.h"
#include "plan/checkpoint_model.h"
#include "plan/lever.h"
#include "recompute/checkpoint_sets.h"

namespace plimsoll::checkpoint_choice_test {
namespace {

/// A chain of blocks of random sizes. What is scored is not what the model says: the allocator adds
/// something, and with `luck` up to 1.5 % more, for each set in another way.
class Chain {
 public:
  Chain(std::uint32_t seed, std::size_t blocks, bool luck) : luck_(luck), random_(seed) {
    const std::size_t moments = 4 * blocks + 3;
    for (std::size_t i = 0; i < blocks; ++i) {
      saved_.push_back(Between(50, 1000));
      kept_.push_back(Between(5, 100));
      CheckpointBlock block{
          .module = fmt::format("layers.{}", i), .us = double(Between(20, 2000)), .changes = {}};
      // Forward 2i + 1, backward mirrored; it is computed again a moment before.
      const std::size_t back = moments - 1 - (2 * i + 1);
      block.changes.push_back({.begin = 2 * i + 2, .end = back - 1, .bytes = -saved_[i]});
      block.changes.push_back({.begin = back - 1, .end = back, .bytes = Between(0, 300)});
      model_.blocks.push_back(std::move(block));
    }
    FillPlain(moments);
    sets_.emplace(model_);
  }

  const CheckpointSets& sets() const { return *sets_; }
  Bytes plain_peak() const { return sets_->PeakOf({}); }

  CheckpointScore Score(const std::vector<std::string>& modules, Bytes room) const {
    BlockSet set;
    for (std::size_t i = 0; i < model_.blocks.size(); ++i) {
      if (std::find(modules.begin(), modules.end(), model_.blocks[i].module) != modules.end()) {
        set.push_back(i);
      }
    }
    std::size_t hash = 0;
    for (const std::size_t block : set) hash = hash * 31 + block + 1;
    const Bytes high =
        sets_->PeakOf(set) + 300 + sets_->PeakOf(set) * Bytes(luck_ ? hash % 7 : 0) / 400;
    const double us = kPlainTime + sets_->TimeOf(set);
    return {
        .fits = high <= room, .in_use = sets_->PeakOf(set), .high = high, .room = room, .us = us};
  }

  /// Of all sets.
  std::optional<double> BestTime(Bytes room) const {
    std::optional<double> best;
    const std::size_t blocks = model_.blocks.size();
    for (std::size_t bits = 0; bits < std::size_t{1} << blocks; ++bits) {
      std::vector<std::string> modules;
      for (std::size_t i = 0; i < blocks; ++i) {
        if ((bits >> i) & 1) modules.push_back(model_.blocks[i].module);
      }
      const CheckpointScore score = Score(modules, room);
      if (score.fits && (!best || score.us < *best)) best = score.us;
    }
    return best;
  }

 private:
  static constexpr double kPlainTime = 20'000;

  Bytes Between(Bytes low, Bytes high) {
    return low + Bytes(random_() % std::uint32_t(high - low + 1));
  }

  void FillPlain(std::size_t moments) {
    model_.plain.assign(moments, 500);
    for (std::size_t i = 0; i < saved_.size(); ++i) {
      for (std::size_t t = 2 * i + 1; t < moments - 2 * i - 1; ++t) {
        model_.plain[t] += saved_[i] + kept_[i];
      }
    }
    for (Bytes& bytes : model_.plain) bytes += Between(0, 50);
  }

  bool luck_;
  std::mt19937 random_;
  std::vector<Bytes> saved_, kept_;
  CheckpointModel model_;
  std::optional<CheckpointSets> sets_;
};

/// `room_of_best`: in which the best of all sets is looked for.
void CompareWithAllSets(const Chain& chain, Bytes room, Bytes room_of_best, int& solved) {
  int calls = 0;
  const auto score = [&](const std::vector<std::string>& modules) {
    ++calls;
    return Result<CheckpointScore>(chain.Score(modules, room));
  };
  const CheckpointScore plain = chain.Score({}, room);
  ASSERT_FALSE(plain.fits);
  const Result<CheckpointChoice> found = BestCheckpoints(chain.sets(), plain, score);
  ASSERT_TRUE(found.ok());
  EXPECT_LE(calls, 25);
  EXPECT_EQ(found->score.fits, found->score.high <= room);
  const std::optional<double> best = chain.BestTime(room_of_best);
  if (!best) return;
  ++solved;
  EXPECT_TRUE(found->score.fits);
  EXPECT_LE(found->score.us, 1.03 * *best);
}

TEST(BestCheckpoints, AreWithinThreePercentOfAllSetsAndNeverAboveTheRoom) {
  int solved = 0;
  for (std::uint32_t seed = 1; seed <= 120; ++seed) {
    if (!IsWorthATry(seed / 10)) continue;  // of every length
    for (const bool luck : {false, true}) {
      const Chain chain(seed, 3 + seed % 10, luck);
      for (const int percent : {90, 70, 50, 35}) {
        SCOPED_TRACE(fmt::format("seed {} luck {} at {} %", seed, luck, percent));
        const Bytes room = (chain.plain_peak() + 300) * percent / 100;
        // A set that nothing speaks for may have luck with the allocator.
        CompareWithAllSets(chain, room, luck ? room * 99 / 100 : room, solved);
      }
    }
  }
  EXPECT_GT(solved, IsNightly() ? 600 : 150);
}

TEST(BestCheckpoints, SayWhatComesClosestWhereNothingFits) {
  const Chain chain(1, 6, false);
  const auto score = [&](const std::vector<std::string>& modules) {
    return Result<CheckpointScore>(chain.Score(modules, 10));
  };
  const Result<CheckpointChoice> found = BestCheckpoints(chain.sets(), chain.Score({}, 10), score);
  ASSERT_TRUE(found.ok());
  EXPECT_FALSE(found->score.fits);
  EXPECT_LT(found->score.high, chain.plain_peak());
}

TEST(BestCheckpoints, TakeNoModuleThatIsPartOfAnother) {
  CheckpointModel model{.plain = {0, 20, 200, 200, 20, 0}, .blocks = {}};
  const auto add = [&](const char* module, double us, Bytes saved) {
    model.blocks.push_back(
        {.module = module, .us = us, .changes = {{.begin = 2, .end = 4, .bytes = -saved}}});
  };
  add("h.0", 100, 90);
  add("h.0.mlp", 40, 60);
  add("h.0.mlp.act", 5, 30);
  add("h.1", 100, 90);
  add("h.10", 300, 90);
  for (const auto& [outer, inner] : {std::pair(0, 1), std::pair(0, 2), std::pair(1, 2)}) {
    model.blocks[std::size_t(outer)].conflicts.push_back(std::size_t(inner));
    model.blocks[std::size_t(inner)].conflicts.push_back(std::size_t(outer));
  }
  const CheckpointSets sets(model);
  EXPECT_EQ(sets.Cheapest(180), (BlockSet{2}));
  EXPECT_EQ(sets.Cheapest(145), (BlockSet{1}));
  EXPECT_EQ(sets.Cheapest(85), (BlockSet{2, 3}));
  EXPECT_EQ(sets.Cheapest(30), (BlockSet{0, 3}));
  EXPECT_EQ(sets.Cheapest(-100), std::nullopt);
  EXPECT_EQ(sets.PeakOf(sets.Smallest()), 20);
}

/// What the model says is alive is what a replay allocates, but for blocks' rounding.
void ExpectTheModelAgrees(const Job& job, const CheckpointModel& model, const BlockSet& set) {
  const Gpu gpu = *FindGpu("H200");
  const CheckpointSets sets(model);
  Job changed = CopyOf(job, 0);
  std::vector<std::string> names;
  for (const std::size_t i : set) names.push_back(model.blocks[i].module);
  const std::optional<Error> error =
      kCheckpointingLever.rewrite(changed, changed.variants[0], ModulesValue(names));
  ASSERT_FALSE(error) << error->ToLine();
  const Result<Prediction> p = Predict(
      changed, gpu,
      {.batch = 8, .torch = TorchVersion{2, 11}, .calibration = Calibration::BuiltIn("H200")});
  ASSERT_TRUE(p.ok());
  EXPECT_NEAR(double(sets.PeakOf(set)), double(p->trial.needs.allocated.best),
              0.02 * double(p->trial.needs.allocated.best))
      << names.front();
}

TEST(CheckpointModel, AgreesWithTheReplay) {
  const Job job = *ReadJob(*Input::Open(PLIMSOLL_TEST_DATA "/steps/gpt2_adamw_fp32.step.json.gz"));
  const std::shared_ptr<const Calibration> calibration = Calibration::BuiltIn("H200");
  const CheckpointModel model = ModelCheckpointing(
      job, job.variants[0], *FindGpu("H200"),
      {.batch = 8, .torch = TorchVersion{2, 11}, .calibration = calibration.get()});
  for (const std::string_view part : {".h.", ".mlp", ".act", ".attn", "h.3"}) {
    BlockSet set;
    for (std::size_t i = 0; i < model.blocks.size(); ++i) {
      const std::string& module = model.blocks[i].module;
      const bool block = part == ".h." && module.rfind('.') == module.find(".h.") + 2;
      if (block || module.ends_with(part)) set.push_back(i);
    }
    ASSERT_FALSE(set.empty()) << part;
    ExpectTheModelAgrees(job, model, set);
  }
}

/// So do blocks of which something is kept, and those that wait on the host.
TEST(CheckpointModel, AgreesWithTheReplayOfBlocksInPart) {
  const Job job = *ReadJob(*Input::Open(PLIMSOLL_TEST_DATA "/steps/gpt2_adamw_fp32.step.json.gz"));
  const std::shared_ptr<const Calibration> calibration = Calibration::BuiltIn("H200");
  const CheckpointModel model = ModelCheckpointing(
      job, job.variants[0], *FindGpu("H200"),
      {.batch = 8, .torch = TorchVersion{2, 11}, .calibration = calibration.get()},
      {.selective = true});
  std::map<std::string, BlockSet> by_kept;
  for (std::size_t i = 0; i < model.blocks.size(); ++i) {
    const std::string& name = model.blocks[i].module;
    const std::size_t open = name.find('[');
    if (open == std::string::npos || name.find(".h.") == std::string::npos) continue;
    const std::string kept = name.substr(open + 1);
    by_kept[kept.starts_with("host:") ? "host" : kept].push_back(i);
  }
  EXPECT_TRUE(by_kept.contains("host"));
  EXPECT_GE(by_kept.size(), 5u);
  for (const auto& [kept, set] : by_kept) ExpectTheModelAgrees(job, model, set);
}

}  // namespace
}  // namespace plimsoll::checkpoint_choice_test
