// The sizes of an epoch's batches, as text and as JSON.
#pragma once

#include "files/json.h"
#include "job/answer/batching.h"
#include "report/format/writer.h"

namespace plimsoll {

/// "2,000 batches of an epoch: the heaviest is batch 1,204, 32 × 512; half of all …".
std::string EpochHeadline(const EpochFacts& epoch);
void WriteEpoch(Writer& w, const EpochFacts& epoch);
Json EpochJson(const EpochFacts& epoch);

}  // namespace plimsoll
