#include "diagnose/attribution/pinned_table.h"

#include <algorithm>
#include <map>
#include <unordered_map>

namespace plimsoll {
namespace {

/// What is held and in use from event to event, counted from what is there at the end.
void FindPeaks(const PinnedMemory& pinned, HostPinnedReport& report) {
  Bytes reserved = report.reserved;
  Bytes allocated = report.allocated;
  const auto note = [&] {
    report.peak_reserved = std::max(report.peak_reserved, reserved);
    report.peak_allocated = std::max(report.peak_allocated, allocated);
  };
  std::unordered_map<Address, Bytes> sizes;
  for (const PinnedMemory::Piece& piece : pinned.pieces) sizes[piece.address] = piece.size;
  const auto size_of = [&](const Event& e) {
    const auto found = sizes.find(e.address);
    return found != sizes.end() ? found->second : e.size;
  };
  note();
  for (auto e = pinned.events.rbegin(); e != pinned.events.rend(); ++e) {
    switch (e->action) {
      case Action::kSegmentAlloc:
        reserved = std::max<Bytes>(0, reserved - e->size);
        break;
      case Action::kSegmentFree:
        sizes[e->address] = e->size;
        reserved += e->size;
        break;
      case Action::kAlloc:
        allocated = std::max<Bytes>(0, allocated - size_of(*e));
        break;
      case Action::kFreeCompleted:
        allocated += size_of(*e);
        break;
      default:
        break;
    }
    note();
  }
}

}  // namespace

std::vector<PinnedUse> PinnedInUse(const PinnedMemory& pinned) {
  std::unordered_map<Address, const Event*> last;
  for (const Event& e : pinned.events) {
    if (e.action == Action::kAlloc) last[e.address] = &e;
  }
  std::vector<PinnedUse> uses;
  for (const PinnedMemory::Piece& piece : pinned.pieces) {
    if (!piece.in_use) continue;
    const auto found = last.find(piece.address);
    // Handed out before the record began: nobody tells what was asked for.
    if (found == last.end()) continue;
    uses.push_back({piece.size, std::min(found->second->size, piece.size), found->second->stack});
  }
  return uses;
}

std::optional<HostPinnedReport> PinnedTable(const Timeline& timeline, const StackAnalysis& stacks) {
  const PinnedMemory& pinned = timeline.pinned;
  if (pinned.events.empty()) return std::nullopt;
  HostPinnedReport report;
  report.events = static_cast<std::int64_t>(pinned.events.size());
  for (const PinnedMemory::Piece& piece : pinned.pieces) {
    report.reserved += piece.size;
    report.allocated += piece.in_use ? piece.size : 0;
  }
  FindPeaks(pinned, report);
  std::map<std::string, HostPinnedReport::Place> places;
  Bytes told = 0;
  Bytes requested = 0;
  for (const PinnedUse& use : PinnedInUse(pinned)) {
    const std::string where = stacks.WhereOf(use.stack);
    HostPinnedReport::Place& place = places[where.empty() ? "no stack recorded" : where];
    place.bytes += use.size;
    ++place.count;
    told += use.size;
    requested += use.requested;
  }
  if (told == report.allocated) report.requested = requested;
  for (auto& [where, place] : places) {
    place.where = where;
    report.places.push_back(std::move(place));
  }
  std::ranges::stable_sort(report.places, std::ranges::greater(), &HostPinnedReport::Place::bytes);
  constexpr std::size_t kMostPlaces = 24;
  if (report.places.size() > kMostPlaces) report.places.resize(kMostPlaces);
  return report;
}

}  // namespace plimsoll
