#pragma once

#include <string_view>

#include "base/input.h"
#include "base/result.h"
#include "timeline/recording.h"

namespace plimsoll {

bool RecogniseNsys(std::string_view bytes);
Result<Recording> ReadNsys(const Input& input);

}  // namespace plimsoll
