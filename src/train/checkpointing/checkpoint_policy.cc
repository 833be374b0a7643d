#include "train/checkpointing/checkpoint_policy.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace plimsoll::train {
namespace {

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

CheckpointPolicy CheckpointPolicy::Plan(std::set<int> blocks) {
  CheckpointPolicy policy;
  policy.kind_ = Kind::kPlan;
  policy.plan_ = std::move(blocks);
  return policy;
}

CheckpointPolicy CheckpointPolicy::Parse(std::string_view text) {
  if (text == "none") return {};
  if (text == "all") return All();
  if (text == "sqrt") return SquareRoot();
  if (text.starts_with("every:")) return Every(ParseNumber(text.substr(6), text));
  TORCH_CHECK(text.starts_with("plan:"), "checkpoint policy '", text,
              "' is not one of none, all, sqrt, every:K, plan:I,J,...");
  std::set<int> blocks;
  for (std::string_view rest = text.substr(5); !rest.empty();) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    blocks.insert(ParseNumber(rest.substr(0, comma), text));
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return Plan(std::move(blocks));
}

std::string CheckpointPolicy::ToString() const {
  switch (kind_) {
    case Kind::kNone:
      return "none";
    case Kind::kEvery:
      return every_ == 1 ? "all" : c10::str("every:", every_);
    case Kind::kSquareRoot:
      return "sqrt";
    case Kind::kPlan:
      return "plan:" + c10::Join(",", std::vector<int>(plan_.begin(), plan_.end()));
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
  for (int begin = 0; begin < blocks; begin += length) {
    groups.push_back({begin, std::min(begin + length, blocks), Covers(begin)});
  }
  return groups;
}

bool CheckpointPolicy::Covers(int block) const {
  if (kind_ == Kind::kPlan) return plan_.contains(block);
  return kind_ != Kind::kNone;
}

at::Tensor Checkpointable::RunChain(const std::vector<Block>& blocks, at::Tensor x) const {
  for (const auto& group : policy_.Groups(static_cast<int>(blocks.size()))) {
    // By value: backward comes when the caller's list is gone.
    const std::vector<Block> part(blocks.begin() + group.begin, blocks.begin() + group.end);
    const auto run = [part](at::Tensor y) {
      for (const Block& block : part) y = block(y);
      return y;
    };
    x = group.checkpointed ? CheckpointOne(run, x) : run(x);
  }
  return x;
}

}  // namespace plimsoll::train
