// The calibration that is part of the program: data/h200.calibration.zst, as bytes.
#pragma once

#include <string>

namespace plimsoll {

std::string CalibrationBytes();

}  // namespace plimsoll
