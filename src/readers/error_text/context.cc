#include "readers/error_text/context.h"

#include <algorithm>
#include <charconv>
#include <string>

#include "base/text.h"
#include "readers/error_text/aftermath.h"
#include "readers/error_text/line_prefix.h"
#include "readers/error_text/signs.h"

namespace plimsoll {
namespace {

constexpr std::size_t kReachBack = 32 * 1024;
constexpr std::size_t kReachAhead = 4 * 1024;
constexpr int kLinesAboveTraceback = 12;

std::optional<int> NumberAt(std::string_view text) {
  int value = 0;
  const auto [p, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0 || value > 1'000'000) return {};
  return value;
}

/// A number behind `key`, blanks and a colon or equals sign between: "rank      : 2".
std::optional<int> NumberBehind(std::string_view line, std::string_view key) {
  const std::size_t at = line.find(key);
  if (at == kNowhere) return {};
  std::string_view rest = line.substr(at + key.size());
  rest.remove_prefix(std::min(rest.size(), rest.find_first_not_of(" \t")));
  if (!rest.starts_with(':') && !rest.starts_with('=')) return {};
  rest.remove_prefix(1);
  rest.remove_prefix(std::min(rest.size(), rest.find_first_not_of(" \t")));
  return NumberAt(rest);
}

std::string_view TrimLeft(std::string_view line) {
  const std::size_t at = line.find_first_not_of(" \t");
  return at == kNowhere ? std::string_view() : line.substr(at);
}

/// The rank in a line of a launcher's report: "rank      : 2 (local_rank: 2)", "[rank: 2]",
/// "local_rank: 2 (pid: 99) of binary", "RANK=2".
std::optional<int> RankInReport(std::string_view line) {
  const std::string_view trimmed = TrimLeft(line);
  if (trimmed.starts_with("rank")) {
    if (auto rank = NumberBehind(trimmed.substr(0, 24), "rank")) return rank;
  }
  for (std::size_t at = line.find("RANK="); at != kNowhere; at = line.find("RANK=", at + 1)) {
    if (at == 0 || line[at - 1] == ' ') return NumberAt(line.substr(at + 5));
  }
  for (std::string_view key : {"[rank", "[Rank", "[RANK", "\"rank\""}) {
    if (auto rank = NumberBehind(line, key)) return rank;
  }
  return NumberBehind(line, "local_rank");
}

struct TracebackFrame {
  std::string_view file;
  std::string_view line;
  std::string_view function;
};

/// `File "train.py", line 57, in main`, and IPython's `File ~/train.py:57, in main(args)` and
/// `Cell In[9], line 23, in Net.forward(self, x)`.
std::optional<TracebackFrame> ReadFrame(std::string_view line) {
  const std::size_t cell = line.find("Cell In[");
  const std::size_t file = line.find("File ");
  if (cell == kNowhere && file == kNowhere) return {};
  std::string_view rest = line.substr(cell != kNowhere ? cell : file + 5);
  TracebackFrame frame;
  if (cell != kNowhere) {
    const std::size_t comma = rest.find(", line ");
    if (comma == kNowhere) return {};
    frame.file = rest.substr(0, comma);
    rest.remove_prefix(comma + 7);
  } else if (rest.starts_with('"')) {
    const std::size_t quote = rest.find("\", line ", 1);
    if (quote == kNowhere) return {};
    frame.file = rest.substr(1, quote - 1);
    rest.remove_prefix(quote + 8);
  } else {
    const std::size_t colon = rest.find(".py:");
    if (colon == kNowhere) return {};
    frame.file = rest.substr(0, colon + 3);
    rest.remove_prefix(colon + 4);
  }
  const std::size_t digits = rest.find_first_not_of("0123456789");
  frame.line = rest.substr(0, digits);
  if (frame.line.empty()) return {};
  rest.remove_prefix(frame.line.size());
  if (rest.starts_with(", in ")) {
    rest.remove_prefix(5);
    frame.function = rest.substr(0, rest.find_first_of(" (\r\n"));
  }
  return frame;
}

/// "forward" of "forward(self, x)", "<cell line: 3>" of "<cell line: 3>()".
std::string_view FunctionAt(std::string_view text) {
  if (text.starts_with('<')) return text.substr(0, text.find('>') + 1);
  return text.substr(0, text.find_first_of("( \r\n"));
}

/// Older IPython names the function first, `<ipython-input-9-1f> in forward(self, x)` or
/// `~/net.py in forward(self, x)`, and marks the line below it: `---> 23     x = self.c2(x)`.
std::optional<TracebackFrame> ReadOlderFrame(std::string_view line, std::string_view marked) {
  const std::size_t in = line.find(" in ");
  if (in == kNowhere || marked.empty()) return {};
  const TracebackFrame frame{
      .file = line.substr(0, in), .line = marked, .function = FunctionAt(line.substr(in + 4))};
  const bool file = frame.file.starts_with("<ipython-input-") || frame.file.ends_with(".py");
  if (!file || frame.file.find(' ') != kNowhere) return {};
  return frame;
}

/// The number in `---> 23     x = self.c2(x)`, else nothing.
std::string_view MarkedLine(std::string_view line) {
  const std::size_t arrow = line.find_first_not_of('-');
  if (arrow == 0 || arrow == kNowhere || line[arrow] != '>') return {};
  const std::string_view rest = TrimLeft(line.substr(arrow + 1));
  return rest.substr(0, std::min(rest.size(), rest.find_first_not_of("0123456789")));
}

/// Whether the file is the user's: not Python's own, not installed, not PyTorch.
bool IsUserCode(std::string_view file) {
  for (std::string_view foreign :
       {"site-packages", "dist-packages", "lib/python", "/torch/", "\\torch\\", "lib\\python"}) {
    if (file.find(foreign) != kNowhere) return false;
  }
  return !file.starts_with("<") || file.starts_with("<ipython-input-");
}

std::string Describe(const TracebackFrame& frame) {
  const std::size_t slash = frame.file.find_last_of("/\\");
  std::string out(slash == kNowhere ? frame.file : frame.file.substr(slash + 1));
  out.append(":").append(frame.line);
  if (!frame.function.empty()) out.append(" in ").append(frame.function);
  return out;
}

/// The length of the ANSI sequence at the beginning: "ESC [ 35 m".
std::size_t ColourLength(std::string_view text) {
  if (!text.starts_with("\x1b[")) return text.starts_with('\x1b') ? 1 : 0;
  const std::size_t end = text.substr(0, 32).find_first_not_of("0123456789;", 2);
  return end == kNowhere ? 2 : end + 1;
}

/// A copy with colours and the commonest escapes of JSON and HTML taken out, so that lines and
/// quotes can be told.
std::string Cleaned(std::string_view text) {
  const bool json = text.find("\\n") != kNowhere && text.find("\\\"") != kNowhere;
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    std::size_t length = ColourLength(text);
    if (length == 0 && text.front() == '\\' && json) {
      length = std::min(text.size(), text.find_first_not_of('\\'));
      const char escaped = length < text.size() ? text[length] : '\0';
      if (escaped == 'n' || escaped == '"') {
        out += escaped == 'n' ? '\n' : '"';
        ++length;
      } else {
        out.append(text.substr(0, length));
      }
    } else if (length == 0 && text.starts_with("&quot;")) {
      out += '"';
      length = 6;
    } else if (length == 0) {
      if (text.front() != '\r') out += text.front();
      length = 1;
    }
    text.remove_prefix(length);
  }
  return out;
}

/// What the walk up through the lines has found.
struct Found {
  std::string where;
  std::optional<int> rank;
  std::optional<int> device;
  Activity activity = Activity::kUnknown;
};

std::optional<int> DeviceInCode(std::string_view line) {
  const std::size_t at = line.find("cuda:");
  return at == kNowhere ? std::nullopt : NumberAt(line.substr(at + 5));
}

/// Lines from the last to the first, as far as the traceback and a little above it.
Found WalkUp(std::string_view lines, std::optional<int> rank) {
  Found found;
  std::string_view marked;  // the line that IPython's arrow names, seen before its frame
  int above = -1;           // lines above the traceback's title; -1: not yet there
  while (!lines.empty() && above < kLinesAboveTraceback) {
    const std::size_t cut = lines.rfind('\n');
    const std::string_view line = cut == kNowhere ? lines : lines.substr(cut + 1);
    lines = cut == kNowhere ? std::string_view() : lines.substr(0, cut);
    const LinePrefix prefix = ReadLinePrefix(line, {});
    if (rank && prefix.rank && *rank != *prefix.rank) continue;
    if (above >= 0) ++above;
    if (!found.rank) found.rank = prefix.rank ? prefix.rank : RankInReport(line);
    if (above >= 0) continue;
    if (!found.device) found.device = DeviceInCode(line);
    if (line.find("Traceback (most recent call last)") != kNowhere) above = 0;
    std::optional<TracebackFrame> frame = ReadFrame(line);
    if (!frame) frame = ReadOlderFrame(line.substr(prefix.length), marked);
    if (const std::string_view number = MarkedLine(line.substr(prefix.length)); !number.empty()) {
      marked = number;
    } else if (frame) {
      marked = {};
    }
    if (!frame) continue;
    found.activity = MoreTelling(found.activity, ActivityOf(frame->file, frame->function));
    if (found.where.empty() && IsUserCode(frame->file)) found.where = Describe(*frame);
  }
  return found;
}

/// Where to begin to look: a little above the traceback of this rank, if there is one in reach.
std::size_t BeginOfContext(std::string_view text, std::size_t floor, std::size_t begin,
                           std::optional<int> rank) {
  constexpr std::size_t kAbove = 1024;
  constexpr std::string_view kTitle = "Traceback (most recent call last)";
  const std::size_t lowest = std::max(floor, begin > kReachBack ? begin - kReachBack : 0);
  const std::string_view region = text.substr(lowest, begin - lowest);
  for (std::size_t at = region.rfind(kTitle); at != kNowhere && at > 0;
       at = region.rfind(kTitle, at - 1)) {
    const std::optional<int> other = RankOfLine(text, lowest + at);
    if (rank && other && *rank != *other) continue;
    return lowest + (at > kAbove ? at - kAbove : 0);
  }
  return lowest;
}

/// Loggers may print the error first and its traceback below it: that one's text, without the line
/// that repeats the error.
std::string_view TracebackBelow(std::string_view text, std::size_t end) {
  constexpr std::string_view kTitle = "Traceback (most recent call last)";
  constexpr std::size_t kDirectlyBelow = 600;
  constexpr std::size_t kLongest = 16 * 1024;
  const std::string_view below = text.substr(end, kLongest);
  const std::size_t title = below.substr(0, kDirectlyBelow).find(kTitle);
  if (title == kNowhere) return {};
  std::size_t at = below.find('\n', title);
  std::size_t last = title;
  while (at != kNowhere && at + 1 < below.size()) {
    const std::string_view line = below.substr(at + 1, below.find('\n', at + 1) - at - 1);
    const LinePrefix prefix = ReadLinePrefix(line, {});
    const bool frame = line.find("File ") != kNowhere || line.find("Cell In[") != kNowhere;
    // Source lines and arrows are indented; the exception's own line is not.
    if (!frame && prefix.length == 0 && !line.empty() && line.front() != ' ') break;
    last = at + 1 + line.size();
    at = below.find('\n', at + 1);
  }
  return below.substr(title, last - title);
}

/// The rank that the report gives the process: torchrun names a process by its local rank first,
/// and below by "rank : 9 (local_rank: 1)" with "exitcode : -9 (pid: 991)".
std::optional<int> RankOfProcess(std::string_view report, int pid) {
  std::optional<int> rank;
  while (!report.empty()) {
    const std::size_t cut = report.find('\n');
    const std::string_view line = report.substr(0, cut);
    if (const std::string_view trimmed = TrimLeft(line); trimmed.starts_with("rank")) {
      rank = NumberBehind(trimmed.substr(0, 24), "rank");
    } else if (rank && trimmed.starts_with("exitcode") && NumberBehind(line, "(pid") == pid) {
      return rank;
    }
    report.remove_prefix(cut == kNowhere ? report.size() : cut + 1);
  }
  return {};
}

/// The first rank that a launcher's report below the message names.
std::optional<int> RankBelow(std::string_view text, std::size_t end) {
  std::string_view lines = text.substr(end, kReachAhead);
  while (!lines.empty()) {
    const std::size_t cut = lines.find('\n');
    const std::string_view line = lines.substr(0, cut);
    if (line.find("Traceback (most recent") != kNowhere) return {};
    if (auto rank = RankInReport(line)) {
      const std::optional<int> pid = NumberBehind(line, "(pid");
      const std::optional<int> global = pid ? RankOfProcess(lines, *pid) : std::nullopt;
      return global ? global : rank;
    }
    lines.remove_prefix(cut == kNowhere ? lines.size() : cut + 1);
  }
  return {};
}

}  // namespace

