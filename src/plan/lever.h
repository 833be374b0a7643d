// A lever: something about a job that can be set otherwise. One file each in src/plan/levers, one
// line in the table of lever.cc; the search, the texts and JSON know levers by this alone.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plan/choice.h"
#include "step/transforms/changes.h"

namespace plimsoll {

/// What becomes of the results.
enum class Numerics : std::uint8_t {
  kSame,
  /// The same computation, rounded otherwise.
  kRounding,
  /// Another computation: other results are to be expected.
  kOther,
};
std::string_view NumericsName(Numerics numerics);

struct PlanLever {
  /// In JSON: "checkpointing".
  std::string_view name;
  Numerics (*numerics)(const PlanJob& job) = nullptr;
  /// The same choice with this lever set in each way that makes sense, other than as it is. Empty
  /// for those that the search sets itself (batch, passes, blocks).
  std::vector<Choice> (*settings)(const PlanJob& job, const Choice& choice);
  /// Whether it is set otherwise than in the job as it was captured.
  bool (*is_used)(const Choice& choice, const Choice& captured);
  /// A few words for a table: "fused optimizer".
  std::string (*describe)(const PlanJob& job, const Choice& choice);
  /// The lines to type.
  std::vector<std::string> (*code)(const PlanJob& job, const Choice& choice);
  /// How the step, or what it is predicted with, becomes another.
  void (*apply)(const PlanJob& job, const Choice& choice, Changes& changes,
                PredictOptions& options);
};

std::span<const PlanLever* const> PlanLevers();
/// The one that the search asks for by name.
extern const PlanLever kAccumulationLever;

/// Those that the choice uses.
std::vector<const PlanLever*> LeversOf(const PlanJob& job, const Choice& choice);

inline Numerics SameResults(const PlanJob&) { return Numerics::kSame; }
inline Numerics OtherRounding(const PlanJob&) { return Numerics::kRounding; }

/// None that is set by the search itself.
inline std::vector<Choice> SetBySearch(const PlanJob&, const Choice&) { return {}; }

}  // namespace plimsoll
