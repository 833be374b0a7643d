#include "readers/wordings/line_prefix.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>

#include "base/text.h"

namespace plimsoll {
namespace {

constexpr std::size_t kLongestToken = 64;
constexpr std::size_t kLongestBracket = 120;

/// Fits `shape` to the beginning of the line: 0 is any digit, everything else stands for itself.
bool HasShape(std::string_view line, std::string_view shape) {
  if (line.size() < shape.size()) return false;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == '0' ? !IsDigit(line[i]) : line[i] != shape[i]) return false;
  }
  return true;
}

std::size_t CountDigits(std::string_view line) {
  std::size_t n = 0;
  while (n < line.size() && IsDigit(line[n])) ++n;
  return n;
}

std::optional<int> SmallNumber(std::string_view digits) {
  if (digits.empty() || digits.size() > 6 || CountDigits(digits) != digits.size()) return {};
  int value = 0;
  for (char c : digits) value = value * 10 + (c - '0');
  return value;
}

/// ",123", ".123456789Z", "+02:00" behind a time.
std::size_t TimeTail(std::string_view line, std::size_t at) {
  if (at < line.size() && (line[at] == '.' || line[at] == ',')) {
    at += 1 + CountDigits(line.substr(at + 1));
  }
  if (at < line.size() && line[at] == 'Z') return at + 1;
  const std::string_view zone = line.substr(at);
  if (HasShape(zone, "+00:00") || HasShape(zone, "-00:00")) return at + 6;
  return HasShape(zone, "+0000 ") || HasShape(zone, "-0000 ") ? at + 5 : at;
}

/// "2025-03-01 12:00:00,123", "2025-03-01T12:00:00.5Z", "2025/03/01 12:00:00", "12:00:00.5".
std::size_t TimeStamp(std::string_view line) {
  constexpr std::array<std::string_view, 5> kShapes = {"0000-00-00 00:00:00", "0000-00-00T00:00:00",
                                                       "0000/00/00 00:00:00", "00/00/00 00:00:00",
                                                       "00:00:00"};
  if (line.empty() || !IsDigit(line.front())) return 0;
  for (std::string_view shape : kShapes) {
    if (HasShape(line, shape)) return TimeTail(line, shape.size());
  }
  return 0;
}

/// The container runtime's "2025-03-01T12:00:00.5Z stderr F ".
std::size_t StreamName(std::string_view line) {
  for (std::string_view name : {" stderr F ", " stdout F ", " stderr P ", " stdout P "}) {
    if (line.starts_with(name)) return name.size();
  }
  return 0;
}

/// The system log's "Mar  1 12:00:00 node7 kernel: ".
std::size_t SystemLog(std::string_view line) {
  if (line.size() < 16 || !IsLetter(line[0]) || !IsLetter(line[2]) || line[3] != ' ') return 0;
  if (!IsDigit(line[5]) || !HasShape(line.substr(6), " 00:00:00 ")) return 0;
  const std::size_t end = line.substr(0, kLongestBracket).find(": ", 16);
  return end == std::string_view::npos ? 0 : end + 2;
}

/// Behind a time, journalctl's " node7 torchrun[4711]: ".
std::size_t JournalTag(std::string_view line) {
  const std::size_t host = line.starts_with(' ') ? line.find(' ', 1) : std::string_view::npos;
  if (host == std::string_view::npos || host > kLongestToken) return 0;
  const std::string_view tag = line.substr(host + 1, kLongestToken);
  const std::size_t open = tag.find_first_of("[ ");
  if (open == std::string_view::npos || open == 0 || tag[open] != '[') return 0;
  const std::size_t close = open + 1 + CountDigits(tag.substr(open + 1));
  return tag.substr(close).starts_with("]: ") ? host + 1 + close + 3 : 0;
}

