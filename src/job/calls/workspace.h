// Memory that a call takes beside its results and gives back before it returns.
#pragma once

#include "base/bytes.h"

namespace plimsoll {

struct Workspace {
  Bytes likely = 0;
  /// Holds in nearly every case; equal to `likely` where the size is known exactly.
  Bytes upper = 0;

  bool operator==(const Workspace&) const = default;
};

}  // namespace plimsoll
