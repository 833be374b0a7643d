#include "plan/frontier.h"

#include <algorithm>
#include <functional>
#include <set>

#include "plan/lever.h"
#include "plan/standings.h"

namespace plimsoll {
namespace {

constexpr std::size_t kMostWays = 6;
/// Times are not known more closely: of those within it the larger micro-batch comes first.
constexpr double kAsFast = 1.03;

/// Batch norm, or a loss that compares samples, over a single one: it trains badly, however fast.
bool MixesOneSample(const Job& job, const Way& way) {
  return way.choice.batch == 1 && !AccumulationKeepsResults(job);
}

/// Of `ways`, the fastest first, what comes first of all: the largest micro-batch among those that
/// are as fast as the fastest.
std::vector<Way>::iterator FirstOf(std::vector<Way>::iterator begin,
                                   std::vector<Way>::iterator end) {
  const double limit_us = kAsFast * begin->MicrosecondsPerSample();
  auto first = begin;
  for (auto it = begin; it != end && it->MicrosecondsPerSample() <= limit_us; ++it) {
    if (it->choice.batch > first->choice.batch) first = it;
  }
  return first;
}

std::vector<Way> Ranked(const Job& job, std::vector<Way> ways) {
  const auto normal = std::ranges::stable_partition(ways, [&](const Way& way) {
                        return !MixesOneSample(job, way);
                      }).begin();
  for (auto it = ways.begin(); it != ways.end(); ++it) {
    const auto end = it < normal ? normal : ways.end();
    const auto first = FirstOf(it, end);
    std::rotate(it, first, first + 1);
  }
  return ways;
}

/// The first of each set of levers, but for those that nobody would take: something about as fast
/// sets fewer.
std::vector<Way> Ways(const std::vector<Way>& ranked) {
  Standings standings;
  for (const Way& outcome : ranked) standings.Add(outcome);
  std::set<LeverSet> seen;
  std::vector<Way> ways;
  for (const Way& outcome : ranked) {
    const LeverSet levers = SetBy(outcome.choice);
    const double us = outcome.MicrosecondsPerSample();
    if (!seen.insert(levers).second || standings.IsNeedless(levers, us)) continue;
    const bool slow = !ways.empty() && us > kWorthShowing * ways.front().MicrosecondsPerSample();
    if (slow || ways.size() == kMostWays) break;
    ways.push_back(outcome);
  }
  return ways;
}

/// From the first way on: what is faster by less than a lever is worth is not shown.
std::vector<Way> Frontier(const std::vector<Way>& fastest_first, const Way& first) {
  const auto begin = std::ranges::find(fastest_first, first.choice, &Way::choice);
  std::vector<Way> frontier(begin, fastest_first.end());
  std::ranges::reverse(frontier);
  KeepUnbeaten(frontier);
  return frontier;
}

}  // namespace

void KeepUnbeaten(std::vector<Way>& ways) {
  std::ranges::stable_sort(ways, std::greater(), &Way::MicrosecondsPerSample);
  std::vector<Way> kept;
  for (auto way = ways.rbegin(); way != ways.rend(); ++way) {
    if (kept.empty() || way->trial.needs.device.best < kept.back().trial.needs.device.best) {
      kept.push_back(std::move(*way));
    }
  }
  std::ranges::reverse(kept);
  ways = std::move(kept);
}

void ArrangeWays(const Job& job, std::vector<Way> found, Plan& plan) {
  for (const Way& outcome : found) {
    if (!outcome.SurelyFits() && (!plan.closest || outcome.trial.needs.device.best <
                                                       plan.closest->trial.needs.device.best)) {
      plan.closest = outcome;
    }
  }
  std::erase_if(found, [](const Way& outcome) { return !outcome.SurelyFits(); });
  // Of two that are as fast the one with fewer levers is the better.
  std::stable_sort(found.begin(), found.end(), [](const Way& a, const Way& b) {
    const double a_speed = a.SamplesPerSecond();
    const double b_speed = b.SamplesPerSecond();
    return a_speed != b_speed ? a_speed > b_speed : a.choice.set.size() < b.choice.set.size();
  });
  plan.ways = Ways(Ranked(job, found));
  plan.frontier.clear();
  if (plan.ways.empty()) return;
  plan.frontier = Frontier(found, plan.ways.front());
  std::erase_if(plan.single, [&](const Way& single) {
    return single.MicrosecondsPerSample() < plan.ways.front().MicrosecondsPerSample();
  });
  plan.closest.reset();
}

}  // namespace plimsoll
