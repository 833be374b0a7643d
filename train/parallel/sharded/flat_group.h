// Parameters that lie one after the other in one tensor, so that they are sent as one and every
// rank can keep an equal part of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "train/parallel/ranks/begun_work.h"
#include "train/parallel/ranks/ranks.h"

namespace plimsoll::train {

/// What every rank keeps only its part of; each includes those before it.
enum class Shard { kOptimizerState = 1, kGradients = 2, kParameters = 3 };

/// How parameters, their gradients and this rank's parts of them are kept and sent.
struct GroupForm {
  Shard shard = Shard::kGradients;
  /// Of the parameters, and so of their gradients. None: as they are. The parts keep the type that
  /// the parameters had.
  std::optional<at::ScalarType> compute_dtype;
  /// Gradients travel as bf16 and are summed in it; else in the type of the parts.
  bool send_bf16 = false;
  /// Parts, and their gradients, are in memory of the host.
  bool offload = false;
};

/// The functions that speak with other ranks must be called in the same order on all.
class FlatGroup {
 public:
  /// The parameters, of one type and on one device, become views of the whole.
  FlatGroup(std::vector<at::Tensor> parameters, Ranks& ranks, const GroupForm& form);

  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  /// This rank's part: what the optimizer steps.
  const at::Tensor& part() const { return part_; }
  /// Where the model is.
  c10::Device device() const { return whole_.device(); }

  /// The parameters are those of all ranks' parts; nothing where they are so already. Begun ahead
  /// of need, it goes on by itself.
  void BeginGather();
  void Gather();
  /// Gives the memory of the whole back, if only parts are kept.
  void Release();
  /// The parts have changed.
  void Changed() { gathered_ = false; }

  /// Parameter `index` has got its gradient, which is dropped if it does not count. Returns whether
  /// all have, since NewPass.
  bool TakeGradient(std::size_t index, bool counts);
  void NewPass() { arrived_ = 0; }
  /// The sum over ranks of what was taken is added to the part's gradient, in two steps.
  void BeginSum();
  void FinishSum();

  /// As between two steps, without gradients, whatever was on its way and without a word to other
  /// ranks. What is on its way may still be written, but to nothing that is here. The next Gather
  /// gathers, on all ranks that have done this.
  void Abandon();
  /// From now on nothing is sent: the whole is this rank's part and, with Shard::kParameters, zeros
  /// elsewhere; sums are what this rank has. It takes the memory that it takes among others.
  void BeginAlone();
  void EndAlone();

  /// On the model's device.
  /// Those of the part too.
  void DropGradients();

  Bytes parameter_bytes() const;
  Bytes gradient_bytes() const;

 private:
  at::Tensor View(const at::Tensor& whole, std::size_t index) const;
  /// This rank's part of it.
  at::Tensor Own(const at::Tensor& whole) const;
  /// Whether the part has memory of its own, and is no view of the whole.
  bool IsApart() const;
  at::Tensor NewPart(std::int64_t elements) const;
  /// The elements of a parameter that are of this rank's part.
  void TakePart(std::size_t index);
  /// A sum as the part's gradient has to be.
  at::Tensor ForPart(const at::Tensor& sum) const;
  void NewGradients();
  void SendWhole(at::Tensor whole);

  std::vector<at::Tensor> parameters_;
  std::vector<std::int64_t> offsets_;
  Ranks& ranks_;
  GroupForm form_;
  at::ScalarType part_dtype_;
  /// What the parameters are views of. With Shard::kParameters it has no memory of its own, but
  /// is lent some while it is gathered.
  at::Tensor whole_;
  at::Tensor part_;
  bool gathered_ = true;
  bool gathering_ = false;
  bool alone_ = false;
  bool gathered_before_alone_ = false;
  std::vector<BegunWork> gather_works_;
  at::Tensor gradients_;
  std::size_t arrived_ = 0;
  /// On its way: what is sent, and this rank's part of its sum.
  at::Tensor sent_;
  at::Tensor sum_;
  BegunWork sum_work_;
};

}  // namespace plimsoll::train
