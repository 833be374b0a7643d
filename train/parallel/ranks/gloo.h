// gloo, which speaks over sockets.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

namespace plimsoll::train {

/// Whether this build has it.
bool HasGloo();
/// Throws c10::Error in builds without.
c10::intrusive_ptr<c10d::Backend> MakeGloo(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                           int size, std::chrono::milliseconds time_limit);

}  // namespace plimsoll::train
