// What each allocation is for. The categories follow from behaviour: when in the step it is made
// and released, whether it persists, which thread made it, what size it matches; frames support
// that.
#pragma once

#include <vector>

#include "answer/explanation.h"
#include "diagnose/phases/phases.h"

namespace plimsoll {

/// The rule that decided, for the account's "how do we know".
enum class Reason : std::uint8_t {
  kNone,
  kModelMatched,  // persists from before the first forward, a gradient has its size
  kModelBuffer,   // persists among the parameters, no gradient has its size
  kModelCopy,     // of a parameter's size, made later: averaged weights, a teacher
  kModelFrames,   // frames show that a module was moved or built
  kModelEarlier,  // was there before the record; by frames or by counting sizes
  kGradient,
  kGradientBucket,  // DDP's communication buckets
  kOptimizerPhase,  // made by the optimizer's step and kept
  kOptimizerEarlier,
  kOptimizerBySize,  // outlives a backward, one of each gradient's size: an optimizer of one's own
  kScaler,
  kReleasedInBackward,
  kRecomputed,         // activation checkpointing computes it again
  kRestored,           // a hook on saved tensors computes it again or brings it back
  kForwardResult,      // made in forward, outlives the backward: outputs that the program holds
  kForwardUnfinished,  // alive when the program ran out of memory in forward
  kBatch,
  kConstant,
  kShortLived,
  kGathered,   // FSDP's gathered parameters
  kWorkspace,  // made once inside a pass and kept by a library
  kCache,      // keys and values of earlier tokens
  kGrowing,    // the same place makes one each step and none is released
  kSameSite,   // another allocation of the same place was attributed so
  kPredicted,  // the run is a predicted one, which says what each block is for
  kGiven,      // the record itself has a category for it
  kAnnotated,  // the program said so of the block
};
inline constexpr std::size_t kReasonCount = static_cast<std::size_t>(Reason::kAnnotated) + 1;

enum class KeptKind : std::uint8_t { kTensors, kOptimizerState, kGradients };

/// What one place keeps, the oldest first.
struct KeptSite {
  KeptKind kind = KeptKind::kTensors;
  std::vector<AllocationIndex> allocations;
};

struct Attribution {
  std::vector<Category> category;
  std::vector<Reason> reason;
  /// Places that keep something each step.
  std::vector<KeptSite> kept;
};

Attribution Attribute(const Phases& phases);

/// Kept: the same place leaves something behind in three steps or more, holds more with each of
/// them, and does so until the record ends (attribution_kept.cc); or whole sets of gradients or of
/// an optimizer's state stay beside the newest (kept_sets.h).
std::vector<KeptSite> FindKeptSites(const Phases& phases);

/// How sure a category is, given the rules that decided for its bytes.
Confidence ConfidenceOf(Reason reason, bool framed);
std::string_view ReasonText(Reason reason);

}  // namespace plimsoll
