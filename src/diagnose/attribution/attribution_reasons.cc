// What each rule of attribution says in words, and how sure it is.
#include "diagnose/attribution/attribution.h"

namespace plimsoll {

Confidence ConfidenceOf(Reason reason, bool framed) {
  switch (reason) {
    case Reason::kModelMatched:
    case Reason::kModelFrames:
    case Reason::kGradient:
    case Reason::kOptimizerPhase:
    case Reason::kReleasedInBackward:
    case Reason::kRecomputed:
    case Reason::kGrowing:
    case Reason::kGathered:
      return framed ? Confidence::kHigh : Confidence::kMedium;
    case Reason::kPredicted:
    case Reason::kGiven:
      return Confidence::kHigh;
    case Reason::kAnnotated:
      return Confidence::kMedium;
    case Reason::kModelBuffer:
    case Reason::kModelCopy:
    case Reason::kModelEarlier:
    case Reason::kOptimizerEarlier:
    case Reason::kOptimizerBySize:
    case Reason::kCache:
    case Reason::kGradientBucket:
    case Reason::kScaler:
    case Reason::kBatch:
    case Reason::kShortLived:
    case Reason::kRestored:
    case Reason::kForwardUnfinished:
    case Reason::kWorkspace:
      return framed ? Confidence::kMedium : Confidence::kLow;
    case Reason::kForwardResult:
    case Reason::kConstant:
    case Reason::kSameSite:
    case Reason::kNone:
      return Confidence::kLow;
  }
  return Confidence::kLow;
}

std::string_view ReasonText(Reason reason) {
  switch (reason) {
    case Reason::kModelMatched:
      return "stays; a gradient has the same size";
    case Reason::kModelBuffer:
      return "stays among the parameters";
    case Reason::kModelCopy:
      return "stays; a copy of the model (EMA, teacher)";
    case Reason::kModelFrames:
      return "made when a module was built or moved";
    case Reason::kModelEarlier:
      return "there before the record began; stays";
    case Reason::kGradient:
      return "made in backward, of a parameter's size";
    case Reason::kGradientBucket:
      return "DDP buckets, as large as the gradients";
    case Reason::kOptimizerPhase:
      return "made in the optimizer's step; stays";
    case Reason::kOptimizerEarlier:
      return "further copies of each parameter's size";
    case Reason::kOptimizerBySize:
      return "outlives backward; one of each gradient's size";
    case Reason::kCache:
      return "keys and values of earlier tokens";
    case Reason::kScaler:
      return "made by the gradient scaler";
    case Reason::kReleasedInBackward:
      return "made in forward, released in backward";
    case Reason::kRecomputed:
      return "recomputed by activation checkpointing";
    case Reason::kRestored:
      return "made anew for a saved tensor by a hook";
    case Reason::kForwardResult:
      return "made in forward, held past backward";
    case Reason::kForwardUnfinished:
      return "made in a forward without its backward";
    case Reason::kBatch:
      return "made before forward, outside any module";
    case Reason::kConstant:
      return "made before all forwards; stays";
    case Reason::kShortLived:
      return "released in the phase that made it";
    case Reason::kGathered:
      return "parameters that FSDP gathers for a while";
    case Reason::kWorkspace:
      return "made once in a pass and kept: workspaces";
    case Reason::kGrowing:
      return "one more each step, none released";
    case Reason::kSameSite:
      return "as others of the same place";
    case Reason::kPredicted:
      return "the prediction made it for that";
    case Reason::kGiven:
      return "the record itself says so";
    case Reason::kAnnotated:
      return "the program said so of the block";
    case Reason::kNone:
      return "no rule applies";
  }
  return "";
}

}  // namespace plimsoll
