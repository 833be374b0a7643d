// When something does not work on one rank, all throw together.
#pragma once

#include <functional>

#include "train/parallel/ranks/ranks.h"

namespace plimsoll::train {

/// Calls the function, in which ranks do something together. Where memory runs out on one of them,
/// all throw c10::OutOfMemoryError, that rank its own.
void DoTogether(Ranks& ranks, const std::function<void()>& function);
/// The same for what each rank does by itself: what one throws, all do, as c10::Error. Nothing but
/// the answer is waited for, and ranks may go on together after it. Before all throw, each calls
/// `undo`.
void DoEach(
    Ranks& ranks, const std::function<void()>& function, const std::function<void()>& undo = [] {});

}  // namespace plimsoll::train
