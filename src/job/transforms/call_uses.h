// Which calls of a step make and read each storage, for those who look for a pattern among them.
#pragma once

#include <string_view>
#include <vector>

#include "job/file/job.h"

namespace plimsoll {

inline constexpr std::size_t kNoCall = static_cast<std::size_t>(-1);

/// The tensor at a position among the arguments; null where there is none on the device.
const TensorUse* TensorArg(const CallRecord& call, std::size_t i);

/// Calls are told by the index of their event. Refers to the job and the variant.
class CallUses {
 public:
  CallUses(const Job& job, const Variant& variant);

  std::size_t MakerOf(Storage storage) const { return maker_[storage]; }
  const std::vector<std::size_t>& ReadersOf(Storage storage) const { return readers_[storage]; }
  /// The calls of forwards, in order.
  const std::vector<std::size_t>& forward() const { return forward_; }
  bool InBackward(std::size_t event) const { return in_backward_[event]; }

  const CallRecord& CallAt(std::size_t event) const {
    return variant_.calls[variant_.events[event].index];
  }
  std::string_view OpAt(std::size_t event) const {
    return BaseName(job_.strings[CallAt(event).op]);
  }
  const LayoutRecord& LayoutOf(const TensorUse& use) const { return job_.layouts[use.layout]; }
  /// As it was made.
  const LayoutRecord* LayoutOf(Storage storage) const;
  bool IsParameter(Storage storage) const { return parameter_[storage]; }
  /// Whether one model has both parameters. A script may have several, a policy and its reference.
  bool InOneModel(Storage a, Storage b) const;
  /// Whether there is a backward at all.
  bool trains() const { return trains_; }
  /// Whether something reads it behind the captured steps, or it is not freed by the end of the
  /// step after its own: the script keeps it. A variable may hold it until the next step sets it.
  bool IsKept(Storage storage) const { return kept_[storage]; }

 private:
  struct Name {
    /// The model's, as the names of its parameters begin; empty for the first one of the script.
    std::string_view model;
    std::string_view parameter;
  };
  Name NameOf(Storage parameter) const;
  void FindKept();

  const Job& job_;
  const Variant& variant_;
  std::vector<std::size_t> maker_;
  std::vector<std::vector<std::size_t>> readers_;
  std::vector<std::size_t> forward_;
  std::vector<bool> in_backward_;
  std::vector<bool> parameter_;
  std::vector<bool> kept_;
  bool trains_ = false;
};

}  // namespace plimsoll
