#include "train/planning/block_profile.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace plimsoll::train {
namespace {

/// A backward computes about twice what its forward did.
constexpr double kWithBackward = 3;
/// What chunks add to the time of the layer whose loss it is. On an H200, nothing in fp32, two
/// fifths in bf16.
constexpr double kChunking = 0.2;

}  // namespace

bool RecordedSteps::Follow(const RecordedSteps& other) const {
  return plain.Follows(other.plain) && (!checkpointed || checkpointed->Follows(other.plain)) &&
         (!nested || nested->Follows(other.plain)) &&
         (!chunked_loss || chunked_loss->Follows(other.plain)) &&
         checkpointed.has_value() == other.checkpointed.has_value() &&
         nested.has_value() == other.nested.has_value() &&
         chunked_loss.has_value() == other.chunked_loss.has_value();
}

BlockProfile::BlockProfile(std::int64_t rows, RecordedSteps less, std::int64_t more_rows,
                           RecordedSteps more, DeviceRates rates)
    : rows_(rows),
      more_rows_(more_rows),
      less_(std::move(less)),
      more_(std::move(more)),
      rates_(rates) {}

double BlockProfile::At(std::int64_t rows, double less, double more) const {
  if (more_rows_ == rows_) return less;
  const double part = static_cast<double>(rows - rows_) / static_cast<double>(more_rows_ - rows_);
  return less + (more - less) * part;
}

Bytes BlockProfile::PlainPeak(std::int64_t rows) const {
  double peak = 0;
  for (std::size_t i = 0; i < less_.plain.marks.size(); ++i) {
    peak = std::max(peak, At(rows, static_cast<double>(less_.plain.marks[i].peak),
                             static_cast<double>(more_.plain.marks[i].peak)));
  }
  return static_cast<Bytes>(std::llround(peak));
}

double BlockProfile::Microseconds(std::int64_t rows) const {
  const auto all = [&](const StepRecord& record) {
    // Up to where backward comes to the first block.
    std::size_t end = record.marks.size() - 1;
    for (const BlockRun& run : record.runs) end = std::min(end, run.backward.value_or(end));
    return train::Microseconds(record.marks[end].work, rates_);
  };
  return kWithBackward * At(rows, all(less_.plain), all(more_.plain));
}

/// Makes a CheckpointModel whose moments are the marks.
class BlockProfile::Modeller {
 public:
  Modeller(const BlockProfile& profile, std::int64_t rows)
      : profile_(profile),
        plain_(Levels(profile.less_.plain, profile.more_.plain, rows)),
        all_runs_(profile.less_.plain.runs) {
    for (const BlockRun& run : all_runs_) {
      if (run.depth == 0) runs_.push_back(run);
    }
    if (profile.less_.checkpointed) {
      checkpointed_ = Levels(*profile.less_.checkpointed, *profile.more_.checkpointed, rows);
    }
    if (profile.less_.nested) {
      nested_ = Levels(*profile.less_.nested, *profile.more_.nested, rows);
    }
    if (profile.less_.chunked_loss) {
      chunked_loss_ = Levels(*profile.less_.chunked_loss, *profile.more_.chunked_loss, rows);
    }
  }

  Model Run() {
    for (const Level& level : plain_) result_.model.plain.push_back(level.peak);
    if (!checkpointed_.empty()) {
      AddBlocks();
      AddChains();
    }
    if (!nested_.empty()) AddBlocksWithInner();
    if (!chunked_loss_.empty()) AddChunkedLoss();
    FindConflicts();
    return std::move(result_);
  }

 private:
  struct Level {
    Bytes alive = 0;
    Bytes peak = 0;
    double us = 0;
  };
  /// At each mark.
  using Course = std::vector<Level>;

