#include "train/checkpointing/checkpoint_policy.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

namespace plimsoll::train {
namespace {

thread_local BlockWatcher* watching = nullptr;

int ParseNumber(std::string_view text, std::string_view whole) {
  int number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  TORCH_CHECK(error == std::errc() && end == text.data() + text.size() && number >= 0,
              "checkpoint policy '", whole, "': '", text, "' is not a number");
  return number;
}

}  // namespace

CheckpointPolicy CheckpointPolicy::Every(int k) {
  TORCH_CHECK(k >= 1, "a checkpoint holds at least one block");
  CheckpointPolicy policy;
  policy.kind_ = Kind::kEvery;
  policy.every_ = k;
  return policy;
}

CheckpointPolicy CheckpointPolicy::SquareRoot() {
  CheckpointPolicy policy;
  policy.kind_ = Kind::kSquareRoot;
  return policy;
}

CheckpointPolicy CheckpointPolicy::Plan(std::vector<Range> ranges) {
  std::ranges::sort(ranges, {}, &Range::begin);
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const auto [begin, end] = ranges[i];
    TORCH_CHECK(begin >= 0 && begin < end, "blocks ", begin, " to ", end - 1, " are not a range");
    TORCH_CHECK(i == 0 || ranges[i - 1].end <= begin, "block ", begin,
                " is checkpointed twice; name each once");
  }
  CheckpointPolicy policy;
  policy.kind_ = ranges.empty() ? Kind::kNone : Kind::kPlan;
  policy.plan_ = std::move(ranges);
  return policy;
}

CheckpointPolicy CheckpointPolicy::Parse(std::string_view text) {
  if (text == "none") return {};
  if (text == "all") return All();
  if (text == "sqrt") return SquareRoot();
  if (text.starts_with("every:")) return Every(ParseNumber(text.substr(6), text));
  TORCH_CHECK(text.starts_with("plan:"), "checkpoint policy '", text,
              "' is not one of none, all, sqrt, every:K, plan:I,J,...");
  std::vector<Range> ranges;
  for (std::size_t begin = 5; begin <= text.size();) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    const std::string_view one = text.substr(begin, comma - begin);
    const std::size_t dash = std::min(one.find('-'), one.size());
    const int first = ParseNumber(one.substr(0, dash), text);
    const int last = dash < one.size() ? ParseNumber(one.substr(dash + 1), text) : first;
    TORCH_CHECK(last < std::numeric_limits<int>::max(), "there is no block ", last);
    ranges.push_back({first, last + 1});
    begin = comma + 1;
  }
  return Plan(std::move(ranges));
}

std::string CheckpointPolicy::ToString() const {
  switch (kind_) {
    case Kind::kNone:
      return "none";
    case Kind::kEvery:
      return every_ == 1 ? "all" : c10::str("every:", every_);
    case Kind::kSquareRoot:
      return "sqrt";
    case Kind::kPlan: {
      std::vector<std::string> names;
      for (const auto [begin, end] : plan_) {
        names.push_back(end == begin + 1 ? c10::str(begin) : c10::str(begin, "-", end - 1));
      }
      return "plan:" + c10::Join(",", names);
    }
  }
  return {};
}

std::vector<CheckpointPolicy::Group> CheckpointPolicy::Groups(int blocks) const {
  int length = 1;
  if (kind_ == Kind::kEvery) length = every_;
  if (kind_ == Kind::kSquareRoot) {
    length = std::max(1, static_cast<int>(std::lround(std::sqrt(static_cast<double>(blocks)))));
  }
  std::vector<Group> groups;
  for (int begin = 0; begin < blocks;) {
    int end = std::min(begin + length, blocks);
    for (const Range& range : plan_) {
      if (range.begin == begin) end = std::min(range.end, blocks);
    }
    groups.push_back({begin, end, Covers(begin)});
    begin = end;
  }
  return groups;
}

bool CheckpointPolicy::Covers(int block) const {
  if (kind_ != Kind::kPlan) return kind_ != Kind::kNone;
  return std::ranges::any_of(
      plan_, [&](const Range& range) { return range.begin <= block && block < range.end; });
}

bool CheckpointPolicy::HasGroup(Range range, int blocks) const {
  return std::ranges::any_of(Groups(blocks), [&](const Group& group) {
    return group.checkpointed && group.begin == range.begin && group.end == range.end;
  });
}

CheckpointPolicy CheckpointPolicy::Part(int begin, int blocks) const {
  if (kind_ != Kind::kPlan) return *this;
  std::vector<Range> ranges;
  for (const Range& range : plan_) {
    const int from = std::max(range.begin, begin);
    const int to = std::min(range.end, begin + blocks);
    if (from < to) ranges.push_back({from - begin, to - begin});
  }
  return Plan(std::move(ranges));
}

WatchBlocks::WatchBlocks(BlockWatcher& watcher) : outer_(watching) { watching = &watcher; }
WatchBlocks::~WatchBlocks() { watching = outer_; }

void Checkpointable::Enter(CheckpointPolicy::Range blocks, bool in_chain) const {
  if (watching != nullptr && !IsRecomputing()) watching->Enter(*this, blocks, in_chain);
}

void Checkpointable::Leave(CheckpointPolicy::Range blocks, const at::Tensor& result) const {
  if (watching != nullptr && !IsRecomputing()) watching->Leave(*this, blocks, result);
}

void Checkpointable::CheckNumbers(int first, int blocks) const {
  TORCH_CHECK(first >= 0 && first <= checkpoint_blocks() - blocks, "blocks ", first, " to ",
              first + blocks - 1, " are run, and checkpoint_blocks() says that there are ",
              checkpoint_blocks());
}

at::Tensor Checkpointable::RunChain(const std::vector<Block>& blocks, at::Tensor x) const {
  const int all = checkpoint_blocks();
  TORCH_CHECK(std::cmp_equal(blocks.size(), all), "RunChain is given ", blocks.size(),
              " blocks, and checkpoint_blocks() says that there are ", all,
              "; a chain of some of them is RunChain(first, blocks, x), with the number of its "
              "first block");
  return RunChain(0, blocks, std::move(x));
}

at::Tensor Checkpointable::RunChain(int first, const std::vector<Block>& blocks,
                                    at::Tensor x) const {
  const int length = static_cast<int>(blocks.size());
  CheckNumbers(first, length);
  for (const auto& group : policy_.Part(first, length).Groups(length)) {
    // By value: backward comes when the caller's list is gone.
    const std::vector<Block> part(blocks.begin() + group.begin, blocks.begin() + group.end);
    const auto run = [part](at::Tensor y) {
      for (const Block& block : part) y = block(y);
      return y;
    };
    const CheckpointPolicy::Range together{first + group.begin, first + group.end};
    Enter(together, /*in_chain=*/group.begin > 0);
    x = group.checkpointed ? CheckpointOne(run, x) : run(x);
    Leave(together, x);
  }
  return x;
}

}  // namespace plimsoll::train
