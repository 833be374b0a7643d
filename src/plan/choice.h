// One way to train a captured job, and what is to be planned for.
#pragma once

#include <any>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "hardware/gpu.h"
#include "job/trial/setting.h"

namespace plimsoll {

/// What a lever is set to: a struct that the lever alone knows, and its text, which --set and JSON
/// have. Made by the lever's own file, where either comes of the other; so a new lever needs
/// nothing here. Two with the same text are the same.
class LeverValue {
 public:
  template <typename T>
  LeverValue(std::string text, T is) : text_(std::move(text)), is_(std::move(is)) {}

  const std::string& text() const { return text_; }
  /// The struct of the lever that made it; asked for another, the program stops.
  template <typename T>
  const T& As() const {
    const T* const is = std::any_cast<T>(&is_);
    PLIMSOLL_CHECK(is != nullptr);
    return *is;
  }

  bool operator==(const LeverValue& other) const { return text_ == other.text_; }
  auto operator<=>(const LeverValue& other) const { return text_ <=> other.text_; }

 private:
  std::string text_;
  std::any is_;
};

/// Every lever that is set otherwise than in the capture, by its name.
struct Choice {
  /// Samples of one pass, on one GPU.
  std::int64_t batch = 1;
  std::map<std::string, LeverValue, std::less<>> set = {};

  /// Null where it is as captured.
  const LeverValue* Find(std::string_view lever) const {
    const auto found = set.find(lever);
    return found == set.end() ? nullptr : &found->second;
  }
  bool Sets(std::string_view lever) const { return Find(lever) != nullptr; }
  /// Empty where it is as captured.
  std::string_view TextOf(std::string_view lever) const {
    const LeverValue* const value = Find(lever);
    return value == nullptr ? std::string_view() : std::string_view(value->text());
  }
  /// The same with one lever set.
  Choice With(std::string_view lever, LeverValue value) const {
    Choice other = *this;
    other.set.insert_or_assign(std::string(lever), std::move(value));
    return other;
  }
  /// The same with one lever as captured.
  Choice Without(std::string_view lever) const {
    Choice other = *this;
    other.set.erase(std::string(lever));
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
  /// Nobody said how many: they are those of the script's own loader.
  bool samples_of_script = false;
  /// All alike, on so many machines.
  std::int64_t gpus = 1;
  std::int64_t nodes = 1;
  /// Only what gives the same results.
  bool keep_numerics = false;
  /// The frontier and what each change is worth are shown, too.
  bool shows_all = false;
  /// Whether the search has to end now. The answer then says how far it came.
  std::function<bool()> out_of_time = {};
  /// Called between evaluations: how many of all combinations of changes are looked through.
  std::function<void(std::size_t, std::size_t)> progress = {};
};

}  // namespace plimsoll
