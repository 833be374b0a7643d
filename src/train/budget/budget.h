// A memory limit on a device, with figures: now, at the peak, and at the peak of a part of the
// program.
#pragma once

#include <optional>
#include <vector>

#include "train/budget/memory.h"

namespace plimsoll::train {

class Budget {
 public:
  /// Sets the limit; the destructor lifts it. One budget a device at a time.
  Budget(c10::Device device, std::optional<Bytes> limit);
  ~Budget();
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  c10::Device device() const { return device_; }
  std::optional<Bytes> limit() const { return memory_.limit(); }
  /// Peaks since the budget was made, whatever was measured inside of it.
  MemoryFigures figures() const;
  void ReleaseCached() { memory_.ReleaseCached(); }

 private:
  friend class PeakScope;
  /// Folds the device's peaks into every scope that is open, and lets them count anew.
  void Fold();

  c10::Device device_;
  DeviceMemory& memory_;
  /// The budget's own, and one for each open scope.
  std::vector<MemoryFigures> peaks_;
};

/// The peak while it lives. Scopes nest.
class PeakScope {
 public:
  explicit PeakScope(Budget& budget);
  ~PeakScope();
  PeakScope(const PeakScope&) = delete;
  PeakScope& operator=(const PeakScope&) = delete;

  MemoryFigures figures() const;

 private:
  Budget& budget_;
  std::size_t level_;
};

}  // namespace plimsoll::train
