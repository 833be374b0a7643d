// What the job keeps at its peak though nothing uses it again, and what would come of letting it
// go: each change that the capture found is tried anew.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "job/file/job.h"
#include "job/trial/trial.h"

namespace plimsoll {

/// How much lower the peaks are, without limits.
struct PeakSaving {
  Bytes allocated = 0;
  Bytes device = 0;
};

/// One change, of one or several edits that are only of use together.
struct EarlierFree {
  struct Edit {
    ReleaseEdit::Kind kind = ReleaseEdit::Kind::kVariable;
    std::string name;
    std::string where;
  };
  std::vector<Edit> edits;
  /// The line that makes the largest part of what is let go; empty if it has none.
  std::string made_at;
  /// No other line makes any of it.
  bool made_there_alone = true;
  /// By itself. Nothing where only the changes together lower the peak.
  PeakSaving saved;
  /// How much more allocated memory it saves for each further step; it is what is kept of each.
  Bytes by_step = 0;
};

struct EarlierFrees {
  /// Each of them is needed for what they save together.
  std::vector<EarlierFree> changes;
  PeakSaving together;
  /// Whether the job fits with all of them.
  bool fits = true;
};

/// Nothing where no change lowers the peak by a thousandth of it.
std::optional<EarlierFrees> FindEarlierFrees(const Trial& trial);

}  // namespace plimsoll
