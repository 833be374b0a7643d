// A predicted run as a memory snapshot, the file that torch.cuda.memory._dump_snapshot writes: for
// everything that reads those.
#pragma once

#include <functional>
#include <string_view>

#include "job/trial/trial.h"

namespace plimsoll {

/// The run that the trial shows, as a pickle. `sink` gets it piece by piece. What only a prediction
/// knows (that it is one, and what each block is for) goes under keys of our own, which others pass
/// over: docs/formats/snapshot.md.
void WritePredictedSnapshot(const Trial& trial, const std::function<void(std::string_view)>& sink);

}  // namespace plimsoll
