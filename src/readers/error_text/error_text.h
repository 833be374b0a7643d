#pragma once

#include <string_view>

#include "base/input.h"
#include "base/result.h"
#include "timeline/recording.h"

namespace plimsoll {

bool RecogniseErrorText(std::string_view bytes);
Result<Recording> ReadErrorText(const Input& input);

}  // namespace plimsoll
