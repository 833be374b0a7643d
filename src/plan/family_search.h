// The best ways of one family: in how few micro-batches it fits, and with which modules
// checkpointed.
#pragma once

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "plan/family.h"
#include "plan/standings.h"
#include "recompute/checkpoint_choice.h"

namespace plimsoll {

/// A way as the search for checkpoints looks at it.
CheckpointScore ScoreOf(const Way& way);

/// From any thread. What is found is appended, also what does not fit; ways that would not be shown
/// beside the standings are not looked for, nor anything once the budget is spent.
class FamilySearch {
 public:
  FamilySearch(const PlanRequest& request, Evaluator& evaluator)
      : request_(request), evaluator_(evaluator) {}

  /// In one micro-batch, and in as few as fit.
  std::optional<Error> Plain(const Family& family, Standings standings, WorkBudget& budget,
                             std::vector<Way>& found);
  /// With checkpoints, for each number of micro-batches that does not fit without.
  std::optional<Error> Checkpointed(const Family& family, Standings standings, WorkBudget& budget,
                                    std::vector<Way>& found);
  /// The best modules to checkpoint in what does not fit without, below a time for a sample.
  /// Whether checkpoints help this family.
  Result<bool> CheckpointOne(const Way& plain, WorkBudget& budget, std::vector<Way>& found,
                             double limit_us = Standings::kNone);

 private:
  struct Candidate {
    Way plain;
    /// For a sample, by the model of checkpoints.
    double least_us = 0;
  };
  /// Those that may be worth showing; what they are without checkpoints is appended to `found`.
  Result<std::vector<Candidate>> Candidates(const Family& family, const Standings& standings,
                                            WorkBudget& budget, std::vector<Way>& found);

  bool Ends(const WorkBudget& budget) const;
  std::vector<int> NumbersOfMicroBatches(const Choice& base) const;
  /// `selective`: blocks also in part.
  const CheckpointSets& SetsFor(const Choice& choice, bool selective = false);
  /// The best of these sets below a time for a step; appended to `found`, if there is one.
  Result<CheckpointChoice> Choose(const CheckpointSets& sets, const Way& plain, double most_us,
                                  WorkBudget& budget, std::vector<Way>& found);
  /// Whether PyTorch has it, and each block is whole on its device: how it goes with parameters
  /// that are gathered for a block was not tried.
  bool CanBeSelective(const Choice& choice) const;

  const PlanRequest& request_;
  Evaluator& evaluator_;
  /// By precision, batch, the modules that are not to be checkpointed, and whether in part.
  using SetsKey = std::tuple<const Variant*, std::int64_t, std::vector<std::string>, bool>;
  Memo<SetsKey, CheckpointSets> sets_;
};

}  // namespace plimsoll
