// Traces made by the allocators of other releases (tests/data/releases): each is exact under the
// rules of its own release, and those that tell releases apart are not under others.
#include "allocator/replay/replay.h"
#include "allocator/replay/replay_check.h"
#include "measured/traces.h"

namespace plimsoll::releases_test {

struct ReleaseTrace : Trace {
  Ledger ledger;
  TorchVersion torch;

  explicit ReleaseTrace(const std::string& name)
      : Trace("releases/" + name),
        ledger(Follow(timeline)),
        torch(ParseTorchVersion(measured.at("torch").get<std::string>()).value()) {}

  Verification Under(TorchVersion version) const {
    return Verify(timeline, ledger, {.limit = limit(), .torch = version});
  }
};

class EveryRelease : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(, EveryRelease, testing::ValuesIn([] {
                           std::vector<std::string> names = TracesIn({"releases"});
                           for (std::string& name : names) name = name.substr(name.find('/') + 1);
                           return names;
                         }()),
                         [](const auto& trace) { return TestName(trace.param); });

TEST(ReleaseTraces, CoverTwoEightToTwoFifteen) {
  std::vector<int> minors;
  for (const std::string& name : TracesIn({"releases"})) {
    minors.push_back(ReleaseTrace(name.substr(name.find('/') + 1)).torch.minor);
  }
  EXPECT_EQ(minors.size(), 14u);
  for (int minor = 8; minor <= 15; ++minor) {
    EXPECT_NE(std::count(minors.begin(), minors.end(), minor), 0) << "2." << minor;
  }
}

TEST_P(EveryRelease, IsExactUnderItsOwnRules) {
  const ReleaseTrace trace(GetParam());
  const Verification v = trace.Under(trace.torch);
  EXPECT_EQ(v.address_mismatches, 0);
  EXPECT_EQ(v.segment_mismatches, 0);
  EXPECT_EQ(v.refusal_mismatches, 0);
  EXPECT_EQ(v.final_block_differences, 0);
  if (v.first) ADD_FAILURE() << "event " << v.first->event << ": " << v.first->what;
  EXPECT_EQ(v.counters.peak_reserved, trace.measured.at("peak_reserved").get<Bytes>());
  EXPECT_EQ(v.counters.peak_allocated, trace.measured.at("peak_allocated").get<Bytes>());
  const nlohmann::json& stats = trace.measured.at("stats");
  const auto stat = [&](const char* name) { return stats.at(name).get<std::int64_t>(); };
  EXPECT_EQ(v.counters.reserved, stat("reserved_bytes.all.current"));
  EXPECT_EQ(v.counters.retries, stat("num_alloc_retries"));
  EXPECT_EQ(v.counters.refused, stat("num_ooms"));
  EXPECT_EQ(v.counters.driver_allocations, stat("num_device_alloc"));
  EXPECT_EQ(v.counters.driver_frees, stat("num_device_free"));
}

/// The release is told from what the record holds; that must be near enough to be exact too.
TEST_P(EveryRelease, IsExactUnderTheRulesThatTheRecordTells) {
  const ReleaseTrace trace(GetParam());
  const Verification v = Verify(trace.timeline, trace.ledger, {.limit = trace.limit()});
  EXPECT_TRUE(v.Exact()) << trace.timeline.torch << ": " << v.first->what;
}

TEST_P(EveryRelease, ReplaysAloneToTheSame) {
  const ReleaseTrace trace(GetParam());
  const Verification v = trace.Under(trace.torch);
  Workload workload = v.workload;
  workload.fatal.reset();
  ReplayLog log;
  const ReplayResult r =
      Replay(trace.timeline, workload, {.rules = v.rules, .limits = v.limits}, &log);
  EXPECT_EQ(CheckReplay(log, r.counters), std::nullopt);
  EXPECT_EQ(r.counters.peak_reserved, v.counters.peak_reserved);
  EXPECT_EQ(r.counters.peak_allocated, v.counters.peak_allocated);
  EXPECT_EQ(r.counters.retries, v.counters.retries);
}

/// The table of releases matters: where equal blocks lie about, another release takes another one.
TEST(ReleaseTable, NeighboursDecideTiesInOtherWays) {
  struct Case {
    const char* trace;
    std::vector<int> exact;
    std::vector<int> wrong;
  };
  const Case cases[] = {
      {"torch2.8_ties_cap", {4, 8, 11}, {12, 13, 15}},
      {"torch2.11_ties_split", {4, 10, 11}, {12, 13}},
      {"torch2.12_ties", {12}, {11, 13}},
      {"torch2.12_ties_pool", {12}, {11, 13}},
      {"torch2.12_capture", {12}, {11, 13}},
      {"torch2.13_ties", {13, 14, 15}, {11, 12}},
      {"torch2.13_pools_die", {13, 15}, {11, 12}},
      {"torch2.14_torture_streams", {13, 14, 15}, {11, 12}},
  };
  for (const Case& c : cases) {
    const ReleaseTrace trace(c.trace);
    for (const int minor : c.exact) {
      EXPECT_TRUE(trace.Under({2, minor}).Exact()) << c.trace << " under 2." << minor;
    }
    for (const int minor : c.wrong) {
      const Verification v = trace.Under({2, minor});
      EXPECT_GT(v.address_mismatches, 500) << c.trace << " under 2." << minor;
    }
  }
}

}  // namespace plimsoll::releases_test
