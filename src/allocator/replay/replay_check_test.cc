#include "allocator/replay/replay_check.h"

#include <gtest/gtest.h>

#include <string_view>

namespace plimsoll::replay_check_test {
namespace {

using What = ReplayLog::What;

/// A log in the making, with the sums that a right model would state.
class Log {
 public:
  Log& Memory(Address at, Bytes size) { return Add(What::kMemory, at, size); }
  Log& MemoryGone(Address at, Bytes size) { return Add(What::kMemoryGone, at, size); }
  Log& Block(Address at, Bytes size) { return Add(What::kBlock, at, size); }
  Log& BlockGone(Address at, Bytes size) { return Add(What::kBlockGone, at, size); }

  std::string Check() const { return CheckReplay(log_, counters_).value_or("fine"); }
  AllocatorCounters& counters() { return counters_; }

 private:
  Log& Add(What what, Address at, Bytes size) {
    log_.entries.push_back({at, size, what});
    const Bytes sign = what == What::kMemory || what == What::kBlock ? 1 : -1;
    const bool memory = what == What::kMemory || what == What::kMemoryGone;
    (memory ? counters_.reserved : counters_.allocated) += sign * size;
    counters_.peak_reserved = std::max(counters_.peak_reserved, counters_.reserved);
    counters_.peak_allocated = std::max(counters_.peak_allocated, counters_.allocated);
    return *this;
  }
  ReplayLog log_;
  AllocatorCounters counters_;
};

TEST(ReplayCheck, ARightLogPasses) {
  EXPECT_EQ(Log().Check(), "fine");
  EXPECT_EQ(Log()
                .Memory(0x1000, 4096)
                .Block(0x1000, 512)
                .Block(0x1200, 512)
                .BlockGone(0x1000, 512)
                .Block(0x1000, 256)
                .BlockGone(0x1000, 256)
                .BlockGone(0x1200, 512)
                .MemoryGone(0x1000, 4096)
                .Check(),
            "fine");
}

TEST(ReplayCheck, PagesMayComeInPiecesAndGoInOthers) {
  EXPECT_EQ(Log()
                .Memory(0x2000, 4096)
                .Memory(0x1000, 4096)
                .Block(0x1800, 4096)
                .BlockGone(0x1800, 4096)
                .MemoryGone(0x1800, 2048)
                .Block(0x1000, 2048)
                .MemoryGone(0x2000, 4096)
                .Check(),
            "fine");
}

struct Fault {
  std::string_view name;
  Log log;
  std::string_view expected;
};

TEST(ReplayCheck, EveryKindOfFaultIsFound) {
  const Fault faults[] = {
      {"the same twice", Log().Memory(0x1000, 4096).Block(0x1000, 512).Block(0x1000, 512),
       "two blocks overlap (entry 2, address 0x1000)"},
      {"into the next", Log().Memory(0x1000, 4096).Block(0x1200, 512).Block(0x1000, 513),
       "two blocks overlap (entry 2, address 0x1000)"},
      {"inside another", Log().Memory(0x1000, 4096).Block(0x1000, 1024).Block(0x1200, 16),
       "two blocks overlap (entry 2, address 0x1200)"},
      {"around another", Log().Memory(0x1000, 4096).Block(0x1200, 16).Block(0x1000, 1024),
       "two blocks overlap (entry 2, address 0x1000)"},
      {"no memory at all", Log().Block(0x1000, 512),
       "a block lies outside the memory held (entry 0, address 0x1000)"},
      {"past the end", Log().Memory(0x1000, 512).Block(0x1000, 513),
       "a block lies outside the memory held (entry 1, address 0x1000)"},
      {"before the start", Log().Memory(0x1000, 512).Block(0xfff, 16),
       "a block lies outside the memory held (entry 1, address 0xfff)"},
      {"across a gap", Log().Memory(0x1000, 512).Memory(0x1201, 512).Block(0x1100, 512),
       "a block lies outside the memory held (entry 2, address 0x1100)"},
      {"after it went back", Log().Memory(0x1000, 512).MemoryGone(0x1000, 512).Block(0x1000, 512),
       "a block lies outside the memory held (entry 2, address 0x1000)"},
      {"released while in use",
       Log().Memory(0x1000, 4096).Block(0x1800, 16).MemoryGone(0x1000, 4096),
       "memory goes back while a block lies in it (entry 2, address 0x1000)"},
      {"unmapped while in use", Log().Memory(0x1000, 4096).Block(0x1800, 16).MemoryGone(0x180f, 16),
       "memory goes back while a block lies in it (entry 2, address 0x180f)"},
      {"given back twice",
       Log().Memory(0x1000, 512).MemoryGone(0x1000, 512).MemoryGone(0x1000, 512),
       "memory goes back that was not held (entry 2, address 0x1000)"},
      {"more than was held", Log().Memory(0x1000, 512).MemoryGone(0x1000, 1024),
       "memory goes back that was not held (entry 1, address 0x1000)"},
      {"given twice", Log().Memory(0x1000, 4096).Memory(0x1800, 512),
       "memory that is held is given again (entry 1, address 0x1800)"},
      {"freed twice",
       Log().Memory(0x1000, 512).Block(0x1000, 512).BlockGone(0x1000, 512).BlockGone(0x1000, 512),
       "a block is freed that is not there (entry 3, address 0x1000)"},
      {"freed with another size",
       Log().Memory(0x1000, 512).Block(0x1000, 512).BlockGone(0x1000, 256),
       "a block is freed that is not there (entry 2, address 0x1000)"},
  };
  for (const Fault& fault : faults) EXPECT_EQ(fault.log.Check(), fault.expected) << fault.name;
}

TEST(ReplayCheck, SumsThatTheModelMisstatesAreFound) {
  const auto wrong = [](auto change) {
    Log log;
    log.Memory(0x1000, 4096).Memory(0x4000, 512).Block(0x1000, 512).Block(0x1200, 512);
    log.BlockGone(0x1000, 512).MemoryGone(0x4000, 512);
    EXPECT_EQ(log.Check(), "fine");
    change(log.counters());
    return log.Check();
  };
  EXPECT_EQ(wrong([](AllocatorCounters& c) { c.reserved += 512; }),
            "memory held adds up to 4096 (4608 at most), the model says 4608 (4608)");
  EXPECT_EQ(wrong([](AllocatorCounters& c) { c.peak_reserved = 4096; }),
            "memory held adds up to 4096 (4608 at most), the model says 4096 (4096)");
  EXPECT_EQ(wrong([](AllocatorCounters& c) { c.allocated = 0; }),
            "blocks add up to 512 (1024 at most), the model says 0 (1024)");
  EXPECT_EQ(wrong([](AllocatorCounters& c) { c.peak_allocated += 1; }),
            "blocks add up to 512 (1024 at most), the model says 512 (1025)");
}

}  // namespace
}  // namespace plimsoll::replay_check_test
