#include "readers/log_lines/figure_line.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>

#include "base/text.h"
#include "readers/wordings/line_prefix.h"

namespace plimsoll {
namespace {

constexpr std::size_t kLongestPhase = 80;
/// So many fit into 64 bits; zeros behind the point count too.
constexpr int kMostDigits = 18;
/// No job has more processes.
constexpr double kMostFolded = 1e6;
/// How far from a line its progress bar and the line above are looked for.
constexpr std::size_t kNearLine = 600;
constexpr std::size_t kFarAbove = 8 << 10;

bool IsWordSign(char c) { return IsLetter(c) || IsDigit(c) || c == '_'; }

std::size_t SkipBlanks(std::string_view text, std::size_t at) {
  while (at < text.size() && (text[at] == ' ' || text[at] == '\t')) ++at;
  return at;
}

/// The length of what introduces a colour: ESC, or ESC as JSON and Python spell it.
std::size_t EscapeAt(std::string_view raw, std::size_t at) {
  if (raw[at] == '\x1b') return 1;
  if (raw[at] != '\\') return 0;
  for (std::string_view spelled : {"\\u001b", "\\u001B", "\\x1b", "\\033"}) {
    if (raw.substr(at).starts_with(spelled)) return spelled.size();
  }
  return 0;
}

/// Behind a colour whose "[" is at `at`; `at` where it is none.
std::size_t BehindColour(std::string_view raw, std::size_t at) {
  constexpr std::size_t kLongest = 32;
  if (at >= raw.size() || raw[at] != '[') return at;
  for (std::size_t i = at + 1; i < raw.size() && i < at + kLongest; ++i) {
    if (raw[i] >= '@' && raw[i] <= '~') return i + 1;
  }
  return raw.size();
}

/// "(WorkerDict pid=4711, ip=10.0.0.5)" in a prefix.
std::string_view ProcessIn(std::string_view prefix) {
  const std::size_t open = prefix.find('(');
  const std::size_t close = prefix.find(')', open == kNowhere ? 0 : open);
  if (open == kNowhere || close == kNowhere) return {};
  const std::string_view inside = prefix.substr(open + 1, close - open - 1);
  return Contains(inside, "pid=") ? inside : std::string_view();
}

/// Where the string that begins behind `from` ends, its quotation mark not counted.
std::size_t EndOfString(std::string_view raw, std::size_t from) {
  for (std::size_t at = raw.find('"', from); at != kNowhere; at = raw.find('"', at + 1)) {
    std::size_t slashes = 0;
    while (at - slashes > from && raw[at - slashes - 1] == '\\') ++slashes;
    if (slashes % 2 == 0) return at;
  }
  return kNowhere;
}

void TakeFolded(FigureLine& line) {
  constexpr std::string_view kFolded = "[repeated ";
  const std::size_t at = line.text.rfind(kFolded);
  if (at == kNowhere) return;
  const FigureLine rest{.text = line.text.substr(at + kFolded.size())};
  const std::optional<Printed> times = NumberAt(rest, 0);
  if (!times || !rest.text.substr(times->end).starts_with("x across")) return;
  if (times->value < 0 || times->value > kMostFolded) return;
  line.folded = static_cast<std::int64_t>(times->value);
  line.text = line.text.substr(0, at);
  while (line.text.ends_with(' ')) line.text.remove_suffix(1);
  line.complete = true;
}

}  // namespace

std::size_t BehindLast(std::string_view text, std::size_t from, std::size_t to, char sign) {
  const void* const found = memrchr(text.data() + from, sign, to - from);
  if (found == nullptr) return from;
  return static_cast<std::size_t>(static_cast<const char*>(found) - text.data()) + 1;
}

std::string_view MessageInJson(std::string_view raw, std::size_t place, bool& complete) {
  if (!raw.starts_with('{')) return raw;
  for (std::string_view key : {"\"log\":", "\"message\":", "\"msg\":"}) {
    const std::size_t at = raw.find(key);
    if (at == kNowhere) continue;
    const std::size_t quote = SkipBlanks(raw, at + key.size());
    if (quote >= raw.size() || raw[quote] != '"') continue;
    const std::size_t end = EndOfString(raw, quote + 1);
    const bool inside = place > quote && place < std::min(end, raw.size());
    if (key != "\"log\":" && !inside) continue;
    complete = end != kNowhere;
    std::string_view message = raw.substr(quote + 1, complete ? end - quote - 1 : kNowhere);
    while (message.ends_with("\\n")) message.remove_suffix(2);
    return message;
  }
  return raw;
}

void CleanLine(std::string_view raw, std::string& text) {
  text.clear();
  // Few lines have backslashes, and single signs are found fastest.
  const bool slashes = raw.find('\\') != kNowhere;
  std::size_t from = 0;
  while (from < raw.size()) {
    std::size_t at = raw.find('\x1b', from);
    if (slashes) at = std::min(at, raw.find('\\', from));
    if (at == kNowhere) at = raw.size();
    text.append(raw.substr(from, at - from));
    if (at == raw.size()) break;
    const std::size_t escape = EscapeAt(raw, at);
    if (escape > 0) {
      from = BehindColour(raw, at + escape);
      continue;
    }
    // \" of JSON is a quotation mark.
    if (at + 1 >= raw.size() || raw[at + 1] != '"') text += raw[at];
    from = at + 1;
  }
  std::size_t quote = text.find('"');
  for (; quote != kNowhere; quote = text.find('"', quote + 1)) text[quote] = '\'';
}

void TakePrefix(std::string_view above, FigureLine& line) {
  const LinePrefix prefix = ReadLinePrefix(line.text, above);
  line.rank = prefix.rank;
  if (!prefix.rank) line.process = ProcessIn(line.text.substr(0, prefix.length));
  line.text.remove_prefix(std::min(prefix.length, line.text.size()));
  if (line.text.ends_with("cluster]")) TakeFolded(line);
}

std::optional<Printed> NumberAt(const FigureLine& line, std::size_t at) {
  const std::string_view text = line.text;
  at = SkipBlanks(text, at);
  const std::size_t begin = at;
  bool negative = false;
  if (at < text.size() && (text[at] == '-' || text[at] == '+')) negative = text[at++] == '-';
  std::uint64_t digits = 0;
  int count = 0;
  int decimals = 0;
  bool point = false;
  const std::size_t first = at;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (IsDigit(c)) {
      if (count < kMostDigits && decimals < kMostDigits) {
        digits = digits * 10 + static_cast<std::uint64_t>(c - '0');
        if (digits > 0) ++count;
        if (point) ++decimals;
      } else if (!point) {
        return {};
      }
    } else if (c == '.' && !point && at + 1 < text.size() && IsDigit(text[at + 1])) {
      point = true;
    } else if (c == ',' && !point && at > first && at + 3 < text.size() && IsDigit(text[at + 1]) &&
               IsDigit(text[at + 2]) && IsDigit(text[at + 3]) &&
               (at + 4 >= text.size() || !IsDigit(text[at + 4]))) {
      continue;  // of thousands
    } else {
      break;
    }
  }
  if (at == first) return {};
  constexpr std::array<double, kMostDigits + 1> kPowers = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,
                                                           1e7,  1e8,  1e9,  1e10, 1e11, 1e12, 1e13,
                                                           1e14, 1e15, 1e16, 1e17, 1e18};
  Printed printed{.value = double(digits) / kPowers[static_cast<std::size_t>(decimals)],
                  .half = 0.5 / kPowers[static_cast<std::size_t>(decimals)],
                  .end = at};
  if (negative) printed.value = -printed.value;
  const bool exponent = at + 1 < text.size() && (text[at] == 'e' || text[at] == 'E') &&
                        (IsDigit(text[at + 1]) || text[at + 1] == '+' || text[at + 1] == '-');
  if (!exponent) return printed;
  double value = 0;
  const char* const from = text.data() + begin + (text[begin] == '+' ? 1 : 0);
  const auto [end, error] = std::from_chars(from, text.data() + text.size(), value);
  if (error != std::errc() || !std::isfinite(value)) return {};
  const double scale = printed.value != 0 ? std::abs(value / printed.value) : 1;
  return Printed{.value = value,
                 .half = printed.half * scale,
                 .end = static_cast<std::size_t>(end - text.data())};
}