  Course Levels(const StepRecord& less, const StepRecord& more, std::int64_t rows) const {
    const auto bytes = [&](Bytes first, Bytes second) {
      return static_cast<Bytes>(
          std::llround(profile_.At(rows, static_cast<double>(first), static_cast<double>(second))));
    };
    Course levels;
    for (std::size_t i = 0; i < less.marks.size(); ++i) {
      const auto& a = less.marks[i];
      const auto& b = more.marks[i];
      levels.push_back({.alive = bytes(a.alive, b.alive),
                        .peak = bytes(a.peak, b.peak),
                        .us = profile_.At(rows, train::Microseconds(a.work, profile_.rates_),
                                          train::Microseconds(b.work, profile_.rates_))});
    }
    // What libraries take beside tensors may be less with more rows, and would become less than
    // nothing.
    for (std::size_t i = 0; i < levels.size(); ++i) {
      const Bytes next = i + 1 < levels.size() ? levels[i + 1].alive : 0;
      levels[i].peak = std::max({levels[i].peak, levels[i].alive, next});
    }
    return levels;
  }

  /// What is kept of a block's forward.
  static Bytes Kept(const Course& course, const BlockRun& run) {
    return course[run.leave].alive - course[run.enter].alive;
  }
  double TimeOf(const BlockRun& run) const { return plain_[run.leave].us - plain_[run.enter].us; }

  /// How much higher it goes than without checkpoints in [begin, end), above where each begins.
  void AddRises(const Course& course, std::size_t begin, std::size_t end, Bytes dropped,
                CheckpointBlock& block) const {
    for (std::size_t mark = begin; mark < end; ++mark) {
      const Bytes rise = plain_[mark].peak - plain_[begin].alive;
      const Bytes again = course[mark].peak - course[begin].alive;
      block.changes.push_back({.begin = mark, .end = mark + 1, .bytes = again - rise - dropped});
    }
  }

  /// Where backward comes to the next block that is not within another.
  std::size_t EndOfBackward(const BlockRun& run) const {
    std::size_t end = plain_.size();
    for (const BlockRun& other : runs_) {
      if (other.backward.value_or(0) > *run.backward) end = std::min(end, *other.backward);
    }
    return end;
  }

  /// `course`: as it goes with this block, or this and those within, checkpointed.
  void AddRun(const BlockRun& run, const Course& course, CheckpointBlock& block) const {
    const Bytes dropped = Kept(plain_, run) - Kept(course, run);
    AddRises(course, run.enter, run.leave, 0, block);
    block.changes.push_back({.begin = run.leave, .end = *run.backward, .bytes = -dropped});
    AddRises(course, *run.backward, EndOfBackward(run), dropped, block);
    block.us += TimeOf(run);
  }

  void AddBlocks() {
    std::map<int, CheckpointBlock> blocks;
    for (const BlockRun& run : runs_) {
      if (run.backward) AddRun(run, checkpointed_, blocks[run.block]);
    }
    for (auto& [number, block] : blocks) Add({.ranges = {{number, number + 1}}}, std::move(block));
  }

  /// A block is computed again, and what is within it once more.
  void AddBlocksWithInner() {
    std::map<int, CheckpointBlock> blocks;
    std::map<int, std::set<int>> inner;
    for (const BlockRun& run : runs_) {
      if (!run.backward) continue;
      for (const BlockRun& other : all_runs_) {
        if (other.depth == 0 || other.enter < run.enter || other.leave > run.leave) continue;
        inner[run.block].insert(other.block);
        blocks[run.block].us += TimeOf(other);
      }
      if (inner.contains(run.block)) AddRun(run, nested_, blocks[run.block]);
    }
    for (auto& [number, block] : blocks) {
      Choice choice{.ranges = {{number, number + 1}}};
      for (const int within : inner[number]) choice.ranges.push_back({within, within + 1});
      Add(std::move(choice), std::move(block));
    }
  }

