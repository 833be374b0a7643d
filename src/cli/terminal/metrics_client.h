// Asks another machine for its metrics, by plain HTTP.
#pragma once

#include <string>

#include "base/result.h"

namespace plimsoll {

/// Where metrics are: http://host:port/path.
struct MetricsAddress {
  std::string host;
  std::string port = "80";
  std::string path = "/metrics";

  /// "node1:9835"
  std::string Name() const { return host + ":" + port; }
};

/// Of "http://node1:9835/metrics", or of "node1:9835" alone.
Result<MetricsAddress> ParseMetricsAddress(const std::string& text);

/// The body of the answer. Takes a few seconds and a few megabytes at most.
Result<std::string> FetchMetrics(const MetricsAddress& address);

/// The body of a whole answer, or what is wrong with it.
Result<std::string> BodyOf(const std::string& answer);

}  // namespace plimsoll
