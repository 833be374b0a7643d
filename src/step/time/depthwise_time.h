#pragma once

#include "step/rules/convolution_workspace.h"
#include "step/time/kernel_time.h"

namespace plimsoll {

/// One channel a group.
bool IsDepthwise(const ConvolutionCall& call);
KernelTime DepthwiseTime(const ConvolutionCall& call, const TimeContext& context);

}  // namespace plimsoll
