#include "train/budget/budget.h"

#include <algorithm>
#include <mutex>

namespace plimsoll::train {
namespace {

/// All budgets there are.
struct Registry {
  std::mutex mutex;
  std::vector<Budget*> budgets;
};
Registry& TheRegistry() {
  static Registry registry;
  return registry;
}

MemoryFigures WithPeaks(MemoryFigures now, const MemoryFigures& earlier) {
  now.peak_allocated = std::max(now.peak_allocated, earlier.peak_allocated);
  now.peak_reserved = std::max(now.peak_reserved, earlier.peak_reserved);
  return now;
}

}  // namespace

Budget::Budget(c10::Device device, std::optional<Bytes> limit)
    : device_(device), memory_(MemoryOf(device)) {
  TORCH_CHECK(!limit || *limit > 0, "a budget must be more than nothing, not ", limit.value_or(0),
              " bytes");
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  TORCH_CHECK(!limit || !memory_.limit(), "there is a budget on ", device,
              " already; a device has one at a time, so end the other first");
  if (limit) memory_.SetLimit(limit);
  limit_ = limit;
  registry.budgets.push_back(this);
  FoldAll();
  peaks_.push_back({});
}

Budget::~Budget() {
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  std::erase(registry.budgets, this);
  if (limit_) memory_.SetLimit(std::nullopt);
}

MemoryFigures Budget::figures() const { return WithPeaks(memory_.figures(), peaks_.front()); }

MemoryFigures Budget::FoldAll() {
  const MemoryFigures now = memory_.figures();
  for (Budget* const budget : TheRegistry().budgets) {
    if (&budget->memory_ != &memory_) continue;
    for (MemoryFigures& peaks : budget->peaks_) peaks = WithPeaks(now, peaks);
  }
  memory_.ResetPeaks();
  return now;
}

MemoryFigures Budget::Fold() {
  const std::lock_guard lock(TheRegistry().mutex);
  return FoldAll();
}

MemoryFigures Budget::Sample() { return Fold(); }

PeakScope::PeakScope(Budget& budget) : budget_(budget) {
  budget_.Fold();
  level_ = budget_.peaks_.size();
  budget_.peaks_.push_back({});
}

PeakScope::~PeakScope() {
  budget_.Fold();
  budget_.peaks_.pop_back();
}

MemoryFigures PeakScope::figures() const {
  return WithPeaks(budget_.memory_.figures(), budget_.peaks_[level_]);
}

}  // namespace plimsoll::train
