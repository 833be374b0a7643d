// For builds without gloo's headers.
#include <c10/util/Exception.h>

#include "train/parallel/ranks/gloo.h"

namespace plimsoll::train {

bool HasGloo() { return false; }

c10::intrusive_ptr<c10d::Backend> MakeGloo(const c10::intrusive_ptr<c10d::Store>& /*store*/,
                                           int /*rank*/, int /*size*/,
                                           std::chrono::milliseconds /*time_limit*/) {
  TORCH_CHECK(false,
              "this build of plimsoll::train has no gloo, which several ranks need: build it with "
              "gloo's headers (Debian: libgloo-dev)");
}

}  // namespace plimsoll::train
