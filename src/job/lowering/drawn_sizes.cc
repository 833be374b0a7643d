#include "job/lowering/drawn_sizes.h"

#include <algorithm>
#include <cmath>
#include <string_view>

namespace plimsoll {
namespace {

/// Times its equal share that an expert gets at most. The others are drawn evenly from all ways to
/// divide tokens, nearly: their shares have an exponential distribution. In the first three steps
/// of a mixture of eight experts 0.005 to 5.6 times were seen on an H200.
constexpr double kMostTimes = 6;
/// Workspaces were seen to have up to some hundred bytes more or less than cuDNN says.
constexpr Bytes kBlock = 512;

bool Selects(std::string_view op) {
  const std::string_view name = BaseName(op);
  return name == "nonzero" || name == "masked_select" || name == "index";
}

}  // namespace

DrawnSizes::DrawnSizes(const Job& job, const Variant& variant, int draw)
    : job_(job), draw_(static_cast<std::uint64_t>(draw)) {
  if (draw == 0 || job.selected_at.empty()) return;
  for (const CallRecord& call : variant.calls) {
    if (!Selects(job.strings[call.op]) || call.results.empty()) continue;
    if (!job.selected_at.contains(job.strings[call.where])) continue;
    const std::vector<Number>& sizes = job.layouts[call.results.front().layout].sizes;
    if (sizes.empty() || std::ranges::find(selected_, sizes.front()) != selected_.end()) continue;
    if (sizes.front().depends()) selected_.push_back(sizes.front());
  }
}

Bytes DrawnSizes::OfResult(const CallRecord& call, std::size_t fresh, int step,
                           Bytes assumed) const {
  if (selected_.empty() || call.fresh[fresh].result >= call.results.size()) return assumed;
  const TensorUse& result = call.results[call.fresh[fresh].result];
  const bool is_selected = std::ranges::any_of(
      job_.layouts[result.layout].sizes,
      [&](const Number& size) { return std::ranges::find(selected_, size) != selected_.end(); });
  if (!is_selected) return assumed;
  // Of one expert, forward and backward, the same.
  const std::uint64_t drawn = Drawn(call.module.value * 4096ULL + static_cast<std::uint64_t>(step));
  const double uniform = (static_cast<double>(drawn % 10'000) + 0.5) / 10'000;
  const double times = std::min(-std::log(uniform), kMostTimes);
  return static_cast<Bytes>(static_cast<double>(assumed) * times);
}

Bytes DrawnSizes::OfWorkspace(Bytes assumed) const {
  if (draw_ == 0 || assumed < kMiB) return assumed;
  return assumed + kBlock * static_cast<Bytes>(Drawn(static_cast<std::uint64_t>(assumed)) % 3) -
         kBlock;
}

/// SplitMix64.
std::uint64_t DrawnSizes::Drawn(std::uint64_t what) const {
  std::uint64_t x = what * 0x9e3779b97f4a7c15ULL + draw_ * 0xd1342543de82ef95ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

bool HasDrawnSizes(const Job& job) { return !job.sequence.empty() || !job.selected_at.empty(); }

}  // namespace plimsoll
