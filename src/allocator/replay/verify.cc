#include "allocator/replay/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "allocator/record/infer.h"
#include "allocator/record/recorded_driver.h"

namespace plimsoll {
namespace {

using BlockId = CachingAllocator::BlockId;

bool IsSegmentEvent(Action action) {
  return action == Action::kSegmentAlloc || action == Action::kSegmentFree ||
         action == Action::kSegmentMap || action == Action::kSegmentUnmap;
}

bool TorchVersions(Action action) {
  return action == Action::kSegmentFree || action == Action::kSegmentUnmap;
}

/// So many frees may have waited for one release before the question is left open.
constexpr std::size_t kMostTrials = 256;

/// The size of an earlier block may be up to 1 MiB more than the record tells. Found by running:
/// the first wrong choice shows which free block must have been smaller.
using Enlarged = std::map<std::uint32_t, Bytes>;

class Verifier {
 public:
  Verifier(const Timeline& timeline, const Ledger& ledger, const Verification& setting,
           const EmptyCacheStacks& stacks, std::vector<std::uint8_t> pools,
           const Enlarged& enlarged, bool may_enlarge)
      : timeline_(timeline),
        ledger_(ledger),
        empty_cache_(stacks),
        pools_(std::move(pools)),
        driver_(timeline, setting.rules, pools_),
        allocator_(setting.rules, setting.limits, driver_, timeline.streams, timeline.pools.size()),
        result_(setting),
        may_enlarge_(may_enlarge),
        holdings_(ledger.allocations.size()) {
    Prepare(enlarged);
  }

  Verification Run() {
    const std::vector<Event>& events = timeline_.events;
    for (std::size_t i = 0; i < events.size();) {
      switch (events[i].action) {
        case Action::kFreeRequested:
          RequestFree(i++);
          break;
        case Action::kFreeCompleted:
          i = CompleteFrees(i);
          break;
        case Action::kAlloc:
        case Action::kOutOfMemory:
        case Action::kSegmentAlloc:
        case Action::kSegmentFree:
        case Action::kSegmentMap:
        case Action::kSegmentUnmap:
          i = Decide(GroupFrom(i));
          break;
        default:
          ++i;
      }
      if (enlarge_) break;
    }
    CompareEnd();
    NoteFatal();
    result_.counters = allocator_.counters();
    return std::move(result_);
  }

  /// An earlier block that must have been larger, if the first wrong choice shows one.
  const std::optional<std::pair<std::uint32_t, Bytes>>& enlarge() const { return enlarge_; }

 private:
  void Prepare(const Enlarged& enlarged) {
    Workload& w = result_.workload;
    w = Workload{};
    w.allocations = ledger_.allocations.size();
    w.streams = timeline_.streams;
    if (w.streams.empty()) w.streams.push_back(0);
    for (const PoolId& pool : timeline_.pools) {
      const bool scope = result_.rules.version.pool_scope_counts_as_capture;
      w.captures.push_back(pool != PoolId{} && (scope || pool.first != 0));
    }
    w.requests.reserve(timeline_.events.size() / 2);
    AddSeeds(
        timeline_, ledger_, [&](bool small) { return allocator_.ReservationSize(small); }, w);
    for (std::size_t i = 0; i < w.seeds.size(); ++i) {
      for (std::size_t k = 0; k < w.seed_allocations[i].size(); ++k) {
        const auto it = enlarged.find(w.seed_allocations[i][k]);
        if (it != enlarged.end()) w.seeds[i].pieces[k].size += it->second;
      }
    }
    Plant(w, allocator_, holdings_);
    for (std::size_t id = 0; id < holdings_.blocks.size(); ++id) {
      if (holdings_.blocks[id] != CachingAllocator::kNone) {
        SetOwner(holdings_.blocks[id], static_cast<std::uint32_t>(id));
      }
    }
  }

  void SetOwner(BlockId block, std::uint32_t allocation) {
    if (owner_.size() <= block) owner_.resize(block + 1, Ledger::kNoAllocation);
    owner_[block] = allocation;
  }

