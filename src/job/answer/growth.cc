#include "job/answer/growth.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <utility>

#include "job/answer/held_by.h"
#include "job/calls/arithmetic.h"
#include "job/calls/call.h"
#include "job/transforms/release.h"

namespace plimsoll {
namespace {

/// What all replays together may take to find the step that fails; beyond that it is told by
/// division.
constexpr std::int64_t kMostRequests = 6'000'000;

/// What comes due and leaves something was seen so many times, and what it left is counted.
constexpr std::int64_t kTimesSeen = 3;

/// The blocks that a step made and that are alive at the end of the next one: what a step makes may
/// go in the next.
std::vector<std::uint32_t> KeptOf(const Lowered& lowered, int step) {
  std::vector<char> kept(lowered.blocks.size(), 0);
  for (std::size_t i = 0; i < lowered.workload.requests.size(); ++i) {
    const Moment& moment = lowered.moments[i];
    if (moment.step > step + 1 || moment.part != Moment::kSteps) break;
    const Request& request = lowered.workload.requests[i];
    kept[request.allocation] =
        request.kind == Request::Kind::kAllocate && lowered.moments[i].step == step;
  }
  std::vector<std::uint32_t> blocks;
  for (std::uint32_t block = 0; block < kept.size(); ++block) {
    if (kept[block]) blocks.push_back(block);
  }
  return blocks;
}

int CapturedSteps(const Variant& variant) {
  return static_cast<int>(
      std::ranges::count(variant.events, JobEvent::Kind::kStep, &JobEvent::kind));
}

/// As the allocator rounds them: a number takes 512 bytes.
Bytes SumOf(const Trial& trial, const std::vector<std::uint32_t>& blocks) {
  Bytes sum = 0;
  for (const std::uint32_t block : blocks) {
    sum += trial.setting().rules.Round(trial.lowered().blocks[block].requested);
  }
  return sum;
}

bool Runs(const Setting& setting, std::int64_t steps) {
  Setting longer = setting;
  longer.steps = static_cast<int>(steps);
  longer.later = false;
  return Trial(std::move(longer)).decided().fits;
}

/// Steps that run if nothing were cached: never fewer than really run.
std::int64_t StepsByDivision(const Trial& trial, Bytes growth) {
  const Bytes left = std::max<Bytes>(0, trial.setting().Room() - trial.decided().allocated);
  return trial.setting().steps + left / growth;
}

/// `runs` steps run and `fails` do not: the last number that does.
std::int64_t LastThatRuns(const Setting& setting, std::int64_t runs, std::int64_t fails) {
  while (runs + 1 < fails) {
    const std::int64_t middle = runs + (fails - runs) / 2;
    (Runs(setting, middle) ? runs : fails) = middle;
  }
  return runs;
}

/// How many steps run, found by running them where that does not take too long.
std::int64_t StepsThatRun(const Trial& trial, Bytes growth) {
  const Setting& setting = trial.setting();
  const std::int64_t seen = setting.steps;
  const std::int64_t by_division = StepsByDivision(trial, growth);
  const auto requests = static_cast<std::int64_t>(trial.lowered().workload.requests.size());
  // What is cached beside the tensors is full earlier: the division is the end of the search.
  const std::int64_t fails = by_division + 1;
  const auto replays = static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(fails)));
  if (Product(Product(requests / seen, fails), replays) > kMostRequests) return by_division;
  return LastThatRuns(setting, seen, fails);
}

TrialResult Without(const Setting& setting) {
  auto job = std::make_shared<Job>(CopyOf(*setting.job, setting.precision));
  job->variants[0] = KeepNothingOfSteps(job->variants[0]);
  Setting other = setting.WithStep(std::move(job));
  other.precision = 0;
  return Trial(std::move(other)).Best();
}

/// How exactly the last step that runs is to be found.
enum class LastStep : std::uint8_t {
  kExact,
  kWhetherItEnds,  ///< only as far as EndsTheJob() needs it
};

/// `trial`: of steps enough to tell a leak, which may already be too many for the card. Fewer, as
/// `setting` has them, run.
void CountSteps(const Trial& trial, const Setting& setting, LastStep exactness, Growth& growth) {
  if (!trial.decided().fits) {
    growth.steps = LastThatRuns(setting, setting.steps, trial.setting().steps);
    return;
  }
  growth.steps = StepsByDivision(trial, growth.bytes);
  if (exactness == LastStep::kWhetherItEnds && growth.EndsTheJob()) return;
  growth.steps = StepsThatRun(trial, growth.bytes);
}

