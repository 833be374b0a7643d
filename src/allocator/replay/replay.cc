#include "allocator/replay/replay.h"

#include <algorithm>
#include <utility>

#include "base/hash.h"

namespace plimsoll {

Replayer::Replayer(const Workload& workload, const ReplayOptions& options, Driver& driver,
                   ReplayLog* log)
    : workload_(workload),
      options_(options),
      allocator_(options.rules, options.limits, driver, workload.streams, workload.pools()),
      log_(log),
      holdings_(workload.allocations) {
  // Most requests make one entry.
  if (log_ != nullptr) log_->entries.reserve(workload.requests.size());
  Begin();
}

bool KeepsEarlier(const Workload& workload, const ReplayOptions& options) {
  if (!options.keep_earlier_segments) return false;
  Bytes held = 0;
  for (const CachingAllocator::SeedSegment& seed : workload.seeds) {
    held += seed.size;
    for (const CachingAllocator::SeedPiece& piece : seed.pieces) {
      if (piece.state == CachingAllocator::State::kUnmapped) held -= piece.size;
    }
  }
  return held <= options.limits.limit.value_or(kNoDevice) &&
         held <= options.limits.capacity.value_or(kNoDevice);
}

void Replayer::Begin() {
  if (KeepsEarlier(workload_, options_)) {
    Plant(workload_, allocator_, holdings_);
    if (log_ == nullptr) return;
    for (const CachingAllocator::Block& b : allocator_.blocks()) {
      using In = CachingAllocator::State;
      if (b.state == In::kUnused || b.state == In::kUnmapped) continue;
      log_->entries.push_back({b.address, b.size, ReplayLog::What::kMemory});
      if (b.state != In::kAllocated) continue;
      log_->entries.push_back({b.address, b.size, ReplayLog::What::kBlock});
    }
    return;
  }
  for (const Request& request : workload_.earlier) Serve(request, 0);
}

ReplayResult Replayer::result() const {
  ReplayResult result = result_;
  result.counters = allocator_.counters();
  result.done_without += further_without_;
  return result;
}

void Replayer::Run(std::size_t last) {
  const std::size_t count = workload_.requests.size();
  const std::size_t end = last < count ? last + 1 : count;
  while (next_ < end && !stopped_) Step(next_++);
}

std::optional<std::size_t> Replayer::Next() {
  if (stopped_ || next_ == workload_.requests.size()) return std::nullopt;
  const bool any = next_repeat_ < workload_.repeats.size();
  const RepeatedRequests* const repeated = any ? &workload_.repeats[next_repeat_] : nullptr;
  if (any && rounds_.empty() && next_ == repeated->begin) {
    rounds_.push_back(RoundAt(*repeated, 0));
    rounds_left_ = repeated->times;
  }
  const std::size_t index = next_++;
  Step(index);
  if (any && next_ == repeated->end) EndRound(*repeated);
  return index;
}

/// `shift`: of what is carried, which is not yet moved.
Replayer::Round Replayer::RoundAt(const RepeatedRequests& repeated, std::uint32_t shift) const {
  std::uint64_t state = allocator_.StateHash();
  for (const std::uint32_t allocation : repeated.carried) {
    const BlockId block = holdings_.blocks[allocation + shift];
    const Address at = block == CachingAllocator::kNone ? 0 : allocator_.block(block).address;
    state = MixHash(state, at);
  }
  return {.state = state, .done_without = result_.done_without};
}

void Replayer::EndRound(const RepeatedRequests& repeated) {
  const Round now = RoundAt(repeated, repeated.shift);
  LeaveOutCircles(now);
  if (rounds_left_ == 0 || stopped_) {
    rounds_.clear();
    ++next_repeat_;
    return;
  }
  for (const std::uint32_t allocation : repeated.carried) {
    holdings_.blocks[allocation] =
        std::exchange(holdings_.blocks[allocation + repeated.shift], CachingAllocator::kNone);
  }
  next_ = repeated.begin;
  rounds_.push_back(now);
  --rounds_left_;
}

void Replayer::LeaveOutCircles(const Round& now) {
  if (!allocator_.RepeatsItself()) return;
  const auto same = std::ranges::find(rounds_.rbegin(), rounds_.rend(), now.state, &Round::state);
  if (same == rounds_.rend()) return;
  const std::int64_t around = 1 + (same - rounds_.rbegin());
  const std::int64_t circles = rounds_left_ / around;
  further_without_ += circles * (now.done_without - same->done_without);
  rounds_left_ -= circles * around;
}

void Replayer::Step(std::size_t index) {
  const Request& request = workload_.requests[index];
  const std::vector<EventIndex>& empties = options_.empty_cache_before;
  if (next_empty_ < empties.size() && empties[next_empty_] <= request.event) {
    while (next_empty_ < empties.size() && empties[next_empty_] <= request.event) ++next_empty_;
    allocator_.EmptyCache();
    LogCalls();
  }
  using Kind = Request::Kind;
  if (request.kind == Kind::kAllocate || request.kind == Kind::kRefused ||
      request.kind == Kind::kBorrow) {
    return Serve(request, index);
  }
  if (request.kind == Kind::kSearch && request.size > 0) Serve(request, index);
  if (request.kind == Kind::kEmptyCache || request.kind == Kind::kSearch) {
    allocator_.EmptyCache();
    return LogCalls();
  }
  if (request.kind == Kind::kAbandonPool) return allocator_.AbandonPool(request.pool);
  if (request.kind == Kind::kCompleteFree) {
    return allocator_.CompleteFree(holdings_.tickets[request.allocation]);
  }
  BlockId& block = holdings_.blocks[request.allocation];
  if (block == CachingAllocator::kNone) return;
  if (log_ != nullptr) LogFree(block);
  if (request.kind == Kind::kFree) {
    allocator_.Free(block);
  } else {
    holdings_.tickets[request.allocation] = allocator_.RequestFree(block);
  }
  block = CachingAllocator::kNone;
}

void Replayer::Serve(const Request& request, std::size_t index) {
  const bool refused = request.kind == Request::Kind::kRefused;
  const bool borrowed = request.passes();
  const bool ends = refused && workload_.fatal == index;
  if (refused && !ends && !options_.ask_refused) return;
  const Bytes peak = allocator_.counters().peak_reserved;
  const BlockId block = allocator_.Allocate(request.size, request.stream, request.pool,
                                            workload_.captures[request.pool]);
  if (allocator_.counters().peak_reserved != peak) result_.peak_request = index;
  LogCalls();
  if (block == CachingAllocator::kNone) {
    if (borrowed) {
      if (request.kind == Request::Kind::kBorrow) ++result_.done_without;
    } else if (!refused || ends) {
      Fail(request);
    }
    return;
  }
  if (log_ != nullptr) {
    const CachingAllocator::Block& b = allocator_.block(block);
    log_->entries.push_back({b.address, b.size, ReplayLog::What::kBlock});
  }
  if (refused || borrowed) {
    if (refused) ++result_.refusals_served;
    if (log_ != nullptr) LogFree(block);
    allocator_.Free(block);
    // What follows the error in the record is its unwinding, which would not have been.
    if (ends) stopped_ = true;
  } else {
    holdings_.blocks[request.allocation] = block;
  }
}

void Replayer::Fail(const Request& request) {
  stopped_ = true;
  result_.fits = false;
  result_.oom_event = request.event;
  result_.oom_requested = request.size;
}

void Replayer::LogCalls() {
  if (log_ != nullptr) {
    for (const DriverCall& call : allocator_.calls()) {
      const bool more = call.action == Action::kSegmentAlloc || call.action == Action::kSegmentMap;
      log_->entries.push_back({call.address, call.size,
                               more ? ReplayLog::What::kMemory : ReplayLog::What::kMemoryGone});
    }
  }
  allocator_.ClearCalls();
}

void Replayer::LogFree(BlockId block) {
  const CachingAllocator::Block& b = allocator_.block(block);
  log_->entries.push_back({b.address, b.size, ReplayLog::What::kBlockGone});
}

std::vector<std::uint32_t> Replayer::Owners() const {
  std::vector<std::uint32_t> owners(allocator_.blocks().size(), Ledger::kNoAllocation);
  for (std::size_t i = 0; i < holdings_.blocks.size(); ++i) {
    const BlockId block = holdings_.blocks[i];
    if (block != CachingAllocator::kNone) owners[block] = static_cast<std::uint32_t>(i);
  }
  return owners;
}

ReplayResult Replay(const Timeline& timeline, const Workload& workload,
                    const ReplayOptions& options, ReplayLog* log) {
  AssumedDriver driver(timeline);
  Replayer replayer(workload, options, driver, log);
  replayer.Run();
  return replayer.result();
}

std::optional<Bytes> SmallestCapacity(const Timeline& timeline, const Workload& workload,
                                      ReplayOptions options) {
  const auto fits = [&](Bytes capacity) {
    options.limits.capacity = capacity;
    return Replay(timeline, workload, options).fits;
  };
  options.limits.capacity.reset();
  const ReplayResult free = Replay(timeline, workload, options);
  if (!free.fits) return std::nullopt;
  // It fits where nothing is ever refused. What is alive at once is no lower end: requests that the
  // record refused need not be served.
  Bytes enough = (free.counters.peak_reserved + kSegmentUnit - 1) / kSegmentUnit;
  Bytes too_little = 0;
  while (enough - too_little > 1) {
    const Bytes middle = too_little + (enough - too_little) / 2;
    (fits(middle * kSegmentUnit) ? enough : too_little) = middle;
  }
  return enough * kSegmentUnit;
}

}  // namespace plimsoll
