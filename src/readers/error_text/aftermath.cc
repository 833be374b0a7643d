#include "readers/error_text/aftermath.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>

#include "base/text.h"
#include "readers/wordings/line_prefix.h"

namespace plimsoll {
namespace {

constexpr std::size_t kAftermathReach = 2048;
constexpr std::size_t kSentenceReach = 400;

/// What programs write that catch the error.
constexpr auto kHandling = std::to_array<std::string_view>({"skipping batch",
                                                            "skipping this batch",
                                                            "skipping the batch",
                                                            "skipping step",
                                                            "skipping sample",
                                                            "skipping this",
                                                            "batch skipped",
                                                            "skipped batch",
                                                            "retrying",
                                                            "will retry",
                                                            "trying again",
                                                            "falling back",
                                                            "reducing batch size",
                                                            "reducing the batch size",
                                                            "decreasing batch size",
                                                            "lowering batch size",
                                                            "halving",
                                                            "batch size reduced",
                                                            "continuing with",
                                                            "continuing training",
                                                            "attempting to recover"});

/// Whether the word in front makes advice of it: "try reducing batch size".
bool IsAdvice(std::string_view before) {
  while (before.ends_with(' ') || before.ends_with('`')) before.remove_suffix(1);
  const std::size_t blank = before.find_last_of(" \n");
  const std::string_view word = blank == kNowhere ? before : before.substr(blank + 1);
  constexpr auto kAdvising = std::to_array<std::string_view>(
      {"try", "by", "consider", "or", "without", "suggest", "recommend", "please", "before", "if"});
  return std::find(kAdvising.begin(), kAdvising.end(), word) != kAdvising.end();
}

bool SaysSo(const std::string& behind) {
  return std::any_of(kHandling.begin(), kHandling.end(), [&](std::string_view words) {
    const std::size_t at = behind.find(words);
    return at != kNowhere && !IsAdvice(std::string_view(behind).substr(0, at));
  });
}

/// "| epoch 001 | loss 3.211 | step 813": the name of a step and a figure.
bool IsStep(std::string_view line) {
  const bool named = Contains(line, "loss");
  return named && line.find_first_of("0123456789") != kNowhere;
}

/// Whether the message is the text of an exception, as a traceback ends with it. Standard output is
/// written late: steps below it prove nothing.
bool IsRaised(std::string_view line) {
  return Contains(line, "Error: ") || Contains(line, "Exception: ");
}

}  // namespace

bool WentOn(std::string_view text, std::size_t begin, std::size_t end, const OomMessage& message) {
  if (message.survived || message.source == MessageSource::kHostMemory) return false;
  const std::size_t line_begin = LineBegin(text, begin);
  const std::string behind = Lower(text.substr(end, kAftermathReach));
  // The rest of its line, and the two below it.
  std::size_t near = 0;
  for (int lines = 0; lines < 3 && near != kNowhere; ++lines) near = behind.find('\n', near + 1);
  const std::string sentences = behind.substr(0, std::min(near, kSentenceReach));
  if (!Contains(sentences, "traceback (most recent") && SaysSo(sentences)) return true;
  if (message.rank || IsRaised(text.substr(line_begin, begin - line_begin))) return false;
  for (std::size_t at = behind.find('\n'); at != kNowhere; at = behind.find('\n', at + 1)) {
    const std::string_view line =
        std::string_view(behind).substr(at + 1, behind.find('\n', at + 1) - at - 1);
    if (Contains(line, "traceback (most recent") || Contains(line, "out of memory")) return false;
    if (IsStep(line)) return true;
  }
  return false;
}

}  // namespace plimsoll
