// The error that says that training does not fit into its budget, in figures.
#pragma once

#include <c10/util/Exception.h>

#include <optional>
#include <string>

#include "base/bytes.h"

namespace plimsoll::train {

/// What there is without any activation.
struct FixedMemory {
  Bytes parameters = 0;
  Bytes gradients = 0;
  Bytes optimizer_state = 0;
};

/// Nothing was changed when it is thrown.
class DoesNotFit : public c10::OutOfMemoryError {
 public:
  struct Figures {
    /// What it takes, expected from small steps. Where those did not fit either, or expect less:
    /// the least that it can be, which is what is held and the gradients (and the optimizer's state
    /// where that cannot go to the host), or the budget. Trainer::LeastBudget measures it.
    Bytes need = 0;
    bool need_is_least = false;
    /// None: the device itself was full.
    std::optional<Bytes> budget;
    FixedMemory fixed;
    /// What takes the most, in words.
    std::string cause;
    /// What would help, in words.
    std::string lever;
  };

  explicit DoesNotFit(Figures figures);

  const Figures& figures() const { return figures_; }

 private:
  Figures figures_;
};

/// What a trainer knows when nothing fits.
struct Shortage {
  /// As in DoesNotFit::Figures.
  Bytes need = 0;
  bool need_is_least = false;
  std::optional<Bytes> budget;
  FixedMemory fixed;
  std::int64_t rows = 1;
  bool may_split = true;
  /// The loss compares rows.
  bool whole_batch = false;
  int blocks = 0;
  bool state_could_shrink = false;
  /// Levers were set by the options, and others might do.
  bool levers_set = false;
};
DoesNotFit Explain(const Shortage& shortage);

}  // namespace plimsoll::train
