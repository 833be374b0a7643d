// A JSON document as a tree: what we write, and what we read of small files. A value is asked for
// what is needed and answers "nothing" where it is something else, so that a reader of foreign
// bytes needs no check before each question. The library that parses is seen by json_visit.cc
// alone: its header takes six seconds to compile in every file that includes it.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "files/read_budget.h"

namespace plimsoll {

class Json {
 public:
  enum class Kind : std::uint8_t {
    kNull,
    kBool,
    kInteger,   // negative, or made of a signed number
    kUnsigned,  // as parsed, where there is no sign
    kReal,
    kText,
    kArray,
    kObject
  };
  using Member = std::pair<std::string, Json>;

  Json() = default;
  Json(std::nullptr_t) {}
  template <std::integral T>
  Json(T value)
      : Json(std::same_as<T, bool>     ? Kind::kBool
             : std::signed_integral<T> ? Kind::kInteger
                                       : Kind::kUnsigned,
             static_cast<std::uint64_t>(value)) {}
  Json(double value);
  Json(std::string value);
  Json(std::string_view value) : Json(std::string(value)) {}
  Json(const char* value) : Json(std::string(value)) {}
  template <typename T>
  Json(const std::vector<T>& values) : Json(array()) {
    for (const T& value : values) push_back(Json(value));
  }
  /// As braces are written: an object where each part is a name and a value, else an array.
  Json(std::initializer_list<Json> parts);
  static Json array();
  static Json object();

  Json(const Json& other);
  Json(Json&& other) noexcept : kind_(other.kind_), bits_(other.bits_) {
    other.kind_ = Kind::kNull;
  }
  Json& operator=(Json other) noexcept {
    std::swap(kind_, other.kind_);
    std::swap(bits_, other.bits_);
    return *this;
  }
  ~Json();

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::kNull; }
  bool is_array() const { return kind_ == Kind::kArray; }
  bool is_object() const { return kind_ == Kind::kObject; }
  bool is_text() const { return kind_ == Kind::kText; }

  /// Each is nothing where the value is something else, or is larger than that.
  std::optional<bool> boolean() const;
  std::optional<std::int64_t> integer() const;
  /// An integer from 0 on.
  std::optional<std::uint64_t> whole() const;
  /// Any number.
  std::optional<double> number() const;
  const std::string* text() const;

  /// Of an array; none of anything else.
  std::span<const Json> items() const;
  std::span<Json> items();
  /// Of an object, in their order; none of anything else.
  std::span<const Member> members() const;
  std::span<Member> members();
  std::size_t size() const;
  bool empty() const { return size() == 0; }
  bool contains(std::string_view key) const;
  /// Null where there is no such part. Where an object has a name twice, the last counts.
  const Json& operator[](std::string_view key) const;
  const Json& operator[](std::size_t index) const;

  /// Null becomes an array, or an object.
  void push_back(Json value);
  Json& operator[](std::string_view key);
  /// At the end of an object that has no such name yet.
  Json& Add(std::string key, Json value);

  /// Numbers by their value, objects whatever their order.
  friend bool operator==(const Json& a, const Json& b);

 private:
  using Items = std::vector<Json>;
  using Members = std::vector<Member>;

  Json(Kind kind, std::uint64_t bits) : kind_(kind), bits_(bits) {}

  Kind kind_ = Kind::kNull;
  /// The number itself, or where its text, items or members are.
  std::uint64_t bits_ = 0;
};

/// Whatever its size: it may be larger than integer() can say.
bool IsInteger(const Json& value);
std::string TextOr(const Json& value, std::string_view otherwise);

/// On one line, or with so many blanks for each level. Bytes that are no UTF-8 become U+FFFD.
std::string WriteJson(const Json& value, std::optional<int> indent = {});
/// A foreign document; it may take so much memory as the budget has and is nested 128 deep at most.
Result<Json> ReadJson(std::string_view text, ReadBudget& budget);
Result<Json> ReadJson(const Input& input);

/// For lists that are nearly all of a document: each of their items is handed over when it has been
/// read. What is taken does not become a part of the tree, and its memory is given back.
class JsonItems {
 public:
  virtual ~JsonItems() = default;
  /// From the document to such a list: the names of members, and "*" for every item of an array.
  virtual std::span<const std::string_view> path() const = 0;
  /// `so_far` is the document up to the item: its last members, and theirs, lead to the list. True:
  /// the item is taken.
  virtual bool Take(const Json& so_far, const Json& item) = 0;
};
Result<Json> ReadJson(const Input& input, ReadBudget& budget, JsonItems& items);
/// What we wrote ourselves; null where it is no JSON.
Json ParseOwnJson(std::string_view text);

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

}  // namespace plimsoll