  /// Its forward computes the gradients too: that much more than without, it counted.
  void AddChunkedLoss() {
    CheckpointBlock block;
    for (std::size_t mark = 0; mark < plain_.size(); ++mark) {
      const Bytes change = chunked_loss_[mark].peak - plain_[mark].peak;
      block.changes.push_back({.begin = mark, .end = mark + 1, .bytes = change});
    }
    std::size_t forward = plain_.size() - 1;
    for (const BlockRun& run : all_runs_)
      forward = std::min(forward, run.backward.value_or(forward));
    const double gradients = chunked_loss_[forward].us - plain_[forward].us;
    block.us = kChunking * std::max(gradients, 0.0) * kWithBackward / (kWithBackward - 1);
    Add({.chunked_loss = true}, std::move(block));
  }

  /// Blocks after each other, computed again together: what lies between them is not kept.
  void AddChains() {
    const auto longest =
        static_cast<std::size_t>(2 * std::lround(std::sqrt(static_cast<double>(runs_.size()))));
    for (std::size_t first = 0; first < runs_.size(); ++first) {
      double us = 0;
      for (std::size_t last = first; last < runs_.size() && last < first + longest; ++last) {
        const BlockRun& run = runs_[last];
        const bool follows =
            last == first || (run.in_chain && run.enter == runs_[last - 1].leave + 1 &&
                              run.block == runs_[last - 1].block + 1);
        if (!run.backward || !RunsOnce(run.block) || !follows) break;
        us += TimeOf(run);
        if (last == first) continue;
        Add({.ranges = {{runs_[first].block, run.block + 1}}}, Chain(first, last, us));
      }
    }
  }

  /// The chain's last block comes to be computed again first, and with it all before it.
  CheckpointBlock Chain(std::size_t first, std::size_t last, double us) const {
    CheckpointBlock block;
    const std::size_t back = *runs_[last].backward;
    for (std::size_t i = first; i < last; ++i) {
      const BlockRun& run = runs_[i];
      const Bytes between = Kept(checkpointed_, run);
      AddRises(checkpointed_, run.enter, run.leave, 0, block);
      block.changes.push_back(
          {.begin = run.leave, .end = back, .bytes = between - Kept(plain_, run)});
      block.changes.push_back({.begin = runs_[i + 1].leave, .end = back, .bytes = -between});
    }
    AddRun(runs_[last], checkpointed_, block);
    block.us = us;
    return block;
  }

  bool RunsOnce(int block) const { return std::ranges::count(runs_, block, &BlockRun::block) == 1; }

  void Add(Choice choice, CheckpointBlock block) {
    block.module = std::to_string(result_.choices.size());
    result_.model.blocks.push_back(std::move(block));
    result_.choices.push_back(std::move(choice));
  }

  static bool Overlap(const std::vector<CheckpointPolicy::Range>& some,
                      const std::vector<CheckpointPolicy::Range>& others) {
    return std::ranges::any_of(some, [&](const CheckpointPolicy::Range& one) {
      return std::ranges::any_of(others, [&](const CheckpointPolicy::Range& other) {
        return one.begin < other.end && other.begin < one.end;
      });
    });
  }

  void FindConflicts() {
    const auto& choices = result_.choices;
    for (std::size_t i = 0; i < choices.size(); ++i) {
      for (std::size_t j = 0; j < choices.size(); ++j) {
        const bool both = i != j && Overlap(choices[i].ranges, choices[j].ranges);
        if (both) result_.model.blocks[i].conflicts.push_back(j);
      }
    }
  }

  const BlockProfile& profile_;
  Course plain_;
  Course checkpointed_;
  Course nested_;
  Course chunked_loss_;
  const std::vector<BlockRun>& all_runs_;
  /// Those that are not within another.
  std::vector<BlockRun> runs_;
  Model result_;
};

BlockProfile::Model BlockProfile::At(std::int64_t rows) const {
  return Modeller(*this, rows).Run();
}

}  // namespace plimsoll::train
