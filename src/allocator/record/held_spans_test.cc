#include "allocator/record/held_spans.h"

#include <gtest/gtest.h>

#include <map>

namespace plimsoll::held_spans_test {
namespace {

constexpr Bytes kPage = 20;

/// Address and size of what the spans say was held at a position.
std::map<Address, Bytes> HeldAt(const std::vector<HistorySpan>& spans, Position at) {
  std::map<Address, Bytes> held;
  for (const HistorySpan& span : spans) {
    if (span.from <= at && span.to > at) held[span.address] = span.size;
  }
  return held;
}

/// Pages that come and go in a fixed disorder, beside plain segments: after each change the spans
/// say what the set of ranges itself says.
TEST(HeldSpans, SayWhatIsHeldAfterEveryChange) {
  for (const bool expandable : {false, true}) {
    std::vector<HistorySpan> spans;
    HeldSpans held(spans);
    RangeSet expected;
    std::vector<bool> mapped(64, false);
    std::uint32_t next = 1;
    std::vector<std::map<Address, Bytes>> truth;
    for (Position at = 0; at < 400; ++at) {
      next = next * 1664525u + 1013904223u;
      const std::size_t page = next >> 26;
      const Address address = 1000 + page * static_cast<Address>(kPage);
      const MappedRange range{address, kPage, 0, 0, expandable};
      if (mapped[page]) {
        held.Remove(address, kPage);
        expected.Remove(address, kPage);
      } else {
        held.Add(range);
        expected.Add(range);
      }
      mapped[page] = !mapped[page];
      held.Settle(at);
      auto& now = truth.emplace_back();
      for (const MappedRange& r : expected.List()) now[r.address] = r.size;
    }
    for (Position at = 0; at < 400; ++at) {
      ASSERT_EQ(HeldAt(spans, at), truth[static_cast<std::size_t>(at)]) << "at " << at;
    }
  }
}

}  // namespace
}  // namespace plimsoll::held_spans_test
