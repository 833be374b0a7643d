#include "train/parallel/ranks/agreement.h"

#include <algorithm>
#include <exception>
#include <vector>

#include "train/gradients/recovery.h"

namespace plimsoll::train {
namespace {

/// Not empty.
std::string TextOf(const std::exception& error) {
  const auto* const torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch != nullptr ? torch->what_without_backtrace() : error.what();
  return text.empty() ? "an error without words" : text;
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

}  // namespace plimsoll::train
