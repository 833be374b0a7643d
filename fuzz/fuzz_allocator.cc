// Any sequence of requests, under any settings: the model must not crash, and the independent
// checker must find that blocks never overlap, lie in memory that is held, and add up. The record
// is made from the input's bytes, so it is mostly one that no allocator would have written.
#include <algorithm>
#include <array>

#include "allocator/replay/fragmentation.h"
#include "allocator/replay/replay.h"
#include "allocator/replay/replay_check.h"
#include "allocator/replay/verify.h"
#include "fuzz.h"

namespace plimsoll {
namespace {

class Bytestream {
 public:
  Bytestream(const std::uint8_t* data, std::size_t size) : at_(data), end_(data + size) {}
  bool empty() const { return at_ == end_; }
  std::uint8_t Next() { return empty() ? 0 : *at_++; }

 private:
  const std::uint8_t* at_;
  const std::uint8_t* end_;
};

AllocatorRules RulesFrom(Bytestream& in) {
  constexpr std::array<int, 4> kMinors = {4, 11, 12, 15};
  AllocatorRules rules;
  const std::uint8_t bits = in.Next();
  rules.version = RulesOf({.major = 2, .minor = kMinors[bits & 3]});
  rules.settings.expandable_segments = (bits & 4) != 0;
  if ((bits & 8) != 0) rules.settings.max_split_size = (21 + in.Next()) * kMiB;
  if ((bits & 16) != 0) rules.settings.garbage_collection_threshold = 0.5;
  if ((bits & 32) != 0) rules.settings.roundup_power2_divisions.fill(4);
  if ((bits & 64) != 0) rules.settings.large_segment_size = (11 + in.Next()) * kMiB;
  return rules;
}

/// Sizes around the edges that the allocator has, and the largest whose sum readers let through.
Bytes SizeFrom(std::uint8_t byte) {
  constexpr std::array<Bytes, 8> kSizes = {1,         kMiB,      kMiB + 1,   10 * kMiB - 1,
                                           10 * kMiB, 23 * kMiB, 300 * kMiB, Bytes{1} << 47};
  return kSizes[byte & 7] + (byte >> 3) * 40000;
}

Timeline TimelineFrom(Bytestream& in) {
  Timeline timeline;
  timeline.streams = {0, 7, 3};
  timeline.pools = {PoolId{}, PoolId{0, 1}, PoolId{1, 0}};
  timeline.events_have_pools = true;
  constexpr std::array<Action, 8> kActions = {
      Action::kAlloc,        Action::kAlloc,       Action::kFreeRequested, Action::kFreeCompleted,
      Action::kSegmentAlloc, Action::kSegmentFree, Action::kSegmentMap,    Action::kOutOfMemory};
  while (!in.empty() && timeline.events.size() < 2000) {
    const std::uint8_t what = in.Next();
    Event e;
    e.action = kActions[what & 7];
    e.stream = (what >> 3) % 3;
    e.pool = static_cast<std::uint8_t>((what >> 5) % 3);
    e.size = SizeFrom(in.Next());
    e.address = 0x7f0000000000 + Address{in.Next()} * (kMiB / 2);
    timeline.events.push_back(e);
  }
  return timeline;
}

void Check(const Timeline& timeline, const AllocatorRules& rules, const DeviceLimits& limits) {
  const Ledger ledger = Follow(timeline);
  const Verification verified = Verify(timeline, ledger, {});
  const ReplayOptions options{.rules = rules, .limits = limits, .keep_earlier_segments = false};
  ReplayLog log;
  const ReplayResult result = Replay(timeline, verified.workload, options, &log);
  const std::optional<std::string> fault = CheckReplay(log, result.counters);
  if (fault) std::fprintf(stderr, "%s\n", fault->c_str());
  PLIMSOLL_CHECK(!fault);
  const std::vector<Request>& requests = verified.workload.requests;
  if (requests.empty()) return;
  AssumedDriver driver(timeline);
  Replayer replayer(verified.workload, options, driver);
  replayer.Run(requests.size() / 2);
  const Fragmentation f = Fragments(replayer, ledger, requests[requests.size() / 2]);
  Bytes sum = f.requested;
  for (const Bytes waste : f.waste) sum += waste;
  PLIMSOLL_CHECK(sum == f.reserved);
}

}  // namespace
}  // namespace plimsoll

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace plimsoll;
  Bytestream in(data, size);
  const AllocatorRules rules = RulesFrom(in);
  DeviceLimits limits;
  const std::uint8_t limited = in.Next();
  if ((limited & 1) != 0) limits.limit = (limited >> 2) * 40 * kMiB;
  if ((limited & 2) != 0) limits.capacity = (limited >> 2) * 50 * kMiB;
  limits.total = 4 * kGiB;
  Check(TimelineFrom(in), rules, limits);
  return 0;
}
