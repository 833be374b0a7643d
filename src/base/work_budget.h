// How much a search may do before it has to answer with what it has found. Counted in units of work
// and not in seconds, so that a busy machine gives the answer of a quiet one.
#pragma once

#include <cstdint>

namespace plimsoll {

/// Not from two threads at once: whoever shares work out adds up what it cost, and asks between.
class WorkBudget {
 public:
  explicit WorkBudget(std::int64_t units) : units_(units) {}

  void Spend(std::int64_t units) { used_ += units; }
  bool spent() const { return used_ >= units_; }
  std::int64_t used() const { return used_; }
  std::int64_t left() const { return spent() ? 0 : units_ - used_; }

 private:
  std::int64_t units_;
  std::int64_t used_ = 0;
};

}  // namespace plimsoll