  Request& Ask(Request::Kind kind, std::size_t event) {
    const Event& e = timeline_.events[event];
    result_.workload.requests.push_back({.size = e.size,
                                         .allocation = ledger_.allocation_of_event[event],
                                         .event = static_cast<EventIndex>(event),
                                         .stream = e.stream,
                                         .pool = pools_[event],
                                         .kind = kind});
    return result_.workload.requests.back();
  }

  void RequestFree(std::size_t event) {
    const std::uint32_t id = ledger_.allocation_of_event[event];
    if (id == Ledger::kNoAllocation || holdings_.blocks[id] == CachingAllocator::kNone) return;
    holdings_.tickets[id] = allocator_.RequestFree(holdings_.blocks[id]);
    holdings_.blocks[id] = CachingAllocator::kNone;
    Ask(Request::Kind::kRequestFree, event);
  }

  void CompleteFree(std::size_t event) {
    const std::uint32_t id = ledger_.allocation_of_event[event];
    if (id == Ledger::kNoAllocation) return;
    std::vector<Request>& requests = result_.workload.requests;
    const bool at_once = !requests.empty() && requests.back().kind == Request::Kind::kRequestFree &&
                         requests.back().allocation == id;
    if (holdings_.blocks[id] != CachingAllocator::kNone) {
      // Let go without an event of its own, as in the oldest records.
      allocator_.Free(holdings_.blocks[id]);
      holdings_.blocks[id] = CachingAllocator::kNone;
      Ask(Request::Kind::kFree, event);
      return;
    }
    if (holdings_.tickets[id] == 0) return;
    allocator_.CompleteFree(holdings_.tickets[id]);
    if (at_once) {
      requests.back().kind = Request::Kind::kFree;
    } else {
      Ask(Request::Kind::kCompleteFree, event);
    }
  }

  /// A run of completed frees. Some complete before the search for a block, because the other
  /// stream is done; if the search then fails, the release waits for the rest. The record does not
  /// say where the line is: it is where the model then decides as recorded.
  std::size_t CompleteFrees(std::size_t begin) {
    const std::vector<Event>& events = timeline_.events;
    std::size_t end = begin;
    while (end < events.size() && events[end].action == Action::kFreeCompleted) ++end;
    const bool waited = end < events.size() && (TorchVersions(events[end].action) ||
                                                events[end].action == Action::kOutOfMemory);
    std::size_t before = end;
    if (waited && end - begin <= kMostTrials) before = CompletedBeforeSearch(begin, end);
    for (std::size_t i = begin; i < before; ++i) CompleteFree(i);
    if (before == end) return end;
    return Decide(GroupFrom(before));
  }

  std::size_t CompletedBeforeSearch(std::size_t begin, std::size_t end) const {
    const Group group = GroupFrom(end);
    if (!group.requested || group.emptied == std::optional(true)) return end;
    for (std::size_t before = end;; --before) {
      CachingAllocator trial(allocator_);
      for (std::size_t i = begin; i < before; ++i) {
        const std::uint32_t id = ledger_.allocation_of_event[i];
        if (id != Ledger::kNoAllocation) trial.CompleteFree(holdings_.tickets[id]);
      }
      if (DecidesAsRecorded(std::move(trial), group, pools_[group.end])) return before;
      if (before == begin) return end;
    }
  }

  /// A run of events up to the request that caused them, or to the end of an empty_cache.
  struct Group {
    std::size_t begin = 0;
    /// The request, or one behind the last event of the run.
    std::size_t end = 0;
    bool requested = false;
    std::vector<DriverCall> calls;
    bool versions = false;
    /// Whether the first release was an empty_cache, if its frames tell.
    std::optional<bool> emptied;
    /// A private pool is among what is released.
    bool abandons = false;
    /// Frees that completed on the way.
    std::vector<std::size_t> completed;
  };

