// The optimizers of a trainer, and the form of the one whose form is a lever.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "train/optimizers/optimizer_forms.h"
#include "train/parallel/team.h"

namespace plimsoll::train {

class TrainedOptimizers {
 public:
  using List = std::vector<std::shared_ptr<torch::optim::Optimizer>>;

  /// The team makes them step what this rank keeps. Forms that allow none: the optimizers stay as
  /// they are; else the only one is the first of those allowed. Model and team must outlive it.
  TrainedOptimizers(List list, OptimizerForms forms, const torch::nn::Module& model, Team& team);

  const List& list() const { return list_; }
  /// The same as plain pointers.
  const std::vector<torch::optim::Optimizer*>& stepped() const { return stepped_; }
  /// None: it is not a lever.
  std::optional<OptimizerForm> form() const { return form_; }
  const std::vector<OptimizerForm>& allowed() const { return forms_.allowed; }
  /// So often the optimizers became others: what was seen of small steps has another base then.
  int changes() const { return changes_; }
  /// Whether they have a state.
  bool begun() const { return !list_[0]->state().empty(); }

  /// A new one of the form, without a state.
  std::shared_ptr<torch::optim::Optimizer> Make(OptimizerForm form) const;
  /// The optimizer goes on in this form, with the state that it has.
  void Use(OptimizerForm form);
  void Take(List list, OptimizerForm form);
  /// Those allowed that the optimizer's state can be made into.
  std::vector<OptimizerForm> FormsToTry() const;
  /// The form that was saved, if it is still good; then the one that takes least first, from which
  /// choosing goes on.
  std::vector<std::optional<OptimizerForm>> FormsToLoad(std::optional<OptimizerForm> saved,
                                                        bool still_good) const;
  /// Learning rates are those that the groups began with, times the factor.
  void SetRates(double factor) const;
  /// What states will take that are not there yet.
  Bytes StateStillToCome() const;
  /// Whether the state is in 8 bits or on the host.
  bool HaveSmallState() const;

 private:
  /// Each parameter is stepped once; those that this rank keeps.
  void Adopt(const List& list) const;

  const torch::nn::Module& model_;
  Team& team_;
  List list_;
  std::vector<torch::optim::Optimizer*> stepped_;
  OptimizerForms forms_;
  std::optional<OptimizerForm> form_;
  /// By optimizer and group.
  std::vector<std::vector<double>> base_rates_;
  int changes_ = 0;
};

}  // namespace plimsoll::train
