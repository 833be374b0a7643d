#pragma once

#include <span>
#include <string_view>

namespace plimsoll {

struct MeasuredConstant {
  std::string_view group, name;
  double value;
};

/// Written by lab/fit_step_time from tests/data/operators/*_h200.step.json.xz.
std::span<const MeasuredConstant> H200Times();

}  // namespace plimsoll
