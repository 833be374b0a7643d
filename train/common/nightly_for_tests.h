// How much of a test is run: `make test` takes enough to see every behaviour, `make nightly` all of
// it.
#pragma once

#include "base/nightly_for_tests.h"

namespace plimsoll::train {

/// `all` where the variable PLIMSOLL_NIGHTLY is set, `enough` otherwise.
inline int Nightly(int all, int enough) { return IsNightly() ? all : enough; }

}  // namespace plimsoll::train
