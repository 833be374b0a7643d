// Which card a job fits on: the same question put to every card of the catalogue.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/result.h"
#include "hardware/gpu.h"
#include "job/file/job.h"
#include "job/trial/trial.h"

namespace plimsoll {

/// What a job takes of one card.
struct CardNeeds {
  Gpu gpu;
  Bytes device = 0;
  bool fits = false;
  bool surely_fits = false;
  double step_us = 0;
};

/// Every card of the catalogue, in its order. `tell` hears of each that is done.
Result<std::vector<CardNeeds>> TryEveryCard(const std::shared_ptr<const Job>& job,
                                            const PredictOptions& options,
                                            const std::function<void()>& tell = {});

}  // namespace plimsoll
