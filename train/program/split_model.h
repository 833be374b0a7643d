// How the ranks of plimsoll-train share the model: data parallel, a pipeline, or layers in parts.
#pragma once

#include <memory>

#include "train/data/source.h"
#include "train/program/flags.h"

namespace plimsoll::train {

struct SplitModel {
  /// What this rank trains of the model.
  std::shared_ptr<torch::nn::Module> trained;
  /// Which share of each batch it gets: ranks that share a model's layers get the same.
  int share = 0;
  int shares = 1;
};

/// All ranks call it: on each the model, which is on the host but for the layers of this rank, has
/// what the pipeline has learnt.
void CollectLayers(TrainModel& model, Pipeline& pipeline, Ranks& ranks);

/// All ranks call it. Sets the team in the flags' trainer options.
SplitModel Split(const std::shared_ptr<TrainModel>& model, Flags& flags,
                 const std::shared_ptr<const Source>& source);

}  // namespace plimsoll::train
