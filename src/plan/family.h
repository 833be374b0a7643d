// Ways that differ in micro-batches and checkpoints alone: every other lever is set.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/work_budget.h"
#include "plan/evaluate.h"
#include "plan/lever.h"

namespace plimsoll {

struct Family {
  /// In as few micro-batches as can be.
  Choice base;
  /// No way of the family takes less for a sample, in microseconds.
  double least_us = 0;
};

/// The job as it was captured, with its own micro-batches where these divide the samples; on
/// several GPUs, with DDP.
Choice StartOf(const PlanRequest& request);
/// The same samples in another number of micro-batches.
Choice Split(const Job& job, const Choice& choice, int micro_batches);
/// Whether the job may be run in another number of micro-batches.
bool CanSplit(const PlanRequest& request);
/// The same in one micro-batch, or in those of the capture where there is no other way.
Choice Together(const PlanRequest& request, const Choice& choice);

/// The same with one lever set (null: as captured), and as many samples in one pass as that leaves
/// to a GPU.
Choice WithLever(const PlanRequest& request, const Choice& choice, const PlanLever& lever,
                 const LeverValue* value);

struct Families {
  /// Those that may be fastest first.
  std::vector<Family> all;
  /// Of a long step only those that set the fewest levers are: so many are not.
  std::size_t left_out = 0;
};

/// Every combination of the levers that are not searched and change results by `least` to `most`.
/// What the job does not allow is left out, and `refused` gets the reason.
Result<Families> FamiliesOf(const PlanRequest& request, Numerics least, Numerics most,
                            Evaluator& evaluator, WorkBudget& budget,
                            std::set<std::string>& refused);

/// What the levers of the family do to results, whatever the number of micro-batches does.
Numerics NumericsOfFamily(const PlanRequest& request, const Choice& base);

/// A lever that this job does not allow is left out, and the reason is told. An error without any
/// lever is one of the job.
bool CannotBeDone(const Job& job, const Choice& choice, const Error& error,
                  std::set<std::string>& refused);

}  // namespace plimsoll
