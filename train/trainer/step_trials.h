// What Trainer tries before it decides. Not for users.
#pragma once

#include "train/trainer/trainer.h"

namespace plimsoll::train {

class Trainer::Trials final : public LeverTrials {
 public:
  Trials(Trainer& trainer, const Batch& batch) : trainer_(trainer), batch_(batch) {}

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

  Trainer& trainer_;
  const Batch& batch_;
  Bytes most_ = 0;
  std::optional<double> expected_seconds_;
};

}  // namespace plimsoll::train
