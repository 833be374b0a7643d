// The memory that a log tells, as text and as JSON.
#pragma once

#include "answer/log_report.h"
#include "files/json.h"
#include "report/format/writer.h"

namespace plimsoll {

void WriteLog(Writer& w, const LogReport& log);
/// The key "log" of plimsoll.explain/1.
Json LogJson(const LogReport& log);

}  // namespace plimsoll
