// What the ranges that a program marked take, and the steps that they tell.
#pragma once

#include <vector>

#include "answer/explanation.h"
#include "diagnose/attribution/sweep.h"
#include "timeline/history.h"

namespace plimsoll {

/// One row for each name, in the order in which they first come; those that PyTorch sets itself,
/// and steps, are left out. Numbers at the end of a name ("step#3") do not count.
std::vector<MarkReport> MarkTable(const Phases& phases, const Sweep& sweep);

/// The steps that plimsoll.record() or a profiler marked ("plimsoll.step#3", "ProfilerStep#3").
std::vector<StepReport> MarkedSteps(const Phases& phases, const Sweep& sweep);

/// Every range that the program marked and that holds events; `left_out` counts those that were too
/// many: inner ones first, then short ones.
struct MarkedStretches {
  std::vector<HistoryStretch> stretches;
  std::size_t left_out = 0;
};
MarkedStretches StretchesOfMarks(const Phases& phases);

/// "in train" of the outermost mark at a position; "" where there is none.
std::string MarkAt(const Phases& phases, Position at);

}  // namespace plimsoll
