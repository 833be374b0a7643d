#include "train/parallel/agreement.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <sstream>
#include <vector>

#include "train/recovery.h"

namespace plimsoll::train {
namespace {

/// Not empty.
std::string TextOf(const std::exception& error) {
  const auto* const torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch != nullptr ? torch->what_without_backtrace() : error.what();
  return text.empty() ? "an error without words" : text;
}

[[noreturn]] void ThrowOutOfMemory(const std::vector<int>& full, const Ranks& ranks) {
  std::ostringstream text;
  for (const int rank : full) text << (rank == full.front() ? "rank " : ", rank ") << rank;
  text << " of " << ranks.size() << " ran out of memory with one row at a time";
  TORCH_CHECK_WITH(OutOfMemoryError, false, text.str());
}

}  // namespace

void DoTogether(Ranks& ranks, const std::function<void()>& function) {
  std::exception_ptr own;
  std::string text;
  const std::vector<int> full = ranks.Try([&] {
    try {
      function();
    } catch (const std::exception& error) {
      if (IsOutOfMemory(error)) {
        own = std::current_exception();
        text = TextOf(error);
      }
      throw;
    }
  });
  if (full.empty()) return;
  const auto texts = ranks.Tell(text);
  if (own) std::rethrow_exception(own);
  const int first = full.front();
  TORCH_CHECK_WITH(OutOfMemoryError, false, "on rank ", first, " of ", ranks.size(), ": ",
                   texts.at(static_cast<std::size_t>(first)));
}

void DoEach(Ranks& ranks, const std::function<void()>& function,
            const std::function<void()>& undo) {
  std::exception_ptr own;
  std::string text;
  try {
    function();
  } catch (const RankError&) {
    throw;
  } catch (const std::exception& error) {
    own = std::current_exception();
    text = TextOf(error);
  }
  const auto texts = ranks.Tell(text);
  if (std::ranges::all_of(texts, &std::string::empty)) return;
  undo();
  if (own) std::rethrow_exception(own);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    TORCH_CHECK(texts[rank].empty(), "on rank ", rank, " of ", ranks.size(), ": ", texts[rank]);
  }
}

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
