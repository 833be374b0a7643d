#include "diagnose/phases/marks.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace plimsoll {

bool IsTorchMark(std::string_view name) {
  constexpr auto kBeginnings = std::to_array<std::string_view>(
      {"Optimizer.step#", "Optimizer.zero_grad#", "FSDP::", "DistributedDataParallel.",
       "enumerate(DataLoader)#", "gloo:", "nccl:", "mpi:", "ucc:", "c10d::", "aten::", "autograd::",
       "torch::", "Torch-Compiled Region", "TorchDynamo", "CompiledFunction", "## Call "});
  return std::ranges::any_of(kBeginnings,
                             [&](std::string_view begin) { return name.starts_with(begin); });
}

std::vector<MarkRange> MarkRanges(const Timeline& timeline) {
  // Real marks end soon after those that they hold; a made-up file must not take minutes.
  constexpr std::ptrdiff_t kMostLookedAt = 64;
  constexpr int kMostBegunBefore = 16;
  std::vector<MarkRange> ranges;
  std::vector<std::size_t> open;
  int begun_before = 0;
  for (const Annotation& mark : timeline.annotations) {
    if (mark.start) {
      open.push_back(ranges.size());
      ranges.push_back({.name = mark.name,
                        .begin = mark.time_us,
                        .end = MarkRange::kOpen,
                        .depth = static_cast<int>(open.size()) - 1});
      continue;
    }
    const auto far = open.rbegin() + std::min<std::ptrdiff_t>(kMostLookedAt, std::ssize(open));
    const auto begun = std::find_if(open.rbegin(), far,
                                    [&](std::size_t i) { return ranges[i].name == mark.name; });
    if (begun == far) {
      if (++begun_before > kMostBegunBefore) continue;
      const TimeUs first = timeline.events.empty() ? mark.time_us : timeline.events[0].time_us;
      ranges.push_back(
          {.name = mark.name, .begin = std::min(first, mark.time_us), .end = mark.time_us});
      continue;
    }
    ranges[*begun].end = mark.time_us;
    open.erase(std::next(begun).base());
  }
  std::stable_sort(ranges.begin(), ranges.end(),
                   [](const MarkRange& a, const MarkRange& b) { return a.begin < b.begin; });
  return ranges;
}

}  // namespace plimsoll
