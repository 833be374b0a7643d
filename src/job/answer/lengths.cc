#include "job/answer/lengths.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include "job/file/forms.h"

namespace plimsoll {
namespace {

/// Of a frontier: as many lengths as a reader looks at.
constexpr std::size_t kMostPoints = 10;

/// The first error, and false from there on.
class LengthTest {
 public:
  LengthTest(const RanksAtLength& at, std::int64_t first, std::int64_t apart)
      : at_(at), first_(first), apart_(apart) {}

  std::int64_t Length(std::int64_t step) const { return first_ + step * apart_; }
  /// Nothing is longer.
  bool IsBeyond(std::int64_t step) const {
    return step > (Forms::kLargestExtent - first_) / apart_;
  }
  bool MayFit(std::int64_t step) {
    return With(step, [](const RankTrials& trials) { return trials.MayFit() && trials.Last(); });
  }
  bool Surely(std::int64_t step) {
    return With(step, [](const RankTrials& trials) { return trials.SurelyFit() && trials.Last(); });
  }
  const std::optional<Error>& error() const { return error_; }

 private:
  template <typename Is>
  bool With(std::int64_t step, const Is& is) {
    if (error_ || step < 0 || IsBeyond(step)) return false;
    const Result<RankSet> ranks = at_(Length(step));
    if (!ranks) {
      error_ = ranks.error();
      return false;
    }
    const Result<RankTrials> trials = RankTrials::Of(*ranks);
    if (!trials) {
      error_ = trials.error();
      return false;
    }
    return is(*trials);
  }

  const RanksAtLength& at_;
  std::int64_t first_;
  std::int64_t apart_;
  std::optional<Error> error_;
};

/// The shortest that is as far from the captured ones as they are from each other, and no less.
std::int64_t Shortest(const std::vector<std::int64_t>& captured, std::int64_t apart) {
  return (captured.front() - 1) % apart + 1;
}

/// The last step that passes: more memory is asked for at each.
template <typename Passes>
std::int64_t LastPassing(const Passes& passes, std::int64_t good, std::int64_t bad) {
  while (good + 1 < bad) {
    const std::int64_t middle = good + (bad - good) / 2;
    (passes(middle) ? good : bad) = middle;
  }
  return good;
}

}  // namespace

std::int64_t LengthsApart(const std::vector<std::int64_t>& captured) {
  std::int64_t apart = 0;
  for (const std::int64_t length : captured) apart = std::gcd(apart, length - captured.front());
  return std::max<std::int64_t>(apart, 1);
}

Result<MaxLength> FindMaxLength(const RanksAtLength& at,
                                const std::vector<std::int64_t>& captured) {
  const std::int64_t apart = LengthsApart(captured);
  LengthTest test(at, Shortest(captured, apart), apart);
  std::int64_t bad = 1;
  while (!test.IsBeyond(bad) && test.MayFit(bad)) bad *= 2;
  const std::int64_t most =
      LastPassing([&](std::int64_t step) { return test.MayFit(step); }, -1, bad);
  const std::int64_t sure =
      test.Surely(most)
          ? most
          : LastPassing([&](std::int64_t step) { return test.Surely(step); }, -1, most);
  if (test.error()) return *test.error();
  const auto length = [&](std::int64_t step) { return step < 0 ? 0 : test.Length(step); };
  return MaxLength{.sure = length(sure), .most = length(most), .apart = apart};
}

SampleUnit UnitOf(std::string_view length_name) {
  // No endings: nanoGPT calls the length of a sequence block_size.
  constexpr std::array<std::string_view, 7> kSides = {"side",       "height",     "width",   "size",
                                                      "resolution", "image_size", "img_size"};
  if (std::ranges::find(kSides, length_name) == kSides.end()) return {.name = "tokens"};
  return {.name = "pixels", .squared = true};
}

Result<Frontier> FindFrontier(const RanksAtLength& at, const std::vector<std::int64_t>& captured,
                              std::string name) {
  Frontier frontier{.name = std::move(name)};
  for (std::int64_t length = captured.front();
       length <= Forms::kLargestExtent && frontier.points.size() < kMostPoints; length *= 2) {
    const Result<RankSet> ranks = at(length);
    if (!ranks) return ranks.error();
    const MaxBatch found = FindMaxBatch(*ranks);
    frontier.points.push_back({.length = length,
                               .sure = found.sure,
                               .most = found.most.batch,
                               .in_sample = frontier.Unit().OfSample(length)});
    if (found.most.batch == 0) break;
  }
  return frontier;
}

const FrontierPoint* Frontier::Most() const {
  const FrontierPoint* best = nullptr;
  for (const FrontierPoint& point : points) {
    if (point.InStep() > (best ? best->InStep() : 0)) best = &point;
  }
  return best;
}

const FrontierPoint* Frontier::Fastest() const {
  const FrontierPoint* best = nullptr;
  for (const FrontierPoint& point : points) {
    if (point.PerSecond() > (best ? best->PerSecond() : 0)) best = &point;
  }
  return best;
}

}  // namespace plimsoll
