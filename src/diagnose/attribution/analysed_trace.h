// One device of a record and everything that follows from it. Computed once, and handed to explain,
// report, what-if and recorded steps.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "allocator/replay/verify.h"
#include "diagnose/attribution/attribution.h"
#include "diagnose/attribution/sweep.h"
#include "diagnose/phases/phases.h"
#include "diagnose/phases/stack_traits.h"
#include "timeline/recording.h"

namespace plimsoll {

class AnalysedTrace {
 public:
  /// `traced` must outlive this.
  explicit AnalysedTrace(const Timeline& traced)
      : timeline(traced),
        ledger(Follow(timeline)),
        stacks(timeline),
        phases(timeline, ledger, stacks),
        attribution(Attribute(phases)),
        sweep(SweepEvents(phases, attribution)) {}
  AnalysedTrace(const AnalysedTrace&) = delete;
  AnalysedTrace& operator=(const AnalysedTrace&) = delete;

  const Timeline& timeline;
  /// Which allocation each event belongs to, and how large its block was.
  const Ledger ledger;
  /// Which thread made each allocation, and in which phase; where the steps are.
  const StackAnalysis stacks;
  const Phases phases;
  /// What each allocation is for, and what that adds up to over time.
  const Attribution attribution;
  const Sweep sweep;

  /// The allocator's model beside the record, under its budget or the limits that the record itself
  /// shows. Made when it is first asked for: not every answer needs it.
  const Verification& verified() const;

 private:
  mutable std::once_flag verified_once_;
  mutable std::optional<Verification> verified_;
};

/// A record with each of its devices analysed.
struct AnalysedRecording {
  const Recording& recording;
  /// In the order of Recording::timelines.
  std::vector<std::unique_ptr<const AnalysedTrace>> traces;
};

/// `recording` must outlive the analysis.
AnalysedRecording AnalyseRecording(const Recording& recording);

}  // namespace plimsoll
