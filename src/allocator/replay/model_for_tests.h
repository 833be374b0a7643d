// For tests: a driver whose addresses the test chooses, and a recorder that writes down what the
// allocator does, as PyTorch's snapshot would show it.
#pragma once

#include <deque>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "allocator/model/caching_allocator.h"
#include "allocator/replay/replay.h"
#include "allocator/replay/verify.h"
#include "allocator/settings/settings.h"
#include "base/check.h"
#include "timeline/timeline.h"

namespace plimsoll::testing_model {

class ScriptedDriver : public Driver {
 public:
  /// Where the next segments shall lie; after these, 1 GiB apart and upward.
  std::deque<Address> next;
  std::vector<Address> reservations;
  std::vector<Address> freed_reservations;

  Address NewSegment(Bytes size) override {
    Address address = fresh_;
    if (next.empty()) {
      fresh_ += static_cast<Address>((size / kGiB + 1) * kGiB);
    } else {
      address = next.front();
      next.pop_front();
    }
    return address;
  }
  void FreeSegment(Address, Bytes) override {}
  Address NewReservation(const Reservation& wanted) override {
    reservations.push_back(next_reservation_);
    next_reservation_ += static_cast<Address>((wanted.size / kGiB + 2) * kGiB);
    return reservations.back();
  }
  void FreeReservation(Address address) override { freed_reservations.push_back(address); }

 private:
  Address fresh_ = 0x700000000000;
  Address next_reservation_ = 0x300000000000;
};

struct ModelSetup {
  std::string conf = "";
  TorchVersion torch = {};
  DeviceLimits limits = {};
  std::vector<std::uint64_t> streams = {0};
  std::size_t pools = 1;
};

inline AllocatorRules RulesFor(const ModelSetup& setup) {
  Result<AllocatorSettings> settings = ParseAllocatorSettings(setup.conf, setup.torch);
  PLIMSOLL_CHECK(settings.ok());
  return {.settings = *settings, .version = RulesOf(setup.torch)};
}

/// Writes a record while it runs the allocator.
class Recorder {
 public:
  using Handle = std::size_t;
  static constexpr Handle kRefused = static_cast<Handle>(-1);

  explicit Recorder(const ModelSetup& setup)
      : setup_(setup),
        allocator_(RulesFor(setup), setup.limits, driver_, setup.streams, setup.pools) {
    timeline_.streams = setup.streams;
    timeline_.settings.conf = setup.conf;
    timeline_.torch = setup.torch.ToText();
    timeline_.events_have_pools = setup.torch >= TorchVersion{2, 12};
    for (std::size_t i = 1; i < setup.pools; ++i) {
      timeline_.pools.push_back({0, static_cast<std::int64_t>(i)});
    }
    train_ = AddStack("step", "train.py");
    empty_cache_ = AddStack("empty_cache", "torch/cuda/memory.py");
  }

  Handle Allocate(Bytes size, std::uint16_t stream = 0, std::uint8_t pool = 0) {
    const std::int64_t retries = allocator_.counters().retries;
    const bool capturing = pool != 0 && allocator_.rules().version.pool_scope_counts_as_capture;
    const auto block = allocator_.Allocate(size, stream, pool, capturing);
    if (allocator_.counters().retries != retries) WaitForAll();
    WriteCalls(train_, stream, pool);
    if (block == CachingAllocator::kNone) {
      const Bytes left = setup_.limits.capacity.value_or(kDevice) - allocator_.counters().reserved;
      Write(Action::kOutOfMemory, static_cast<Address>(left), allocator_.rules().Round(size),
            stream, pool, train_);
      return kRefused;
    }
    const Address address = allocator_.block(block).address;
    Write(Action::kAlloc, address, size, stream, pool, train_);
    held_.push_back({block, 0, address, size, stream, pool});
    return held_.size() - 1;
  }
  void Free(Handle handle) {
    RequestFree(handle, false);
    Complete(handle);
  }
  void RequestFree(Handle handle, bool deferred = true) {
    Held& h = held_[handle];
    h.ticket = allocator_.RequestFree(h.block);
    Write(Action::kFreeRequested, h.address, h.size, h.stream, h.pool, train_);
    if (deferred) waiting_.push_back(handle);
  }
  /// The other stream is done. Nothing if a release has waited for it.
  void CompleteFree(Handle handle) {
    if (std::erase(waiting_, handle) > 0) Complete(handle);
  }
  void EmptyCache() {
    allocator_.EmptyCache();
    WaitForAll();
    WriteCalls(empty_cache_, 0, 0);
  }

