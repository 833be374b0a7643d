// What a call reads and writes, which is most of what its time depends on.
#pragma once

#include <string_view>

#include "job/calls/call.h"

namespace plimsoll {

/// And the numbers that most rules want.
struct Traffic {
  double read = 0;
  double written = 0;
  /// Of the largest tensor.
  double elements = 0;
  /// What is read does not lie in the same steps as what is written; nor do its neighbours.
  bool permuted = false;
  bool transposed = false;

  double bytes() const { return read + written; }
};
Traffic TrafficOf(const Call& call);

/// Of a tensor that is an argument.
double ElementsOf(const Call& call, std::size_t arg);

/// Four dimensions, channels beside each other.
bool IsChannelsLast(const Layout& layout);

}  // namespace plimsoll
