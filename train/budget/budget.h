// A memory limit on a device, with figures: now, at the peak, and at the peak of a part of the
// program.
#pragma once

#include <optional>
#include <vector>

#include "train/budget/memory.h"

namespace plimsoll::train {

class Budget {
 public:
  /// Sets the limit; the destructor lifts it. A device has one limit at a time: a second is an
  /// error. Budgets without one only look on.
  Budget(c10::Device device, std::optional<Bytes> limit);
  ~Budget();
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  c10::Device device() const { return device_; }
  std::optional<Bytes> limit() const { return limit_; }
  /// Peaks since the budget was made, whatever was measured inside of it.
  MemoryFigures figures() const;
  MemoryTraffic traffic() const { return memory_.traffic(); }
  void ReleaseCached() { memory_.ReleaseCached(); }
  /// As figures(), with the peaks since the last call. Nothing else counts less for it.
  MemoryFigures Sample();

 private:
  friend class PeakScope;
  /// Folds the device's peaks into every scope that is open, of any budget, and lets them count
  /// anew.
  MemoryFigures Fold();
  MemoryFigures FoldAll();

  c10::Device device_;
  DeviceMemory& memory_;
  std::optional<Bytes> limit_;
  /// The budget's own, and one for each open scope.
  std::vector<MemoryFigures> peaks_;
};

/// RAII guard: measures the peak from its making on. Scopes nest.
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