std::optional<Printed> SizedAt(const FigureLine& line, std::size_t at, std::string_view unit) {
  std::optional<Printed> number = NumberAt(line, at);
  if (!number) return {};
  const std::string_view text = line.text;
  if (unit.empty()) {
    if (number->end == text.size()) return line.complete ? number : std::nullopt;
    const char next = text[number->end];
    const bool part = IsWordSign(next) || next == '%' ||
                      (next == '.' && number->end + 1 == text.size() && !line.complete);
    return part ? std::nullopt : number;
  }
  const std::size_t behind = SkipBlanks(text, number->end);
  if (!text.substr(behind).starts_with(unit)) return {};
  const std::size_t end = behind + unit.size();
  if (end < text.size() && IsLetter(unit.back()) && IsLetter(text[end])) return {};
  // "12.5 M" of a line that was cut may have been "12.5 MB": the same.
  number->end = end;
  return number;
}

std::optional<Printed> NumberBefore(const FigureLine& line, std::size_t end) {
  const std::string_view text = line.text;
  while (end > 0 && text[end - 1] == ' ') --end;
  std::size_t begin = end;
  while (begin > 0 &&
         (IsDigit(text[begin - 1]) || text[begin - 1] == '.' || text[begin - 1] == ',')) {
    --begin;
  }
  if (begin > 0 && text[begin - 1] == '-') --begin;
  const std::optional<Printed> number = NumberAt(line, begin);
  return number && number->end == end ? number : std::nullopt;
}

