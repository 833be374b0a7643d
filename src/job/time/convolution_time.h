#pragma once

#include "job/cudnn/convolution_workspace.h"
#include "job/time/kernel_time.h"

namespace plimsoll {

/// `call` is what `made` says.
KernelTime ConvolutionTime(const Call& made, const ConvolutionCall& call,
                           const TimeContext& context, int refused);

}  // namespace plimsoll
