#include "train/parallel/pipeline/pipeline_schedule.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string_view>
#include <tuple>
#include <utility>

namespace plimsoll::train {
namespace {

void Check(const PipelineShape& shape) {
  TORCH_CHECK(shape.stages >= 1 && shape.chunks >= 1 && shape.micro_batches >= 0,
              "there is no pipeline of ", shape.stages, " stages with ", shape.chunks,
              " chunks each, for ", shape.micro_batches, " micro-batches.");
  TORCH_CHECK(shape.stages > 1 || shape.chunks == 1, "one rank alone has one chunk, not ",
              shape.chunks, ".");
}

/// Micro-batches go through the chunks in groups of at least as many as there are stages, so that
/// the first comes back when the last has left; as even as can be, where there are enough.
int GroupsOf(const PipelineShape& shape) { return std::max(1, shape.micro_batches / shape.stages); }

int LargestGroup(const PipelineShape& shape) {
  const int groups = GroupsOf(shape);
  return (shape.micro_batches + groups - 1) / groups;
}

PipelineAction ActionOf(const PipelineShape& shape, int rank, bool backward, int chunk,
                        int micro_batch) {
  PipelineAction action{.backward = backward, .chunk = chunk, .micro_batch = micro_batch};
  const int part = chunk * shape.stages + rank;
  const int before = part > 0 ? (part - 1) % shape.stages : -1;
  const int after = part + 1 < shape.parts() ? (part + 1) % shape.stages : -1;
  action.from = backward ? after : before;
  action.to = backward ? before : after;
  return action;
}

/// All forwards, or all backwards, in their order.
std::vector<PipelineAction> OneWay(const PipelineShape& shape, int rank, bool backward) {
  std::vector<PipelineAction> actions;
  const int groups = GroupsOf(shape);
  for (int group = 0; group < groups; ++group) {
    const int begin = shape.micro_batches * group / groups;
    const int end = shape.micro_batches * (group + 1) / groups;
    for (int i = 0; i < shape.chunks; ++i) {
      const int chunk = backward ? shape.chunks - 1 - i : i;
      for (int n = begin; n < end; ++n) {
        actions.push_back(ActionOf(shape, rank, backward, chunk, n));
      }
    }
  }
  return actions;
}

/// "3" or "[3]", with the chunk before it, as wide as the time that it takes.
std::string Cell(const PipelineShape& shape, const PipelineAction& action, std::size_t width) {
  constexpr std::string_view kDigits = "0123456789abcdefghijklmnopqrstuvwxyz";
  std::string text;
  if (shape.chunks > 1) text += static_cast<char>('A' + action.chunk);
  text += kDigits[static_cast<std::size_t>(action.micro_batch) % kDigits.size()];
  if (action.backward) text = "[" + text + "]";
  const std::size_t left = (width - std::min(width, text.size())) / 2;
  text.insert(0, left, ' ');
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

}  // namespace

int WarmUp(const PipelineShape& shape, int rank) {
  const int later = shape.stages - rank - 1;
  const int forwards =
      shape.chunks == 1 ? later : 2 * later + (shape.chunks - 1) * LargestGroup(shape);
  return std::min(forwards, shape.micro_batches * shape.chunks);
}

std::vector<PipelineAction> Schedule(const PipelineShape& shape, int rank) {
  Check(shape);
  TORCH_CHECK(rank >= 0 && rank < shape.stages, "there is no stage ", rank, " of ", shape.stages,
              ".");
  const std::vector<PipelineAction> forwards = OneWay(shape, rank, false);
  const std::vector<PipelineAction> backwards = OneWay(shape, rank, true);
  const auto ahead = static_cast<std::size_t>(WarmUp(shape, rank));
  std::vector<PipelineAction> actions(forwards.begin(),
                                      forwards.begin() + static_cast<std::ptrdiff_t>(ahead));
  for (std::size_t i = 0; i < backwards.size(); ++i) {
    if (i + ahead < forwards.size()) actions.push_back(forwards[i + ahead]);
    actions.push_back(backwards[i]);
  }
  return actions;
}

std::string PictureOf(const PipelineShape& shape) {
  const std::size_t unit = shape.chunks > 1 ? 3 : 2;
  std::vector<std::vector<PipelineAction>> actions;
  for (int rank = 0; rank < shape.stages; ++rank) actions.push_back(Schedule(shape, rank));
  // When each is done, in units of a forward: backward, part, micro-batch.
  std::map<std::tuple<bool, int, int>, std::size_t> ends;
  std::vector<std::string> lines(actions.size());
  std::vector<std::size_t> next(actions.size());
  for (bool moved = true; std::exchange(moved, false);) {
    for (std::size_t rank = 0; rank < actions.size(); ++rank) {
      if (next[rank] == actions[rank].size()) continue;
      const PipelineAction& action = actions[rank][next[rank]];
      const int part = action.chunk * shape.stages + static_cast<int>(rank);
      const auto awaited =
          ends.find({action.backward, part + (action.backward ? 1 : -1), action.micro_batch});
      if (action.from >= 0 && awaited == ends.end()) continue;
      std::string& line = lines[rank];
      if (action.from >= 0) line.resize(std::max(line.size(), awaited->second * unit), ' ');
      line += Cell(shape, action, action.backward ? 2 * unit : unit);
      ends[{action.backward, part, action.micro_batch}] = line.size() / unit;
      ++next[rank];
      moved = true;
    }
  }
  std::ostringstream text;
  for (std::size_t rank = 0; rank < lines.size(); ++rank) {
    text << "rank " << rank << " |" << lines[rank] << "|\n";
  }
  return text.str();
}

}  // namespace plimsoll::train
