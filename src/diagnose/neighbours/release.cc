#include "diagnose/neighbours/release.h"

#include <algorithm>
#include <map>
#include <unordered_set>

#include "allocator/replay/replay.h"
#include "allocator/replay/replay_check.h"
#include "diagnose/attribution/holders.h"

namespace plimsoll {
namespace {

/// The requests up to a position.
Workload UpTo(const Workload& whole, Position at) {
  Workload part = whole;
  std::erase_if(part.requests,
                [&](const Request& r) { return static_cast<Position>(r.event) > at; });
  if (part.fatal && *part.fatal >= part.requests.size()) part.fatal.reset();
  return part;
}

/// Without limits: what was refused in the record is not asked for.
std::optional<ReplayResult> RunFreely(const AnalysedTrace& trace, const Verification& verified,
                                      const Workload& workload, const AllocatorSettings& settings) {
  const bool same = settings == verified.rules.settings;
  const ReplayOptions options{.rules = {settings, verified.rules.version},
                              .limits = {.total = verified.limits.total},
                              .keep_earlier_segments = same,
                              .ask_refused = false};
  ReplayLog log;
  const ReplayResult result = Replay(trace.timeline, workload, options, &log);
  // A replay that does not add up proves nothing.
  if (CheckReplay(log, result.counters)) return std::nullopt;
  return result;
}

bool ExactUpTo(const Verification& verified, Position at) {
  const bool exact = !verified.first || static_cast<Position>(verified.first->event) > at;
  return exact && verified.rules.settings.native;
}

/// The model beside the record up to a position. What a refusal shows of the card is true of that
/// moment alone where others come and go: if the record does not agree with it, it is verified
/// without.
class Verified {
 public:
  Verified(const AnalysedTrace& trace, Position at) {
    if (!trace.ledger.has_segments || trace.timeline.events.empty()) return;
    if (ExactUpTo(trace.verified(), at)) {
      usable_ = &trace.verified();
      return;
    }
    own_ = Verify(trace.timeline, trace.ledger, {.capacity = kNoDevice});
    if (ExactUpTo(*own_, at)) usable_ = &*own_;
  }
  /// Null where the model does not decide as the record did.
  const Verification* operator->() const { return usable_; }
  const Verification& operator*() const { return *usable_; }
  explicit operator bool() const { return usable_ != nullptr; }

 private:
  std::optional<Verification> own_;
  const Verification* usable_ = nullptr;
};

}  // namespace

std::optional<Bytes> HeldAfter(const AnalysedTrace& trace, Position at, const FreedThen& release) {
  const Verified verified(trace, at);
  if (!verified) return std::nullopt;
  Workload workload = UpTo(verified->workload, at);
  const auto event = static_cast<EventIndex>(std::max<Position>(0, at));
  for (const AllocationIndex a : release.allocations) {
    const Allocation& x = trace.ledger.allocations[a];
    workload.requests.push_back({.size = x.requested,
                                 .allocation = a,
                                 .event = event,
                                 .stream = x.stream,
                                 .pool = x.pool,
                                 .kind = Request::Kind::kFree});
  }
  workload.requests.push_back({.event = event, .kind = Request::Kind::kEmptyCache});
  AllocatorSettings settings = verified->rules.settings;
  settings.expandable_segments |= release.expandable;
  const std::optional<ReplayResult> result = RunFreely(trace, *verified, workload, settings);
  if (!result) return std::nullopt;
  return result->counters.reserved;
}

std::optional<Bytes> PeakWithout(const AnalysedTrace& trace, Position until,
                                 const std::vector<AllocationIndex>& left_out) {
  const Verified verified(trace, until);
  if (!verified) return std::nullopt;
  Workload workload = UpTo(verified->workload, until);
  const std::unordered_set<AllocationIndex> gone(left_out.begin(), left_out.end());
  std::erase_if(workload.requests, [&](const Request& r) { return gone.contains(r.allocation); });
  const std::optional<ReplayResult> result =
      RunFreely(trace, *verified, workload, verified->rules.settings);
  if (!result) return std::nullopt;
  return result->counters.peak_reserved;
}

LargestLine LargestLineAt(const AnalysedTrace& trace, Position at) {
  std::map<StackId, LargestLine> by_stack;
  const std::vector<Allocation>& all = trace.ledger.allocations;
  for (AllocationIndex a = 0; a < all.size(); ++a) {
    if (!all[a].HeldAt(at)) continue;
    LargestLine& line = by_stack[all[a].stack];
    line.bytes += all[a].block;
    line.allocations.push_back(a);
  }
  // Many stacks end at one line.
  std::map<std::string, LargestLine> by_line;
  for (auto& [stack, part] : by_stack) {
    const AllocationIndex first = part.allocations.front();
    const std::string where = PlaceOf(trace.phases, trace.attribution, first);
    LargestLine& line = by_line[where];
    line.where = where;
    line.has_line = !trace.stacks.WhereOf(NamingStack(trace.phases, all[first])).empty();
    line.bytes += part.bytes;
    line.allocations.insert(line.allocations.end(), part.allocations.begin(),
                            part.allocations.end());
  }
  LargestLine largest;
  for (auto& [where, line] : by_line) {
    if (line.bytes > largest.bytes) largest = std::move(line);
  }
  std::ranges::sort(largest.allocations);
  return largest;
}

}  // namespace plimsoll
