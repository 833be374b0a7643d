#include "job/lowering/repeated_round.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "allocator/replay/workload.h"

namespace plimsoll {
namespace {

/// The requests between the last two ends, if they are those between the two before, each of a
/// block that comes as much later; and if they free as many blocks as they take.
std::optional<RepeatedRequests> FindRepeated(const std::vector<Request>& requests,
                                             std::span<const RequestMark> ends) {
  if (ends.size() < 3) return std::nullopt;
  const RequestMark& before = ends[ends.size() - 3];
  const RequestMark& begin = ends[ends.size() - 2];
  const RequestMark& end = ends.back();
  const std::size_t shift = end.blocks - begin.blocks;
  const bool alike = begin.blocks - before.blocks == shift &&
                     begin.requests - before.requests == end.requests - begin.requests;
  if (!alike) return std::nullopt;
  RepeatedRequests found{
      .begin = begin.requests, .end = end.requests, .shift = static_cast<std::uint32_t>(shift)};
  std::int64_t held = 0;
  for (std::size_t i = begin.requests; i < end.requests; ++i) {
    const Request& now = requests[i];
    const Request& then = requests[i - (begin.requests - before.requests)];
    if (now.size != then.size || now.kind != then.kind || now.stream != then.stream ||
        now.pool != then.pool || now.allocation != then.allocation + shift) {
      return std::nullopt;
    }
    if (now.kind == Request::Kind::kAllocate) ++held;
    if (now.kind != Request::Kind::kFree) continue;
    --held;
    if (now.allocation < begin.blocks) found.carried.push_back(now.allocation);
  }
  if (held != 0) return std::nullopt;
  std::ranges::sort(found.carried);
  return found;
}

}  // namespace

void RepeatedRounds::End(std::uint32_t times, Lowered& lowered) {
  ends_.push_back({lowered.workload.requests.size(), lowered.blocks.size()});
  if (times == 0 || ends_[ends_.size() - 2].requests == ends_.back().requests) return;
  std::optional<RepeatedRequests> found = FindRepeated(lowered.workload.requests, ends_);
  if (!found) {
    lowered.not_repeated += times;
    return;
  }
  found->times = times;
  lowered.workload.repeats.push_back(std::move(*found));
}

}  // namespace plimsoll
