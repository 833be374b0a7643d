// A request that fails, and succeeds when it is made again: the allocator waited for another
// stream, got a block back that would do, and asked the driver instead of looking at it.
#include <fmt/format.h>

#include <optional>

#include "allocator/settings/rules.h"
#include "diagnose/findings/findings.h"

namespace plimsoll {
namespace {

/// What the allocator itself does before it gives up, and the program does not.
bool IsLastEffort(Action action) {
  return action == Action::kFreeCompleted || action == Action::kSegmentFree ||
         action == Action::kSegmentUnmap;
}

/// The block that came back just before the refusal and is still there.
const Allocation* CameBack(const AnalysedTrace& trace, Position refused) {
  const std::vector<Event>& events = trace.timeline.events;
  const Event& request = events[static_cast<std::size_t>(refused)];
  const Bytes wanted = AllocatorRules::From(trace.timeline.settings).Round(request.size);
  Position begin = refused;
  while (begin > 0 && IsLastEffort(events[static_cast<std::size_t>(begin - 1)].action)) --begin;
  const auto given_back = [&](const Allocation& a) {
    for (Position i = a.freed + 1; i < refused; ++i) {
      const Event& e = events[static_cast<std::size_t>(i)];
      const bool back = e.action == Action::kSegmentFree || e.action == Action::kSegmentUnmap;
      const bool overlaps = a.address < e.address + static_cast<Address>(e.size) &&
                            e.address < a.address + static_cast<Address>(a.block);
      if (back && overlaps) return true;
    }
    return false;
  };
  for (Position i = begin; i < refused; ++i) {
    const Event& e = events[static_cast<std::size_t>(i)];
    const std::uint32_t id = trace.ledger.allocation_of_event[static_cast<std::size_t>(i)];
    if (e.action != Action::kFreeCompleted || id == Ledger::kNoAllocation) continue;
    const Allocation& a = trace.ledger.allocations[id];
    // One that the program had let go of before: it only waited for a stream.
    const bool waited = a.freed == i && a.released < begin - 1;
    const bool fits = a.block >= wanted && a.stream == request.stream && a.pool == request.pool;
    if (waited && fits && !given_back(a)) return &a;
  }
  return nullptr;
}

}  // namespace

std::vector<Finding> FindPendingFree(const Evidence& e) {
  const Phases& p = e.trace.phases;
  for (std::size_t i = p.ooms.size(); i-- > 0;) {
    const Allocation* const back = CameBack(e.trace, p.ooms[i]);
    if (back == nullptr) continue;
    const Event& request = p.timeline.events[static_cast<std::size_t>(p.ooms[i])];
    Finding finding{
        .id = FindingId::kPendingFree,
        .severity = p.oom_ends[i] == OomEnd::kFatal ? Severity::kHigh : Severity::kMedium,
        .event = p.ooms[i]};
    finding.title = fmt::format(
        "a block of {} was free when the request for {} failed: another stream had just let go of "
        "it, and PyTorch did not look at it again",
        FormatBytes(back->block), FormatBytes(request.size));
    const std::string where = p.stacks.WhereOf(back->stack);
    finding.evidence.push_back(fmt::format(
        "the program released it at event {}, and it became free at event {}, while "
        "the allocator was at its last effort for event {}{}",
        back->released, back->freed, p.ooms[i], where.empty() ? "" : "; it was made at " + where));
    finding.remedies.push_back(
        {.change = "make the request once more: it succeeds as it is; or wait for the other stream "
                   "before a large request",
         .basis = Basis::kRecorded,
         .code = {"torch.cuda.synchronize()   # before the request, or in `except "
                  "torch.OutOfMemoryError`"}});
    return {finding};
  }
  return {};
}

}  // namespace plimsoll
