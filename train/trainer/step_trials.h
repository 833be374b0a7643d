// What is tried before levers are chosen.
#pragma once

#include "train/planning/lever_planner.h"
#include "train/trainer/step_engine.h"

namespace plimsoll::train {

class StepTrials final : public LeverTrials {
 public:
  StepTrials(StepEngine& engine, const TrainedOptimizers& optimizers, const Batch& batch)
      : engine_(engine), optimizers_(optimizers), batch_(batch) {}

  bool Fits(const Levers& levers) override;
  Bytes Room() const override;
  std::optional<std::pair<StepRecord, StepRecord>> Record(const Levers& levers) override;

  /// Of the last levers that fitted.
  std::optional<double> expected_seconds() const { return expected_seconds_; }

 private:
  /// Runs it with these levers, and with a tensor as large as the optimizers' state will be, and
  /// undoes it. False where memory ran out.
  template <class Function>
  bool Undone(const Levers& levers, Function function);

  StepEngine& engine_;
  const TrainedOptimizers& optimizers_;
  const Batch& batch_;
  Bytes most_ = 0;
  std::optional<double> expected_seconds_;
};

}  // namespace plimsoll::train
