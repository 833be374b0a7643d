#include "train/parallel/pipeline/pipeline_schedule.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

namespace plimsoll::train::pipeline_schedule_test {
namespace {

std::string NameOf(const PipelineShape& shape) {
  std::ostringstream text;
  text << shape.stages << " stages, " << shape.chunks << " chunks, " << shape.micro_batches
       << " micro-batches";
  return text.str();
}

/// Every shape that is small.
template <class Function>
void ForEachShape(Function function) {
  for (int stages = 1; stages <= 6; ++stages) {
    for (int chunks = 1; chunks <= (stages == 1 ? 1 : 4); ++chunks) {
      for (int micro_batches = 0; micro_batches <= 21; ++micro_batches) {
        function(PipelineShape{stages, chunks, micro_batches});
      }
    }
  }
}

/// One message at a time from each rank to each other comes in the order in which it was sent, as
/// some transports want it.
struct Message {
  bool backward = false;
  int part = 0;
  int micro_batch = 0;

  auto operator<=>(const Message&) const = default;
};

/// Ranks that do one action after the other, each as soon as what it waits for has come.
class Simulator {
 public:
  explicit Simulator(const PipelineShape& shape) : shape_(shape), next_(Count()), alive_(Count()) {
    for (int rank = 0; rank < shape.stages; ++rank) actions_.push_back(Schedule(shape, rank));
    most_alive.resize(Count());
  }

  /// Returns whether all came to the end.
  bool Run() {
    for (bool moved = true; std::exchange(moved, false);) {
      for (int rank = 0; rank < shape_.stages; ++rank) {
        while (Step(rank)) moved = true;
      }
    }
    for (std::size_t rank = 0; rank < Count(); ++rank) {
      if (next_[rank] != actions_[rank].size()) return false;
    }
    return true;
  }

  /// Of each rank.
  std::vector<int> most_alive;
  std::set<Message> done;

 private:
  std::size_t Count() const { return static_cast<std::size_t>(shape_.stages); }

  bool Step(int rank) {
    const auto at = static_cast<std::size_t>(rank);
    if (next_[at] == actions_[at].size()) return false;
    const PipelineAction& action = actions_[at][next_[at]];
    const int part = action.chunk * shape_.stages + rank;
    auto& mail = mail_[{action.from, rank}];
    const Message awaited{action.backward, part + (action.backward ? 1 : -1), action.micro_batch};
    if (action.from >= 0) {
      const auto found = std::ranges::find(mail, awaited);
      if (found == mail.end()) return false;
      EXPECT_TRUE(std::none_of(mail.begin(), found,
                               [&](const Message& m) {
                                 return m.backward == action.backward && Wraps(m) == Wraps(awaited);
                               }))
          << NameOf(shape_) << ": messages overtake one another";
      mail.erase(found);
    }
    Do(rank, action, part);
    ++next_[at];
    return true;
  }

  /// From the last rank to the first, or back.
  bool Wraps(const Message& message) const {
    const int first = message.backward ? message.part - 1 : message.part;
    return first % shape_.stages == shape_.stages - 1;
  }

  void Do(int rank, const PipelineAction& action, int part) {
    const bool ends = part + 1 == shape_.parts();
    EXPECT_EQ(action.from < 0, action.backward ? ends : part == 0);
    EXPECT_EQ(action.to < 0, action.backward ? part == 0 : ends);
    if (action.backward) {
      EXPECT_TRUE(done.contains({false, part, action.micro_batch})) << NameOf(shape_);
    }
    EXPECT_TRUE(done.insert({action.backward, part, action.micro_batch}).second) << NameOf(shape_);
    if (action.to >= 0) {
      mail_[{rank, action.to}].push_back({action.backward, part, action.micro_batch});
    }
    int& alive = alive_[static_cast<std::size_t>(rank)];
    alive += action.backward ? -1 : 1;
    int& most = most_alive[static_cast<std::size_t>(rank)];
    most = std::max(most, alive);
  }

  PipelineShape shape_;
  std::vector<std::vector<PipelineAction>> actions_;
  std::vector<std::size_t> next_;
  std::vector<int> alive_;
  std::map<std::pair<int, int>, std::vector<Message>> mail_;
};

TEST(PipelineSchedule, EveryActionOnceAndNobodyWaitsForEver) {
  ForEachShape([](const PipelineShape& shape) {
    Simulator simulator(shape);
    EXPECT_TRUE(simulator.Run()) << NameOf(shape);
    EXPECT_EQ(simulator.done.size(),
              static_cast<std::size_t>(2 * shape.parts() * shape.micro_batches))
        << NameOf(shape);
  });
}

TEST(PipelineSchedule, KeepsOneMoreThanTheWarmUp) {
  ForEachShape([](const PipelineShape& shape) {
    Simulator simulator(shape);
    simulator.Run();
    const int all = shape.micro_batches * shape.chunks;
    for (int rank = 0; rank < shape.stages; ++rank) {
      const int most = simulator.most_alive[static_cast<std::size_t>(rank)];
      EXPECT_EQ(most, std::min(all, WarmUp(shape, rank) + 1)) << NameOf(shape);
      if (shape.chunks == 1) {
        EXPECT_EQ(most, std::min(all, shape.stages - rank)) << NameOf(shape);
      } else if (shape.micro_batches % shape.stages == 0) {
        const int megatron = 2 * (shape.stages - rank - 1) + (shape.chunks - 1) * shape.stages + 1;
        EXPECT_EQ(most, std::min(all, megatron)) << NameOf(shape);
      }
    }
  });
}

TEST(PipelineSchedule, RefusesWhatCannotBe) {
  EXPECT_THROW(Schedule({.stages = 0}, 0), c10::Error);
  EXPECT_THROW(Schedule({.stages = 2, .chunks = 0}, 0), c10::Error);
  EXPECT_THROW(Schedule({.stages = 1, .chunks = 2}, 0), c10::Error);
  EXPECT_THROW(Schedule({.stages = 2, .micro_batches = -1}, 0), c10::Error);
  EXPECT_THROW(Schedule({.stages = 2}, 2), c10::Error);
}

/// docs/parallel.md shows them.
TEST(PipelineSchedule, Picture) {
  EXPECT_EQ(PictureOf({.stages = 4, .micro_batches = 6}),
            "rank 0 |0 1 2 3             [0] 4 [1] 5 [2]   [3]   [4]   [5] |\n"
            "rank 1 |  0 1 2         [0] 3 [1] 4 [2] 5 [3]   [4]   [5] |\n"
            "rank 2 |    0 1     [0] 2 [1] 3 [2] 4 [3] 5 [4]   [5] |\n"
            "rank 3 |      0 [0] 1 [1] 2 [2] 3 [3] 4 [4] 5 [5] |\n");
  EXPECT_EQ(
      PictureOf({.stages = 2, .chunks = 2, .micro_batches = 4}),
      "rank 0 |A0 A1 B0 B1 A2     [B0] A3  [B1] B2  [A0] B3  [A1]     [B2]     [B3]  [A2]  [A3] |\n"
      "rank 1 |   A0 A1 B0  [B0] B1  [B1] A2  [A0] A3  [A1] B2  [B2] B3  [B3]  [A2]  [A3] |\n");
}

}  // namespace
}  // namespace plimsoll::train::pipeline_schedule_test
