#include "train/parallel/data_parallel/agreed_gradients.h"

#include <algorithm>
#include <optional>
#include <sstream>
#include <vector>

#include "train/gradients/recovery.h"

namespace plimsoll::train {
namespace {

[[noreturn]] void ThrowOutOfMemory(const std::vector<int>& full, const Ranks& ranks) {
  std::ostringstream text;
  for (const int rank : full) text << (rank == full.front() ? "rank " : ", rank ") << rank;
  text << " of " << ranks.size() << " ran out of memory with one row at a time";
  TORCH_CHECK_WITH(OutOfMemoryError, false, text.str());
}

}  // namespace

AgreedGradients AccumulateInAgreement(torch::nn::Module& model, Ranks& ranks,
                                      DataParallel& parallel, const LossFunction& loss,
                                      const Batch& batch, Pieces pieces) {
  ClearGradients(model);
  const c10::Device device = model.parameters().front().device();
  for (int repeats = 0;; ++repeats) {
    std::optional<StepUndo> undo;
    at::Tensor sum;
    const std::vector<int> full = ranks.Try([&] {
      undo.emplace(model, device);
      sum = parallel.AccumulateGradients(loss, batch, pieces);
    });
    if (full.empty()) return {sum, pieces.rows, repeats};
    if (undo) undo->Undo();
    if (pieces.rows == 1) ThrowOutOfMemory(full, ranks);
    // Not from a number that is larger than the batch is: nothing would change. The same on all.
    at::Tensor fewest = at::tensor(-std::min(pieces.rows, batch.size()));
    ranks.Least(fewest);
    pieces.rows = std::max<std::int64_t>(1, -fewest.item<std::int64_t>() / 2);
  }
}

}  // namespace plimsoll::train
