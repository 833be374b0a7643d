// Brings the messages of one log together: the same event is reported by the traceback, by a logger
// and by the launcher's error file, and each of them may have cut it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "timeline/message.h"

namespace plimsoll {

class MessageCollector {
 public:
  /// Beyond this many different texts, messages are only counted: no log of a real run has them,
  /// and a hostile one must not cost more.
  static constexpr std::size_t kMostTexts = 20'000;

  bool full() const { return seen_.size() >= kMostTexts; }
  void Add(OomMessage message);

  /// Messages in the order of the log, and what was left out, by reason.
  std::vector<OomMessage> Take();
  std::map<std::string, std::int64_t> skipped;

 private:
  bool Continues(OomMessage& message);
  void DropWitnesses();
  bool Repeats(OomMessage& message, std::size_t index);
  std::optional<std::size_t> FindRepeated(OomMessage& message);

  std::vector<OomMessage> kept_;
  std::optional<OomMessage> totals_;  // of a pool, in front of the error that they belong to
  std::unordered_map<std::string, std::size_t> seen_;  // every text to its place in kept_
  std::unordered_map<Bytes, std::vector<std::size_t>> by_request_;
};

}  // namespace plimsoll
