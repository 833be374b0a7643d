#include "report/exports/exports.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace plimsoll::exports_test {
namespace {

using Json = nlohmann::json;

/// Whatever a name may hold: quotes, markup, a new line, a comma, a byte that is no UTF-8.
constexpr const char* kUgly = "a \"b\",</script>\n\xff.py:1 in f";

/// A block from before the record, and two more; the second is gone when memory runs out.
class Exports : public testing::Test {
 protected:
  Exports() {
    HistoryNames names(history_);
    const std::uint32_t main =
        names.Node({.function = names.Name("main"), .file = names.Name("/me/train.py"), .line = 9});
    const std::uint32_t call = names.Node({.parent = main,
                                           .function = names.Name("forward\""),
                                           .file = names.Name("/me/\xff.py"),
                                           .line = 3});
    history_.device = 1;
    history_.categories = {"parameters", "activations", "unattributed"};
    history_.times = {1000, 1010, 1020, 1020, 1050, 1060};
    history_.blocks = {{.address = 0x1000,
                        .requested = 100,
                        .size = 512,
                        .made = kBefore,
                        .category = 2,
                        .place = names.Name("before the record")},
                       {.address = 0x2000,
                        .requested = 1024,
                        .size = 1024,
                        .made = 1,
                        .released = 3,
                        .freed = 4,
                        .category = 1,
                        .node = call,
                        .place = names.Name(kUgly),
                        .module = names.Name("net:3 > linear:4")},
                       {.address = 0x3000,
                        .requested = 2048,
                        .size = 2048,
                        .made = 2,
                        .category = 0,
                        .node = main,
                        .place = names.Name("train.py:9 in main")}};
    history_.spans = {{.address = 0x1000, .size = 4096, .from = kBefore, .to = 5},
                      {.address = 0x2000, .size = 8192, .from = 0}};
    history_.has_spans = true;
    history_.marks = {
        {Stage::kStep, 0, 5, 1}, {Stage::kForward, 0, 2, 1}, {Stage::kBackward, 3, 5, 1}};
    rank_.file = "rank3.pickle";
    rank_.rank = 3;
    rank_.limit = 16384;
    rank_.instant = {.kind = InstantKind::kOutOfMemory, .event = 4};
    rank_.ooms = {{.event = 4, .requested = 2 * kGiB, .where = kUgly}, {.requested = kGiB}};
  }

  ExportedRun run() const { return {&history_, &rank_}; }
  Json Perfetto() const { return Json::parse(PerfettoJson({run()})); }
  /// Events of a phase, and of a name where one is given.
  static std::vector<Json> Select(const Json& trace, std::string_view stage,
                                  std::string_view name = "") {
    std::vector<Json> found;
    for (const Json& event : trace["traceEvents"]) {
      const bool named = name.empty() || event["name"] == name;
      if (event["ph"] == stage && named) found.push_back(event);
    }
    return found;
  }
  static std::vector<std::pair<int, int>> Counter(const Json& trace, std::string_view name,
                                                  const char* key) {
    std::vector<std::pair<int, int>> samples;
    for (const Json& event : Select(trace, "C", name)) {
      samples.emplace_back(event["ts"], event["args"][key]);
    }
    return samples;
  }

