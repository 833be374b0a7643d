// Why a request failed, as far as the figures of its message tell. Each cause is one function from
// the figures to an opinion: it is found, it is excluded, or the figures do not tell.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "diagnose/error_texts/figures.h"

namespace plimsoll {

/// What one cause has to say for itself. Never both found and excluded.
struct Opinion {
  std::optional<Finding> found = {};
  OomCause why = OomCause::kUnknown;
  /// How much of what was missing it accounts for; orders findings of one severity.
  Bytes explains = 0;
  /// Where the figures exclude the cause.
  std::optional<RuledOut> excluded = {};
};

struct Judgement {
  /// For OomReport::why: of the first finding.
  OomCause why = OomCause::kUnknown;
  /// The gravest first; never empty. The verdict quotes the first one's title.
  std::vector<Finding> findings;
  std::vector<RuledOut> ruled_out;
};

Judgement Judge(const Figures& figures);

/// Of the sources that have no allocator of PyTorch's (libraries.cc).
Opinion OfLibrary(const Figures& figures);
/// Of the host's memory (host.cc).
Opinion OfHost(const Figures& figures);

// What Judge asks of PyTorch's allocators, in causes_*.cc. The first four exclude all others.
Opinion BugInSize(const Figures& figures);
Opinion LargerThanTheDevice(const Figures& figures);
Opinion ALimit(const Figures& figures);
Opinion Oversubscription(const Figures& figures);
Opinion FreeSuffices(const Figures& figures);

Opinion KeptPredictions(const Figures& figures);
Opinion InFreePieces(const Figures& figures);
Opinion PrivatePools(const Figures& figures);
Opinion OtherProcesses(const Figures& figures);
Opinion SleepingEngine(const Figures& figures);
Opinion OutsideTheAllocator(const Figures& figures);
Opinion OneLargeRequest(const Figures& figures);

}  // namespace plimsoll
