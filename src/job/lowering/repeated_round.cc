#include "job/lowering/repeated_round.h"

#include <algorithm>

namespace plimsoll {

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

}  // namespace plimsoll
