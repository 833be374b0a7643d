#include "readers/error_text/surroundings.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>

#include "readers/wordings/line_prefix.h"

namespace plimsoll {
namespace {

constexpr auto kNoPlace = std::string_view::npos;
/// Longer lines are read in pieces.
constexpr std::size_t kLongestLine = 16 << 10;
/// What is kept of a line: a message or a frame stands in front.
constexpr std::size_t kKeptOfLine = 600;
constexpr std::size_t kMostLines = 4096;

std::optional<int> NumberAt(std::string_view text) {
  int value = 0;
  const auto [p, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0 || value > 1'000'000) return {};
  return value;
}

std::string_view WithoutBlanks(std::string_view line) {
  const std::size_t at = line.find_first_not_of(" \t");
  return at == kNoPlace ? std::string_view() : line.substr(at);
}

/// The rank in a line of a launcher's report: "rank      : 2 (local_rank: 2)", "[rank: 2]",
/// "local_rank: 2 (pid: 99) of binary", "RANK=2".
std::optional<int> RankInReport(std::string_view line) {
  if (line.find("rank") == kNoPlace && line.find("RANK") == kNoPlace &&
      line.find("Rank") == kNoPlace) {
    return {};
  }
  const std::string_view trimmed = WithoutBlanks(line);
  if (trimmed.starts_with("rank")) {
    if (auto rank = NumberBehindKey(trimmed.substr(0, 24), "rank")) return rank;
  }
  for (std::size_t at = line.find("RANK="); at != kNoPlace; at = line.find("RANK=", at + 1)) {
    if (at == 0 || line[at - 1] == ' ') return NumberAt(line.substr(at + 5));
  }
  for (std::string_view key : {"[rank", "[Rank", "[RANK", "\"rank\""}) {
    if (auto rank = NumberBehindKey(line, key)) return rank;
  }
  return NumberBehindKey(line, "local_rank");
}

/// "forward" of "forward(self, x)" and of "forward<br>", "<cell line: 3>" of "<cell line: 3>()".
std::string_view FunctionAt(std::string_view text) {
  if (text.starts_with('<')) return text.substr(0, text.find('>') + 1);
  return text.substr(0, text.find_first_of("( <\r\n"));
}

/// `File "train.py", line 57, in main`, and IPython's `File ~/train.py:57, in main(args)` and
/// `Cell In[9], line 23, in Net.forward(self, x)`.
std::optional<TextFrame> ReadFrame(std::string_view line) {
  const std::size_t cell = line.find("Cell In[");
  const std::size_t file = line.find("File ");
  if (cell == kNoPlace && file == kNoPlace) return {};
  std::string_view rest = line.substr(cell != kNoPlace ? cell : file + 5);
  TextFrame frame;
  if (cell != kNoPlace) {
    const std::size_t comma = rest.find(", line ");
    if (comma == kNoPlace) return {};
    frame.file = rest.substr(0, comma);
    rest.remove_prefix(comma + 7);
  } else if (rest.starts_with('"')) {
    const std::size_t quote = rest.find("\", line ", 1);
    if (quote == kNoPlace) return {};
    frame.file = rest.substr(1, quote - 1);
    rest.remove_prefix(quote + 8);
  } else {
    const std::size_t colon = rest.find(".py:");
    if (colon == kNoPlace) return {};
    frame.file = rest.substr(0, colon + 3);
    rest.remove_prefix(colon + 4);
  }
  const std::size_t digits = rest.find_first_not_of("0123456789");
  frame.line = rest.substr(0, digits);
  if (frame.line.empty()) return {};
  rest.remove_prefix(frame.line.size());
  if (rest.starts_with(", in ")) {
    rest.remove_prefix(5);
    frame.function = FunctionAt(rest);
  }
  return frame;
}

/// The frame that rich draws: `│ /home/me/train.py:57 in main   │`.
std::optional<TextFrame> ReadRichFrame(std::string_view line) {
  const std::size_t colon = line.find(".py:");
  if (colon == kNoPlace) return {};
  const std::size_t digits = line.find_first_not_of("0123456789", colon + 4);
  if (digits == colon + 4 || digits == kNoPlace || !line.substr(digits).starts_with(" in "))
    return {};
  const std::size_t blank = line.find_last_of(" \t", colon);
  const std::size_t begin = blank == kNoPlace ? 0 : blank + 1;
  const std::string_view function = line.substr(digits + 4);
  return TextFrame{.file = std::string(line.substr(begin, colon + 3 - begin)),
                   .line = std::string(line.substr(colon + 4, digits - colon - 4)),
                   .function = std::string(function.substr(0, function.find_first_of(" (\r\n")))};
}

/// The number in `---> 23     x = self.c2(x)` and in rich's `❱ 23 │   x = self.c2(x)`, else
/// nothing.
std::string_view MarkedLine(std::string_view line) {
  constexpr std::string_view kRichArrow = "\xe2\x9d\xb1";
  if (const std::size_t rich = line.find(kRichArrow); rich != kNoPlace) {
    const std::string_view rest = WithoutBlanks(line.substr(rich + kRichArrow.size()));
    return rest.substr(0, std::min(rest.size(), rest.find_first_not_of("0123456789")));
  }
  const std::size_t arrow = line.find_first_not_of('-');
  if (arrow == 0 || arrow == kNoPlace || line[arrow] != '>') return {};
  const std::string_view rest = WithoutBlanks(line.substr(arrow + 1));
  return rest.substr(0, std::min(rest.size(), rest.find_first_not_of("0123456789")));
}

/// The number of a device: not "GPU 80GB", "GPU 3.5".
std::optional<int> DeviceAt(std::string_view text) {
  const std::size_t digits = std::min(text.size(), text.find_first_not_of("0123456789"));
  if (digits == 0 || digits > 2) return {};
  const char behind = digits < text.size() ? text[digits] : ' ';
  const bool decimal = behind == '.' && digits + 1 < text.size() && text[digits + 1] != ' ';
  if (decimal || behind == '%' || std::isalnum(static_cast<unsigned char>(behind))) return {};
  return NumberAt(text.substr(0, digits));
}

/// "cuda:3", "GPU 3", "GPU:3", "CUDA device 3", "device=3".
std::optional<int> DeviceInLine(std::string_view line) {
  for (std::string_view key :
       {"cuda:", "xpu:", "npu:", "hip:", "GPU ", "GPU:", "GPU #", "gpu ", "gpu:", "gpu=", "device ",
        "Device ", "device: ", "device=", "device_id="}) {
    for (std::size_t at = line.find(key); at != kNoPlace; at = line.find(key, at + 1)) {
      if (auto device = DeviceAt(line.substr(at + key.size()))) return device;
    }
  }
  return {};
}

std::optional<double> FractionBehind(std::string_view line, std::string_view key) {
  const std::size_t at = line.find(key);
  if (at == kNoPlace) return {};
  double value = 0;
  const char* const begin = line.data() + at + key.size();
  const auto [p, error] = std::from_chars(begin, line.data() + line.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

ServerFigures ReadServerFigures(std::string_view line) {
  ServerFigures figures;
  const bool utilization =
      line.find("memory_utilization") != kNoPlace || line.find("memory-utilization") != kNoPlace;
  if (utilization) {
    figures.total = FractionBehind(line, "total_gpu_memory (");
    for (std::string_view key :
         {"gpu_memory_utilization (", "gpu_memory_utilization=", "'gpu_memory_utilization': ",
          "--gpu-memory-utilization ", "--gpu-memory-utilization="}) {
      if (!figures.share) figures.share = FractionBehind(line, key);
    }
  }
  figures.cache = FractionBehind(line, "KV cache memory: ");
  return figures;
}

/// The length of the ANSI sequence at the beginning: "ESC [ 35 m".
std::size_t ColourLength(std::string_view text) {
  if (!text.starts_with("\x1b[")) return text.starts_with('\x1b') ? 1 : 0;
  const std::size_t end = text.substr(0, 32).find_first_not_of("0123456789;", 2);
  return end == kNoPlace ? 2 : end + 1;
}

/// A copy without colours, and with the commonest escapes of JSON and HTML decoded, so that quotes
/// can be told.
std::string Cleaned(std::string_view text, bool json) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    std::size_t length = ColourLength(text);
    if (length == 0 && text.front() == '\\' && json) {
      length = std::min(text.size(), text.find_first_not_of('\\'));
      if (length < text.size() && text[length] == '"') {
        out += '"';
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

/// Where the next line of a JSON string begins, and how long the escape in front of it is.
std::size_t EscapedLineEnd(std::string_view text, std::size_t& length) {
  for (std::size_t at = text.find('\\'); at != kNoPlace; at = text.find('\\', at)) {
    const std::size_t end = std::min(text.size(), text.find_first_not_of('\\', at));
    if (end < text.size() && text[end] == 'n') {
      length = end + 1 - at;
      return at;
    }
    at = end;
  }
  return kNoPlace;
}

}  // namespace

std::optional<int> NumberBehindKey(std::string_view line, std::string_view key) {
  const std::size_t at = line.find(key);
  if (at == kNoPlace) return {};
  std::string_view rest = WithoutBlanks(line.substr(at + key.size()));
  if (!rest.starts_with(':') && !rest.starts_with('=')) return {};
  return NumberAt(WithoutBlanks(rest.substr(1)));
}

void ServerFigures::Add(const ServerFigures& other) {
  if (!total) total = other.total;
  if (!share) share = other.share;
  if (!cache) cache = other.cache;
}

bool IsEscapedText(std::string_view line) {
  std::size_t length = 0;
  return line.find("\\\"") != kNoPlace && EscapedLineEnd(line, length) != kNoPlace;
}

std::string WithoutColours(std::string_view raw) { return Cleaned(raw, IsEscapedText(raw)); }

LogLine ReadLogLine(std::string_view raw, std::size_t begin, bool escaped) {
  LogLine line{.begin = begin,
               .end = begin + raw.size(),
               .text = Cleaned(raw.substr(0, kKeptOfLine), escaped)};
  const LinePrefix prefix = ReadLinePrefix(line.text, {});
  line.rank = prefix.rank;
  line.told_rank = RankInReport(line.text);
  // Another message speaks of its own device.
  const bool message =
      line.text.find("out of memory") != kNoPlace || line.text.find("total capacity") != kNoPlace;
  if (!message) line.device = DeviceInLine(line.text);
  line.title = line.text.find("Traceback (most recent call last)") != kNoPlace;
  line.frame = ReadFrame(line.text);
  if (!line.frame) line.frame = ReadRichFrame(line.text);
  line.server = ReadServerFigures(line.text);
  line.signs = SignsOf(raw);
  line.text.erase(0, prefix.length);
  line.marked = MarkedLine(line.text);
  return line;
}

std::optional<TextFrame> ReadOlderFrame(const LogLine& line, const std::string& marked) {
  const std::string_view text = line.text;
  const std::size_t in = text.find(" in ");
  if (in == kNoPlace || marked.empty()) return {};
  const std::string_view file = text.substr(0, in);
  const bool is_file = file.starts_with("<ipython-input-") || file.ends_with(".py");
  if (!is_file || file.find(' ') != kNoPlace) return {};
  return TextFrame{.file = std::string(file),
                   .line = marked,
                   .function = std::string(FunctionAt(text.substr(in + 4)))};
}

void Surroundings::ReadOn(const LogPart& part, std::size_t to) {
  const std::size_t end = part.offset + part.text.size();
  while (next_ < std::min(to, end)) {
    std::string_view rest = part.text.substr(next_ - part.offset, kLongestLine);
    const std::size_t newline = rest.find('\n');
    rest = rest.substr(0, newline);
    const std::size_t length = newline == kNoPlace ? rest.size() : newline + 1;
    const bool escaped = IsEscapedText(rest);
    std::size_t begin = next_;
    while (!rest.empty()) {
      std::size_t escape = 0;
      const std::size_t cut = escaped ? EscapedLineEnd(rest, escape) : kNoPlace;
      const std::string_view line = rest.substr(0, cut);
      if (!line.empty()) lines_.push_back(ReadLogLine(line, begin, escaped));
      const std::size_t used = cut == kNoPlace ? rest.size() : cut + escape;
      begin += used;
      rest.remove_prefix(used);
    }
    next_ += length;
  }
  while (lines_.size() > kMostLines) {
    lines_.pop_front();
    first_ = lines_.front().begin;
  }
}

Surroundings::Range Surroundings::Lines(const LogPart& part, std::size_t from, std::size_t to) {
  constexpr std::size_t kGap = 64 << 10;
  from = std::max({from, part.offset, first_});
  if (lines_.empty() || next_ < part.offset || from > next_ + kGap) {
    lines_.clear();
    first_ = next_ = part.offset + LineBegin(part.text, from - part.offset);
  }
  ReadOn(part, to);
  const auto before = [](const LogLine& line, std::size_t place) { return line.begin < place; };
  return {std::lower_bound(lines_.begin(), lines_.end(), from, before),
          std::lower_bound(lines_.begin(), lines_.end(), to, before)};
}

}  // namespace plimsoll
