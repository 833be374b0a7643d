// Habits that many operators share.
#pragma once

#include "job/calls/emitter.h"

namespace plimsoll {

/// Its results, in order.
inline void MakeAll(const Call& call, Emitter& emit) {
  for (std::size_t i = 0; i < call.fresh(); ++i) emit.Make(i);
}

/// The result of this index, if it lies in new memory.
inline void MakeResult(const Call& call, std::size_t result, Emitter& emit) {
  if (const auto fresh = call.FreshOfResult(result)) emit.Make(*fresh);
}

/// A dense copy of an argument that is not contiguous: most kernels ask for one.
inline Slot CopyUnlessContiguous(const Call& call, std::size_t arg, Emitter& emit) {
  const auto tensor = call.TensorArg(arg);
  if (!tensor || tensor->storage == kElsewhere || (*tensor)->IsContiguous()) return {};
  return emit.Take((*tensor)->bytes());
}

}  // namespace plimsoll
