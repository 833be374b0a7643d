#pragma once

#include "step/rules/convolution_workspace.h"
#include "step/time/kernel_time.h"

namespace plimsoll {

KernelTime ConvolutionTime(const ConvolutionCall& call, const TimeContext& context, int refused);
/// One channel a group, outside cuDNN.
bool IsDepthwise(const ConvolutionCall& call);

}  // namespace plimsoll
