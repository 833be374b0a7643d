#pragma once

#include <string_view>

#include "base/result.h"
#include "files/input.h"
#include "timeline/recording.h"

namespace plimsoll {

bool RecogniseNsys(std::string_view bytes);
Result<Recording> ReadNsys(const Input& input);

}  // namespace plimsoll