/// loguru's "| INFO     | train:main:88 - " behind a time.
std::size_t Loguru(std::string_view line) {
  constexpr auto kLevels = std::to_array<std::string_view>(
      {"TRACE", "DEBUG", "INFO", "SUCCESS", "WARNING", "ERROR", "CRITICAL"});
  if (!line.starts_with("| ")) return 0;
  const std::string_view level = line.substr(2, line.find(' ', 2) - 2);
  if (std::ranges::find(kLevels, level) == kLevels.end()) return 0;
  const std::size_t bar = line.find_first_not_of(' ', 2 + level.size());
  if (bar == std::string_view::npos || !line.substr(bar).starts_with("| ")) return 0;
  const std::string_view where = line.substr(bar + 2, kLongestBracket);
  const std::size_t end = where.find(" - ");
  return end == std::string_view::npos || where.find(' ') != end ? 0 : bar + 2 + end + 3;
}

/// The rank in "rank3", "rank: 3", "Rank 3", "default3" (torchrun's --tee), if that is all.
std::optional<int> RankName(std::string_view inside) {
  // Most brackets are something else, and every line of a log is asked.
  const char first = inside.empty() ? '\0' : inside.front();
  if (first != 'r' && first != 'R' && first != 'd') return {};
  for (std::string_view name : {"rank", "Rank", "RANK", "default"}) {
    if (!inside.starts_with(name)) continue;
    inside.remove_prefix(name.size());
    while (!inside.empty() && (inside.front() == ' ' || inside.front() == ':')) {
      inside.remove_prefix(1);
    }
    return SmallNumber(inside);
  }
  return {};
}

bool IsLogBracket(std::string_view inside) {
  constexpr std::size_t kLongestLevel = 8;
  if (inside.empty()) return false;
  const char first = inside.front();
  if (IsDigit(first)) return TimeStamp(inside) != 0;
  if (first == 'p') return inside.starts_with("pod/");
  // glog's "[E301 12:00:00.5 ProcessGroupNCCL.cpp:123]", with or without the year's digit.
  const bool glog = first == 'I' || first == 'W' || first == 'E' || first == 'F';
  if (glog && inside.size() > 4 && IsDigit(inside[1]) && IsDigit(inside[2]) && IsDigit(inside[3])) {
    return true;
  }
  if (first < 'A' || first > 'Z' || inside.size() > kLongestLevel) return false;
  constexpr auto kLevels = std::to_array<std::string_view>(
      {"ERROR", "WARNING", "WARN", "INFO", "DEBUG", "CRITICAL", "FATAL"});
  return std::ranges::find(kLevels, inside) != kLevels.end();
}

/// The number behind `key` in `text`.
std::optional<int> IndexBehind(std::string_view text, std::string_view key) {
  const std::size_t at = text.find(key);
  if (at == std::string_view::npos) return {};
  const std::string_view rest = text.substr(at + key.size());
  return SmallNumber(rest.substr(0, CountDigits(rest)));
}

/// sglang's "2026-03-02 10:11:12 TP3"; where other dimensions are named too, TP alone is no rank.
std::optional<int> RankBehindTime(std::string_view inside) {
  const std::optional<int> rank = IndexBehind(inside, " TP");
  const bool others = rank && (Contains(inside, " DP") || Contains(inside, " PP"));
  return others ? std::nullopt : rank;
}

/// A group in brackets that is not part of a message: TensorFlow's "[32,1024]" must stay.
LinePrefix Bracket(std::string_view line) {
  const std::size_t end = line.substr(0, kLongestBracket).find(']');
  if (end == std::string_view::npos) return {};
  const std::string_view inside = line.substr(1, end - 1);
  const std::string_view rest = line.substr(end + 1);
  const std::size_t colon = rest.starts_with(':') ? 1 : 0;
  if (std::optional<int> rank = RankName(inside)) return {end + 1 + colon, rank};
  if (IsLogBracket(inside)) return {end + 1 + colon, RankBehindTime(inside)};
  // Open MPI's "[1,3]<stderr>:": job and rank.
  const std::size_t comma = inside.find(',');
  if (comma != std::string_view::npos && rest.starts_with("<std")) {
    const std::size_t mark = rest.find(">:");
    if (mark != std::string_view::npos && mark < 10) {
      return {end + 1 + mark + 2, SmallNumber(inside.substr(comma + 1))};
    }
  }
  return {};
}

