#include "readers/wordings/scanner.h"

#include <array>
#include <charconv>
#include <cmath>

namespace plimsoll {
namespace {

constexpr Bytes kTiB = 1024 * kGiB;

struct UnitName {
  std::string_view text;
  Bytes bytes;
};
// The longest first: with the blanks gone, nothing ends a unit but its own last letter. Everybody
// who writes GB here means 2^30.
constexpr std::array<UnitName, 19> kUnits = {{{"bytes", 1},
                                              {"Bytes", 1},
                                              {"byte", 1},
                                              {"KiB", kKiB},
                                              {"MiB", kMiB},
                                              {"GiB", kGiB},
                                              {"TiB", kTiB},
                                              {"PiB", 1024 * kTiB},
                                              {"EiB", 1024 * 1024 * kTiB},
                                              {"KB", kKiB},
                                              {"kB", kKiB},
                                              {"MB", kMiB},
                                              {"GB", kGiB},
                                              {"TB", kTiB},
                                              {"K", kKiB},
                                              {"M", kMiB},
                                              {"G", kGiB},
                                              {"T", kTiB},
                                              {"B", 1}}};

// Half of 2^63: sums of two such sizes are still safe.
constexpr double kBeyondReason = 4.6e18;

bool IsDigit(int c) { return c >= '0' && c <= '9'; }
int Folded(int c) { return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c; }

/// Digits with at most one point, to bytes; exact where there is no point.
std::optional<Bytes> ToBytes(const std::string& digits, Bytes factor) {
  const char* end = digits.data() + digits.size();
  std::int64_t whole = 0;
  if (auto [p, error] = std::from_chars(digits.data(), end, whole);
      p == end && error == std::errc()) {
    if (static_cast<double>(whole) * static_cast<double>(factor) >= kBeyondReason) return {};
    return whole * factor;
  }
  double value = 0;
  if (auto [p, error] = std::from_chars(digits.data(), end, value); error != std::errc()) return {};
  value *= static_cast<double>(factor);
  if (!(value < kBeyondReason)) return {};
  return static_cast<Bytes>(std::llround(value));
}

/// Where the fraction of a number begins, if it has one. A point begins it, and so does a comma
/// behind which there are not three digits; where both stand, the last one does.
std::size_t DecimalMark(std::string_view written) {
  const std::size_t last = written.find_last_of(".,");
  if (last == std::string_view::npos) return last;
  const std::size_t first = written.find_first_of(".,");
  const bool same = written[first] == written[last];
  // "25.600.000" has no fraction.
  if (first != last && same) return std::string_view::npos;
  if (first != last || written[last] == '.') return last;
  return written.size() - last - 1 == 3 ? std::string_view::npos : last;
}

std::string Normalised(std::string_view written) {
  const std::size_t mark = DecimalMark(written);
  std::string digits;
  for (std::size_t i = 0; i < written.size(); ++i) {
    if (i == mark) {
      digits += '.';
    } else if (IsDigit(written[i])) {
      digits += written[i];
    }
  }
  return digits;
}

}  // namespace

Flow Scanner::Probe() const {
  if (probed_from_ != flow_.position()) {
    probe_ = flow_;
    probe_.SkipBlanks();
    probed_from_ = flow_.position();
  }
  return probe_;
}

bool Scanner::Literal(std::string_view phrase) {
  Flow probe = Probe();
  for (char want : phrase) {
    if (Flow::IsNoise(want)) continue;
    const int got = probe.Next();
    if (got == Flow::kEnd) ended_ = true;
    if (Folded(got) != Folded(static_cast<unsigned char>(want))) return false;
  }
  flow_ = probe;
  return true;
}

bool Scanner::AnyOf(std::initializer_list<std::string_view> phrases) {
  for (std::string_view phrase : phrases) {
    if (Literal(phrase)) return true;
  }
  return false;
}

/// Units are told by their case: "1.5 g" is no size.
bool Scanner::Exactly(std::string_view unit) {
  Flow probe = Probe();
  for (char want : unit) {
    const int got = probe.Next();
    if (got == Flow::kEnd) ended_ = true;
    if (got != static_cast<unsigned char>(want)) return false;
  }
  flow_ = probe;
  return true;
}

bool Scanner::Skip() { return flow_.Next() != Flow::kEnd; }

bool Scanner::AtLineEnd() const {
  constexpr std::string_view kMarks = " \t\r.!\"'`*)";
  const std::size_t at = text_.find_first_not_of(kMarks, flow_.position());
  if (at == std::string_view::npos || text_[at] == '\n') return true;
  const std::string_view rest = text_.substr(at);
  return rest.starts_with("\\n") || rest.starts_with('<') || rest.starts_with("&lt;");
}

bool Scanner::SkipPast(std::string_view phrase, std::size_t reach) {
  const Flow start = flow_;
  for (std::size_t i = 0; i <= reach; ++i) {
    const Flow here = flow_;
    const int c = flow_.Next();
    if (c == Flow::kEnd) {
      ended_ = true;
      break;
    }
    if (Folded(c) != Folded(static_cast<unsigned char>(phrase.front()))) continue;
    const Flow next = flow_;
    flow_ = here;
    if (Literal(phrase)) return true;
    flow_ = next;
  }
  flow_ = start;
  return false;
}

bool Scanner::Unit(Bytes& factor) {
  for (const UnitName& unit : kUnits) {
    if (Exactly(unit.text)) {
      factor = unit.bytes;
      return true;
    }
  }
  return false;
}

/// Digits with at most one point, as from_chars reads them. What stands between digits may group
/// them or be the decimal mark of another country: "25,600,000", "1,50", "1.234,56".
std::string Scanner::Number() {
  constexpr std::size_t kLongestNumber = 40;
  std::string written;
  int c = Peek();
  for (; written.size() < kLongestNumber; c = Peek()) {
    const bool mark = (c == '.' || c == ',') && !written.empty();
    if (mark) {
      Flow probe = flow_;
      probe.Next();
      if (!IsDigit(probe.Next())) break;
    } else if (!IsDigit(c)) {
      break;
    }
    written += static_cast<char>(flow_.Next());
  }
  if (c == Flow::kEnd) ended_ = true;
  return Normalised(written);
}

bool Scanner::Size(std::optional<Bytes>& size) {
  const Flow start = flow_;
  const std::string digits = Number();
  const bool ended_before = ended_;
  Bytes factor = 1;
  if (digits.empty() || !Unit(factor)) {
    flow_ = start;
    return false;
  }
  // "GiB" was tried before "G": that it failed at the end of the text says nothing if "G" fits.
  ended_ = ended_before;
  size = ToBytes(digits, factor);
  return true;
}

std::optional<std::int64_t> Scanner::Integer() {
  constexpr std::size_t kLongestNumber = 19;
  const Flow start = flow_;
  std::uint64_t value = 0;  // 19 digits fit
  std::size_t digits = 0;
  int c = Peek();
  for (; IsDigit(c) && digits < kLongestNumber; c = Peek(), ++digits) {
    value = value * 10 + static_cast<std::uint64_t>(flow_.Next() - '0');
  }
  if (c == Flow::kEnd) ended_ = true;
  const bool doubtful = c == Flow::kEnd && flow_.exhausted();
  const bool beyond = static_cast<double>(value) >= kBeyondReason;
  if (digits == 0 || IsDigit(c) || doubtful || beyond) {
    flow_ = start;
    return {};
  }
  return static_cast<std::int64_t>(value);
}

std::string Scanner::Until(std::string_view stops, std::size_t most) {
  std::string out;
  while (out.size() < most) {
    const int c = Peek();
    if (c == Flow::kEnd) {
      ended_ = true;
      break;
    }
    if (stops.find(static_cast<char>(c)) != std::string_view::npos) break;
    out += static_cast<char>(flow_.Next());
  }
  return out;
}

}  // namespace plimsoll
