// Gradient accumulation: several passes of forward and backward before each step of the optimizer.
#pragma once

#include <optional>

#include "base/result.h"
#include "job/file/job.h"

namespace plimsoll {

/// A step of more events than this, with all its passes, is a long one.
inline constexpr std::size_t kMostEventsWritten = 300'000;

/// The variant with so many passes in each step, where they can be repeated. Adds to the step's
/// strings. Of a long step only the first passes are written out, until they are alike: the last of
/// them is said to be repeated (JobEvent::Kind::kRound), and the step's notes say so.
Variant AddAccumulation(Job& job, const Variant& variant, int passes,
                        std::size_t most_events = kMostEventsWritten);

/// Says of a long step that so many micro-batches of each are written out.
void NoteRepeated(Job& job, int passes, int written);

/// How many passes of forward and backward each step of the variant has.
int PassesOf(const Variant& variant);

/// Why the passes of a step cannot be repeated.
std::optional<Error> CannotAccumulate(const Job& job, const Variant& variant);

}  // namespace plimsoll