/// Ray's "(RayTrainWorker pid=1234, ip=10.0.0.1) ", vLLM's "(VllmWorker rank=3 pid=1234) " and
/// "(Worker_TP3 pid=1234) "; where a pipeline is named too, TP alone is no rank.
LinePrefix Worker(std::string_view line) {
  const std::size_t end = line.substr(0, kLongestBracket).find(')');
  if (end == std::string_view::npos) return {};
  const std::string_view inside = line.substr(1, end - 1);
  if (inside.find("pid=") == std::string_view::npos) return {};
  std::optional<int> rank = IndexBehind(inside, "rank=");
  const bool pipeline = inside.find("PP") != std::string_view::npos;
  if (!rank && !pipeline) rank = IndexBehind(inside, "TP");
  return {end + 1, rank};
}

/// "node7: " or "trainer-1  | ", up to and with the mark. Names of exceptions have capitals and no
/// digit, those of hosts have not.
std::size_t HostName(std::string_view line) {
  std::size_t n = 0;
  bool digit = false;
  bool capital = false;
  while (n < line.size() && n < kLongestToken) {
    const auto c = static_cast<unsigned char>(line[n]);
    if (!std::isalnum(c) && c != '.' && c != '-' && c != '_') break;
    digit |= std::isdigit(c) != 0;
    capital |= std::isupper(c) != 0;
    ++n;
  }
  if (n < 2 || (capital && !digit)) return 0;
  if (line.substr(n).starts_with(": ")) return n + 2;
  while (n < line.size() && line[n] == ' ') ++n;
  return line.substr(n).starts_with("| ") ? n + 2 : 0;
}

/// "> ", "- ", "+ ", "# ", "• ", "&gt; ", and blanks.
std::size_t Markup(std::string_view line) {
  switch (line.front()) {
    case ' ':
    case '\t':
    case '>':
      return 1;
    case '&':
      return line.starts_with("&gt;") ? 4 : 0;
    case '\xe2':
      return line.starts_with("\xe2\x80\xa2") ? 3 : 0;
    case '-':
    case '+':
    case '#':
      return line.size() > 1 && line[1] == ' ' ? 2 : 0;
    default:
      return 0;
  }
}

/// One piece of the prefix; length 0 where there is none.
LinePrefix Piece(std::string_view line) {
  if (line.empty()) return {};
  if (std::size_t n = Markup(line)) return {n, {}};
  if (line.front() == '[') return Bracket(line);
  if (line.front() == '(') return Worker(line);
  if (line.front() == '|') return {Loguru(line), {}};
  if (IsLetter(line.front())) return {SystemLog(line), {}};
  if (!IsDigit(line.front())) return {};
  if (std::size_t n = TimeStamp(line)) {
    n += StreamName(line.substr(n));
    return {n + JournalTag(line.substr(n)), {}};
  }
  // srun --label's "3: ".
  const std::size_t digits = CountDigits(line);
  if (digits <= 5 && line.substr(digits).starts_with(": ") && line.size() > digits + 2) {
    return {digits + 2, SmallNumber(line.substr(0, digits))};
  }
  // The number of the line in front of another prefix, as grep -n and editors print it.
  if (digits <= 9 && line.substr(digits).starts_with(":[")) return {digits + 1, {}};
  return {};
}

}  // namespace

LinePrefix ReadLinePrefix(std::string_view line, std::string_view line_before) {
  line = line.substr(0, line.find('\n'));
  LinePrefix prefix;
  for (int pieces = 0; pieces < 12; ++pieces) {
    const LinePrefix piece = Piece(line.substr(prefix.length));
    if (piece.length == 0) break;
    prefix.length += piece.length;
    if (piece.rank) prefix.rank = piece.rank;
  }
  if (prefix.length == 0) {
    const std::size_t host = HostName(line);
    if (host != 0 && line_before.starts_with(line.substr(0, host))) {
      LinePrefix behind = ReadLinePrefix(line.substr(host), {});
      behind.length += host;
      return behind;
    }
  }
  return prefix;
}

std::size_t LineBegin(std::string_view text, std::size_t offset) {
  constexpr std::size_t kReach = 4096;
  const std::size_t floor = offset > kReach ? offset - kReach : 0;
  const void* end = memrchr(text.data() + floor, '\n', offset - floor);
  if (end == nullptr) return floor;
  return static_cast<std::size_t>(static_cast<const char*>(end) - text.data()) + 1;
}

}  // namespace plimsoll