  std::size_t events() const { return timeline_.events.size(); }
  const AllocatorCounters& counters() const { return allocator_.counters(); }
  const CachingAllocator& allocator() const { return allocator_; }

  /// The record as a snapshot taken now holds it; the recorder is spent.
  Timeline Finish() {
    Timeline t = std::move(timeline_);
    const auto blocks = allocator_.blocks();
    for (CachingAllocator::BlockId id = 0; id < blocks.size(); ++id) {
      if (blocks[id].state == State::kUnused || blocks[id].prev != kNone) continue;
      AddSegments(id, t);
    }
    return t;
  }

 private:
  using State = CachingAllocator::State;
  static constexpr auto kNone = CachingAllocator::kNone;
  static constexpr Bytes kDevice = 140 * kGiB;
  struct Held {
    CachingAllocator::BlockId block = 0;
    CachingAllocator::Ticket ticket = 0;
    Address address = 0;
    Bytes size = 0;
    std::uint16_t stream = 0;
    std::uint8_t pool = 0;
  };

  StackId AddStack(std::string_view function, std::string_view file) {
    StackTable& s = timeline_.stacks;
    const FrameId frame = s.AddFrame({s.strings.Intern(function), s.strings.Intern(file), 1});
    return s.AddStack(std::vector<FrameId>{frame});
  }
  void Write(Action action, Address address, Bytes size, std::uint16_t stream, std::uint8_t pool,
             StackId stack) {
    if (!timeline_.events_have_pools) pool = 0;
    timeline_.events.push_back({.address = address,
                                .size = size,
                                .stack = stack,
                                .stream = stream,
                                .pool = pool,
                                .action = action});
  }
  void WriteCalls(StackId stack, std::uint16_t stream, std::uint8_t pool) {
    for (const DriverCall& call : allocator_.calls()) {
      const bool more = call.action == Action::kSegmentAlloc || call.action == Action::kSegmentMap;
      if (more) owners_[call.address] = {stream, pool};
      // Memory goes back on the stream for which it came.
      const auto& [its_stream, its_pool] = std::prev(owners_.upper_bound(call.address))->second;
      Write(call.action, call.address, call.size, its_stream, its_pool, stack);
    }
    allocator_.ClearCalls();
  }
  void Complete(Handle handle) {
    const Held& h = held_[handle];
    allocator_.CompleteFree(h.ticket);
    Write(Action::kFreeCompleted, h.address, h.size, h.stream, h.pool, train_);
  }
  void WaitForAll() {
    for (const Handle handle : waiting_) Complete(handle);
    waiting_.clear();
  }

  void AddSegments(CachingAllocator::BlockId first, Timeline& t) const {
    bool open = false;
    for (auto id = first; id != kNone; id = allocator_.block(id).next) {
      const CachingAllocator::Block& b = allocator_.block(id);
      if (b.state == State::kUnmapped) {
        open = false;
        continue;
      }
      if (!open) {
        t.segments.push_back({.address = b.address,
                              .stream = b.stream,
                              .pool = allocator_.PoolOf(b.pool),
                              .small = allocator_.IsSmall(b.pool),
                              .expandable = b.reservation != kNone,
                              .first_block = t.blocks.size()});
        open = true;
      }
      t.segments.back().size += b.size;
      ++t.segments.back().block_count;
      t.blocks.push_back({.address = b.address,
                          .size = b.size,
                          .requested = RequestedOf(id),
                          .state = b.state == State::kFree      ? BlockState::kInactive
                                   : b.state == State::kPending ? BlockState::kPendingFree
                                                                : BlockState::kActive});
    }
  }
  Bytes RequestedOf(CachingAllocator::BlockId id) const {
    for (auto h = held_.rbegin(); h != held_.rend(); ++h) {
      if (h->block == id) return h->size;
    }
    return 0;
  }

