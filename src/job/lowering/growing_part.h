// A part of which each further round has larger numbers: a token with a longer cache.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "job/calls/call.h"
#include "job/file/job.h"

namespace plimsoll {

class GrowingPart {
 public:
  /// `before` and `last` do the same; both are of the variant, and `at` is where the job is asked
  /// about.
  GrowingPart(const Variant& variant, const Part& before, const Part& last, const AtBatch& at);
  GrowingPart(const GrowingPart&) = delete;
  GrowingPart& operator=(const GrowingPart&) = delete;

  /// Whether any number differs from round to round.
  bool grows() const { return grows_; }
  /// So many rounds behind `last`.
  void PutAt(std::int64_t rounds);

  /// By its index among the variant's.
  const CallRecord& call(std::uint32_t index) const {
    return job_.variants[0].calls[place_[index]];
  }
  const AtBatch& at() const { return *at_; }

 private:
  struct Step {
    std::int64_t last = 0;
    std::int64_t by = 0;
    std::int64_t After(std::int64_t rounds) const;
  };
  struct GrowingNumber {
    Number* number = nullptr;
    Step step;
  };
  struct GrowingLayout {
    std::vector<Step> sizes;
    std::vector<Step> strides;
    /// Of one without gaps: its strides follow from its sizes.
    std::optional<std::vector<std::size_t>> order;
  };
  struct GrowingStorage {
    NewStorage* fresh = nullptr;
    Step step;
    /// The bytes are those of this layout.
    std::optional<std::uint32_t> layout;
  };

  void Add(const CallRecord& before, const CallRecord& last);
  void Grow(const Argument& before, Argument& last);
  void Grow(const TensorUse& before, TensorUse& last);
  Step StepOf(std::int64_t before, std::int64_t last);
  std::uint32_t LayoutOf(std::uint32_t before, std::uint32_t last);

  const AtBatch& asked_;
  bool grows_ = false;
  std::size_t numbers_of_calls_ = 0;
  /// With the part's own calls and layouts alone.
  Job job_;
  std::vector<std::uint32_t> place_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> layout_of_;
  std::vector<GrowingLayout> layouts_;
  std::vector<GrowingNumber> numbers_;
  std::vector<GrowingStorage> storages_;
  std::optional<AtBatch> at_;
};

}  // namespace plimsoll