  History history_;
  RankReport rank_;
};

using Samples = std::vector<std::pair<int, int>>;

TEST_F(Exports, PerfettoCountsCategoriesAndReserved) {
  const Json trace = Perfetto();
  const auto counters = Select(trace, "C", "allocated by category");
  ASSERT_FALSE(counters.empty());
  EXPECT_EQ(
      counters[0]["args"],
      Json({{"parameters", 0}, {"activations", 0}, {"unattributed", 100}, {"rounding", 412}}));
  EXPECT_EQ(Counter(trace, "allocated by category", "activations"),
            (Samples{{0, 0}, {10, 1024}, {20, 1024}, {20, 0}}));
  EXPECT_EQ(Counter(trace, "reserved", "bytes"), (Samples{{0, 4096}, {0, 12288}, {60, 8192}}));
  EXPECT_EQ(Counter(trace, "limit", "bytes"), (Samples{{0, 16384}, {61, 16384}}));
  EXPECT_TRUE(Select(trace, "C", "capacity").empty());
}

TEST_F(Exports, PerfettoHasAProcessARunAndSlicesThatDoNotOverlap) {
  const Json trace = Perfetto();
  const auto processes = Select(trace, "M", "process_name");
  ASSERT_EQ(processes.size(), 1u);
  EXPECT_EQ(processes[0]["args"]["name"], "rank 3, cuda:1 (rank3.pickle)");
  const auto slices = Select(trace, "X");
  ASSERT_EQ(slices.size(), 3u);
  EXPECT_EQ(slices[0]["name"], "step 1");
  EXPECT_EQ(slices[0]["dur"], 61);
  EXPECT_EQ(slices[1]["name"], "forward");
  EXPECT_EQ(slices[2]["name"], "backward");
  EXPECT_EQ(slices[1]["tid"], slices[2]["tid"]);
  EXPECT_NE(slices[0]["tid"], slices[1]["tid"]);
  // Events 2 and 3 have the same time.
  EXPECT_EQ(slices[1]["ts"].get<int>() + slices[1]["dur"].get<int>(), slices[2]["ts"]);
}

TEST_F(Exports, PerfettoShowsOutOfMemoryAndBlocks) {
  const Json trace = Perfetto();
  const auto ooms = Select(trace, "i");
  ASSERT_EQ(ooms.size(), 1u);
  EXPECT_EQ(ooms[0]["name"], "out of memory: 2.00 GiB");
  EXPECT_EQ(ooms[0]["s"], "g");
  EXPECT_EQ(ooms[0]["ts"], 50);
  EXPECT_EQ(ooms[0]["args"]["requested"], 2 * kGiB);
  const auto begins = Select(trace, "b");
  const auto ends = Select(trace, "e");
  ASSERT_EQ(begins.size(), 3u);
  ASSERT_EQ(ends.size(), 3u);
  EXPECT_EQ(begins[1]["name"], "a \"b\",</script>\n\xef\xbf\xbd.py:1 in f");
  EXPECT_EQ(begins[1]["args"]["stack"],
            "/me/\xef\xbf\xbd.py:3 in forward\"\n/me/train.py:9 in main");
  EXPECT_EQ(begins[1]["args"]["category"], "activations");
  EXPECT_EQ(begins[1]["args"]["bytes"], 1024);
  EXPECT_EQ(begins[1]["ts"], 10);
  EXPECT_EQ(ends[1]["ts"], 20);
  EXPECT_EQ(begins[1]["id"], ends[1]["id"]);
  EXPECT_EQ(begins[1]["name"], ends[1]["name"]);
  EXPECT_EQ(ends[2]["ts"], 61);
}

TEST_F(Exports, PerfettoSaysThatTimesAreEvents) {
  history_.times.assign(history_.times.size(), 0);
  const Json trace = Perfetto();
  EXPECT_EQ(Counter(trace, "reserved", "bytes"), (Samples{{0, 4096}, {0, 12288}, {5, 8192}}));
  EXPECT_EQ(trace["otherData"]["runs"][0]["time"], "1 event = 1 us, the record has no times");
}

TEST_F(Exports, RanksKeepTheirTimes) {
  History later = history_;
  for (TimeUs& t : later.times) t += 500;
  const Json trace = Json::parse(PerfettoJson({{&later, nullptr}, run()}));
  const auto steps = Select(trace, "X", "step 1");
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0]["ts"], 500);
  EXPECT_EQ(steps[1]["ts"], 0);
  EXPECT_NE(steps[0]["pid"], steps[1]["pid"]);
  EXPECT_NE(steps[0]["tid"], steps[1]["tid"]);
  EXPECT_EQ(Select(trace, "M", "process_name")[0]["args"]["name"], "cuda:1");
}

