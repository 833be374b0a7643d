#include "files/json.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/printable.h"
#include "files/json_visit.h"

namespace plimsoll {
namespace {

const Json kNothing;

constexpr std::uint64_t kMostSigned = std::numeric_limits<std::int64_t>::max();

/// What a value owns is kept as the bits of a pointer, so that a value takes 16 bytes.
template <typename T>
std::uint64_t Owned(T value) {
  return reinterpret_cast<std::uintptr_t>(new T(std::move(value)));
}
template <typename T>
T& OwnedAt(std::uint64_t bits) {
  return *reinterpret_cast<T*>(static_cast<std::uintptr_t>(bits));
}

const Json* FindMember(std::span<const Json::Member> all, std::string_view key) {
  for (std::size_t i = all.size(); i-- > 0;) {
    if (all[i].first == key) return &all[i].second;
  }
  return nullptr;
}

}  // namespace

Json::Json(double value) : Json(Kind::kReal, std::bit_cast<std::uint64_t>(value)) {}

Json::Json(std::string value) : Json(Kind::kText, Owned(std::move(value))) {}

Json::Json(std::initializer_list<Json> parts) {
  bool named = true;
  for (const Json& part : parts) named = named && part.size() == 2 && part[0].is_text();
  if (named) {
    Members members;
    members.reserve(parts.size());
    for (const Json& part : parts) members.emplace_back(*part[0].text(), part[1]);
    bits_ = Owned(std::move(members));
  } else {
    bits_ = Owned(Items(parts));
  }
  kind_ = named ? Kind::kObject : Kind::kArray;
}

Json Json::array() { return Json(Kind::kArray, Owned(Items())); }

Json Json::object() { return Json(Kind::kObject, Owned(Members())); }

Json::Json(const Json& other) : kind_(other.kind_), bits_(other.bits_) {
  if (kind_ == Kind::kText) bits_ = Owned(OwnedAt<std::string>(bits_));
  if (kind_ == Kind::kArray) bits_ = Owned(OwnedAt<Items>(bits_));
  if (kind_ == Kind::kObject) bits_ = Owned(OwnedAt<Members>(bits_));
}

Json::~Json() {
  if (kind_ == Kind::kText) delete &OwnedAt<std::string>(bits_);
  if (kind_ == Kind::kArray) delete &OwnedAt<Items>(bits_);
  if (kind_ == Kind::kObject) delete &OwnedAt<Members>(bits_);
}

std::optional<bool> Json::boolean() const {
  return kind_ == Kind::kBool ? std::optional(bits_ != 0) : std::nullopt;
}

std::optional<std::int64_t> Json::integer() const {
  if (kind_ == Kind::kUnsigned && bits_ > kMostSigned) return std::nullopt;
  const bool integer = kind_ == Kind::kInteger || kind_ == Kind::kUnsigned;
  return integer ? std::optional(static_cast<std::int64_t>(bits_)) : std::nullopt;
}

std::optional<std::uint64_t> Json::whole() const {
  const bool positive = kind_ == Kind::kInteger && bits_ <= kMostSigned;
  return positive || kind_ == Kind::kUnsigned ? std::optional(bits_) : std::nullopt;
}

std::optional<double> Json::number() const {
  if (kind_ == Kind::kReal) return std::bit_cast<double>(bits_);
  if (const auto positive = whole()) return static_cast<double>(*positive);
  if (const auto negative = integer()) return static_cast<double>(*negative);
  return std::nullopt;
}

const std::string* Json::text() const {
  return kind_ == Kind::kText ? &OwnedAt<std::string>(bits_) : nullptr;
}

std::span<const Json> Json::items() const {
  return is_array() ? std::span<const Json>(OwnedAt<Items>(bits_)) : std::span<const Json>();
}
std::span<Json> Json::items() {
  return is_array() ? std::span(OwnedAt<Items>(bits_)) : std::span<Json>();
}

std::span<const Json::Member> Json::members() const {
  return is_object() ? std::span<const Member>(OwnedAt<Members>(bits_)) : std::span<const Member>();
}
std::span<Json::Member> Json::members() {
  return is_object() ? std::span(OwnedAt<Members>(bits_)) : std::span<Member>();
}

std::size_t Json::size() const { return is_object() ? members().size() : items().size(); }

bool Json::contains(std::string_view key) const { return FindMember(members(), key) != nullptr; }

const Json& Json::operator[](std::string_view key) const {
  const Json* const found = FindMember(members(), key);
  return found != nullptr ? *found : kNothing;
}

const Json& Json::operator[](std::size_t index) const {
  const std::span<const Json> all = items();
  return index < all.size() ? all[index] : kNothing;
}

void Json::push_back(Json value) {
  if (is_null()) *this = array();
  PLIMSOLL_CHECK(is_array());
  OwnedAt<Items>(bits_).push_back(std::move(value));
}

Json& Json::operator[](std::string_view key) {
  if (is_null()) *this = object();
  PLIMSOLL_CHECK(is_object());
  if (const Json* const found = FindMember(members(), key)) return const_cast<Json&>(*found);
  return Add(std::string(key), Json());
}

Json& Json::Add(std::string key, Json value) {
  PLIMSOLL_CHECK(is_object());
  return OwnedAt<Members>(bits_).emplace_back(std::move(key), std::move(value)).second;
}

bool operator==(const Json& a, const Json& b) {
  if (a.number() && b.number()) {
    return IsInteger(a) && IsInteger(b) ? a.integer() == b.integer() && a.whole() == b.whole()
                                        : a.number() == b.number();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Json::Kind::kText:
      return *a.text() == *b.text();
    case Json::Kind::kArray:
      return std::ranges::equal(a.items(), b.items());
    case Json::Kind::kObject:
      for (const auto& [key, value] : a.members()) {
        if (!b.contains(key) || b[key] != value) return false;
      }
      return a.size() == b.size();
    default:
      return a.boolean() == b.boolean();
  }
}

bool IsInteger(const Json& value) {
  return value.kind() == Json::Kind::kInteger || value.kind() == Json::Kind::kUnsigned;
}

std::string TextOr(const Json& value, std::string_view otherwise) {
  return value.is_text() ? *value.text() : std::string(otherwise);
}

namespace {

/// Writes a tree as text.
class JsonWriter {
 public:
  explicit JsonWriter(std::optional<int> indent) : indent_(indent) {}

