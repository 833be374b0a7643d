// The tensors that a call is given, wherever they stand in its arguments.
#pragma once

#include <functional>

#include "job/file/job.h"

namespace plimsoll {

using EachTensor = std::function<void(TensorUse&)>;
void ForEachArgument(CallRecord& call, const EachTensor& each);
using EachReadTensor = std::function<void(const TensorUse&)>;
void ForEachArgument(const CallRecord& call, const EachReadTensor& each);

}  // namespace plimsoll
