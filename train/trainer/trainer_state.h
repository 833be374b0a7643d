// Saving and loading of a trainer: everything that the next step depends on.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "train/saving/state_tensors.h"
#include "train/schedule/ema.h"
#include "train/trainer/lever_choice.h"
#include "train/trainer/step_engine.h"
#include "train/trainer/trained_optimizers.h"

namespace plimsoll::train {

class TrainerState {
 public:
  /// The parts of a trainer, which must outlive it.
  TrainerState(StepEngine& engine, TrainedOptimizers& optimizers, LeverChoice& choice,
               std::optional<Ema>& ema, std::int64_t& steps)
      : engine_(engine), optimizers_(optimizers), choice_(choice), ema_(ema), steps_(steps) {}

  /// As Trainer's functions of these names.
  void Save(const std::filesystem::path& path, const std::string& extra);
  std::string Load(const std::filesystem::path& path);
  std::string ExtraIn(const std::filesystem::path& path);

 private:
  /// What was checked, and is still to be put in place.
  struct Loaded {
    std::optional<OptimizerForm> form;
    std::string extra;
    std::vector<std::function<void()>> puts;
  };

  /// What this rank has for itself.
  void AddOwn(StateSaver& saver);
  /// With moving averages.
  void AddModelAndOptimizers(StateSaver& saver);
  /// All else.
  void AddRest(StateSaver& saver, const std::string& extra,
               const std::vector<std::string>& own_of_all);
  /// What is not in parts, of a file that was saved.
  StateLoader RestIn(const std::filesystem::path& path);
  StateLoader OwnPartIn(const std::filesystem::path& path);
  void CheckSavedAlike(StateLoader& main);
  void TakeFormOfSharded(StateLoader& rest, Loaded& loaded);
  void TakeModelAndOptimizers(StateLoader& loader, StateLoader& rest, Loaded& loaded);
  void TakeOptimizers(StateLoader& loader, StateLoader& rest, Loaded& loaded);
  void TakeRest(StateLoader& loader, Loaded& loaded);

  StepEngine& engine_;
  TrainedOptimizers& optimizers_;
  LeverChoice& choice_;
  std::optional<Ema>& ema_;
  std::int64_t& steps_;
};

}  // namespace plimsoll::train
