// What a job leaves behind step after step: in words, and for programs.
#pragma once

#include <string>

#include "job/answer/growth.h"
#include "report/format/range_json.h"

namespace plimsoll {

/// "each step leaves 8.00 MiB more allocated than the one before, made at train.py:63 and kept in
/// outs (train.py:64)".
std::string GrowthText(const Growth& growth);
Json GrowthJson(const Growth& growth);

}  // namespace plimsoll
