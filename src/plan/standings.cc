#include "plan/standings.h"

#include <algorithm>

namespace plimsoll {

LeverSet BitOf(const PlanLever& lever) {
  LeverSet bit = 1;
  for (const PlanLever* other : Levers()) {
    if (other == &lever) return bit;
    bit <<= 1;
  }
  return 0;
}

LeverSet SetBy(const Choice& choice) {
  LeverSet set = 0;
  for (const LeverSetting& one : LeversOf(choice)) set |= BitOf(*one.lever);
  return set;
}

void Standings::Add(const Way& outcome) {
  if (!outcome.SurelyFits()) {
    if (!outcome.choice.Sets(kCheckpointingLever.name)) too_large_.push_back(outcome);
    return;
  }
  const double us = outcome.MicrosecondsPerSample();
  best_us_ = std::min(best_us_, us);
  const auto [known, added] = fastest_.try_emplace(SetBy(outcome.choice), us);
  if (!added) known->second = std::min(known->second, us);
}

double Standings::Limit(LeverSet levers) const {
  double limit = kWorthShowing * best_us_;
  for (const auto& [set, us] : fastest_) {
    if ((set & levers) != set) continue;
    limit = std::min(limit, set == levers ? us : (1 - kWorthALever) * us);
  }
  return limit;
}

bool Standings::IsNeedless(LeverSet levers, double us) const {
  return std::any_of(fastest_.begin(), fastest_.end(), [&](const auto& known) {
    const auto& [set, other_us] = known;
    return set != levers && (set & levers) == set && us > (1 - kWorthALever) * other_us;
  });
}

bool Standings::IsDominated(const Way& plain) const {
  const LeverSet levers = SetBy(plain.choice);
  return std::any_of(too_large_.begin(), too_large_.end(), [&](const Way& other) {
    const LeverSet set = SetBy(other.choice);
    const double worth = set == levers ? 0 : kWorthALever;
    return other.choice.batch == plain.choice.batch && other.choice != plain.choice &&
           (set & levers) == set &&
           (1 - worth) * other.MicrosecondsPerSample() <= plain.MicrosecondsPerSample() &&
           other.trial.unlimited.allocated.best <= plain.trial.unlimited.allocated.best &&
           other.trial.needs.reserved.best <= plain.trial.needs.reserved.best;
  });
}

}  // namespace plimsoll
