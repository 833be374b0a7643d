#include "plan/frontier.h"

#include <algorithm>
#include <set>

#include "plan/standings.h"

namespace plimsoll {
namespace {

constexpr std::size_t kMostWays = 6;

/// The fastest of each set of levers, but for those that nobody would take: something about as fast
/// sets fewer.
std::vector<Outcome> Ways(const std::vector<Outcome>& fastest_first) {
  Standings standings;
  for (const Outcome& outcome : fastest_first) standings.Add(outcome);
  std::set<LeverSet> seen;
  std::vector<Outcome> ways;
  for (const Outcome& outcome : fastest_first) {
    const LeverSet levers = SetBy(outcome.choice);
    const double us = outcome.MicrosecondsPerSample();
    if (!seen.insert(levers).second || standings.IsNeedless(levers, us)) continue;
    const bool slow = !ways.empty() && us > kWorthShowing * ways.front().MicrosecondsPerSample();
    if (slow || ways.size() == kMostWays) break;
    ways.push_back(outcome);
  }
  return ways;
}

std::vector<Outcome> Frontier(const std::vector<Outcome>& fastest_first) {
  std::vector<Outcome> frontier;
  for (const Outcome& outcome : fastest_first) {
    if (frontier.empty() || outcome.device.best < frontier.back().device.best) {
      frontier.push_back(outcome);
    }
  }
  std::reverse(frontier.begin(), frontier.end());
  return frontier;
}

}  // namespace

void ArrangeOutcomes(std::vector<Outcome> found, Plan& plan) {
  for (const Outcome& outcome : found) {
    if (!outcome.surely_fits &&
        (!plan.closest || outcome.device.best < plan.closest->device.best)) {
      plan.closest = outcome;
    }
  }
  std::erase_if(found, [](const Outcome& outcome) { return !outcome.surely_fits; });
  // Of two that are as fast the one with fewer levers is the better.
  std::stable_sort(found.begin(), found.end(), [](const Outcome& a, const Outcome& b) {
    const double a_speed = a.SamplesPerSecond();
    const double b_speed = b.SamplesPerSecond();
    return a_speed != b_speed ? a_speed > b_speed : a.choice.set.size() < b.choice.set.size();
  });
  plan.ways = Ways(found);
  plan.frontier = Frontier(found);
  if (!plan.ways.empty()) plan.closest.reset();
}

}  // namespace plimsoll
