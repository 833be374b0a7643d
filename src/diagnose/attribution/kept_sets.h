// Whole sets of gradients, or of an optimizer's state, that are kept beside the newest one.
#pragma once

#include <vector>

#include "diagnose/attribution/attribution.h"

namespace plimsoll {

/// How many backwards came to their end.
std::size_t WholeBackwards(const Phases& phases);

/// An optimizer that is made anew while the old one is kept (in a list, by a scheduler) makes a
/// whole new state; gradients that are kept after zero_grad() make a whole new set. Neither happens
/// to a job that is well, however late some of its parameters get their first gradient.
std::vector<KeptSite> FindKeptSets(const Phases& phases);

}  // namespace plimsoll
