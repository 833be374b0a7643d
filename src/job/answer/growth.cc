#include "job/answer/growth.h"

#include <algorithm>
#include <utility>

#include "job/answer/held_by.h"

namespace plimsoll {
namespace {

/// What replays may take to find the step that fails; beyond that it is told by division.
constexpr std::int64_t kMostRequests = 6'000'000;

/// By step: the blocks that it made and that are alive at the end of the run.
std::vector<std::vector<std::uint32_t>> KeptByStep(const Lowered& lowered, int steps) {
  constexpr int kGone = -1;
  std::vector<int> made(lowered.blocks.size(), kGone);
  for (std::size_t i = 0; i < lowered.workload.requests.size(); ++i) {
    const Request& request = lowered.workload.requests[i];
    made[request.allocation] =
        request.kind == Request::Kind::kAllocate ? lowered.moments[i].step : kGone;
  }
  std::vector<std::vector<std::uint32_t>> kept(static_cast<std::size_t>(steps));
  for (std::uint32_t block = 0; block < made.size(); ++block) {
    const int step = made[block];
    if (step >= 0 && step < steps) kept[static_cast<std::size_t>(step)].push_back(block);
  }
  return kept;
}

/// As the allocator rounds them: a number takes 512 bytes.
Bytes SumOf(const Trial& trial, const std::vector<std::uint32_t>& blocks) {
  Bytes sum = 0;
  for (const std::uint32_t block : blocks) {
    sum += trial.setting().rules.BlockSize(trial.lowered().blocks[block].requested);
  }
  return sum;
}

bool Runs(const Setting& setting, std::int64_t steps) {
  Setting longer = setting;
  longer.steps = static_cast<int>(steps);
  return Trial(std::move(longer)).decided().fits;
}

/// How many steps run, found by running them where that does not take too long.
std::int64_t StepsThatRun(const Trial& trial, Bytes growth) {
  const Setting& setting = trial.setting();
  const std::int64_t seen = setting.steps;
  const Bytes left = std::max<Bytes>(0, setting.Room() - trial.decided().allocated);
  const std::int64_t by_division = seen + left / growth;
  const auto requests = static_cast<std::int64_t>(trial.lowered().workload.requests.size());
  // What is cached beside the tensors is full earlier: the division is the end of the search.
  std::int64_t runs = seen;
  std::int64_t fails = by_division + 1;
  if (requests / seen * fails > kMostRequests) return by_division;
  while (runs + 1 < fails) {
    const std::int64_t middle = runs + (fails - runs) / 2;
    (Runs(setting, middle) ? runs : fails) = middle;
  }
  return runs;
}

}  // namespace

std::optional<Growth> FindGrowth(const Trial& trial) {
  // What the last step made may go in the next one; that of the step before had its turn. The first
  // ones make what stays for good.
  constexpr int kOrdinary = 2;
  const int steps = trial.setting().steps;
  if (steps < kOrdinary + 3 || !trial.decided().fits) return std::nullopt;
  const std::vector<std::vector<std::uint32_t>> kept = KeptByStep(trial.lowered(), steps);
  const std::vector<std::uint32_t>& last = kept[static_cast<std::size_t>(steps - 2)];
  const std::vector<std::uint32_t>& before = kept[static_cast<std::size_t>(steps - 3)];
  const Bytes bytes = std::min(SumOf(trial, last), SumOf(trial, before));
  if (bytes <= 0) return std::nullopt;
  return Growth{
      .bytes = bytes, .holders = HeldBy(trial, last), .steps = StepsThatRun(trial, bytes)};
}

}  // namespace plimsoll
