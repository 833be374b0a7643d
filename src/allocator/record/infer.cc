#include "allocator/record/infer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace plimsoll {
namespace {

bool IsRelease(const Event& e) {
  return e.action == Action::kSegmentFree || e.action == Action::kSegmentUnmap;
}

Bytes Growth(const Event& e) {
  if (e.action == Action::kSegmentAlloc || e.action == Action::kSegmentMap) return e.size;
  return IsRelease(e) ? -e.size : 0;
}

/// Bounds that refusals and retries put on what the allocator could have.
struct Bounds {
  /// Held and free together when the driver refused, if it ever did.
  std::optional<Bytes> capacity = {};
  EventIndex capacity_event = 0;
  /// A limit lies below this.
  std::optional<Bytes> limit_below = {};
  EventIndex limit_event = 0;

  void Below(Bytes bound, EventIndex event) {
    if (limit_below && *limit_below <= bound) return;
    limit_below = bound;
    limit_event = event;
  }
};

class BoundFinder {
 public:
  BoundFinder(const Timeline& timeline, const Ledger& ledger, const AllocatorRules& rules)
      : timeline_(timeline),
        rules_(rules),
        empty_cache_(timeline),
        held_(ledger.initial_reserved) {}

  Bounds Run() {
    for (EventIndex i = 0; i < timeline_.events.size(); ++i) Look(i);
    return bounds_;
  }

 private:
  void Look(EventIndex i) {
    const Event& e = timeline_.events[i];
    if (IsRelease(e) && !before_release_) {
      before_release_ = held_;
      by_request_ = empty_cache_.Of(e.stack) == std::optional(false);
    }
    held_ += Growth(e);
    if (e.action == Action::kOutOfMemory) Refused(e, i);
    // A request that had to wait for a release did not fit before it. Garbage collection releases
    // too, though nothing was refused.
    const bool collects = rules_.settings.garbage_collection_threshold > 0;
    if (e.action == Action::kAlloc && before_release_ && by_request_ && !collects) {
      bounds_.Below(*before_release_ + rules_.SegmentFor(rules_.Round(e.size)), i);
    }
    if (e.action == Action::kAlloc || e.action == Action::kOutOfMemory ||
        e.action == Action::kFreeRequested) {
      before_release_.reset();
    }
  }

  void Refused(const Event& e, EventIndex i) {
    const Bytes segment = rules_.SegmentFor(rules_.Round(e.size));
    const auto device_free =
        static_cast<Bytes>(std::min(e.address, static_cast<Address>(kNoDevice)));
    if (device_free >= segment) {
      bounds_.Below(held_ + segment, i);
    } else if (!bounds_.capacity || held_ + device_free > *bounds_.capacity) {
      bounds_.capacity = held_ + device_free;
      bounds_.capacity_event = i;
    }
  }

  const Timeline& timeline_;
  const AllocatorRules& rules_;
  const EmptyCacheStacks empty_cache_;
  Bytes held_ = 0;
  std::optional<Bytes> before_release_;
  bool by_request_ = false;
  Bounds bounds_;
};

/// Expandable segments lie one behind the other, each as long as 9/8 of the device, rounded up to
/// pages and then to 32 MiB: the distance tells how large the device is. The first mapping for a
/// pool and stream lies at the start of its segment.
std::optional<Bytes> DeviceTotal(const Timeline& timeline, const Ledger& ledger,
                                 const AllocatorRules& rules) {
  for (const MappedRange& range : ledger.initial_ranges) {
    if (range.expandable) return std::nullopt;
  }
  std::map<std::pair<std::uint16_t, bool>, Address> first;
  std::optional<std::pair<std::uint16_t, Address>> mapped;
  for (const Event& e : timeline.events) {
    if (e.action == Action::kSegmentMap && !mapped) mapped = {e.stream, e.address};
    if (e.action == Action::kAlloc && mapped && mapped->first == e.stream) {
      const bool small = rules.Round(e.size) <= kSmallRequest;
      first.emplace(std::pair(e.stream, small), mapped->second);
    }
    if (e.action == Action::kAlloc || e.action == Action::kOutOfMemory) mapped.reset();
  }
  std::map<Address, bool> bases;
  for (const auto& [pool, base] : first) bases[base] = pool.second;
  for (auto it = bases.begin(); it != bases.end() && std::next(it) != bases.end(); ++it) {
    const auto distance = static_cast<Bytes>(std::next(it)->first - it->first);
    // Small pages would leave 32 MiB in doubt.
    const bool small = it->second;
    if (small || distance < kGiB || distance > (Bytes{1} << 42)) continue;
    const Bytes page = rules.settings.large_segment_size;
    return distance / page * page / 9 * 8;
  }
  return std::nullopt;
}

}  // namespace

Inferred InferLimits(const Timeline& timeline, const Ledger& ledger, const AllocatorRules& rules,
                     const DeviceLimits& given) {
  Inferred result{.limits = given, .notes = {}};
  const Bounds bounds = BoundFinder(timeline, ledger, rules).Run();
  if (!given.capacity && bounds.capacity) {
    result.limits.capacity = bounds.capacity;
    result.notes.push_back(
        fmt::format("the driver could give {}: held and free together when it refused event {}",
                    FormatBytes(*bounds.capacity), bounds.capacity_event));
  }
  const bool already = given.limit || result.limits.capacity;
  if (!already && bounds.limit_below && *bounds.limit_below > ledger.peak_reserved) {
    result.limits.limit = *bounds.limit_below - 1;
    result.notes.push_back(fmt::format(
        "a limit of {} to {}: so much was held, and event {} was refused or had to wait for a "
        "release; the record does not hold the limit itself (give it with --limit)",
        FormatBytes(ledger.peak_reserved), FormatBytes(*bounds.limit_below - 1),
        bounds.limit_event));
  }
  if (rules.settings.expandable_segments) {
    if (const std::optional<Bytes> total = DeviceTotal(timeline, ledger, rules)) {
      result.limits.total = *total;
    }
  }
  return result;
}

EmptyCacheStacks::EmptyCacheStacks(const Timeline& timeline) {
  const StackTable& stacks = timeline.stacks;
  of_stack_.reserve(stacks.stack_count());
  for (std::size_t i = 0; i < stacks.stack_count(); ++i) {
    std::int8_t says = -1;
    for (const FrameId id : stacks.stack(StackId(i))) {
      const std::string_view function = stacks.strings[stacks.frame(id).function];
      const std::string_view file = stacks.strings[stacks.frame(id).file];
      const bool python = file.ends_with(".py");
      if ((python && function == "empty_cache") || function.find("emptyCache") != function.npos) {
        says = 1;
        break;
      }
      if (python) says = 0;
    }
    of_stack_.push_back(says);
  }
}

std::optional<bool> EmptyCacheStacks::Of(StackId stack) const {
  if (!stack.valid() || of_stack_[stack.index()] < 0) return std::nullopt;
  return of_stack_[stack.index()] == 1;
}

}  // namespace plimsoll
