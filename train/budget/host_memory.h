// Memory of the host that is no device's: it counts in no budget, also where the device is the CPU.
#pragma once

#include <ATen/core/Tensor.h>

namespace plimsoll::train {

/// Uninitialised and contiguous. Pinned where CUDA is there, so that copies to and from it need not
/// be waited for; otherwise from malloc, past torch's CPU allocator. Fails with
/// c10::OutOfMemoryError.
at::Tensor HostTensor(at::IntArrayRef sizes, at::ScalarType dtype, bool pinned);

}  // namespace plimsoll::train
