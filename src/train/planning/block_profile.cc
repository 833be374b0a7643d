#include "train/planning/block_profile.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace plimsoll::train {
namespace {

/// A backward computes about twice what its forward did.
constexpr double kWithBackward = 3;

}  // namespace

BlockProfile::BlockProfile(std::int64_t rows, RecordedPair less, std::int64_t more_rows,
                           RecordedPair more, DeviceRates rates)
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
  Modeller(const BlockProfile& profile, std::int64_t rows) : profile_(profile), rows_(rows) {}

  Model Run() {
    const std::size_t marks = profile_.less_.plain.marks.size();
    for (std::size_t i = 0; i < marks; ++i) result_.model.plain.push_back(Plain(i).peak);
    if (profile_.less_.checkpointed) {
      AddBlocks();
      AddChains();
      FindConflicts();
    }
    return std::move(result_);
  }

 private:
  struct Level {
    Bytes alive = 0;
    Bytes peak = 0;
    double us = 0;
  };

  Level Between(const StepRecord& less, const StepRecord& more, std::size_t mark) const {
    const auto& a = less.marks[mark];
    const auto& b = more.marks[mark];
    const auto bytes = [&](Bytes first, Bytes second) {
      return static_cast<Bytes>(std::llround(
          profile_.At(rows_, static_cast<double>(first), static_cast<double>(second))));
    };
    return {.alive = bytes(a.alive, b.alive),
            .peak = bytes(a.peak, b.peak),
            .us = profile_.At(rows_, train::Microseconds(a.work, profile_.rates_),
                              train::Microseconds(b.work, profile_.rates_))};
  }
  Level Plain(std::size_t mark) const {
    return Between(profile_.less_.plain, profile_.more_.plain, mark);
  }
  Level Checkpointed(std::size_t mark) const {
    return Between(*profile_.less_.checkpointed, *profile_.more_.checkpointed, mark);
  }

  /// What is kept of a block's forward without a checkpoint, and with one.
  Bytes Kept(const BlockRun& run) const { return Plain(run.leave).alive - Plain(run.enter).alive; }
  Bytes KeptWhenCheckpointed(const BlockRun& run) const {
    return Checkpointed(run.leave).alive - Checkpointed(run.enter).alive;
  }

  void AddRun(const BlockRun& run, CheckpointBlock& block) const {
    const Bytes dropped = Kept(run) - KeptWhenCheckpointed(run);
    const std::size_t back = *run.backward;
    // How far backward rises above where it begins; with a checkpoint the block is computed again.
    const Bytes rise = Plain(back).peak - Plain(back).alive;
    const Bytes again = Checkpointed(back).peak - Checkpointed(back).alive;
    block.changes.push_back({.begin = run.leave, .end = back, .bytes = -dropped});
    block.changes.push_back({.begin = back, .end = back + 1, .bytes = again - rise - dropped});
    block.us += Plain(run.leave).us - Plain(run.enter).us;
  }

  void AddBlocks() {
    std::map<int, CheckpointBlock> blocks;
    for (const BlockRun& run : Runs()) {
      if (run.backward) AddRun(run, blocks[run.block]);
    }
    for (auto& [number, block] : blocks) Add({number, number + 1}, std::move(block));
  }

  /// Blocks after each other, computed again together: what lies between them is not kept.
  void AddChains() {
    const auto longest =
        static_cast<std::size_t>(2 * std::lround(std::sqrt(static_cast<double>(Runs().size()))));
    for (std::size_t first = 0; first < Runs().size(); ++first) {
      CheckpointBlock block;
      for (std::size_t last = first; last < Runs().size() && last < first + longest; ++last) {
        const BlockRun& run = Runs()[last];
        const bool follows =
            last == first || (run.in_chain && run.enter == Runs()[last - 1].leave + 1 &&
                              run.block == Runs()[last - 1].block + 1);
        if (!run.backward || !RunsOnce(run.block) || !follows) break;
        AddRunToChain(first, last, block);
        if (last > first) Add({Runs()[first].block, run.block + 1}, block);
      }
    }
  }

  /// The chain's last block comes to be computed again first, and with it all before it.
  void AddRunToChain(std::size_t first, std::size_t last, CheckpointBlock& block) const {
    block = {.us = block.us};
    const std::size_t back = *Runs()[last].backward;
    for (std::size_t i = first; i < last; ++i) {
      const BlockRun& run = Runs()[i];
      const Bytes between = KeptWhenCheckpointed(run);
      block.changes.push_back({.begin = run.leave, .end = back, .bytes = between - Kept(run)});
      block.changes.push_back({.begin = Runs()[i + 1].leave, .end = back, .bytes = -between});
    }
    AddRun(Runs()[last], block);
  }

  bool RunsOnce(int block) const {
    return std::ranges::count(Runs(), block, &BlockRun::block) == 1;
  }
  const std::vector<BlockRun>& Runs() const { return profile_.less_.plain.runs; }

  void Add(CheckpointPolicy::Range range, CheckpointBlock block) {
    block.module = std::to_string(range.begin);
    result_.model.blocks.push_back(std::move(block));
    result_.ranges.push_back(range);
  }

  void FindConflicts() {
    const auto& ranges = result_.ranges;
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      for (std::size_t j = 0; j < ranges.size(); ++j) {
        const bool overlap = ranges[i].begin < ranges[j].end && ranges[j].begin < ranges[i].end;
        if (i != j && overlap) result_.model.blocks[i].conflicts.push_back(j);
      }
    }
  }

  const BlockProfile& profile_;
  std::int64_t rows_;
  Model result_;
};

BlockProfile::Model BlockProfile::At(std::int64_t rows) const {
  return Modeller(*this, rows).Run();
}

}  // namespace plimsoll::train
