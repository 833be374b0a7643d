#include "files/json_visit.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "files/read_budget.h"

namespace plimsoll {
namespace {

/// No writer of these formats nests deeper than ten.
constexpr std::size_t kMostDepth = 128;
constexpr std::size_t kLongestReason = 120;

/// Walks over the bytes and keeps their position where the sink can see it: nlohmann's parser tells
/// it only in its own errors.
class Cursor {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  Cursor(const char* at, const char** seen) : at_(at), seen_(seen) {}
  reference operator*() const { return *at_; }
  Cursor& operator++() {
    *seen_ = ++at_;
    return *this;
  }
  friend bool operator==(const Cursor& a, const Cursor& b) { return a.at_ == b.at_; }

 private:
  const char* at_;
  const char** seen_;
};

/// "syntax error while parsing object key - unexpected end of input; expected string literal", from
/// what nlohmann's exception says: without its number and place, and without the text around.
std::string Reason(std::string_view what) {
  // "[json.exception.out_of_range.406] number overflow parsing '1e999'"
  if (what.starts_with('[')) what.remove_prefix(std::min(what.size(), what.find("] ") + 2));
  if (const auto colon = what.find(": "); colon != std::string_view::npos) {
    what.remove_prefix(colon + 2);
  }
  if (const auto dash = what.find(" - "); dash != std::string_view::npos) {
    what.remove_prefix(dash + 3);
  }
  what = what.substr(0, what.find("; last read"));
  return std::string(what.substr(0, kLongestReason));
}

/// Passes on what nlohmann's parser meets. The parser keeps one bit for each level and does not
/// recurse, so that a limit on the depth is a matter of taste, not of safety.
class Sink {
 public:
  using json = nlohmann::json;

  Sink(std::string_view text, JsonVisitor& visitor, const char* const* position)
      : text_(text), visitor_(visitor), position_(position) {}

  bool null() { return Pass({}); }
  bool boolean(bool value) {
    return Pass({.kind = JsonScalar::Kind::kBool, .integer = value ? 1 : 0});
  }
  bool number_integer(std::int64_t value) {
    return Pass({.kind = JsonScalar::Kind::kInteger, .integer = value});
  }
  bool number_unsigned(std::uint64_t value) {
    return Pass({.kind = JsonScalar::Kind::kUnsigned, .whole = value});
  }
  bool number_float(double value, const std::string&) {
    return Pass({.kind = JsonScalar::Kind::kReal, .real = value});
  }
  bool string(std::string& value) { return Pass({.kind = JsonScalar::Kind::kText, .text = value}); }
  bool binary(json::binary_t&) { return true; }  // JSON texts have none
  bool key(std::string& value) {
    visitor_.Key(value);
    return true;
  }
  bool start_object(std::size_t) { return Open(true); }
  bool start_array(std::size_t) { return Open(false); }
  bool end_object() { return Close(); }
  bool end_array() { return Close(); }

  bool parse_error(std::size_t position, const std::string&, const json::exception& why) {
    const std::size_t at = position > 0 ? position - 1 : 0;
    if (at >= text_.size()) {
      return Fail("the JSON ends too early", text_.size(),
                  "the program may have died while it wrote the file; copy or record it again");
    }
    return Fail(fmt::format("not valid JSON: {}", Reason(why.what())), at, "");
  }

  std::optional<Error> error;

 private:
  bool Pass(const JsonScalar& value) {
    visitor_.Scalar(value);
    return GoOn();
  }
  bool Open(bool object) {
    if (++depth_ > kMostDepth) {
      return Fail(fmt::format("the JSON is nested more than {} deep", kMostDepth), Here(), "");
    }
    visitor_.Open(object);
    return true;
  }
  bool Close() {
    --depth_;
    visitor_.Close();
    return GoOn();
  }
  bool GoOn() {
    if (!visitor_.Enough()) return true;
    const Error refusal = ReadBudget::Refusal();
    return Fail(refusal.message, Here(), refusal.hint);
  }
  std::size_t Here() const { return static_cast<std::size_t>(*position_ - text_.data()); }
  bool Fail(std::string message, std::size_t at, std::string hint) {
    error = Error{.message = std::move(message), .offset = at, .hint = std::move(hint)};
    return false;
  }

  std::string_view text_;
  JsonVisitor& visitor_;
  const char* const* position_;
  std::size_t depth_ = 0;
};

/// Whole numbers only, with nothing around them.
template <typename T>
std::optional<T> Parse(std::string_view text) {
  T value{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::optional<std::int64_t> JsonScalar::AsInteger() const {
  switch (kind) {
    case Kind::kBool:
    case Kind::kInteger:
      return integer;
    case Kind::kUnsigned:
      if (whole > static_cast<std::uint64_t>(INT64_MAX)) return std::nullopt;
      return static_cast<std::int64_t>(whole);
    case Kind::kReal:
      // Beyond 2^63 the conversion is undefined; NaN fails both comparisons.
      if (!(real > -9.2e18 && real < 9.2e18)) return std::nullopt;
      return static_cast<std::int64_t>(real);
    case Kind::kText:
      return Parse<std::int64_t>(text);
    case Kind::kNothing:
      break;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> JsonScalar::AsAddress() const {
  if (kind == Kind::kUnsigned) return whole;
  if (kind == Kind::kText) {
    if (const auto parsed = Parse<std::uint64_t>(text)) return parsed;
  }
  const std::optional<std::int64_t> value = AsInteger();
  if (!value) return std::nullopt;
  return static_cast<std::uint64_t>(*value);
}

std::optional<double> JsonScalar::AsReal() const {
  if (kind == Kind::kReal) return std::isfinite(real) ? std::optional(real) : std::nullopt;
  if (kind == Kind::kUnsigned) return static_cast<double>(whole);
  if (kind == Kind::kText) {
    const std::optional<double> parsed = Parse<double>(text);
    return parsed && std::isfinite(*parsed) ? parsed : std::nullopt;
  }
  const std::optional<std::int64_t> value = AsInteger();
  return value ? std::optional(static_cast<double>(*value)) : std::nullopt;
}

std::optional<Error> VisitJson(std::string_view text, JsonVisitor& visitor) {
  const char* position = text.data();
  Sink sink(text, visitor, &position);
  const bool fine = nlohmann::json::sax_parse(Cursor(text.data(), &position),
                                              Cursor(text.data() + text.size(), &position), &sink);
  if (sink.error) return sink.error;
  if (!fine) return Error{.message = "not valid JSON", .offset = 0};
  return std::nullopt;
}

std::optional<Error> VisitJson(const Input& input, JsonVisitor& visitor) {
  std::optional<Error> fault = VisitJson(input.bytes(), visitor);
  if (fault) fault->file = input.name();
  return fault;
}

}  // namespace plimsoll
