// A sharded training as files: every rank writes and reads its own part, so that no process needs
// the whole model, and the save counts when all ranks have written theirs. It can be loaded by
// another number of ranks. docs/parallel.md has the layout.
#pragma once

#include <torch/optim/optimizer.h>

#include <filesystem>
#include <string>
#include <vector>

#include "train/parallel/ranks/ranks.h"
#include "train/parallel/sharded/sharded.h"

namespace plimsoll::train {

/// Parameters, buffers (those of rank 0), the optimizers' state, and what rank 0 gives as `extra`.
/// All ranks call it, between steps, with optimizers of the same parts, and with a path that leads
/// to the same place on all. The parts go to the folder PATH.parts; the file at `path`, which names
/// them, replaces the last one when all are on disk. So whoever is killed, whenever, the last save
/// that was complete is there. Throws c10::Error on all ranks if one could not write.
void SaveSharded(const std::filesystem::path& path, const Sharded& sharded,
                 const std::vector<const torch::optim::Optimizer*>& optimizers, Ranks& ranks,
                 const std::string& extra = {});

/// Returns `extra`. All ranks call it; the save may be of any number of ranks and of any
/// ShardedOptions, but of the same model and the same kinds of optimizers. (8-bit optimizers keep
/// elements in blocks, so that they need the ranks and options that they were saved with.) Nothing
/// is changed on any rank if one cannot load; throws c10::Error on all then, with one sentence.
std::string LoadSharded(const std::filesystem::path& path, Sharded& sharded,
                        const std::vector<torch::optim::Optimizer*>& optimizers, Ranks& ranks);

/// `extra` alone, without a model.
std::string ExtraOfSharded(const std::filesystem::path& path);

}  // namespace plimsoll::train