std::size_t FindKey(std::string_view text, std::string_view key, std::size_t from) {
  for (std::size_t at = text.find(key, from); at != kNowhere; at = text.find(key, at + 1)) {
    if (at == 0 || !IsWordSign(key.front()) || !IsWordSign(text[at - 1])) return at;
  }
  return kNowhere;
}

std::size_t LastBefore(std::string_view text, std::string_view key, std::size_t before) {
  // The last sign of a key is rarer in a line than its first letter.
  std::size_t end = std::min(before, text.size());
  while (end >= key.size()) {
    const void* const found = memrchr(text.data(), key.back(), end);
    if (found == nullptr) return kNowhere;
    const auto last = static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
    if (last + 1 < key.size()) return kNowhere;
    const std::size_t at = last + 1 - key.size();
    const bool word = at == 0 || !IsWordSign(text[at - 1]) || !IsWordSign(key.front());
    if (word && text.substr(at, key.size()) == key) return at;
    end = last;
  }
  return kNowhere;
}

std::optional<std::int64_t> CountBefore(const FigureLine& line, std::string_view key,
                                        std::size_t before) {
  for (std::size_t at = LastBefore(line.text, key, before); at != kNowhere;
       at = LastBefore(line.text, key, at)) {
    const std::optional<Printed> number = NumberAt(line, at + key.size());
    const bool cut = number && number->end == line.text.size() && !line.complete;
    if (number && !cut && number->value >= 0 && number->value < 1e15 &&
        number->value == std::floor(number->value)) {
      return static_cast<std::int64_t>(number->value);
    }
  }
  return {};
}

std::optional<std::int64_t> AnyStep(const FigureLine& line) {
  const std::string lower = Lower(line.text);
  FigureLine own = line;
  own.text = lower;
  for (std::string_view word : {"global_step", "step", "iteration", "iter", "it", "epoch"}) {
    for (std::size_t at = FindKey(lower, word); at != kNowhere;
         at = FindKey(lower, word, at + word.size())) {
      std::size_t behind = at + word.size();
      if (behind < lower.size() && lower[behind] == 's') continue;
      behind = lower.find_first_not_of(" :=[(#", behind);
      if (behind == kNowhere || behind > at + word.size() + 4 || !IsDigit(lower[behind])) continue;
      const std::optional<Printed> number = NumberAt(own, behind);
      if (!number || number->value != std::floor(number->value) || number->value > 1e15) continue;
      const bool cut = number->end == lower.size() && !line.complete;
      const bool unit =
          number->end < lower.size() && (IsLetter(lower[number->end]) || lower[number->end] == '%');
      if (!cut && !unit) return static_cast<std::int64_t>(number->value);
    }
  }
  return {};
}

namespace {

/// The number in front of the slash of a bar that begins in `text`: " 5%|▌    | 10/200 [00:31<".
std::optional<std::int64_t> BarIn(std::string_view text, bool last) {
  const auto find = [&](std::size_t from) {
    return last ? text.rfind("%|", from) : text.find("%|", from);
  };
  const std::size_t bar = find(last ? kNowhere : 0);
  if (bar == kNowhere) return {};
  const std::size_t bracket = text.find(" [", bar);
  const std::size_t slash = text.substr(0, bracket).rfind('/');
  if (bracket == kNowhere || slash == kNowhere || slash < bar) return {};
  std::size_t begin = slash;
  while (begin > bar && IsDigit(text[begin - 1])) --begin;
  const FigureLine number{.text = text.substr(begin, slash - begin)};
  const std::optional<Printed> count = NumberAt(number, 0);
  if (!count || count->end != number.text.size()) return {};
  return static_cast<std::int64_t>(count->value);
}

}  // namespace

