// GET /metrics on this machine's loopback, for Prometheus; nothing else, and nothing from outside.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"

namespace plimsoll {

class MetricsServer {
 public:
  /// Begins to listen on 127.0.0.1; port 0 is one that is free. Answers from a thread of its own;
  /// no client waits for another.
  static Result<MetricsServer> Start(int port);
  ~MetricsServer();
  MetricsServer(MetricsServer&&) noexcept;
  MetricsServer& operator=(MetricsServer&&) = delete;

  int port() const;
  /// What is answered from now on.
  void Set(std::string text);

 private:
  struct State;
  explicit MetricsServer(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

/// The whole answer, head and body, to a request's head.
std::string AnswerTo(const std::string& request, const std::string& metrics);

}  // namespace plimsoll
