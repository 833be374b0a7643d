// The lines near messages, each taken apart once however many messages are near it: a log of many
// ranks has thousands of messages within the reach of one another.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include "readers/error_text/signs.h"

namespace plimsoll {

/// A part of a log, and where in the log it begins.
struct LogPart {
  std::string_view text;
  std::size_t offset = 0;
};

/// A frame of a traceback.
struct TextFrame {
  std::string file;
  std::string line;
  std::string function;
};

/// What vLLM's log says of the memory that it may use, in GiB and as a share: "total_gpu_memory
/// (79.15GiB) x gpu_memory_utilization (0.90)", "Available KV cache memory: -3.20 GiB".
struct ServerFigures {
  std::optional<double> total = {};
  std::optional<double> share = {};
  std::optional<double> cache = {};

  /// What is known already stays.
  void Add(const ServerFigures& other);
};

struct LogLine {
  /// In the log. A traceback inside a JSON string is as many lines as it has.
  std::size_t begin = 0;
  std::size_t end = 0;
  /// Without colours, escapes and what launchers put in front.
  std::string text;
  std::optional<int> rank = {};       // that the prefix names
  std::optional<int> told_rank = {};  // that a launcher's report names
  std::optional<int> device = {};
  bool title = false;  // "Traceback (most recent call last)"
  std::optional<TextFrame> frame = {};
  /// The number in IPython's `---> 23     x = self.c2(x)`.
  std::string marked = {};
  ServerFigures server = {};
  SignSet signs = {};
};

/// What a line tells by itself. `escaped`: it is of a JSON string, whose escapes are to be decoded.
LogLine ReadLogLine(std::string_view raw, std::size_t begin, bool escaped);
/// A copy without colours and escapes.
std::string WithoutColours(std::string_view raw);
/// Whether the line holds several lines of text, as JSON writes them.
bool IsEscapedText(std::string_view line);

/// A number behind `key`, blanks and a colon or equals sign between: "rank      : 2".
std::optional<int> NumberBehindKey(std::string_view line, std::string_view key);

/// Older IPython names the function first, `<ipython-input-9-1f> in forward(self, x)` or
/// `~/net.py in forward(self, x)`, and marks the line below it.
std::optional<TextFrame> ReadOlderFrame(const LogLine& line, const std::string& marked);

class Surroundings {
 public:
  using Iterator = std::deque<LogLine>::const_iterator;
  struct Range {
    Iterator first;
    Iterator last;
    Iterator begin() const { return first; }
    Iterator end() const { return last; }
  };

  /// The lines that begin in [from, to) of the log, as far as `part` has them. From call to call
  /// `from` grows.
  Range Lines(const LogPart& part, std::size_t from, std::size_t to);

 private:
  void ReadOn(const LogPart& part, std::size_t to);

  std::deque<LogLine> lines_;
  std::size_t first_ = 0;  // lines from here in the log …
  std::size_t next_ = 0;   // … to here have been read
};

}  // namespace plimsoll