  void Write(const Json& value) {
    switch (value.kind()) {
      case Json::Kind::kNull:
        out_ += "null";
        return;
      case Json::Kind::kBool:
        out_ += *value.boolean() ? "true" : "false";
        return;
      case Json::Kind::kInteger:
      case Json::Kind::kUnsigned:
        return value.whole() ? WriteNumber(*value.whole()) : WriteNumber(*value.integer());
      case Json::Kind::kReal:
        return WriteReal(*value.number());
      case Json::Kind::kText:
        return WriteText(*value.text());
      case Json::Kind::kArray:
        return WriteAll('[', value.items(), ']', [&](const Json& item) { Write(item); });
      case Json::Kind::kObject:
        return WriteAll('{', value.members(), '}', [&](const Json::Member& member) {
          WriteText(member.first);
          out_ += indent_ ? ": " : ":";
          Write(member.second);
        });
    }
  }
  std::string Take() { return std::move(out_); }

 private:
  template <typename T, typename Each>
  void WriteAll(char open, std::span<const T> parts, char close, const Each& each) {
    out_ += open;
    ++depth_;
    for (const T& part : parts) {
      if (&part != parts.data()) out_ += ',';
      BreakLine();
      each(part);
    }
    --depth_;
    if (!parts.empty()) BreakLine();
    out_ += close;
  }
  void BreakLine() {
    if (!indent_) return;
    out_ += '\n';
    out_.append(static_cast<std::size_t>(*indent_ * depth_), ' ');
  }

  template <typename T>
  void WriteNumber(T value) {
    std::array<char, 32> digits;
    out_.append(digits.data(), std::to_chars(digits.data(), digits.end(), value).ptr);
  }

  /// The shortest text that is this number; what JSON cannot say is null.
  void WriteReal(double value) {
    if (!std::isfinite(value)) {
      out_ += "null";
      return;
    }
    const std::size_t before = out_.size();
    const double size = std::abs(value);
    std::array<char, 64> digits;
    const auto form = size == 0 || (size >= 1e-4 && size < 1e15) ? std::chars_format::fixed
                                                                 : std::chars_format::scientific;
    out_.append(digits.data(), std::to_chars(digits.data(), digits.end(), value, form).ptr);
    // So that whoever reads it back has a real number again.
    if (out_.find_first_of(".e", before) == std::string::npos) out_ += ".0";
  }

  void WriteText(std::string_view text) {
    out_ += '"';
    while (!text.empty()) {
      const std::size_t plain = PlainLength(text);
      out_ += text.substr(0, plain);
      text.remove_prefix(plain);
      if (text.empty()) break;
      const std::size_t length = Utf8Length(text);
      if (length == 0) {
        out_ += "\xef\xbf\xbd";
      } else if (length == 1) {
        WriteCharacter(text[0]);
      } else {
        out_ += text.substr(0, length);
      }
      text.remove_prefix(length == 0 ? 1 : length);
    }
    out_ += '"';
  }

  /// How much of it stands in a document as it is; nearly all of nearly every text.
  static std::size_t PlainLength(std::string_view text) {
    std::size_t length = 0;
    const auto plain = [](unsigned char c) {
      return c >= 0x20 && c < 0x80 && c != '"' && c != '\\';
    };
    while (length < text.size() && plain(static_cast<unsigned char>(text[length]))) ++length;
    return length;
  }

  void WriteCharacter(char c) {
    constexpr std::string_view kNamed = "\"\\\b\f\n\r\t";
    constexpr std::string_view kNames = "\"\\bfnrt";
    if (const std::size_t at = kNamed.find(c); at != std::string_view::npos) {
      out_ += '\\';
      out_ += kNames[at];
    } else if (static_cast<unsigned char>(c) < 0x20) {
      constexpr std::string_view kHex = "0123456789abcdef";
      out_ += "\\u00";
      out_ += kHex[static_cast<unsigned char>(c) >> 4];
      out_ += kHex[static_cast<unsigned char>(c) & 15];
    } else {
      out_ += c;
    }
  }

