// --calibration: what plimsoll.calibrate measured on a card and its machine.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "hardware/gpu.h"
#include "job/rules/calibration.h"

namespace plimsoll {

/// What stands for the rules alone, without what cuDNN said at the capture either.
inline constexpr std::string_view kRulesAlone = "rules";

struct Measured {
  /// Null for none.
  std::shared_ptr<const Calibration> operators;
  HostModel host;
};

/// A file's, or the program's own; `none` and `rules` are for none of it. What the file says of the
/// context goes into the card.
Result<Measured> ReadMeasured(const std::optional<std::string>& flag, Gpu& gpu);

}  // namespace plimsoll
