#include "train/optimizers/adam8bit_kernels.h"

namespace plimsoll::train::adam8bit {

bool HasCudaKernel(const at::Tensor&) { return false; }

void RunOnCuda(const Step&) { TORCH_CHECK(false, "this build of plimsoll::train is without CUDA"); }

}  // namespace plimsoll::train::adam8bit
