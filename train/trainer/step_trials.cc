#include "train/trainer/step_trials.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "train/common/wall_clock.h"
#include "train/gradients/recovery.h"
#include "train/optimizers/host_optimizer.h"
#include "train/optimizers/optimizer_step.h"

namespace plimsoll::train {

template <class Function>
bool StepTrials::Undone(const Levers& levers, Function function) {
  const Levers before = engine_.levers();
  const c10::Device device = engine_.options().device;
  const PeakScope peak(engine_.budget());
  std::shared_ptr<void> alone = engine_.team().BeginTrial();
  std::optional<StepUndo> undo;
  bool fits = true;
  const auto end = [&] {
    if (undo) undo->Undo();
    engine_.scaler().Forget();
    engine_.metrics().Clear();
    engine_.Use(before);
    alone.reset();
  };
  try {
    const StepEngine::Trying trying(engine_);
    engine_.Use(levers);
    undo.emplace(engine_.model(), device, [this] { engine_.team().ClearGradients(); });
    at::Tensor room =
        at::empty({optimizers_.StateStillToCome()}, at::TensorOptions(at::kByte).device(device));
    function(room);
  } catch (const std::exception& error) {
    end();
    if (!IsOutOfMemory(error)) throw;
    most_ = std::max(most_, peak.figures().peak_allocated);
    fits = false;
  } catch (...) {
    end();
    throw;
  }
  if (fits) end();
  engine_.budget().ReleaseCached();
  return fits;
}

bool StepTrials::Fits(const Levers& levers) {
  const Batch rows = batch_.Rows(0, std::min(levers.micro_batch, batch_.size()));
  return Undone(levers, [&](at::Tensor& room) {
    // The number is waited for, so that the next piece is timed alone.
    engine_.Gradients(rows).item<double>();
    const bool whole = rows.size() == batch_.size();
    const bool as_it_is = whole && levers == Levers{.micro_batch = levers.micro_batch};
    if (!as_it_is) {
      // A later piece finds the gradients of those before it, the whole batch finds none.
      if (whole) engine_.team().ClearGradients();
      const double begin = Seconds();
      engine_.Gradients(rows).item<double>();
      const auto pieces = static_cast<double>(batch_.size()) / static_cast<double>(rows.size());
      expected_seconds_ = pieces * (Seconds() - begin) + HostSeconds(optimizers_.stepped());
    }
    room = at::Tensor();
    TryStepMemory(optimizers_.stepped());
  });
}

Bytes StepTrials::Room() const {
  return engine_.options().budget.value_or(std::max<Bytes>(most_, 1));
}

std::optional<std::pair<StepRecord, StepRecord>> StepTrials::Record(const Levers& levers) {
  const Batch rows = batch_.Rows(0, std::min(levers.micro_batch, batch_.size()));
  std::pair<StepRecord, StepRecord> records;
  const bool fits = Undone(levers, [&](at::Tensor&) {
    for (StepRecord* const record : {&records.first, &records.second}) {
      StepRecorder recorder(engine_.budget(), engine_.blocks());
      engine_.Gradients(rows);
      *record = recorder.Finish();
    }
  });
  return fits ? std::optional(std::move(records)) : std::nullopt;
}

}  // namespace plimsoll::train