  Group GroupFrom(std::size_t begin) const {
    Group group{.begin = begin, .end = begin};
    const std::vector<Event>& events = timeline_.events;
    for (; group.end < events.size(); ++group.end) {
      const Event& e = events[group.end];
      if (e.action == Action::kAlloc || e.action == Action::kOutOfMemory) {
        group.requested = true;
        break;
      }
      if (e.action == Action::kFreeRequested) break;
      if (e.action == Action::kFreeCompleted) group.completed.push_back(group.end);
      if (!IsSegmentEvent(e.action)) continue;
      group.calls.push_back({e.action, e.address, e.size});
      if (TorchVersions(e.action) && e.pool != 0) group.abandons = true;
      if (TorchVersions(e.action) && !group.versions) {
        group.versions = true;
        group.emptied = empty_cache_.Of(e.stack);
      }
    }
    return group;
  }

  /// Whether this state of the allocator would do what the record shows, asked in this pool.
  bool DecidesAsRecorded(CachingAllocator trial, const Group& group, std::uint8_t pool) const {
    const Event& e = timeline_.events[group.end];
    trial.ClearCalls();
    driver_.LookFrom(group.begin);
    const BlockId block = trial.Allocate(e.size, e.stream, pool, result_.workload.captures[pool]);
    const bool served = e.action == Action::kAlloc;
    if (served != (block != CachingAllocator::kNone) || trial.calls() != group.calls) return false;
    return !served || trial.block(block).address == e.address;
  }

  std::size_t Decide(const Group& group) {
    AbandonPools(group);
    if (group.requested) FindPoolOfRefusal(group);
    const bool emptied = IsEmptyCache(group);
    allocator_.ClearCalls();
    driver_.LookFrom(group.begin);
    if (emptied) {
      allocator_.EmptyCache();
      Ask(Request::Kind::kEmptyCache, group.begin).allocation = Ledger::kNoAllocation;
    }
    BlockId block = CachingAllocator::kNone;
    if (group.requested) block = Put(group.end);
    const bool first_wrong_choice = !result_.first;
    CompareCalls(group);
    if (group.requested) ComparePlace(group.end, block, first_wrong_choice);
    // A release has waited for these already; under other settings they complete about here.
    for (const std::size_t event : group.completed) CompleteFree(event);
    return group.requested ? group.end + 1 : group.end;
  }

  /// A private pool is released only when its owner is gone.
  void AbandonPools(const Group& group) {
    for (std::size_t i = group.begin; group.abandons && i < group.end; ++i) {
      const Event& e = timeline_.events[i];
      if (!TorchVersions(e.action) || e.pool == 0) continue;
      allocator_.AbandonPool(e.pool);
      Request& request = Ask(Request::Kind::kAbandonPool, i);
      request.allocation = Ledger::kNoAllocation;
    }
  }

  /// Where events have no pool (up to 2.11), a request that was refused without a release, although
  /// there was something to release, was made in the scope of a private pool: nothing is released
  /// there. Which one is guessed: the one used last.
  void FindPoolOfRefusal(const Group& group) {
    const Event& e = timeline_.events[group.end];
    if (pools_[group.end] != 0) last_private_ = pools_[group.end];
    if (e.action != Action::kOutOfMemory || timeline_.events_have_pools) return;
    if (timeline_.pools.size() < 2) return;
    const std::uint8_t guess = last_private_ != 0 ? last_private_ : std::uint8_t{1};
    if (!DecidesAsRecorded(allocator_, group, 0) && DecidesAsRecorded(allocator_, group, guess)) {
      pools_[group.end] = guess;
    }
  }

  /// Whether the releases of a group were an empty_cache, or are to be taken as one: a record that
  /// begins inside a release shows only the rest of it, which a request alone would not cause.
  bool IsEmptyCache(const Group& group) const {
    if (!group.versions) return false;
    if (!group.requested || group.emptied.value_or(LooksEmptied(group.end))) return true;
    return group.begin == 0 && !DecidesAsRecorded(allocator_, group, pools_[group.end]);
  }

