// A tensor whose memory comes and goes, while views of it stay views of it and see what is there
// when it has memory again.
#pragma once

#include <ATen/core/Tensor.h>

namespace plimsoll::train {

/// From now on it has none. What is read of it then is an error, in releases that can say so.
void TakeMemoryFrom(const at::Tensor& tensor);
/// New memory, in which nothing is written yet: returned as a tensor of its own, which whoever is
/// still on the way to it keeps alive when it has been taken from the first.
at::Tensor LendMemoryTo(const at::Tensor& tensor);

}  // namespace plimsoll::train
