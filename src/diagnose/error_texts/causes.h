// Why a request failed, as far as the figures of its message tell.
#pragma once

#include <string>
#include <vector>

#include "diagnose/error_texts/figures.h"

namespace plimsoll {

struct Judgement {
  /// For OomReport::why.
  OomCause why = OomCause::kUnknown;
  /// Two or three sentences about the cause, for the verdict.
  std::string reason;
  std::vector<Finding> findings;
  std::vector<RuledOut> ruled_out;
};

Judgement Judge(const Figures& figures);

/// The same for messages that do not come from PyTorch's allocators (messages_libraries.cc).
Judgement JudgeLibrary(const Figures& figures);

/// A remedy whose effect no figure proves.
Remedy Rule(std::string change, std::string costs = "");
/// One that gives back bytes which the message itself counts.
Remedy Proven(std::string change, Bytes saves, std::string costs = "");

}  // namespace plimsoll
