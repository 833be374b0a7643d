// Where the parts of a tensor are while a job is divided among ranks, and what an operator makes of
// that: one rule a kind of operator, in dimensions, without a word about memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "job/file/job.h"

namespace plimsoll {

/// What is divided: heads, hidden features or words of the vocabulary by weights that are divided
/// (tensor parallelism); or positions of the sequence.
enum class Axis : std::uint8_t { kFeatures, kPositions };

struct Placement {
  enum class Kind : std::uint8_t {
    kWhole,    ///< the same on every rank
    kDivided,  ///< each rank has its part of one dimension
    kPartial,  ///< whole, but to be summed up over the ranks
  };
  Kind kind = Kind::kWhole;
  Axis axis = Axis::kFeatures;
  /// Of the view that it is said of.
  std::size_t dimension = 0;

  static Placement Whole() { return {}; }
  static Placement Partial() { return {.kind = Kind::kPartial}; }
  static Placement Divided(Axis axis, std::size_t dimension) {
    return {.kind = Kind::kDivided, .axis = axis, .dimension = dimension};
  }
  bool divided() const { return kind == Kind::kDivided; }
  bool On(Axis of) const { return divided() && axis == of; }
  bool operator==(const Placement&) const = default;
};

/// A tensor that an operator is given.
struct Operand {
  const LayoutRecord* layout = nullptr;
  Placement placement;
  /// The argument that it is, or is in, and its place in a list.
  std::size_t argument = 0;
  std::size_t member = 0;
};

/// What an operator needs of an operand before it can run.
struct Wish {
  enum class Kind : std::uint8_t {
    kNothing,
    kWhole,  ///< gathered
    kPart,   ///< its own part, copied out of the whole
    kSlice,  ///< the same without a copy
  };
  Kind kind = Kind::kNothing;
  std::size_t dimension = 0;
  Axis axis = Axis::kFeatures;
};

struct OperatorCall {
  std::string_view op;
  const CallRecord* record = nullptr;
  /// As ForEachArgument comes to them.
  std::vector<Operand> operands;
  std::vector<const LayoutRecord*> results;
  std::int64_t parts = 1;
};

struct Outcome {
  /// By operand.
  std::vector<Wish> wishes;
  /// By result.
  std::vector<Placement> results;
};

/// An error where no rule says what the operator does with parts.
Result<Outcome> OutcomeOf(const OperatorCall& call);

}  // namespace plimsoll
