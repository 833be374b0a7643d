#include "readers/wordings/flow.h"

#include <algorithm>
#include <cctype>

#include "readers/wordings/line_prefix.h"

namespace plimsoll {
namespace {

constexpr std::size_t kLongestPrefix = 256;
// A hostile log must not make every message walk to the end of the file.
constexpr int kMostForeignLines = 100;

struct Sequence {
  std::string_view bytes;
  int character;  // 0: left out
};
constexpr std::array<Sequence, 12> kEntities = {{{"&lt;br&gt;", 0},
                                                 {"&lt;br/&gt;", 0},
                                                 {"&lt;br /&gt;", 0},
                                                 {"&gt;", '>'},
                                                 {"&lt;", '<'},
                                                 {"&amp;", '&'},
                                                 {"&quot;", '"'},
                                                 {"&#39;", '\''},
                                                 {"&#x27;", '\''},
                                                 {"&apos;", '\''},
                                                 {"&#34;", '"'},
                                                 {"&nbsp;", 0}}};
constexpr std::array<Sequence, 13> kUnicode = {{{"\xc2\xa0", 0},         // no-break space
                                                {"\xc2\xad", 0},         // soft hyphen
                                                {"\xe2\x80\x8b", 0},     // zero width space
                                                {"\xe2\x80\xaf", 0},     // narrow no-break space
                                                {"\xe2\x80\x89", 0},     // thin space
                                                {"\xe2\x80\x98", '\''},  // curly quotes
                                                {"\xe2\x80\x99", '\''},  //
                                                {"\xe2\x80\x9c", '"'},   //
                                                {"\xe2\x80\x9d", '"'},   //
                                                {"\xe2\x94\x82", 0},    // the frame that rich draws
                                                {"\xef\xbb\xbf", 0},    // byte order mark
                                                {"\xe2\x80\xa6", '.'},  // an ellipsis
                                                {"\xe2\x94\x83", 0}}};

// Tags that format text. Other words in angle brackets are part of messages: "<stderr>:",
// "</torch_42>", "<Signals.SIGKILL: 9>".
constexpr std::array<std::string_view, 20> kTags = {
    "br", "p",   "b",  "i",  "em", "strong", "code",  "pre", "span", "div",
    "tt", "kbd", "li", "ul", "ol", "td",     "small", "hr",  "font", "blockquote"};

/// The length of a tag that formats text, else 0.
std::size_t TagLength(std::string_view text) {
  constexpr std::size_t kLongestTag = 200;
  std::size_t at = text.starts_with("</") ? 2 : 1;
  const std::size_t name = at;
  while (at < text.size() && at < 16 && std::isalpha(static_cast<unsigned char>(text[at]))) ++at;
  const std::string_view found = text.substr(name, at - name);
  if (std::find(kTags.begin(), kTags.end(), found) == kTags.end()) return 0;
  const char behind = at < text.size() ? text[at] : '\0';
  if (behind != '>' && behind != '/' && behind != ' ') return 0;
  const std::size_t end = text.substr(0, kLongestTag).find_first_of(">\n", at);
  return end == std::string_view::npos || text[end] != '>' ? 0 : end + 1;
}

std::optional<unsigned> Hex(std::string_view digits, std::size_t count) {
  if (digits.size() < count) return {};
  unsigned value = 0;
  for (char c : digits.substr(0, count)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return {};
    value = value * 16 + static_cast<unsigned>(digit);
  }
  return value;
}

}  // namespace

constexpr std::array<Flow::Kind, 256> Flow::MakeKinds() {
  std::array<Kind, 256> kinds{};
  for (char c : std::string_view(" \t\r\v\f*`")) kinds[static_cast<unsigned char>(c)] = Kind::kSkip;
  kinds[0] = Kind::kSkip;
  kinds['\n'] = Kind::kNewline;
  kinds[0x1b] = Kind::kEscape;
  kinds['&'] = Kind::kEntity;
  kinds['<'] = Kind::kTag;
  kinds['\\'] = Kind::kBackslash;
  kinds[0xc2] = kinds[0xe2] = kinds[0xef] = Kind::kUnicode;
  return kinds;
}
constinit const std::array<Flow::Kind, 256> Flow::kKinds = Flow::MakeKinds();

Flow::Flow(std::string_view text, std::size_t begin, std::optional<int> rank)
    : text_(text), position_(std::min(begin, text.size())), rank_(rank) {
  line_ = LineBegin(text, position_);
  if (position_ == 0) BeginLine();
}

void Flow::SkipBlanks() {
  while (position_ < text_.size()) {
    const auto c = static_cast<unsigned char>(text_[position_]);
    if (kKinds[c] == Kind::kPlain) return;
    const Flow before = *this;
    if (Special(c) == kEnd) continue;
    *this = before;
    return;
  }
}

void Flow::MoveTo(std::size_t position) {
  position_ = position;
  if (position_ < text_.size() && text_[position_] == '\n') line_ = LineBegin(text_, position);
}

int Flow::Special(unsigned char c) {
  switch (kKinds[c]) {
    case Kind::kNewline:
      ++position_;
      BeginLine();
      return kEnd;
    case Kind::kEscape:
      SkipColour(1);
      return kEnd;
    case Kind::kEntity:
      return Entity();
    case Kind::kTag:
      return Tag();
    case Kind::kBackslash:
      return Backslash();
    case Kind::kUnicode:
      return Unicode();
    default:
      ++position_;
      return kEnd;
  }
}

/// Consumes `length` bytes that stand for one character, or for none.
int Flow::Decoded(std::size_t length, int character) {
  offset_ = position_;
  position_ += length;
  return character == 0 ? kEnd : character;
}

int Flow::Entity() {
  for (const Sequence& entity : kEntities) {
    if (text_.substr(position_, entity.bytes.size()) == entity.bytes) {
      return Decoded(entity.bytes.size(), entity.character);
    }
  }
  return Decoded(1, '&');
}

int Flow::Tag() {
  const std::size_t length = TagLength(text_.substr(position_));
  return length > 0 ? Decoded(length, 0) : Decoded(1, '<');
}

int Flow::Unicode() {
  for (const Sequence& sequence : kUnicode) {
    if (text_.substr(position_, sequence.bytes.size()) == sequence.bytes) {
      return Decoded(sequence.bytes.size(), sequence.character);
    }
  }
  return Decoded(1, static_cast<unsigned char>(text_[position_]));
}

/// The escapes of JSON and of Python's repr: \n, \", \u001b[31m, \x1b[31m, \033[31m; in logs of
/// logs the backslashes are doubled.
int Flow::Backslash() {
  std::size_t slashes = 1;
  while (slashes < 8 && text_.substr(position_ + slashes).starts_with('\\')) ++slashes;
  const std::string_view rest = text_.substr(std::min(text_.size(), position_ + slashes));
  if (rest.starts_with('n')) {
    position_ += slashes + 1;
    BeginLine();
    return kEnd;
  }
  if (rest.starts_with('t') || rest.starts_with('r')) return Decoded(slashes + 1, 0);
  // Of JSON and of Markdown.
  constexpr std::string_view kEscaped = "\"'/_[]()#.-+!<>";
  if (!rest.empty() && kEscaped.find(rest.front()) != std::string_view::npos) {
    return Decoded(slashes + 1, rest.front());
  }
  if (rest.starts_with('*') || rest.starts_with('`')) return Decoded(slashes + 1, 0);
  if (rest.starts_with("033[")) {
    SkipColour(slashes + 3);
    return kEnd;
  }
  if (rest.starts_with('u')) {
    if (auto value = Hex(rest.substr(1), 4)) return CodePoint(*value, slashes + 5);
  }
  if (rest.starts_with('x')) {
    if (auto value = Hex(rest.substr(1), 2)) return CodePoint(*value, slashes + 3);
  }
  return Decoded(slashes, '\\');
}

int Flow::CodePoint(unsigned value, std::size_t length) {
  if (value == 0x1b) {
    SkipColour(length);
    return kEnd;
  }
  if (value == 0x2019 || value == 0x2018) return Decoded(length, '\'');
  if (value > ' ' && value < 0x7f) return Decoded(length, static_cast<int>(value));
  return Decoded(length, 0);
}

/// An ANSI sequence: "ESC [ 31 m", or "ESC ] … BEL" for links. `introducer` is the length of ESC
/// as it is written here.
void Flow::SkipColour(std::size_t introducer) {
  constexpr std::size_t kLongest = 256;
  const std::size_t limit = std::min(text_.size(), position_ + introducer + kLongest);
  std::size_t at = std::min(text_.size(), position_ + introducer);
  const char kind = at < limit ? text_[at] : '\0';
  position_ = at;
  if (kind != '[' && kind != ']') return;
  for (++at; at < limit; ++at) {
    const char c = text_[at];
    const bool last = kind == '[' ? (c >= '@' && c <= '~') : c == '\a' || c == '\\';
    if (last) {
      position_ = at + 1;
      return;
    }
    if (c == '\n') return;
  }
}

void Flow::BeginLine() {
  while (position_ < text_.size() && text_[position_] != '\n') {
    const std::string_view before = text_.substr(line_, kLongestPrefix);
    const bool first = position_ == 0;
    line_ = position_;
    const LinePrefix prefix = ReadLinePrefix(text_.substr(position_, kLongestPrefix),
                                             first ? std::string_view() : before);
    const bool foreign = rank_ && prefix.rank && *prefix.rank != *rank_;
    if (!foreign || ++foreign_lines_ > kMostForeignLines) {
      position_ += prefix.length;
      return;
    }
    const std::size_t end = text_.find('\n', position_);
    position_ = end == std::string_view::npos ? text_.size() : end + 1;
  }
}

}  // namespace plimsoll
