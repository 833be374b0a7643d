#include "job/answer/verdict.h"

#include <fmt/format.h>

#include "base/bytes.h"

namespace plimsoll {
namespace {

/// The figure of PyTorch's memory or of the card's, whichever has less room.
NotFollowed FigureThatDecides(const Prediction& p) {
  const bool limited = p.limit && *p.limit <= p.trial.room;
  const Bytes room = limited ? *p.limit : p.gpu.memory;
  if (p.trial.fits && p.trial.refused_in_a_step > 0) {
    return {.what =
                fmt::format("{} convolution{} of each step get{} no workspace",
                            p.trial.refused_in_a_step, p.trial.refused_in_a_step == 1 ? "" : "s",
                            p.trial.refused_in_a_step == 1 ? "s" : "")};
  }
  const Needs& needs = p.trial.fits ? p.trial.needs : p.trial.unlimited;
  const Range& figure = limited ? needs.reserved : needs.device;
  return {.what = fmt::format("it may need up to {}, and there is {}", FormatBytes(figure.high),
                              FormatBytes(room))};
}

}  // namespace

std::string_view DecisionName(FitDecision decision) {
  switch (decision) {
    case FitDecision::kFits:
      return "fits";
    case FitDecision::kDoesNotFit:
      return "does_not_fit";
    case FitDecision::kUnknown:
      break;
  }
  return "unknown";
}

FitVerdict VerdictOf(const Prediction& p) {
  const bool leaks = p.growth && p.growth->EndsTheJob();
  if (!p.trial.lower_end_fits || leaks || !p.FitsHost()) return {FitDecision::kDoesNotFit};
  std::vector<NotFollowed> unknown = p.not_followed;
  if (!p.trial.surely_fits) unknown.push_back(FigureThatDecides(p));
  if (unknown.empty()) return {FitDecision::kFits};
  return {FitDecision::kUnknown, std::move(unknown)};
}

FitDecision DecisionOf(const RankTrials& trials) {
  if (!trials.LowerEndFits() || !trials.Last()) return FitDecision::kDoesNotFit;
  const bool all_followed = NotFollowedBy(trials.Fullest().setting()).empty();
  return all_followed && trials.SurelyFit() ? FitDecision::kFits : FitDecision::kUnknown;
}

}  // namespace plimsoll
