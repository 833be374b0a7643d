// The allocator's model against every recorded run: it decides as PyTorch did, and what it says of
// other settings is what PyTorch then measured.
#include "allocator/replay/replay.h"

#include "allocator/replay/fragmentation.h"
#include "allocator/replay/replay_check.h"
#include "allocator/replay/tune.h"
#include "measured/traces.h"

namespace plimsoll::replay_test {

/// A trace that has been followed and verified.
struct Job : Trace {
  Ledger ledger;
  Verification verified;

  explicit Job(const std::string& name)
      : Trace(name),
        ledger(Follow(timeline)),
        verified(Verify(timeline, ledger, {.limit = limit()})) {}

  /// Replays under other settings, within the recorded limit unless told otherwise.
  ReplayResult Run(const char* conf, std::optional<DeviceLimits> limits = {}) const {
    ReplayOptions options{.rules = verified.rules, .limits = limits.value_or(verified.limits)};
    options.rules.settings = *ParseAllocatorSettings(conf, verified.torch);
    options.keep_earlier_segments = options.rules.settings == verified.rules.settings;
    ReplayLog log;
    const ReplayResult result = Replay(timeline, verified.workload, options, &log);
    EXPECT_EQ(CheckReplay(log, result.counters), std::nullopt) << conf;
    return result;
  }
  Bytes Smallest(const char* conf = "") const {
    ReplayOptions options{.rules = verified.rules};
    options.rules.settings = *ParseAllocatorSettings(conf, verified.torch);
    const auto smallest = SmallestCapacity(timeline, verified.workload, options);
    EXPECT_TRUE(smallest.has_value());
    return smallest.value_or(0);
  }
};

Bytes FinalReserved(const Timeline& timeline) {
  Bytes sum = 0;
  for (const Segment& s : timeline.segments) sum += s.size;
  return sum;
}

// ---- every trace

class EveryTrace : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(, EveryTrace,
                         testing::ValuesIn(TracesIn({"snapshots", "ranks", "large", "torture"})),
                         [](const auto& trace) { return TestName(trace.param); });

TEST(Traces, AreFiftyFive) {
  EXPECT_EQ(TracesIn({"snapshots", "ranks", "large", "torture"}).size(), 55u);
}

TEST_P(EveryTrace, TheModelDecidesAsPyTorchDid) {
  const Job job(GetParam());
  const Verification& v = job.verified;
  EXPECT_EQ(v.address_mismatches, 0);
  EXPECT_EQ(v.segment_mismatches, 0);
  EXPECT_EQ(v.refusal_mismatches, 0);
  EXPECT_EQ(v.final_block_differences, 0);
  if (v.first) ADD_FAILURE() << "event " << v.first->event << ": " << v.first->what;
  EXPECT_EQ(v.counters.reserved, FinalReserved(job.timeline));
  const auto count = [&](auto which) {
    return std::count_if(job.timeline.events.begin(), job.timeline.events.end(), which);
  };
  EXPECT_EQ(v.allocations, count([](const Event& e) { return e.action == Action::kAlloc; }));
  EXPECT_EQ(v.counters.refused,
            count([](const Event& e) { return e.action == Action::kOutOfMemory; }));
}

TEST_P(EveryTrace, PeaksAndCountersAreThoseThatPyTorchMeasured) {
  const Job job(GetParam());
  if (job.measured.empty()) GTEST_SKIP() << "there is no .json beside it";
  const AllocatorCounters& c = job.verified.counters;
  EXPECT_EQ(c.peak_reserved, job.measured.at("peak_reserved").get<Bytes>());
  // A ring buffer has lost the peak itself.
  const bool mid_run = job.ledger.initial_reserved > 0;
  if (!mid_run) {
    EXPECT_EQ(c.peak_allocated, job.measured.at("peak_allocated").get<Bytes>());
  }
  if (!job.measured.contains("stats")) return;
  const nlohmann::json& stats = job.measured["stats"];
  const auto stat = [&](const char* name) { return stats.at(name).get<std::int64_t>(); };
  EXPECT_EQ(c.reserved, stat("reserved_bytes.all.current"));
  EXPECT_EQ(c.retries, stat("num_alloc_retries"));
  EXPECT_EQ(c.refused, stat("num_ooms"));
  if (mid_run) return;
  EXPECT_EQ(c.driver_allocations, stat("num_device_alloc"));
  EXPECT_EQ(c.driver_frees, stat("num_device_free"));
  EXPECT_EQ(c.given_back, stat("reserved_bytes.all.freed"));
}

TEST_P(EveryTrace, ReplayedAloneItComesToTheSame) {
  const Job job(GetParam());
  Workload workload = job.verified.workload;
  workload.fatal.reset();  // go on as the record does
  ReplayLog log;
  const ReplayResult r = Replay(job.timeline, workload,
                                {.rules = job.verified.rules, .limits = job.verified.limits}, &log);
  EXPECT_EQ(CheckReplay(log, r.counters), std::nullopt);
  EXPECT_TRUE(r.fits);
  EXPECT_EQ(r.refusals_served, 0);
  EXPECT_EQ(r.counters.peak_reserved, job.ledger.peak_reserved);
  EXPECT_EQ(r.counters.peak_allocated, job.ledger.peak_allocated);
  EXPECT_EQ(r.counters.reserved, FinalReserved(job.timeline));
}

/// What is asked for and all the wastes are what is held: at the peak and at other instants.
TEST_P(EveryTrace, TheWastesAddUp) {
  const Job job(GetParam());
  const std::vector<Request>& requests = job.verified.workload.requests;
  const ReplayOptions options{.rules = job.verified.rules, .limits = job.verified.limits};
  const ReplayResult whole = Replay(job.timeline, job.verified.workload, options);
  std::vector<std::size_t> instants = {0, requests.size() / 3, whole.peak_request,
                                       requests.size() - 1};
  std::sort(instants.begin(), instants.end());
  AssumedDriver driver(job.timeline);
  Replayer replayer(job.verified.workload, options, driver);
  for (const std::size_t at : instants) {
    replayer.Run(at);
    const Fragmentation f = Fragments(replayer, job.ledger, requests[at]);
    Bytes sum = f.requested;
    for (const Bytes waste : f.waste) {
      EXPECT_GE(waste, 0);
      sum += waste;
    }
    EXPECT_EQ(sum, f.reserved) << "request " << at;
    EXPECT_EQ(f.reserved, replayer.allocator().counters().reserved);
    // The longest-lived of a segment is at least as long there as any other in it.
    for (const Pinned& p : f.pinned) {
      const Allocation& named = job.ledger.allocations[p.allocation];
      for (const CachingAllocator::Block& b : replayer.allocator().blocks()) {
        const bool inside = b.state == CachingAllocator::State::kAllocated &&
                            b.address >= p.segment &&
                            b.address < p.segment + static_cast<Address>(p.segment_size);
        if (!inside) continue;
        const auto id = static_cast<std::size_t>(&b - replayer.allocator().blocks().data());
        const std::uint32_t owner = replayer.Owners()[id];
        if (owner == Ledger::kNoAllocation) continue;
        EXPECT_GE(named.released, job.ledger.allocations[owner].released);
      }
      break;  // the one that pins most
    }
  }
}

// ---- other settings

constexpr const char* kLlamaSettings[] = {"expand", "gc06", "pow2", "split128", "split64gc"};

/// From llama_var_default alone, under the five other recorded settings.
TEST(WhatIf, LlamaUnderEverySettingIsWhatWasMeasured) {
  const Job job("snapshots/llama_var_default");
  ASSERT_TRUE(job.verified.Exact());
  for (const std::string name : kLlamaSettings) {
    const nlohmann::json measured = MeasuredOf("snapshots/llama_var_" + name);
    const std::string conf = measured.at("spec").at("alloc_conf");
    ASSERT_NE(conf, "") << name;
    const AllocatorCounters c = job.Run(conf.c_str()).counters;
    EXPECT_EQ(c.peak_reserved, measured.at("peak_reserved").get<Bytes>()) << name;
    EXPECT_EQ(c.peak_allocated, measured.at("peak_allocated").get<Bytes>()) << name;
    const nlohmann::json& stats = measured.at("stats");
    const auto stat = [&](const char* key) { return stats.at(key).get<std::int64_t>(); };
    EXPECT_EQ(c.reserved, stat("reserved_bytes.all.current")) << name;
    EXPECT_EQ(c.driver_allocations, stat("num_device_alloc")) << name;
    EXPECT_EQ(c.driver_frees, stat("num_device_free")) << name;
    EXPECT_EQ(c.retries, stat("num_alloc_retries")) << name;
    EXPECT_EQ(c.refused, stat("num_ooms")) << name;
  }
}

/// And from each of them back to the defaults. A run with expandable segments records no addresses
/// of cudaMalloc, by which 2.11 breaks ties, so that they must be assumed.
TEST(WhatIf, LlamaFromEverySettingBackToTheDefaults) {
  const Bytes measured = MeasuredOf("snapshots/llama_var_default").at("peak_reserved");
  for (const std::string name : kLlamaSettings) {
    const Job job("snapshots/llama_var_" + name);
    const Bytes reserved = job.Run("").counters.peak_reserved;
    if (name == "expand") {
      EXPECT_NEAR(double(reserved), double(measured), 0.001 * double(measured)) << name;
    } else {
      EXPECT_EQ(reserved, measured) << name;
    }
  }
}

TEST(WhatIf, LlamaWithinThirteenGibibytesRetriesAsItDid) {
  const Job job("snapshots/llama_var_default");
  const nlohmann::json measured = MeasuredOf("snapshots/llama_var_oom");
  ASSERT_EQ(measured.at("spec").at("cap_gib"), 13);
  const ReplayResult r = job.Run("", DeviceLimits{.limit = 13 * kGiB});
  EXPECT_TRUE(r.fits);
  EXPECT_EQ(r.counters.peak_reserved, measured.at("peak_reserved").get<Bytes>());
  EXPECT_EQ(r.counters.retries, measured.at("stats").at("num_alloc_retries").get<std::int64_t>());
  EXPECT_EQ(r.counters.driver_frees, measured.at("stats").at("num_device_free"));
}

/// remedies.jsonl of the research: expandable segments hold 24 % less on the U-Net, 4 % on GPT-2
/// and DeepLab; max_split_size_mb:128 holds 33 % more on the U-Net and 24 % on DeepLab. The
/// snapshots are of other batches and image sizes, so the sign and the order of size are what must
/// come out.
TEST(WhatIf, TheDirectionOfEachRemedyIsThatOfTheMeasuredOnes) {
  const auto change = [](const char* name, const char* conf) {
    const Job job(std::string("snapshots/") + name);
    EXPECT_TRUE(job.verified.Exact()) << name;
    const auto reserved = static_cast<double>(job.Run(conf, DeviceLimits{}).counters.peak_reserved);
    return 100.0 * (reserved / static_cast<double>(job.ledger.peak_reserved) - 1.0);
  };
  constexpr const char* kExpandable = "expandable_segments:True";
  constexpr const char* kSplit = "max_split_size_mb:128";
  EXPECT_NEAR(change("unet_adam_fp32_fit", kExpandable), -24, 4);
  EXPECT_NEAR(change("gpt2_adamw_bf16", kExpandable), -4, 2);
  EXPECT_NEAR(change("deeplab_adam_fp32", kExpandable), -4, 2);
  EXPECT_NEAR(change("unet_adam_fp32_fit", kSplit), 33, 10);
  EXPECT_NEAR(change("deeplab_adam_fp32", kSplit), 24, 12);
  EXPECT_GT(change("gpt2_adamw_bf16", kSplit), 0);
}

// ---- the smallest capacity

TEST(Capacity, TheUNetThatFittedFitsAndTheOtherDoesNot) {
  const Job fit("snapshots/unet_adam_fp32_fit");
  const Job oom("snapshots/unet_adam_fp32_oom");
  EXPECT_EQ(fit.limit(), 10 * kGiB);
  EXPECT_EQ(oom.limit(), 10 * kGiB);
  EXPECT_LE(fit.Smallest(), 10 * kGiB);
  EXPECT_GT(oom.Smallest(), 10 * kGiB);
}

TEST(Capacity, LlamaMadeDoWithThirteenGibibytes) {
  EXPECT_LE(Job("snapshots/llama_var_oom").Smallest(), 13 * kGiB);
  EXPECT_LE(Job("snapshots/llama_var_default").Smallest(), 13 * kGiB);
}

TEST(Capacity, ItFitsThereAndNotTwoMebibytesBelow) {
  for (const char* name : {"snapshots/unet_adam_fp32_fit", "snapshots/llama_var_default",
                           "snapshots/gpt2_adamw_bf16", "snapshots/stream_resnet18"}) {
    for (const char* conf : {"", "expandable_segments:True"}) {
      const Job job(name);
      const Bytes smallest = job.Smallest(conf);
      EXPECT_GE(smallest, job.ledger.peak_allocated * 9 / 10) << name << conf;
      EXPECT_LE(smallest, job.ledger.peak_reserved) << name << conf;
      EXPECT_TRUE(job.Run(conf, DeviceLimits{.capacity = smallest}).fits) << name << conf;
      EXPECT_FALSE(job.Run(conf, DeviceLimits{.capacity = smallest - 2 * kMiB}).fits)
          << name << conf;
    }
  }
}

TEST(Capacity, TheFatalRefusalIsTheOneOfTheRecord) {
  const Job job("snapshots/unet_adam_fp32_oom");
  ASSERT_TRUE(job.verified.workload.fatal.has_value());
  const ReplayResult same = job.Run("");
  EXPECT_FALSE(same.fits);
  ASSERT_TRUE(same.oom_event.has_value());
  EXPECT_EQ(job.timeline.events[*same.oom_event].action, Action::kOutOfMemory);
  EXPECT_EQ(same.oom_requested, 512 * kMiB);
  // With room, its 27 refusals are served.
  EXPECT_EQ(job.Run("", DeviceLimits{}).refusals_served, 27);
}

// ---- what no snapshot says

Verification Unaided(const std::string& name) {
  const Trace trace(name);
  return Verify(trace.timeline, Follow(trace.timeline), {});
}

TEST(Inferred, TheLimitOfAJobThatHadToRetryIsBracketed) {
  for (const auto& [name, limit] :
       {std::pair("snapshots/resnet50_kept_graph", Bytes{0}),
        std::pair("snapshots/unet_adam_fp32_oom", 10 * kGiB),
        std::pair("torture/torture_cap", 6 * kGiB), std::pair("torture/torture_split", 8 * kGiB)}) {
    const Verification v = Unaided(name);
    const nlohmann::json measured = MeasuredOf(name);
    const std::optional<Bytes> true_limit = LimitOf(measured);
    ASSERT_TRUE(true_limit.has_value()) << name;
    if (limit > 0) {
      EXPECT_EQ(*true_limit, limit) << name;
    }
    ASSERT_TRUE(v.limits.limit.has_value()) << name;
    EXPECT_EQ(v.limits.capacity, std::nullopt) << name;
    EXPECT_GE(*v.limits.limit, measured.at("peak_reserved").get<Bytes>()) << name;
    EXPECT_LT(static_cast<double>(*v.limits.limit), 1.05 * static_cast<double>(*true_limit))
        << name;
    EXPECT_TRUE(v.Exact()) << name << ": " << v.first->what;
    ASSERT_EQ(v.inferred.size(), 1u) << name;
    EXPECT_NE(v.inferred[0].find("give it with --limit"), std::string::npos) << v.inferred[0];
  }
}

/// held + free was 149,557,477,376 at every refusal: the device less the context.
TEST(Inferred, TheCapacityOfAFullDeviceIsExact) {
  for (const char* name : {"torture/torture_full", "torture/torture_expand_full"}) {
    const Verification v = Unaided(name);
    EXPECT_EQ(v.limits.capacity, Bytes{149557477376}) << name;
    EXPECT_EQ(v.limits.limit, std::nullopt) << name;
    EXPECT_TRUE(v.Exact()) << name;
  }
}

TEST(Inferred, NothingWhereNothingWasRefused) {
  for (const char* name : {"snapshots/gpt2_adamw_bf16", "snapshots/empty_cache_fcn",
                           "snapshots/graph_gpt", "torture/torture_default"}) {
    const Verification v = Unaided(name);
    EXPECT_EQ(v.limits.limit, std::nullopt) << name;
    EXPECT_EQ(v.limits.capacity, std::nullopt) << name;
    EXPECT_TRUE(v.Exact()) << name;
  }
}

// ---- the search

TEST(TuneOnTraces, TheBestIsNeverWorseAndNoReplayHasAFault) {
  for (const char* name :
       {"snapshots/unet_adam_fp32_fit", "snapshots/mlp_adam_defaults", "snapshots/stream_resnet18",
        "snapshots/ring_resnet50", "snapshots/graph_gpt", "torture/torture_pool"}) {
    const Job job(name);
    const TuneResult r =
        Tune(job.timeline, job.verified,
             {.limits = job.verified.limits, .version = job.verified.rules.version});
    const auto reserved = [&](std::size_t row) {
      return r.rows[row].replayed.counters.peak_reserved;
    };
    EXPECT_EQ(reserved(0), job.ledger.peak_reserved) << name;
    EXPECT_LE(reserved(r.best), reserved(r.defaults)) << name;
    EXPECT_LE(reserved(r.best), reserved(0)) << name;
    for (const TuneRow& row : r.rows) {
      EXPECT_EQ(row.fault, std::nullopt) << name << ": " << FormatSettings(row.settings);
    }
  }
}

TEST(TuneOnTraces, TheUNetsBestIsWithExpandableSegments) {
  const Job job("snapshots/unet_adam_fp32_fit");
  const TuneResult r =
      Tune(job.timeline, job.verified, {.limits = {}, .version = job.verified.rules.version});
  EXPECT_TRUE(r.rows[r.best].settings.expandable_segments);
  EXPECT_EQ(FormatSettings(r.rows[r.simplest].settings), "expandable_segments:True");
}

}  // namespace plimsoll::replay_test