TEST(ExportsOfLongRuns, KeepThePeak) {
  constexpr int kBlocks = 250'000;
  History history;
  history.categories = {"activations"};
  history.times.resize(2 * kBlocks);
  for (int i = 0; i < kBlocks; ++i) {
    const Bytes size = i == 123'456 ? 777'777 : 1000 + i % 7;
    history.blocks.push_back({.requested = size,
                              .size = size,
                              .made = 2 * i,
                              .released = 2 * i + 1,
                              .freed = 2 * i + 1});
  }
  const std::string trace = PerfettoJson({{&history, nullptr}});
  std::size_t samples = 0;
  constexpr std::string_view kCounter = "\"allocated by category\"";
  for (auto at = trace.find(kCounter); at != std::string::npos; at = trace.find(kCounter, at + 1)) {
    ++samples;
  }
  EXPECT_GT(samples, 150'000u);
  EXPECT_LE(samples, 200'002u);
  EXPECT_NE(trace.find("{\"activations\":777777}"), std::string::npos);
  EXPECT_NE(trace.find("\"samples_of\":500000,\"blocks\":2000,\"blocks_of\":250000"),
            std::string::npos);
}

TEST_F(Exports, SpeedscopeWeighsStacksByBytes) {
  const Json file = Json::parse(SpeedscopeJson(run(), 2));
  EXPECT_EQ(file["$schema"], "https://www.speedscope.app/file-format-schema.json");
  EXPECT_EQ(file["exporter"], "plimsoll");
  const Json& profile = file["profiles"][0];
  EXPECT_EQ(profile["type"], "sampled");
  EXPECT_EQ(profile["unit"], "bytes");
  EXPECT_EQ(profile["name"], "rank 3, cuda:1: 3.50 KiB allocated after event 2");
  EXPECT_EQ(profile["weights"], Json({2048, 1024, 512}));
  EXPECT_EQ(profile["endValue"], 3584);
  EXPECT_EQ(profile["samples"], Json::parse("[[0],[0,1],[2]]"));
  const Json& frames = file["shared"]["frames"];
  EXPECT_EQ(frames[0], Json({{"name", "main"}, {"file", "/me/train.py"}, {"line", 9}}));
  EXPECT_EQ(frames[1]["name"], "forward\"");
  EXPECT_EQ(frames[2], Json({{"name", "before the record"}}));
}

TEST_F(Exports, SpeedscopeAtOtherInstants) {
  const auto profile = [&](Position at) {
    return Json::parse(SpeedscopeJson(run(), at))["profiles"][0];
  };
  EXPECT_EQ(profile(4)["name"], "rank 3, cuda:1: 2.50 KiB allocated after event 4, out of memory");
  EXPECT_EQ(profile(kBefore)["name"], "rank 3, cuda:1: 512 bytes allocated before the first event");
  EXPECT_EQ(profile(kNotYet)["name"],
            "rank 3, cuda:1: 2.50 KiB allocated at the end of the record");
}

TEST_F(Exports, CsvHasALineAChange) {
  EXPECT_EQ(HistoryCsv(run()),
            "event,time_us,action,bytes,block,address,category,place,module,allocated,reserved\n"
            "-1,,segment_alloc,4096,,0x1000,,,,512,4096\n"
            "-1,,alloc,512,0,0x1000,\"unattributed\",\"before the record\",,512,4096\n"
            "0,1000,segment_alloc,8192,,0x2000,,,,512,12288\n"
            "1,1010,alloc,1024,1,0x2000,\"activations\","
            "\"a \"\"b\"\",</script>??.py:1 in f\",\"net:3 > linear:4\",1536,12288\n"
            "2,1020,alloc,2048,2,0x3000,\"parameters\",\"train.py:9 in main\",,3584,12288\n"
            "3,1020,free,1024,1,0x2000,\"activations\","
            "\"a \"\"b\"\",</script>??.py:1 in f\",\"net:3 > linear:4\",2560,12288\n"
            "5,1060,segment_free,4096,,0x1000,,,,2560,8192\n");
}

TEST_F(Exports, ReservedWithoutSpansIsWhatTheRecordStates) {
  history_.has_spans = false;
  history_.spans.clear();
  history_.reserved = {{2, 9000}};
  const Json trace = Perfetto();
  // Block 1 awaits another stream until event 4: without a figure it counts all the same.
  EXPECT_EQ(Counter(trace, "reserved", "bytes"), (Samples{{0, 512}, {10, 1536}, {20, 9000}}));
  history_.reserved.clear();
  EXPECT_EQ(Counter(Perfetto(), "reserved", "bytes"),
            (Samples{{0, 512}, {10, 1536}, {20, 3584}, {50, 2560}}));
}

TEST(ExportsOfNothing, AreWellFormed) {
  const History history;
  const ExportedRun run{&history, nullptr};
  EXPECT_EQ(Json::parse(PerfettoJson({run}))["otherData"]["runs"][0]["events"], 0);
  EXPECT_TRUE(Json::parse(PerfettoJson({}))["traceEvents"].empty());
  const Json profile = Json::parse(SpeedscopeJson(run, 0))["profiles"][0];
  EXPECT_TRUE(profile["samples"].empty());
  EXPECT_TRUE(profile["weights"].empty());
  EXPECT_EQ(HistoryCsv(run),
            "event,time_us,action,bytes,block,address,category,place,module,allocated,reserved\n");
}

}  // namespace
}  // namespace plimsoll::exports_test