std::optional<std::int64_t> StepOfBar(const FigureLine& line) {
  const std::size_t end = line.begin + line.raw.size();
  std::string_view below = line.part.substr(std::min(end, line.part.size()), kNearLine);
  // The bar, on the next line that is not empty.
  const std::size_t text = below.find_first_not_of(" \r\n\t");
  if (text != kNowhere) {
    below.remove_prefix(text);
    const std::optional<std::int64_t> step =
        BarIn(below.substr(0, below.find_first_of("\r\n")), false);
    if (step) return step;
  }
  const std::size_t from = line.begin > kNearLine ? line.begin - kNearLine : 0;
  // A print may begin in the middle of a bar's line.
  const std::size_t own = line.raw.find('{');
  const std::size_t to = line.begin + (own == kNowhere ? 0 : own);
  return BarIn(line.part.substr(from, to - from), true);
}

std::vector<std::string> LinesAbove(const FigureLine& line, std::size_t most) {
  std::vector<std::string> lines;
  std::size_t end = line.begin;
  const std::size_t floor = end > kFarAbove ? end - kFarAbove : 0;
  // Many short lines would be looked at by each other.
  const std::size_t most_seen = std::min<std::size_t>(64, 16 + line.raw.size());
  // What a progress bar rewrote is no line above.
  end = BehindLast(line.part, floor, end, '\n');
  std::string buffer;
  for (std::size_t seen = 0; end > floor && seen < most_seen && lines.size() < most; ++seen) {
    --end;  // the line end in front
    const std::size_t begin = BehindLast(line.part, floor, end, '\n');
    std::string_view raw = line.part.substr(begin, end - begin);
    while (raw.ends_with('\r')) raw.remove_suffix(1);
    const std::size_t rewritten = raw.rfind('\r');
    if (rewritten != kNowhere) raw.remove_prefix(rewritten + 1);
    FigureLine above;
    CleanLine(MessageInJson(raw, kNowhere, above.complete), buffer);
    above.text = buffer;
    TakePrefix({}, above);
    const bool same = above.rank == line.rank && above.process == line.process;
    if (same && !above.text.empty()) lines.emplace_back(above.text);
    end = begin;
  }
  return lines;
}

std::string_view LeadingWord(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  if (begin == kNowhere) return {};
  text.remove_prefix(begin);
  return text.substr(0, text.find_first_of(" \t\r"));
}

std::vector<std::string_view> WordsIn(std::string_view text) {
  std::vector<std::string_view> words;
  while (true) {
    const std::string_view word = LeadingWord(text);
    if (word.empty()) return words;
    words.push_back(word);
    text.remove_prefix(static_cast<std::size_t>(word.end() - text.begin()));
  }
}

std::string PhaseName(std::string_view text, std::optional<std::int64_t>& step) {
  std::string name;
  for (std::size_t i = 0; i < text.size() && name.size() < kLongestPhase; ++i) {
    const bool begins = IsDigit(text[i]) && (i == 0 || !IsWordSign(text[i - 1])) && i > 0;
    if (!begins) {
      name += text[i];
      continue;
    }
    const std::string before = Lower(text.substr(0, i));
    std::size_t word = before.find_last_not_of(" :=#[(");
    const std::string_view head =
        word == kNowhere ? std::string_view() : std::string_view(before).substr(0, word + 1);
    const bool counts = head.ends_with("step") || head.ends_with("iteration") ||
                        head.ends_with("iter") || head.ends_with("epoch") ||
                        head.ends_with("batch") || head.ends_with("attempt");
    std::size_t end = i;
    while (end < text.size() && IsDigit(text[end])) ++end;
    if (!counts || end - i > 12) {
      name += text.substr(i, end - i);
    } else {
      std::int64_t value = 0;
      std::from_chars(text.data() + i, text.data() + end, value);
      if (!step && !head.ends_with("attempt")) step = value;
      name += '#';
    }
    i = end - 1;
  }
  while (!name.empty() && (name.back() == ' ' || name.back() == ':' || name.back() == ',')) {
    name.pop_back();
  }
  return name;
}

}  // namespace plimsoll
