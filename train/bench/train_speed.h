// train_bench speed, and train_bench check of CUDA graphs.
#pragma once

#include "train/bench/train_jobs.h"

namespace plimsoll::train {

/// Milliseconds a step of each model: in a plain loop, by Trainer, and by Trainer with a CUDA
/// graph. train/bench/train_speed.py puts the same models in Python beside it.
void Speed(const Bench& bench);

/// Whether Trainer leaves the same with a CUDA graph as without, bit for bit, and whether it used
/// one.
void CheckGraphs(const Bench& bench);

}  // namespace plimsoll::train