  /// Without frames: a release before a request that the cache could serve, or that nothing
  /// forbids to grow, was no retry.
  bool LooksEmptied(std::size_t request) const {
    const Event& e = timeline_.events[request];
    if (allocator_.Serves(e.size, e.stream, pools_[request])) return true;
    const AllocatorRules& rules = allocator_.rules();
    const Bytes held = allocator_.counters().reserved;
    const std::optional<Bytes> threshold = allocator_.CollectionThreshold();
    if (threshold && held > *threshold) return false;
    const Bytes segment = rules.SegmentFor(rules.Round(e.size));
    return held + segment <= result_.limits.limit.value_or(kNoDevice) &&
           held + segment <= result_.limits.capacity.value_or(kNoDevice);
  }

  BlockId Put(std::size_t event) {
    const Event& e = timeline_.events[event];
    const std::uint8_t pool = pools_[event];
    const bool refused = e.action == Action::kOutOfMemory;
    Ask(refused ? Request::Kind::kRefused : Request::Kind::kAllocate, event);
    return allocator_.Allocate(e.size, e.stream, pool, result_.workload.captures[pool]);
  }

  void ComparePlace(std::size_t event, BlockId block, bool first_wrong_choice) {
    const Event& e = timeline_.events[event];
    if (e.action == Action::kOutOfMemory) {
      if (block == CachingAllocator::kNone) return;
      Note(result_.refusal_mismatches, event,
           fmt::format("the record refuses {}, the model serves it", FormatBytes(e.size)));
      allocator_.Free(block);
      return;
    }
    ++result_.allocations;
    if (block == CachingAllocator::kNone) {
      Note(result_.refusal_mismatches, event,
           fmt::format("the record serves {}, the model refuses it with {} held",
                       FormatBytes(e.size), FormatBytes(allocator_.counters().reserved)));
      ++result_.address_mismatches;
      return;
    }
    const std::uint32_t id = ledger_.allocation_of_event[event];
    holdings_.blocks[id] = block;
    SetOwner(block, id);
    const CachingAllocator::Block& b = allocator_.block(block);
    if (b.address == e.address) return;
    if (may_enlarge_ && first_wrong_choice) SuspectEarlier(block, e.size);
    Note(result_.address_mismatches, event,
         fmt::format("the model puts {} at {:#x}, the record has it at {:#x}", FormatBytes(e.size),
                     b.address, e.address));
  }

  /// The wrong choice lies behind a block from before the record: that one may have owned the start
  /// of what the model took, just so much that the rest was too small for this request.
  void SuspectEarlier(BlockId block, Bytes requested) {
    const CachingAllocator::Block& b = allocator_.block(block);
    if (b.prev == CachingAllocator::kNone || b.prev >= owner_.size() || allocator_.IsSmall(b.pool))
      return;
    const std::uint32_t suspect = owner_[b.prev];
    if (suspect >= static_cast<std::uint32_t>(ledger_.before)) return;
    if (allocator_.block(b.prev).state != CachingAllocator::State::kAllocated) return;
    Bytes room = b.size;
    if (b.next != CachingAllocator::kNone &&
        allocator_.block(b.next).state == CachingAllocator::State::kFree) {
      room += allocator_.block(b.next).size;
    }
    const Bytes more = room - allocator_.rules().Round(requested) + kMinBlock;
    if (more > 0 && more <= kLeastLargeRemainder) enlarge_ = {suspect, more};
  }

  void CompareCalls(const Group& group) {
    result_.segment_events += static_cast<std::int64_t>(group.calls.size());
    const std::vector<DriverCall>& decided = allocator_.calls();
    if (decided == group.calls) return;
    std::multiset<std::tuple<Action, Address, Bytes>> left;
    for (const DriverCall& c : group.calls) left.insert({c.action, c.address, c.size});
    std::int64_t differ = 0;
    for (const DriverCall& c : decided) {
      const auto it = left.find({c.action, c.address, c.size});
      if (it == left.end()) {
        ++differ;
      } else {
        left.erase(it);
      }
    }
    differ += static_cast<std::int64_t>(left.size());
    // Pools whose owners are gone lie in a hash table; their order among each other means nothing.
    if (differ == 0 && group.abandons) return;
    differ = std::max<std::int64_t>(differ, 1);
    Note(result_.segment_mismatches, group.begin,
         fmt::format("the model makes {} calls to the driver, the record has {}; {} differ",
                     decided.size(), group.calls.size(), differ));
    result_.segment_mismatches += differ - 1;
  }

