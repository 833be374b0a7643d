// How fast each set of levers is known to be, and so what is still worth looking for.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include "plan/evaluate.h"
#include "plan/lever.h"

namespace plimsoll {

/// A lever that gains less is not worth its lines: times are not known to a percent.
inline constexpr double kWorthALever = 0.01;
/// A way that takes so many times as long as the best is not worth showing.
inline constexpr double kWorthShowing = 2;

/// Which levers a choice sets, whatever to: a bit for each of Levers().
using LeverSet = std::uint32_t;
LeverSet BitOf(const PlanLever& lever);
LeverSet SetBy(const Choice& choice);

class Standings {
 public:
  static constexpr double kNone = std::numeric_limits<double>::infinity();

  void Add(const Way& outcome);
  /// Microseconds for a sample; kNone where nothing fits.
  double Best() const { return best_us_; }
  /// Whoever sets these levers and takes as long for a sample is not shown: something as good is
  /// known that sets these or fewer, or something much better.
  double Limit(LeverSet levers) const;
  /// Whether something as good is known that sets fewer.
  bool IsNeedless(LeverSet levers, double us) const;
  /// Whether another way without checkpoints, in as many passes, sets these levers or fewer and
  /// takes no more time and no more memory: then checkpoints do no more for this one.
  bool IsDominated(const Way& plain) const;

 private:
  /// Of those that fit for certain.
  std::map<LeverSet, double> fastest_;
  /// Those without checkpoints that do not fit.
  std::vector<Way> too_large_;
  double best_us_ = kNone;
};

}  // namespace plimsoll
