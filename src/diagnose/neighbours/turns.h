// Whose turn it was, and what each held at any time.
#pragma once

#include <vector>

#include "diagnose/neighbours/card_study.h"

namespace plimsoll {

/// What a process held from the driver over time.
struct HeldCurve {
  struct Change {
    TimeUs time = 0;
    Bytes reserved = 0;
  };
  /// Before the first change.
  Bytes initial = 0;
  std::vector<Change> changes = {};
};

HeldCurve CurveOf(const AnalysedTrace& trace);

/// Walks all curves together. `visit` gets the time of each change and what each holds from then
/// on.
template <typename Visit>
void WalkTogether(const std::vector<HeldCurve>& curves, Visit visit) {
  std::vector<std::size_t> next(curves.size(), 0);
  std::vector<Bytes> held;
  for (const HeldCurve& curve : curves) held.push_back(curve.initial);
  for (;;) {
    std::size_t first = curves.size();
    for (std::size_t i = 0; i < curves.size(); ++i) {
      if (next[i] == curves[i].changes.size()) continue;
      const bool earlier = first == curves.size() || curves[i].changes[next[i]].time <
                                                         curves[first].changes[next[first]].time;
      if (earlier) first = i;
    }
    if (first == curves.size()) return;
    const HeldCurve::Change& change = curves[first].changes[next[first]++];
    held[first] = change.reserved;
    visit(change.time, held);
  }
}

/// The last event that had happened by a time; kBefore where none had.
Position PositionAt(const AnalysedTrace& trace, TimeUs time);

/// Who was at work when; empty where they work at the same time.
std::vector<Turn> TurnsOf(const std::vector<CardTrace>& traces);

/// The hand-overs between turns that do not overlap.
std::vector<HandOver> HandOversOf(const std::vector<Turn>& turns);
/// What both were doing, and what each process held then. It takes a pass over each record.
void AddDetails(const std::vector<CardTrace>& traces, HandOver& hand_over);

/// What a process was doing last before a time ("after train"), and what it does first from then
/// on ("in rollout.wake"); by its marks, else by its steps, else by its lines.
std::string DoneBefore(const AnalysedTrace& trace, TimeUs time);
std::string DoneFrom(const AnalysedTrace& trace, const TimeRange& turn);

}  // namespace plimsoll
