#include "readers/error_text/prose.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <span>
#include <string>
#include <vector>

#include "base/text.h"

namespace plimsoll {
namespace {

using Words = std::vector<std::string_view>;

bool IsPartOfWord(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '\''; }

/// The words of a text in lower case, which must outlive them.
Words WordsOf(std::string_view text) {
  Words words;
  words.reserve(16);
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && IsPartOfWord(text[i])) continue;
    if (i > begin) words.push_back(text.substr(begin, i - begin));
    begin = i + 1;
  }
  return words;
}

/// "avoid*" also stands for "avoids".
bool IsAnyOf(std::string_view word, std::span<const std::string_view> wanted) {
  return std::any_of(wanted.begin(), wanted.end(), [&](std::string_view each) {
    if (!each.ends_with('*')) return word == each;
    return word.starts_with(each.substr(0, each.size() - 1));
  });
}

bool HasAnyOf(const Words& words, std::span<const std::string_view> wanted) {
  return std::any_of(words.begin(), words.end(),
                     [&](std::string_view word) { return IsAnyOf(word, wanted); });
}

constexpr auto kNegations = std::to_array<std::string_view>({"never", "no"});
// Somebody who tells what happened speaks of himself.
constexpr auto kFirstPerson =
    std::to_array<std::string_view>({"i", "i'm", "i've", "my", "me", "we", "we're", "our"});
constexpr auto kSecondPerson = std::to_array<std::string_view>({"you", "your", "users"});
constexpr auto kPreventing = std::to_array<std::string_view>(
    {"avoid*", "prevent*", "against", "help", "helps", "fix", "fixes", "solve*", "reduces",
     "reduce", "chance", "risk", "fixed", "bug"});
constexpr auto kConditions = std::to_array<std::string_view>(
    {"if", "when", "whenever", "whether", "unless", "may", "might", "will", "would", "could",
     "should", "can", "handl*", "retry", "retries"});
constexpr auto kRelative =
    std::to_array<std::string_view>({"that", "which", "who", "from", "without"});
constexpr auto kPresent = std::to_array<std::string_view>(
    {"run", "runs", "running", "go", "goes", "going", "gets", "fails", "dies", "crashes"});
constexpr auto kTopic = std::to_array<std::string_view>({"on", "upon", "about"});
// Inflected, so that "will fail with" stays talk; a reason is something that happened.
constexpr auto kHappened = std::to_array<std::string_view>(
    {"failed",     "fails", "failing",  "failure",  "crashed", "crashes", "crashing",
     "died",       "dies",  "killed",   "aborted",  "aborts",  "got",     "gets",
     "getting",    "threw", "throws",   "thrown",   "raised",  "stopped", "stops",
     "ended",      "ran",   "occurred", "happened", "says",    "saw",     "exited",
     "terminated", "after", "because",  "due",      "since"});
// What stands behind the words where a feature or a kind of error is named.
constexpr auto kNamed = std::to_array<std::string_view>(
    {"errors",  "exceptions", "issues",    "problems", "situations", "conditions",
     "handl*",  "protect*",   "guard*",    "killer",   "polic*",     "monitor*",
     "detect*", "callback*",  "observer*", "hook*",    "recover*",   "can",
     "may",     "might",      "usually",   "often"});

/// What a log, an interpreter or a compiler puts in front of an error.
bool HasErrorSign(std::string_view before) {
  for (std::string_view sign : {"Error", "ERROR", "error:", "error]", "Exception", "FATAL", "Fatal",
                                "fatal:", "CRITICAL", "panic", "terminate called", "what():"}) {
    if (Contains(before, sign)) return true;
  }
  return false;
}

/// A comparison with the message's words, as programs have it that catch the error: `if "out of
/// memory" in str(e)`. Only beside the words: a log in JSON has its source lines in the same line.
bool IsSourceCode(std::string_view before, std::string_view behind) {
  constexpr std::size_t kBeside = 24;
  behind = behind.substr(0, kBeside);
  before.remove_prefix(before.size() - std::min(before.size(), kBeside));
  return Contains(behind, " in str(") || Contains(behind, " in repr(") ||
         Contains(behind, " in e.args") || Contains(before, ".find(\"") ||
         Contains(before, ".contains(\"") || Contains(before, "match=\"");
}

/// Quoted in a call that would write or raise it: `raise RuntimeError("CUDA out of memory")`.
bool IsQuotedInCall(std::string_view before) {
  const std::size_t quote = before.find_last_of("\"'");
  if (quote == kNowhere || quote == 0 || before[quote - 1] != '(') return false;
  for (std::string_view call : {"raise ", "print(", ".info(", ".warning(", ".warn(", ".error(",
                                ".critical(", ".exception("}) {
    if (Contains(before, call)) return true;
  }
  return false;
}

