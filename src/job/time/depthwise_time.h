#pragma once

#include "job/cudnn/convolution_workspace.h"
#include "job/time/kernel_time.h"

namespace plimsoll {

/// One channel a group.
bool IsDepthwise(const ConvolutionCall& call);
KernelTime DepthwiseTime(const ConvolutionCall& call, const TimeContext& context);

}  // namespace plimsoll
