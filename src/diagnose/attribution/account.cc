#include "diagnose/attribution/account.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace plimsoll {
namespace {

struct Use {
  Address address;
  Bytes size;
};

/// Blocks in use or awaiting another stream, in order of address.
std::vector<Use> InUseAt(const Ledger& ledger, Position at) {
  std::vector<Use> uses;
  for (const Allocation& a : ledger.allocations) {
    if (a.made > at) break;
    if (a.freed > at) uses.push_back({a.address, a.block});
  }
  std::sort(uses.begin(), uses.end(),
            [](const Use& a, const Use& b) { return a.address < b.address; });
  return uses;
}

/// The pages of a free piece that the allocator could give back: those wholly inside it.
Bytes WholePages(Address base, Address begin, Address end, Bytes page) {
  const auto size = static_cast<Address>(page);
  const Address first = (begin - base + size - 1) / size;
  const Address last = (end - base) / size;
  return last > first ? static_cast<Bytes>((last - first) * size) : 0;
}

/// Divides what is free inside the held ranges into whole free segments and stuck pieces.
void AccountForFree(const std::vector<MappedRange>& ranges, const std::vector<Use>& uses,
                    Account& account) {
  std::size_t next = 0;
  for (const MappedRange& range : ranges) {
    account.reserved += range.size;
    const Address end = range.address + static_cast<Address>(range.size);
    while (next < uses.size() && uses[next].address < range.address) ++next;
    const std::size_t first = next;
    Bytes largest_use = 0;
    while (next < uses.size() && uses[next].address < end) {
      largest_use = std::max(largest_use, uses[next].size);
      ++next;
    }
    const Bytes page = largest_use > kSmallRequest ? kLargeSegment : kSmallSegment;
    Address at = range.address;
    for (std::size_t i = first; i <= next; ++i) {
      const Address until = i < next ? std::min(uses[i].address, end) : end;
      if (until > at) {
        const auto gap = static_cast<Bytes>(until - at);
        account.largest_free = std::max(account.largest_free, gap);
        const Bytes whole = first == next      ? gap
                            : range.expandable ? WholePages(range.address, at, until, page)
                                               : 0;
        account.cached += whole;
        account.fragmented += gap - whole;
      }
      if (i < next) at = std::max(at, uses[i].address + static_cast<Address>(uses[i].size));
    }
  }
}

/// The rule that explains most of a category's bytes, and the least sure one that explains a tenth.
struct Grounds {
  std::array<Bytes, kReasonCount> by_reason{};
  /// Made by events that the ring of the record has lost.
  Bytes overwritten = 0;
  Bytes total = 0;

  void Add(Reason reason, Bytes bytes) {
    by_reason[static_cast<std::size_t>(reason)] += bytes;
    total += bytes;
  }
  Reason Main() const {
    return static_cast<Reason>(std::max_element(by_reason.begin(), by_reason.end()) -
                               by_reason.begin());
  }
  Confidence Sureness(bool framed) const {
    Confidence worst = Confidence::kHigh;
    for (std::size_t r = 0; r < by_reason.size(); ++r) {
      if (by_reason[r] < total / 10 || by_reason[r] == 0) continue;
      worst = std::max(worst, ConfidenceOf(static_cast<Reason>(r), framed));
    }
    const bool unsure = overwritten > 0 && overwritten >= total / 10;
    return unsure && worst == Confidence::kHigh ? Confidence::kMedium
           : unsure                             ? Confidence::kLow
                                                : worst;
  }
};

}  // namespace

Account AccountAt(const Phases& p, const Attribution& attribution, Position at) {
  Account account;
  std::array<Grounds, kCategoryCount> grounds;
  Bytes rounding = 0;
  for (AllocationIndex a = 0; a < p.ledger.allocations.size(); ++a) {
    const Allocation& x = p.at(a);
    if (x.made > at) break;
    if (x.PendingAt(at)) account.pending += x.block;
    if (!x.HeldAt(at)) continue;
    const Bytes requested = std::min(x.requested, x.block);
    account.allocated += x.block;
    rounding += x.block - requested;
    const auto category = static_cast<std::size_t>(attribution.category[a]);
    account.by_category[category] += requested;
    grounds[category].Add(attribution.reason[a], requested);
    if (x.made == kBefore && p.timeline.settings.trace_overflowed) {
      grounds[category].overwritten += requested;
    }
  }
  if (p.ledger.has_segments) {
    AccountForFree(RangesAt(p.timeline, p.ledger, at), InUseAt(p.ledger, at), account);
  } else {
    account.reserved = account.allocated + account.pending;
    for (const Totals& totals : p.timeline.totals) {
      if (static_cast<Position>(totals.event) > at) break;
      account.reserved = std::max(totals.reserved, account.allocated + account.pending);
    }
    account.cached = account.reserved - account.allocated - account.pending;
  }
  // In a record that contradicts itself blocks may lie outside every segment; the lines add up all
  // the same.
  account.reserved = account.allocated + account.pending + account.fragmented + account.cached;
  for (std::size_t c = 0; c < kCategoryCount; ++c) {
    if (account.by_category[c] == 0 && static_cast<Category>(c) != Category::kUnattributed) {
      continue;
    }
    account.lines.push_back(
        {.what = ItemOf(static_cast<Category>(c)),
         .bytes = account.by_category[c],
         .confidence = grounds[c].Sureness(p.framed),
         .because = grounds[c].total > 0 ? std::string(ReasonText(grounds[c].Main())) : ""});
  }
  const auto exact = [&](AccountItem what, Bytes bytes, const char* because) {
    if (bytes == 0) return;
    account.lines.push_back(
        {.what = what, .bytes = bytes, .confidence = Confidence::kHigh, .because = because});
  };
  exact(AccountItem::kRounding, rounding, "blocks are larger than the requests");
  exact(AccountItem::kPending, account.pending, "released; another stream still uses it");
  exact(AccountItem::kFragmented, account.fragmented, "free, but stuck in segments in use");
  exact(AccountItem::kCached, account.cached,
        p.ledger.has_segments ? "whole free segments, can be given back"
                              : "reserved and not allocated");
  return account;
}

}  // namespace plimsoll
