// One way to train a captured job, and what is to be planned for.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "hardware/gpu.h"
#include "job/trial/setting.h"

namespace plimsoll {

/// Every lever that is set otherwise than in the capture, by its name. What a value means is known
/// to the lever alone, so that a new one needs nothing here.
struct Choice {
  /// Samples of one pass, on one GPU.
  std::int64_t batch = 1;
  std::map<std::string, std::string, std::less<>> set = {};

  /// Empty where it is as captured.
  std::string_view Get(std::string_view lever) const {
    const auto found = set.find(lever);
    return found == set.end() ? std::string_view() : std::string_view(found->second);
  }
  /// The same with one lever set; with an empty value, as captured.
  Choice With(std::string_view lever, std::string value) const {
    Choice other = *this;
    if (value.empty()) {
      other.set.erase(std::string(lever));
    } else {
      other.set[std::string(lever)] = std::move(value);
    }
    return other;
  }
  bool operator==(const Choice&) const = default;
};

struct PlanRequest {
  const Job& job;
  Gpu gpu;
  /// The release, the calibration and the limit; the rest is the planner's.
  PredictOptions options;
  /// In each step of the optimizer, on all GPUs together.
  std::int64_t samples = 1;
  /// Nobody said how many: DefaultSamples did.
  bool samples_by_default = false;
  /// All alike, on so many machines.
  std::int64_t gpus = 1;
  std::int64_t nodes = 1;
  /// Only what gives the same results.
  bool keep_numerics = false;
};

}  // namespace plimsoll
