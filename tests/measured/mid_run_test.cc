// Records that begin in the middle of a run, as a ring buffer leaves them: real traces, cut.
#include <random>

#include "measured/traces.h"

namespace plimsoll::mid_run_test {

class MidRun : public testing::TestWithParam<const char*> {};

TEST_P(MidRun, EveryWindowIsExact) {
  const std::string name = GetParam();
  std::mt19937 random(20240711);
  Trace trace(name);
  Timeline& t = trace.timeline;
  const std::vector<Event> events = t.events;
  for (int window = 0; window < 4; ++window) {
    const std::size_t from = 1 + random() % (events.size() - 1);
    t.events.assign(events.begin() + static_cast<std::ptrdiff_t>(from), events.end());
    const Ledger ledger = Follow(t);
    EXPECT_EQ(ledger.contradictions, 0) << "from event " << from;
    const Verification v = Verify(t, ledger, {.limit = trace.limit()});
    EXPECT_EQ(v.address_mismatches, 0) << "from event " << from;
    EXPECT_EQ(v.segment_mismatches, 0) << "from event " << from;
    EXPECT_EQ(v.refusal_mismatches, 0) << "from event " << from;
    EXPECT_EQ(v.final_block_differences, 0) << "from event " << from;
    if (v.first) {
      ADD_FAILURE() << "first at event " << from + v.first->event << ": " << v.first->what;
    }
  }
}

// Left out: garbage collection, since ages from before are lost, and a full device with expandable
// segments, since the size of the device is.
INSTANTIATE_TEST_SUITE_P(
    , MidRun,
    testing::Values("snapshots/llama_var_default", "snapshots/llama_var_expand",
                    "snapshots/llama_var_oom", "snapshots/llama_var_pow2",
                    "snapshots/llama_var_split128", "snapshots/gpt2_adamw_bf16",
                    "snapshots/resnet50_sgdm_fp32", "snapshots/resnet50_kept_graph",
                    "snapshots/unet_adam_fp32_fit", "snapshots/stream_resnet18",
                    "snapshots/empty_cache_fcn", "snapshots/deeplab_adam_fp32",
                    "snapshots/graph_gpt", "ranks/fsdp.rank0", "torture/torture_default",
                    "torture/torture_streams", "torture/torture_cap", "torture/torture_expand",
                    "torture/torture_expand_cap", "torture/torture_expand_streams",
                    "torture/torture_split", "torture/torture_pow2", "torture/torture_pool",
                    "torture/torture_large_segment", "torture/torture_full"),
    [](const auto& trace) { return TestName(trace.param); });

/// A record that begins inside a release: what was released before it is not in it.
TEST(MidRunInsideARelease, TheRestOfTheReleaseIsTakenAsDone) {
  // Not with max_split_size: there a release may give back only some blocks, and its rest could be
  // anything.
  for (const char* name : {"torture/torture_cap", "torture/torture_expand_cap"}) {
    Trace trace(name);
    Timeline& t = trace.timeline;
    const std::vector<Event> events = t.events;
    const auto releases = [&](std::size_t i) {
      return events[i].action == Action::kSegmentFree || events[i].action == Action::kSegmentUnmap;
    };
    int windows = 0;
    for (std::size_t i = 1; i < events.size() && windows < 12; ++i) {
      if (!releases(i) || !releases(i - 1)) continue;
      ++windows;
      t.events.assign(events.begin() + static_cast<std::ptrdiff_t>(i), events.end());
      const Verification v = Verify(t, Follow(t), {.limit = trace.limit()});
      EXPECT_TRUE(v.Exact()) << name << " from event " << i << ": " << v.first->what;
    }
    EXPECT_GT(windows, 0) << name;
  }
}

/// Without the ages the model may collect other segments than PyTorch did. Then its segments lie
/// where the record has others, and nothing may come of it but mismatches.
TEST(MidRunWithGarbageCollection, DiffersButHolds) {
  for (const char* name : {"snapshots/llama_var_split64gc", "torture/torture_gc_split"}) {
    Trace trace(name);
    Timeline& t = trace.timeline;
    const std::vector<Event> events = t.events;
    std::mt19937 random(3);
    for (int window = 0; window < 12; ++window) {
      const std::size_t from = 1 + random() % (events.size() - 1);
      t.events.assign(events.begin() + static_cast<std::ptrdiff_t>(from), events.end());
      const Verification v = Verify(t, Follow(t), {.limit = trace.limit()});
      EXPECT_GT(v.allocations, 0);
      EXPECT_GE(v.counters.reserved, v.counters.allocated) << name << " from event " << from;
    }
  }
}

}  // namespace plimsoll::mid_run_test