  void Note(std::int64_t& counter, std::size_t event, std::string what) {
    ++counter;
    if (!result_.first) {
      result_.first = Mismatch{.event = static_cast<EventIndex>(event), .what = std::move(what)};
    }
  }

  void NoteFatal() {
    const std::optional<Position> fatal = FatalOutOfMemory(timeline_, ledger_);
    const std::vector<Request>& requests = result_.workload.requests;
    for (std::size_t i = requests.size(); fatal && i-- > 0;) {
      if (requests[i].event != static_cast<EventIndex>(*fatal)) continue;
      result_.workload.fatal = i;
      return;
    }
  }

  /// The blocks at the end against those that the record lists.
  void CompareEnd() {
    std::set<std::tuple<Address, Bytes, BlockState>> recorded;
    for (const Block& b : timeline_.blocks) recorded.insert({b.address, b.size, b.state});
    std::int64_t differ = 0;
    for (const CachingAllocator::Block& b : allocator_.blocks()) {
      using In = CachingAllocator::State;
      if (b.state == In::kUnused || b.state == In::kUnmapped) continue;
      const BlockState state = b.state == In::kFree      ? BlockState::kInactive
                               : b.state == In::kPending ? BlockState::kPendingFree
                                                         : BlockState::kActive;
      if (recorded.erase({b.address, b.size, state}) == 0) ++differ;
    }
    result_.final_block_differences = differ + static_cast<std::int64_t>(recorded.size());
  }

  const Timeline& timeline_;
  const Ledger& ledger_;
  const EmptyCacheStacks& empty_cache_;
  std::vector<std::uint8_t> pools_;
  mutable RecordedDriver driver_;  // trials ask it too
  CachingAllocator allocator_;
  Verification result_;
  const bool may_enlarge_;
  Holdings holdings_;
  std::vector<std::uint32_t> owner_;
  std::uint8_t last_private_ = 0;
  std::optional<std::pair<std::uint32_t, Bytes>> enlarge_;
};

}  // namespace

Verification Verify(const Timeline& timeline, const Ledger& ledger, const VerifyOptions& options) {
  Verification setting;
  const std::optional<TorchVersion> told = ParseTorchVersion(timeline.torch);
  setting.torch = options.torch.value_or(told.value_or(TorchVersion{}));
  setting.rules = AllocatorRules::From(timeline.settings, setting.torch);
  const Inferred inferred = InferLimits(timeline, ledger, setting.rules,
                                        {.limit = options.limit, .capacity = options.capacity});
  setting.limits = inferred.limits;
  setting.inferred = inferred.notes;
  if (!told && !options.torch) {
    setting.inferred.push_back(fmt::format(
        "the record does not tell its release: the rules of {} are assumed (give it with --torch)",
        setting.torch.ToText()));
  }
  const EmptyCacheStacks stacks(timeline);
  const std::vector<std::uint8_t> pools = PoolsOfEvents(timeline);
  Enlarged enlarged;
  // Each round settles one block, and there are not many whose size is in doubt.
  constexpr int kRounds = 400;
  for (int round = 0;; ++round) {
    Verifier verifier(timeline, ledger, setting, stacks, pools, enlarged, round < kRounds);
    Verification result = verifier.Run();
    if (!verifier.enlarge()) return result;
    const auto [allocation, by] = *verifier.enlarge();
    enlarged[allocation] += by;
    if (enlarged[allocation] > kLeastLargeRemainder) {
      // It was not the reason; the rest is taken as it comes.
      enlarged.erase(allocation);
      round = kRounds - 1;
    }
  }
}

}  // namespace plimsoll