std::optional<int> RankOfLine(std::string_view text, std::size_t offset) {
  constexpr std::size_t kLongestPrefix = 256;
  const std::size_t begin = LineBegin(text, offset);
  const std::size_t before = begin > 0 ? LineBegin(text, begin - 1) : 0;
  const std::optional<int> rank = ReadLinePrefix(Cleaned(text.substr(begin, kLongestPrefix)),
                                                 text.substr(before, begin - before))
                                      .rank;
  if (rank) return rank;
  // "ERROR train failed: [rank5]: torch.OutOfMemoryError: …": the nearest in front of the message.
  const std::string_view line = text.substr(begin, offset - begin);
  const std::size_t mark = line.rfind("[rank");
  if (mark == kNowhere) return {};
  const std::string_view behind = line.substr(mark + 5);
  const std::size_t digits = behind.find_first_not_of("0123456789");
  return digits != kNowhere && digits > 0 && behind[digits] == ']' ? NumberAt(behind)
                                                                   : std::nullopt;
}

void ReadContext(std::string_view text, std::size_t floor, std::size_t begin, std::size_t end,
                 OomMessage& message) {
  const std::size_t from = BeginOfContext(text, std::min(floor, begin), begin, message.rank);
  const std::string above = Cleaned(text.substr(from, begin - from));
  Found found = WalkUp(above, message.rank);
  if (found.where.empty()) {
    const Found below = WalkUp(Cleaned(TracebackBelow(text, end)), message.rank);
    found.where = below.where;
    found.activity = MoreTelling(found.activity, below.activity);
  }
  message.where = found.where;
  message.activity = MoreTelling(message.activity, found.activity);
  if (!message.rank) message.rank = found.rank ? found.rank : RankBelow(text, end);
  if (!message.device) message.device = found.device;
  ReadSigns(above, message);
  const std::size_t behind = std::min(text.size(), end + kReachAhead);
  ReadSigns(text.substr(begin, behind - begin), message);
  if (WentOn(text, begin, end, message)) {
    message.survived = true;
    message.signs.went_on = true;
  }
}

}  // namespace plimsoll