/// "x = 3  # after CUDA out of memory", and a comment on a line of its own. A heading of Markdown
/// has a capital, and people who paste one speak of themselves.
bool IsComment(std::string_view before) {
  const std::size_t mark = before.rfind(" # ");
  if (mark == kNowhere || mark + 3 >= before.size()) return false;
  const std::string_view comment = before.substr(mark + 3);
  return comment.front() >= 'a' && comment.front() <= 'z' && !comment.starts_with("i ");
}

/// ".../cuda-out-of-memory".
bool IsInAddress(std::string_view before) {
  const std::size_t blank = before.find_last_of(" \t");
  return Contains(before.substr(blank == kNowhere ? 0 : blank + 1), "://");
}

/// "  --cpu-offload   keeps jobs from …": an option and what it is for.
bool IsOption(std::string_view line) {
  line.remove_prefix(std::min(line.size(), line.find_first_not_of(" \t")));
  if (line.size() < 4 || line[0] != '-') return false;
  return line[1] == '-' ? IsLetter(line[2])
                        : IsLetter(line[1]) && (line[2] == ' ' || line[2] == ',');
}

/// The part of the sentence in front of the words; a sentence may begin on the line above.
std::string_view ClauseBefore(std::string_view before) {
  std::size_t cut = before.rfind('\n');
  if (cut != kNowhere && cut + 1 < before.size() &&
      std::islower(static_cast<unsigned char>(before[cut + 1])) && cut > 0 &&
      !Contains(".:;!?\n", before.substr(cut - 1, 1))) {
    cut = before.rfind('\n', cut - 1);
  }
  before.remove_prefix(cut == kNowhere ? 0 : cut + 1);
  std::size_t begin = 0;
  for (std::size_t i = 0; i + 1 < before.size(); ++i) {
    const bool mark = Contains(",:;.!?|]", before.substr(i, 1)) && before[i + 1] == ' ';
    if (mark || before[i] == '(') begin = i + 1;
  }
  return before.substr(begin);
}

/// "jobs that run", "keeps it from running": of no particular event.
bool IsGeneral(const Words& clause) {
  for (std::size_t i = 0; i + 1 < clause.size(); ++i) {
    if (IsAnyOf(clause[i], kRelative) && IsAnyOf(clause[i + 1], kPresent)) return true;
  }
  return false;
}

bool IsHypothetical(const Words& clause) {
  for (std::size_t i = 0; i < clause.size(); ++i) {
    if (!IsAnyOf(clause[i], kConditions)) continue;
    // "could not", "would exceed" tell what happened.
    const std::string_view next = i + 1 < clause.size() ? clause[i + 1] : std::string_view();
    if (next != "not" && next != "exceed") return true;
  }
  return false;
}

}  // namespace

bool OnlySpeaksOfIt(std::string_view text, std::size_t begin, std::size_t end) {
  constexpr std::size_t kReach = 200;
  const std::size_t reach = std::min(begin, kReach);
  const std::string_view above = text.substr(begin - reach, reach);
  const std::string_view before = above.substr(above.rfind('\n') + 1);
  std::string_view behind = text.substr(end, kReach);
  behind = behind.substr(0, behind.find('\n'));
  if (IsSourceCode(before, behind) || IsQuotedInCall(before) || IsInAddress(before)) return true;
  if (HasErrorSign(before)) return false;
  if (IsOption(before) || IsComment(before)) return true;
  const std::string lower = Lower(ClauseBefore(above));
  const Words clause = WordsOf(lower);
  if (HasAnyOf(clause, kNegations)) return true;
  if (HasAnyOf(clause, kFirstPerson)) return false;
  if (HasAnyOf(clause, kPreventing) || IsGeneral(clause)) return true;
  const bool hypothetical = IsHypothetical(clause);
  if (hypothetical && HasAnyOf(clause, kSecondPerson)) return true;
  if (HasAnyOf(clause, kHappened)) return false;
  // "raise on out of memory", "about CUDA out of memory".
  const bool topic = !clause.empty() && IsAnyOf(clause.back(), kTopic);
  if (hypothetical || topic) return true;
  const std::string sentence = Lower(behind.substr(0, behind.find_first_of(".:;!?,")));
  const Words next = WordsOf(sentence);
  if (next.size() > 1 && next[0] == "is" && next[1] == "not") return true;
  return !next.empty() && (IsAnyOf(next[0], kNamed) ||
                           (next.size() > 1 && next[0] == "error" && IsAnyOf(next[1], kNamed)));
}

}  // namespace plimsoll
