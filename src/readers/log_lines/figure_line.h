// One line of a log as its writer meant it, and what is read from it: numbers with their units,
// steps, ranks. A number that may have lost digits is none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"

namespace plimsoll {

/// A number as it was printed.
struct Printed {
  double value = 0;
  /// Half a unit of its last digit.
  double half = 0;
  /// Behind it, and behind its unit where that was asked for.
  std::size_t end = 0;
};

struct FigureLine {
  /// Without colours, with every quotation mark as ', without what launchers put in front.
  std::string_view text;
  /// As it stands in the log, and where in the part.
  std::string_view raw;
  std::size_t begin = 0;
  /// What stands above and below the line in the part.
  std::string_view part;
  std::optional<int> rank;
  /// Of a prefix that names a process: "WorkerDict pid=4711".
  std::string_view process;
  /// A line end follows: its last number is whole.
  bool complete = true;
  /// Behind a carriage return: a progress bar that rewrites itself.
  bool rewritten = false;
  /// "[repeated 7x across cluster]": lines of others that are lost.
  std::int64_t folded = 0;
};

/// Behind the last such sign in text[from, to); `from` where there is none.
std::size_t BehindLast(std::string_view text, std::size_t from, std::size_t to, char sign);

/// Of a line of JSON the message in it: Docker's {"log":"…\n","stream":"stdout",…}, or what loggers
/// call "message" or "msg" where `place` of the line is inside it. Any other line as it is.
/// `complete` is set to whether the message ends.
std::string_view MessageInJson(std::string_view raw, std::size_t place, bool& complete);
/// A copy without colours and with every quotation mark as '; `text` is overwritten.
void CleanLine(std::string_view raw, std::string& text);
/// Takes the prefix off `line.text`, and what Ray adds at the end; `above` is the line before.
void TakePrefix(std::string_view above, FigureLine& line);

/// The number at `at`, blanks in front of it left out: "71.90", "-3.2", "1,024.5", "2.1e+01".
std::optional<Printed> NumberAt(const FigureLine& line, std::size_t at);
/// The same with a unit behind it, with or without a blank. Without a unit the number must be
/// followed by something that cannot be a part of it.
std::optional<Printed> SizedAt(const FigureLine& line, std::size_t at, std::string_view unit);
/// The number that ends in front of `end`, blanks left out.
std::optional<Printed> NumberBefore(const FigureLine& line, std::size_t end);

/// Where `key` begins, not inside a longer word; at or behind `from`.
std::size_t FindKey(std::string_view text, std::string_view key, std::size_t from = 0);

/// Where the last `key` that ends in front of `before` begins, not inside a longer word.
std::size_t LastBefore(std::string_view text, std::string_view key,
                       std::size_t before = std::string_view::npos);
/// The whole number behind the last `key` in front of `before`: "step: 40", "global_step=16".
std::optional<std::int64_t> CountBefore(const FigureLine& line, std::string_view key,
                                        std::size_t before = std::string_view::npos);
/// A step in words that any program may use: "step 12", "iter=12", "Epoch: [3]", "it 12/500".
std::optional<std::int64_t> AnyStep(const FigureLine& line);
/// The step of the progress bar beside the line: the one below it, which is drawn anew when a line
/// was printed, else the last one above.
std::optional<std::int64_t> StepOfBar(const FigureLine& line);

/// The lines near above that have the same prefix of rank and process, the nearest first; cleaned,
/// without their prefixes.
std::vector<std::string> LinesAbove(const FigureLine& line, std::size_t most);

/// What stands between blanks.
std::string_view LeadingWord(std::string_view text);
std::vector<std::string_view> WordsIn(std::string_view text);

/// A phase without the number of its step, which is the point's own: "step 12 after forward"
/// becomes "step # after forward".
std::string PhaseName(std::string_view text, std::optional<std::int64_t>& step);

}  // namespace plimsoll
