// How much of a test is run: `make test` takes enough to see every behaviour, `make nightly` all of
// it.
#pragma once

#include <cstdlib>

namespace plimsoll::train {

/// `all` where the variable PLIMSOLL_NIGHTLY is set, `enough` otherwise.
inline int Nightly(int all, int enough) {
  return std::getenv("PLIMSOLL_NIGHTLY") != nullptr ? all : enough;
}

}  // namespace plimsoll::train
