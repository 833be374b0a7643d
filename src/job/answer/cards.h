// Which cards a job fits on: the same question put to every card of the catalogue.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "hardware/gpu.h"
#include "job/answer/rank_set.h"
#include "job/answer/verdict.h"
#include "job/calls/host_model.h"
#include "job/rules/calibration.h"

namespace plimsoll {

/// A card with what was measured on it and on its machine.
struct Card {
  Gpu gpu;
  /// Null for the rules alone.
  std::shared_ptr<const Calibration> measured = {};
  HostModel host = {};
};

/// What a job takes of one card.
struct CardNeeds {
  Gpu gpu;
  Bytes device = 0;
  /// For good: a job that leaks until it runs out does not fit.
  bool fits = false;
  bool surely_fits = false;
  FitDecision decision = FitDecision::kUnknown;
  double step_us = 0;
};

struct CardsFound {
  std::int64_t batch = 1;
  /// In the order of the catalogue.
  std::vector<CardNeeds> cards;
  /// Of the job, whatever the card.
  std::vector<NotFollowed> not_followed;
  /// Names of cards that were not tried: the step is too long to try them all.
  std::vector<std::string> left_out;
};

using RanksOnCard = std::function<Result<RankSet>(const Card& card)>;

/// Tries cards until the work is spent, spread over all sizes of memory. `tell` hears of each that
/// is done, from any thread.
Result<CardsFound> TryCards(const std::vector<Card>& cards, const RanksOnCard& ranks_on,
                            const std::function<void()>& tell = {});

}  // namespace plimsoll
