#include "train/parallel/sharded/sharded_layout.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <map>

#include "base/printable.h"

namespace plimsoll::train {
namespace {

std::string GroupName(std::size_t group) { return c10::str("layout group ", group, " "); }

std::string ParameterName(std::size_t group, std::size_t index) {
  return c10::str(GroupName(group), "parameter ", index, " ");
}

}  // namespace

ShardedLayout ShardedLayout::Of(const Sharded& sharded, int ranks) {
  std::map<const void*, std::string> names;
  for (const auto& item : sharded.model().named_parameters()) {
    // One that has several names has the first.
    names.emplace(item.value().unsafeGetTensorImpl(), item.key());
  }
  ShardedLayout layout;
  layout.ranks_ = ranks;
  for (const auto& group : sharded.groups()) {
    auto& parameters = layout.groups_.emplace_back();
    for (const at::Tensor& parameter : group->parameters()) {
      parameters.push_back({names.at(parameter.unsafeGetTensorImpl()), c10::str(parameter.sizes()),
                            parameter.numel()});
    }
  }
  return layout;
}

void ShardedLayout::Add(StateSaver& saver) const {
  saver.AddValue("ranks", std::int64_t{ranks_});
  saver.AddValue("layout groups", static_cast<std::int64_t>(groups_.size()));
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    saver.AddValue(GroupName(i) + "parameters", static_cast<std::int64_t>(groups_[i].size()));
    for (std::size_t j = 0; j < groups_[i].size(); ++j) {
      saver.AddValue(ParameterName(i, j) + "name", groups_[i][j].name);
      saver.AddValue(ParameterName(i, j) + "sizes", groups_[i][j].sizes);
      saver.AddValue(ParameterName(i, j) + "elements", groups_[i][j].elements);
    }
  }
}

ShardedLayout ShardedLayout::Take(StateLoader& loader) {
  ShardedLayout layout;
  const std::int64_t ranks = loader.Count("ranks");
  if (ranks < 1 || ranks > std::numeric_limits<int>::max()) {
    loader.Fail(c10::str("it is of ", ranks, " ranks"));
  }
  layout.ranks_ = static_cast<int>(ranks);
  const std::int64_t groups = loader.Count("layout groups");
  for (std::int64_t i = 0; i < groups; ++i) {
    auto& parameters = layout.groups_.emplace_back();
    const std::int64_t count = loader.Count(GroupName(i) + "parameters");
    if (count == 0) loader.Fail("it has a group without parameters");
    for (std::int64_t j = 0; j < count; ++j) {
      const std::string prefix = ParameterName(i, j);
      parameters.push_back({loader.Text(prefix + "name"), loader.Text(prefix + "sizes"),
                            loader.Count(prefix + "elements")});
      // So that they can be added without a thought.
      constexpr std::int64_t kMost = std::int64_t{1} << 40;
      if (parameters.back().elements > kMost) loader.Fail("it has a parameter that is too large");
    }
  }
  return layout;
}

std::int64_t ShardedLayout::PartSize(std::size_t group) const {
  std::int64_t elements = 0;
  for (const Parameter& parameter : groups_[group]) elements += parameter.elements;
  return (elements + ranks_ - 1) / ranks_;
}

ShardedLayout::Place ShardedLayout::Find(const std::string& name) const {
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    std::int64_t begin = 0;
    for (const Parameter& parameter : groups_[i]) {
      if (parameter.name == name) return {i, begin, &parameter};
      begin += parameter.elements;
    }
  }
  TORCH_CHECK(false, "there is no parameter '", Printable(name), "' in it");
}

std::size_t ShardedLayout::GroupIn(const ShardedLayout& from, std::size_t group) const {
  return from.Find(groups_[group].front().name).group;
}

void ShardedLayout::CheckHasAllOf(const ShardedLayout& other) const {
  std::vector<std::string> names;
  for (const auto& group : groups_) {
    for (const Parameter& parameter : group) names.push_back(parameter.name);
  }
  std::ranges::sort(names);
  for (const auto& group : other.groups_) {
    for (const Parameter& parameter : group) {
      TORCH_CHECK(std::ranges::binary_search(names, parameter.name), "it holds the parameter '",
                  Printable(parameter.name), "', which is not here");
    }
  }
}

std::vector<ShardedLayout::Run> ShardedLayout::RunsFrom(const ShardedLayout& from,
                                                        std::size_t group, int rank) const {
  std::vector<Run> runs;
  const std::int64_t part_begin = PartSize(group) * rank;
  const std::int64_t part_end = part_begin + PartSize(group);
  std::int64_t begin = 0;
  for (const Parameter& parameter : groups_[group]) {
    const std::int64_t end = begin + parameter.elements;
    const Place place = from.Find(parameter.name);
    const Parameter& there = *place.parameter;
    TORCH_CHECK(there.elements == parameter.elements && there.sizes == parameter.sizes, "'",
                Printable(parameter.name), "' is ", Printable(there.sizes), " in it, and ",
                parameter.sizes, " here");
    const std::int64_t each = from.PartSize(place.group);
    for (std::int64_t at = std::max(begin, part_begin); at < std::min(end, part_end);) {
      const std::int64_t in_whole = place.begin + at - begin;
      const std::int64_t in_part = in_whole % each;
      const std::int64_t count = std::min(std::min(end, part_end) - at, each - in_part);
      runs.push_back(
          {static_cast<int>(in_whole / each), place.group, in_part, at - part_begin, count});
      at += count;
    }
    begin = end;
  }
  return runs;
}

}  // namespace plimsoll::train
