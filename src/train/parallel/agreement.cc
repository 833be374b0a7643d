#include "train/parallel/agreement.h"

#include <algorithm>
#include <optional>
#include <sstream>

#include "train/recovery.h"

namespace plimsoll::train {
namespace {

/// This rank's share of the loss, or nothing if its gradients do not fit.
std::optional<at::Tensor> TryShare(DataParallel& parallel, const LossFunction& loss,
                                   const Batch& batch, const Pieces& pieces, double whole) {
  try {
    const DataParallel::NoSync alone(parallel);
    return parallel.AddShare(loss, batch, pieces, whole);
  } catch (const std::exception& error) {
    if (!IsOutOfMemory(error)) throw;
    return std::nullopt;
  }
}

[[noreturn]] void ThrowOutOfMemory(const std::vector<int>& full, const Ranks& ranks) {
  std::ostringstream text;
  for (const int rank : full) text << (rank == full.front() ? "rank " : ", rank ") << rank;
  text << " of " << ranks.size() << " ran out of memory with one row at a time";
  TORCH_CHECK_WITH(OutOfMemoryError, false, text.str());
}

}  // namespace

std::vector<int> RanksWithoutRoom(Ranks& ranks, bool fits) {
  at::Tensor full = at::zeros({ranks.size()}, at::kInt);
  full[ranks.rank()] = fits ? 0 : 1;
  ranks.Sum(full);
  std::vector<int> list;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    if (full[rank].item<int>() != 0) list.push_back(rank);
  }
  return list;
}

AgreedGradients AccumulateInAgreement(torch::nn::Module& model, Ranks& ranks,
                                      DataParallel& parallel, const LossFunction& loss,
                                      const Batch& batch, Pieces pieces) {
  ClearGradients(model);
  parallel.BeginStep();
  const double whole = WeightOfAll(ranks, batch, pieces);
  const c10::Device device = model.parameters().front().device();
  for (int repeats = 0;; ++repeats) {
    StepUndo undo(model, device);
    std::optional<at::Tensor> share = TryShare(parallel, loss, batch, pieces, whole);
    const std::vector<int> full = RanksWithoutRoom(ranks, share.has_value());
    if (full.empty()) {
      parallel.Reduce();
      ranks.Sum(*share);
      return {*share, pieces.rows, repeats};
    }
    undo.Undo();
    if (pieces.rows == 1) ThrowOutOfMemory(full, ranks);
    // Not from a number that is larger than the batch is: nothing would change. The same on all.
    at::Tensor fewest = at::tensor(-std::min(pieces.rows, batch.size()));
    ranks.Least(fewest);
    pieces.rows = std::max<std::int64_t>(1, -fewest.item<std::int64_t>() / 2);
  }
}

}  // namespace plimsoll::train
