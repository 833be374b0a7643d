// The rules that TimeOf chooses from, by kind; each says how long its calls take.
#pragma once

#include "job/time/kernel_time.h"

namespace plimsoll {

// memory_time.cc
KernelTime Pointwise(const Call& call, const TimeContext& context);
KernelTime Concatenate(const Call& call, const TimeContext& context);
KernelTime Copy(const Call& call, const TimeContext& context);
KernelTime RollTime(const Call& call, const TimeContext& context);
KernelTime Fill(const Call& call, const TimeContext& context);
KernelTime FillAndCopy(const Call& call, const TimeContext& context);
KernelTime Random(const Call& call, const TimeContext& context);
KernelTime Gather(const Call& call, const TimeContext& context);
KernelTime Scatter(const Call& call, const TimeContext& context);
KernelTime HostCopy(const Call& call, const TimeContext& context);
/// Nothing where it lies in one piece already.
KernelTime CopyInOnePiece(const Layout& layout, const TimeContext& context);

// matrix_time.cc
KernelTime PlainProduct(const Call& call, const TimeContext& context);
KernelTime AddedProduct(const Call& call, const TimeContext& context);
KernelTime AttentionTime(const Call& call, const TimeContext& context);

// normalization_time.cc
KernelTime BatchNorm(const Call& call, const TimeContext& context);
KernelTime LayerNorm(const Call& call, const TimeContext& context);
KernelTime GroupNormTime(const Call& call, const TimeContext& context);

// reduction_time.cc
KernelTime Sum(const Call& call, const TimeContext& context);
KernelTime Softmax(const Call& call, const TimeContext& context);
KernelTime Loss(const Call& call, const TimeContext& context);

// resampling_time.cc
KernelTime MaxPool(const Call& call, const TimeContext& context);
KernelTime MaxPoolBackward(const Call& call, const TimeContext& context);
KernelTime MeanPool(const Call& call, const TimeContext& context);
KernelTime MeanPoolBackward(const Call& call, const TimeContext& context);
KernelTime VolumePool(const Call& call, const TimeContext& context);
KernelTime VolumePoolBackward(const Call& call, const TimeContext& context);
KernelTime Interpolate(const Call& call, const TimeContext& context);
KernelTime InterpolateBackward(const Call& call, const TimeContext& context);
KernelTime EmbeddingBackward(const Call& call, const TimeContext& context);

// recurrent_time.cc
KernelTime Recurrent(const Call& call, const TimeContext& context);
KernelTime RecurrentBack(const Call& call, const TimeContext& context);

// optimizer_time.cc
KernelTime Foreach(const Call& call, const TimeContext& context);
KernelTime OptimizerStep(const Call& call, const TimeContext& context);
KernelTime Fused(const Call& call, const TimeContext& context);

}  // namespace plimsoll
