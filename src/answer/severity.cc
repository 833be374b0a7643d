#include "answer/severity.h"

#include <algorithm>

namespace plimsoll {
namespace {

constexpr double kHighShare = 0.2;
constexpr double kMediumShare = 0.05;
constexpr double kLowShare = 0.01;

}  // namespace

Severity SeverityOfShare(double share) {
  if (share >= kHighShare) return Severity::kHigh;
  if (share >= kMediumShare) return Severity::kMedium;
  return share >= kLowShare ? Severity::kLow : Severity::kInfo;
}

Severity LeastLow(Severity severity) { return std::min(severity, Severity::kLow); }

}  // namespace plimsoll