  const ModelSetup setup_;
  ScriptedDriver driver_;
  CachingAllocator allocator_;
  Timeline timeline_;
  StackId train_;
  StackId empty_cache_;
  std::vector<Held> held_;
  std::vector<Handle> waiting_;
  /// Stream and pool of what came from the driver, by address.
  std::map<Address, std::pair<std::uint16_t, std::uint8_t>> owners_;
};

/// A random load: what is alive stays around `live` bytes. Everything depends on the seed.
struct Load {
  unsigned seed = 1;
  int requests = 600;
  Bytes live = 300 * kMiB;
  /// One free in so many waits for another stream; 0 is none.
  unsigned defer = 0;
  /// The cache is emptied after every so many requests; 0 is never.
  int empty_every = 0;
};

inline Timeline RecordLoad(const ModelSetup& setup, const Load& load, AllocatorCounters* counters) {
  Recorder recorder(setup);
  std::mt19937 random(load.seed);
  struct Live {
    Recorder::Handle handle = 0;
    Bytes size = 0;
  };
  std::vector<Live> live;
  std::vector<Recorder::Handle> waiting;
  Bytes sum = 0;
  for (int i = 0; i < load.requests; ++i) {
    // 512 bytes to 64 MiB, small ones more often; a third of odd sizes.
    Bytes size = Bytes{512} << (random() % 18);
    size += random() % 3 == 0 ? static_cast<Bytes>(random()) % size : 0;
    while (sum + size > load.live && !live.empty()) {
      const std::size_t which = random() % live.size();
      sum -= live[which].size;
      if (load.defer > 0 && random() % load.defer == 0) {
        recorder.RequestFree(live[which].handle);
        waiting.push_back(live[which].handle);
      } else {
        recorder.Free(live[which].handle);
      }
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
    }
    if (!waiting.empty() && random() % 3 == 0) {
      recorder.CompleteFree(waiting.front());
      waiting.erase(waiting.begin());
    }
    if (load.empty_every > 0 && i % load.empty_every == load.empty_every - 1) recorder.EmptyCache();
    const auto stream = static_cast<std::uint16_t>(random() % setup.streams.size());
    const auto pool = static_cast<std::uint8_t>(random() % 4 == 0 ? random() % setup.pools : 0);
    const Recorder::Handle handle = recorder.Allocate(size, stream, pool);
    if (handle == Recorder::kRefused) continue;
    live.push_back({handle, size});
    sum += size;
  }
  if (counters != nullptr) *counters = recorder.counters();
  return recorder.Finish();
}

/// A record with the workload that is in it.
struct RecordedJob {
  Timeline timeline;
  Ledger ledger;
  Verification verified;

  explicit RecordedJob(Timeline t, const VerifyOptions& given = {})
      : timeline(std::move(t)),
        ledger(Follow(timeline)),
        verified(Verify(timeline, ledger, given)) {
    PLIMSOLL_CHECK(verified.Exact());
  }
  explicit RecordedJob(Recorder&& recorder, const VerifyOptions& given = {})
      : RecordedJob(recorder.Finish(), given) {}

  const Workload& workload() const { return verified.workload; }
  ReplayOptions Options(const char* conf = "", const DeviceLimits& limits = {}) const {
    return {.rules = {.settings = *ParseAllocatorSettings(conf, verified.torch),
                      .version = verified.rules.version},
            .limits = limits};
  }
};

/// The record from event `from` on, as a ring buffer leaves it.
inline void CutBefore(Timeline& t, std::size_t from) {
  t.events.erase(t.events.begin(), t.events.begin() + static_cast<std::ptrdiff_t>(from));
}

/// An allocator and its driver.
class Model {
 public:
  using BlockId = CachingAllocator::BlockId;

  explicit Model(const ModelSetup& setup = {})
      : allocator(RulesFor(setup), setup.limits, driver, setup.streams, setup.pools) {}

  BlockId Take(Bytes size, std::uint16_t stream = 0, std::uint8_t pool = 0) {
    return allocator.Allocate(size, stream, pool);
  }
  /// A segment of its own, free again: something to find in the cache.
  BlockId Cache(Bytes size, std::uint16_t stream = 0, std::uint8_t pool = 0) {
    const BlockId block = Take(size, stream, pool);
    later_.push_back(block);
    return block;
  }
  void FreeCached() {
    for (const BlockId block : later_) allocator.Free(block);
    later_.clear();
    allocator.ClearCalls();
  }
  Address At(BlockId block) const { return allocator.block(block).address; }
  Bytes SizeOf(BlockId block) const { return allocator.block(block).size; }
  const AllocatorCounters& counters() const { return allocator.counters(); }
  /// "+20 +2 -20": MiB from and to the driver since the last look.
  std::string Calls() {
    std::string text;
    for (const DriverCall& c : allocator.calls()) {
      const bool more = c.action == Action::kSegmentAlloc || c.action == Action::kSegmentMap;
      text +=
          (text.empty() ? "" : " ") + std::string(more ? "+" : "-") + std::to_string(c.size / kMiB);
    }
    allocator.ClearCalls();
    return text;
  }

  ScriptedDriver driver;
  CachingAllocator allocator;

 private:
  std::vector<BlockId> later_;
};

}  // namespace plimsoll::testing_model
