#include "train/budget/budget.h"

#include <algorithm>

namespace plimsoll::train {
namespace {

MemoryFigures WithPeaks(MemoryFigures now, const MemoryFigures& earlier) {
  now.peak_allocated = std::max(now.peak_allocated, earlier.peak_allocated);
  now.peak_reserved = std::max(now.peak_reserved, earlier.peak_reserved);
  return now;
}

}  // namespace

Budget::Budget(c10::Device device, std::optional<Bytes> limit)
    : device_(device), memory_(MemoryOf(device)) {
  TORCH_CHECK(!limit || *limit > 0, "a budget must be more than nothing");
  memory_.SetLimit(limit);
  memory_.ResetPeaks();
  peaks_.push_back({});
}

Budget::~Budget() { memory_.SetLimit(std::nullopt); }

MemoryFigures Budget::figures() const { return WithPeaks(memory_.figures(), peaks_.front()); }

void Budget::Fold() {
  const MemoryFigures now = memory_.figures();
  for (MemoryFigures& peaks : peaks_) peaks = WithPeaks(now, peaks);
  memory_.ResetPeaks();
}

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
