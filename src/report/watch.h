// A sample of `plimsoll watch` as text, as JSON and for Prometheus. Nothing is computed here.
#pragma once

#include <string>

#include "report/format/style.h"
#include "watch/sample.h"

namespace plimsoll {

/// Lines for a terminal, with the time of day where several samples follow one another.
std::string WatchText(const WatchSample& sample, bool with_time, const TextStyle& style);
/// One line: a document of schema plimsoll.watch/1.
std::string WatchJson(const WatchSample& sample);
/// The text exposition format, version 0.0.4.
std::string WatchMetrics(const WatchSample& sample);

}  // namespace plimsoll
