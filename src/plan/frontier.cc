#include "plan/frontier.h"

#include <algorithm>

namespace plimsoll {
namespace {

constexpr std::size_t kMostWays = 6;
/// A way that is slower than the best by more is not worth showing.
constexpr double kWorthShowing = 0.5;
/// A lever that gains less is not worth its lines: times are not known to a percent.
constexpr double kWorthALever = 0.01;

bool Uses(const Outcome& outcome, const PlanLever* lever) {
  return !outcome.choice.Get(lever->name).empty();
}

/// Whether it sets every lever that the other sets.
bool SetsAllOf(const Outcome& more, const Outcome& fewer) {
  const std::vector<const PlanLever*> levers = LeversOf(fewer.choice);
  return std::all_of(levers.begin(), levers.end(),
                     [&](const PlanLever* lever) { return Uses(more, lever); });
}

/// Whether some other way has fewer levers, or as many, and is about as fast: nobody would take
/// this one.
bool IsNeedless(const Outcome& outcome, const std::vector<Outcome>& all) {
  return std::any_of(all.begin(), all.end(), [&](const Outcome& other) {
    if (&other == &outcome || !SetsAllOf(outcome, other)) return false;
    const double speed = outcome.SamplesPerSecond();
    return SetsAllOf(other, outcome) ? other.SamplesPerSecond() > speed
                                     : other.SamplesPerSecond() > (1 - kWorthALever) * speed;
  });
}

/// The fastest of each set of levers.
std::vector<Outcome> Ways(const std::vector<Outcome>& fastest_first) {
  std::vector<Outcome> fastest;
  for (const Outcome& outcome : fastest_first) {
    const bool slower = std::any_of(fastest.begin(), fastest.end(), [&](const Outcome& way) {
      return SetsAllOf(outcome, way) && SetsAllOf(way, outcome);
    });
    if (!slower) fastest.push_back(outcome);
  }
  std::vector<Outcome> ways;
  for (const Outcome& outcome : fastest) {
    if (IsNeedless(outcome, fastest)) continue;
    const bool slow = !ways.empty() &&
                      outcome.SamplesPerSecond() < kWorthShowing * ways.front().SamplesPerSecond();
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