  std::optional<int> indent_;
  int depth_ = 0;
  std::string out_;
};

/// Makes the tree of what a visit meets.
class TreeBuilder : public JsonVisitor {
 public:
  explicit TreeBuilder(ReadBudget* budget, JsonItems* items = nullptr)
      : budget_(budget), items_(items) {}

  void Open(bool object) override {
    Place(object ? Json::object() : Json::array(), kContainer);
    if (items_ != nullptr && IsAtPath()) handed_ = open_.size();
  }
  void Close() override {
    if (InList()) handed_ = 0;
    open_.pop_back();
    HandOver();
  }
  void Key(std::string_view key) override {
    key_ = key;
    Take(sizeof(Json::Member) + key.size());
  }
  void Scalar(const JsonScalar& value) override {
    switch (value.kind) {
      case JsonScalar::Kind::kNothing:
        return Place({}, 0);
      case JsonScalar::Kind::kBool:
        return Place(value.integer != 0, 0);
      case JsonScalar::Kind::kInteger:
        return Place(value.integer, 0);
      case JsonScalar::Kind::kUnsigned:
        return Place(value.whole, 0);
      case JsonScalar::Kind::kReal:
        return Place(value.real, 0);
      case JsonScalar::Kind::kText:
        return Place(value.text, sizeof(std::string) + value.text.size());
    }
  }
  bool Enough() const override { return budget_ != nullptr && budget_->spent(); }

  Json Take() { return std::move(root_); }

 private:
  static constexpr std::size_t kContainer = 48;

  void Take(std::size_t bytes) {
    if (budget_ != nullptr) budget_->Take(bytes);
  }
  void Place(Json value, std::size_t beside) {
    // Twice, since a list that grows takes up to that.
    if (InList()) before_item_ = budget_->left();
    Take(2 * sizeof(Json) + beside);
    const bool container = value.is_array() || value.is_object();
    Json* at = &root_;
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (InList()) {
      item_ = std::move(value);
      at = &item_;
    } else if (open_.back()->is_array()) {
      open_.back()->push_back(std::move(value));
      at = &open_.back()->items().back();
    } else {
      at = &open_.back()->Add(std::exchange(key_, {}), std::move(value));
    }
    if (container) {
      open_.push_back(at);
    } else {
      HandOver();
    }
  }

  /// Whether the last that was opened is a list whose items are handed over. What is open is the
  /// last part of what it lies in.
  bool IsAtPath() const {
    const std::span<const std::string_view> path = items_->path();
    if (open_.size() != path.size() + 1 || !open_.back()->is_array()) return false;
    for (std::size_t i = 0; i < path.size(); ++i) {
      const Json& above = *open_[i];
      if (above.is_array() ? path[i] != "*" : above.members().back().first != path[i]) return false;
    }
    return true;
  }
  /// Directly in a list whose items are handed over.
  bool InList() const { return handed_ != 0 && open_.size() == handed_; }
  /// The item that is now whole.
  void HandOver() {
    if (!InList() || budget_->spent()) return;
    const std::size_t held = before_item_ - budget_->left();
    if (items_->Take(root_, item_)) {
      budget_->Return(held);
    } else {
      open_.back()->push_back(std::move(item_));
    }
  }

  ReadBudget* budget_;
  JsonItems* items_;
  /// Of the list whose items are handed over: its depth (0 outside of any), its item that is being
  /// read, and what was left before that.
  std::size_t handed_ = 0;
  Json item_;
  std::size_t before_item_ = 0;
  Json root_;
  std::string key_;
  /// The containers that are not closed. Only the innermost grows, so that none of these moves.
  std::vector<Json*> open_;
};

Result<Json> Build(std::string_view text, ReadBudget* budget) {
  TreeBuilder builder(budget);
  if (std::optional<Error> fault = VisitJson(text, builder)) return *std::move(fault);
  return builder.Take();
}

}  // namespace

std::string WriteJson(const Json& value, std::optional<int> indent) {
  JsonWriter writer(indent);
  writer.Write(value);
  return writer.Take();
}

Result<Json> ReadJson(std::string_view text, ReadBudget& budget) { return Build(text, &budget); }

Result<Json> ReadJson(const Input& input) {
  ReadBudget budget(input);
  Result<Json> read = Build(input.bytes(), &budget);
  if (!read) read.error().file = input.name();
  return read;
}

Result<Json> ReadJson(const Input& input, ReadBudget& budget, JsonItems& items) {
  TreeBuilder builder(&budget, &items);
  if (std::optional<Error> fault = VisitJson(input, builder)) return *std::move(fault);
  return builder.Take();
}

Json ParseOwnJson(std::string_view text) {
  Result<Json> read = Build(text, nullptr);
  return read ? *std::move(read) : Json();
}

}  // namespace plimsoll
