// One pass over a JSON text that may be gigabytes, without building it in memory. Every JSON that
// is read comes through here, so that all have the same limits.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/result.h"
#include "files/input.h"

namespace plimsoll {

/// A JSON value that is neither an object nor an array. Writers disagree about numbers (integers,
/// floats, numbers in quotes), so it is asked for what is needed.
struct JsonScalar {
  enum class Kind : std::uint8_t { kNothing, kBool, kInteger, kUnsigned, kReal, kText };
  Kind kind = Kind::kNothing;
  std::int64_t integer = 0;    // kInteger; kBool: 0 or 1
  std::uint64_t whole = 0;     // kUnsigned
  double real = 0;             // kReal
  std::string_view text = {};  // kText; valid during the call only

  std::optional<std::int64_t> AsInteger() const;
  /// As AsInteger, and addresses over 2^63, whether printed as unsigned or as negative numbers.
  std::optional<std::uint64_t> AsAddress() const;
  /// A finite number.
  std::optional<double> AsReal() const;
};

class JsonVisitor {
 public:
  virtual ~JsonVisitor() = default;
  virtual void Open(bool object) = 0;
  virtual void Close() = 0;
  virtual void Key(std::string_view key) = 0;
  virtual void Scalar(const JsonScalar& value) = 0;
  /// Asked after each value: true ends the visit with a refusal (base/read_budget.h).
  virtual bool Enough() const { return false; }
};

/// Calls the visitor for everything in the text; the reason if that is not (all of) a JSON text, or
/// is nested more than 128 deep.
std::optional<Error> VisitJson(std::string_view text, JsonVisitor& visitor);
/// The same; the reason names the file.
std::optional<Error> VisitJson(const Input& input, JsonVisitor& visitor);

}  // namespace plimsoll
