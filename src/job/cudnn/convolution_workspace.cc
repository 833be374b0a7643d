#include "job/cudnn/convolution_workspace.h"

#include <algorithm>

#include "job/cudnn/convolution_call.h"
#include "job/cudnn/convolution_engines.h"

namespace plimsoll {

namespace {

bool MakesSense(const ConvShape& s) {
  const std::int64_t smallest =
      std::min({s.n, s.c, s.h, s.w, s.k, s.ho, s.wo, s.kh, s.kw, s.stride_h, s.stride_w,
                s.dilation_h, s.dilation_w, s.groups});
  const std::int64_t largest = std::max({s.n, s.c, s.h, s.w, s.k, s.ho, s.wo, s.kh, s.kw});
  return smallest >= 1 && largest <= convolution::kTooLarge && s.c % s.groups == 0 &&
         s.k % s.groups == 0 && s.element_bytes >= 1 && s.element_bytes <= 8;
}

Bytes Likely(const convolution::Call& call) {
  if (call.Depthwise()) return LikelyDepthwise(call);
  if (call.groups > 1) return LikelyGrouped(call);
  if (call.side == 1) return LikelyPointwise(call);
  if (call.FewerChannels() < 8) return LikelyFewChannels(call);
  const bool weight = call.direction == ConvDirection::kBackwardWeight;
  return weight ? LikelyWeightGradient(call) : LikelyOrdinary(call);
}

}  // namespace

Workspace ConvolutionWorkspace(const ConvShape& shape, ConvDirection direction,
                               int multiprocessors) {
  if (!MakesSense(shape)) return {};
  const convolution::Call call(shape, direction, multiprocessors);
  Workspace workspace;
  workspace.likely = Likely(call);
  workspace.upper = UpperBound(call, workspace.likely) * (shape.volume ? 2 : 1);
  return workspace;
}

}  // namespace plimsoll