/// `trial`: of steps enough. `setting`: of the whole job.
std::optional<Growth> GrowthOf(const Trial& trial, const Setting& setting, LastStep exactness) {
  const int captured = CapturedSteps(setting.variant());
  const std::vector<std::uint32_t> last = KeptOf(trial.lowered(), trial.setting().steps - 2);
  const Bytes bytes =
      std::min(SumOf(trial, last), SumOf(trial, KeptOf(trial.lowered(), captured - 2)));
  if (bytes <= 0) return std::nullopt;
  Growth growth{.bytes = bytes, .keeper = setting.job->keeper};
  if (growth.keeper && growth.keeper->most > 0) {
    growth.full_at = growth.keeper->most + (growth.keeper->before ? 0 : 1);
    growth.uncounted = Product(bytes, std::max<std::int64_t>(0, growth.full_at - setting.steps));
  }
  CountSteps(trial, setting, exactness, growth);
  if (exactness == LastStep::kWhetherItEnds) return growth;
  growth.holders = HeldBy(trial, last);
  if (growth.EndsTheJob()) growth.without = Without(setting);
  return growth;
}

/// What comes due every so many steps and leaves something each time.
std::optional<Growth> GrowthOfDue(const Trial& trial, const DueGrowth& due) {
  const Setting& setting = trial.setting();
  const Bytes bytes = setting.rules.Round(AtBatch(*setting.job, setting.batch).Of(due.bytes));
  if (bytes <= 0 || due.every <= 0) return std::nullopt;
  const Bytes left = std::max<Bytes>(0, setting.Room() - trial.decided().allocated);
  Growth growth{.bytes = bytes, .every = due.every, .branch = due.branch, .keeper = due.keeper};
  growth.holders.push_back(
      {.where = due.where, .category = Category::kTemporaries, .bytes = bytes, .count = 1});
  growth.steps = Product(due.every, kTimesSeen + left / bytes);
  if (due.keeper && due.keeper->most > 0) {
    growth.full_at = Product(due.every, due.keeper->most);
    growth.uncounted = Product(bytes, std::max<std::int64_t>(0, due.keeper->most - kTimesSeen));
  }
  return growth;
}

/// Of several the one that ends the job first.
std::optional<Growth> FindGrowthOfDue(const Trial& trial) {
  std::optional<Growth> first;
  for (const DueGrowth& due : trial.setting().job->growing) {
    std::optional<Growth> found = GrowthOfDue(trial, due);
    if (found && (!first || found->steps < first->steps)) first = std::move(found);
  }
  return first;
}

std::optional<Growth> FindGrowthOfSteps(const Trial& trial, LastStep exactness) {
  // The first step makes what stays for good. Of the captured ones it is certain what they keep; of
  // those that repeat the last one, how much.
  const Setting& setting = trial.setting();
  const int captured = CapturedSteps(setting.variant());
  if (captured < 3) return std::nullopt;
  if (setting.steps < captured + 2) {
    Setting longer = setting;
    longer.steps = captured + 2;
    longer.later = false;
    return GrowthOf(Trial(std::move(longer)), setting, exactness);
  }
  return GrowthOf(trial, setting, exactness);
}

/// The growth that ends the job first.
std::optional<Growth> FirstGrowth(const Trial& trial, LastStep exactness) {
  if (!trial.decided().fits) return std::nullopt;
  std::optional<Growth> of_steps = FindGrowthOfSteps(trial, exactness);
  std::optional<Growth> of_due = FindGrowthOfDue(trial);
  if (!of_steps || (of_due && of_due->steps < of_steps->steps)) return of_due;
  return of_steps;
}

}  // namespace

std::optional<Growth> FindGrowth(const Trial& trial) {
  return FirstGrowth(trial, LastStep::kExact);
}

bool LeaksUntilItEnds(const Trial& trial) {
  const std::optional<Growth> growth = FirstGrowth(trial, LastStep::kWhetherItEnds);
  return growth && growth->EndsTheJob();
}

}  // namespace plimsoll
