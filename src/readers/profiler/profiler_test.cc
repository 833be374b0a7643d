#include "readers/profiler/profiler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "readers/profiler/enclosing.h"

namespace plimsoll::profiler_test {
namespace {

const std::string kData = std::string(PLIMSOLL_TEST_DATA) + "/profiler/";

Input FromText(std::string text) {
  Result<Input> input = Input::FromMemory("test.json", std::move(text));
  EXPECT_TRUE(input.ok());
  return std::move(*input);
}
Recording ReadGood(Result<Recording> (*read)(const Input&), const Input& input) {
  Result<Recording> recording = read(input);
  if (!recording) {
    ADD_FAILURE() << recording.error().ToLine();
    return {};
  }
  for (const Timeline& timeline : recording->timelines) {
    EXPECT_EQ(timeline.Validate(), std::nullopt);
  }
  return std::move(*recording);
}
Recording ReadData(Result<Recording> (*read)(const Input&), const char* name) {
  Result<Input> input = Input::Open(kData + name);
  if (!input) {
    ADD_FAILURE() << input.error().ToLine();
    return {};
  }
  return ReadGood(read, *input);
}
Recording ReadTrace(const std::string& events) {
  return ReadGood(ReadChromeTrace, FromText("{\"traceEvents\": [" + events + "]}"));
}
std::int64_t Count(const Timeline& timeline, Action action) {
  return std::count_if(timeline.events.begin(), timeline.events.end(),
                       [&](const Event& e) { return e.action == action; });
}
/// "function file:line < function file:line", innermost first.
std::string StackText(const Timeline& timeline, StackId stack) {
  std::string out;
  for (const FrameId id : timeline.stacks.stack(stack)) {
    const Frame& frame = timeline.stacks.frame(id);
    if (!out.empty()) out += " < ";
    out += timeline.stacks.strings[frame.function];
    if (frame.line > 0) {
      out += " ";
      out += timeline.stacks.strings[frame.file];
      out += ":" + std::to_string(frame.line);
    }
  }
  return out;
}
std::string Memory(double ts, const std::string& args) {
  return "{\"ph\":\"i\",\"name\":\"[memory]\",\"pid\":1,\"tid\":1,\"ts\":" + std::to_string(ts) +
         ",\"args\":{\"Device Type\":1,\"Device Id\":0," + args + "}}";
}
std::string Span(const char* category, const char* name, int ts, int dur) {
  return std::string("{\"ph\":\"X\",\"cat\":\"") + category + "\",\"name\":\"" + name +
         "\",\"pid\":1,\"tid\":1,\"ts\":" + std::to_string(ts) + ",\"dur\":" + std::to_string(dur) +
         "}";
}

TEST(ChromeTrace, RealTrace) {
  const Recording recording = ReadData(ReadChromeTrace, "trace.json.gz");
  ASSERT_EQ(recording.timelines.size(), 1u);
  const Timeline& timeline = recording.timelines[0];
  EXPECT_EQ(timeline.device, 0);
  EXPECT_EQ(recording.skipped.at("memory events of the host"), 104);
  EXPECT_EQ(Count(timeline, Action::kAlloc) + Count(timeline, Action::kFreeCompleted), 826);
  EXPECT_EQ(Count(timeline, Action::kFreeRequested), Count(timeline, Action::kFreeCompleted));
  ASSERT_EQ(timeline.totals.size(), 827u);
  Bytes peak = 0, reserved = 0;
  for (const Totals& t : timeline.totals) {
    peak = std::max(peak, t.allocated);
    reserved = std::max(reserved, t.reserved);
  }
  EXPECT_EQ(peak, 412207104);
  EXPECT_EQ(reserved, 503316480);
  // The refused 200 GiB come last.
  const Event& oom = timeline.events.back();
  EXPECT_EQ(oom.action, Action::kOutOfMemory);
  EXPECT_EQ(oom.size, 214748364800);
  EXPECT_EQ(oom.time_us, 1794713319491670);  // 2026-11-15
  EXPECT_NE(StackText(timeline, oom.stack).find("profiler mine.py:114"), std::string::npos);
  ASSERT_EQ(timeline.annotations.size(), 8u);
  EXPECT_EQ(timeline.stacks.strings[timeline.annotations[0].name], "Optimizer.step#AdamW.step");
}

TEST(ChromeTrace, RealTotalsFollowFromTheEvents) {
  const Recording recording = ReadData(ReadChromeTrace, "trace.json.gz");
  ASSERT_EQ(recording.timelines.size(), 1u);
  const Timeline& timeline = recording.timelines[0];
  Bytes allocated = timeline.totals[0].allocated - timeline.events[0].size;
  for (const Totals& t : timeline.totals) {
    const Event& event = timeline.events[t.event];
    if (event.action == Action::kAlloc) allocated += event.size;
    if (event.action == Action::kFreeCompleted) allocated -= event.size;
    ASSERT_EQ(allocated, t.allocated) << "at event " << t.event;
  }
}

TEST(ChromeTrace, ArrayWithAbsoluteTimesAndOperatorsOnly) {
  const Recording recording = ReadData(ReadChromeTrace, "trace_ops.json.gz");
  ASSERT_EQ(recording.timelines.size(), 1u);
  const Timeline& timeline = recording.timelines[0];
  EXPECT_EQ(timeline.totals.size(), 827u);
  EXPECT_EQ(timeline.events.back().time_us, 1794713319491670);
  const std::string stack = StackText(timeline, timeline.events.front().stack);
  EXPECT_EQ(stack.find("aten::"), 0u) << stack;
}

TEST(ChromeTrace, SortsByTimeAndNestsCalls) {
  const Recording recording = ReadTrace(
      Memory(30, R"("Addr":64,"Bytes":-512,"Total Allocated":0,"Total Reserved":2097152)") + "," +
      Memory(12, R"("Addr":64,"Bytes":512,"Total Allocated":512,"Total Reserved":2097152)") + "," +
      Span("cpu_op", "aten::empty", 11, 3) + "," +
      Span("python_function", "lib/train.py(57): forward", 10, 10) + "," +
      Span("python_function", "<built-in method cat of type object at 0x7f00>", 10, 9) + "," +
      Span("python_function", "main.py(1): <module>", 0, 100) + "," +
      Span("cpu_op", "aten::zeros", 40, 3));
  ASSERT_EQ(recording.timelines.size(), 1u);
  const Timeline& timeline = recording.timelines[0];
  ASSERT_EQ(timeline.events.size(), 3u);
  EXPECT_EQ(timeline.events[0].action, Action::kAlloc);
  EXPECT_EQ(timeline.events[1].action, Action::kFreeRequested);
  EXPECT_EQ(timeline.events[2].action, Action::kFreeCompleted);
  EXPECT_EQ(timeline.totals[1].event, 2u);
  EXPECT_EQ(StackText(timeline, timeline.events[0].stack),
            "aten::empty < <built-in method cat of type object < forward lib/train.py:57 < "
            "<module> main.py:1");
  EXPECT_EQ(StackText(timeline, timeline.events[2].stack), "<module> main.py:1");
}

TEST(ChromeTrace, EveryDeviceIsATimeline) {
  const Recording recording = ReadTrace(
      R"({"name":"[memory]","ts":1,"args":{"Device Type":1,"Device Id":1,"Addr":1,"Bytes":5}},)"
      R"({"name":"[memory]","ts":2,"args":{"Device Type":12,"Device Id":0,"Addr":1,"Bytes":5}},)"
      R"({"name":"[memory]","ts":3,"args":{"Device Type":1,"Device Id":1,"Addr":1,"Bytes":-5}},)"
      R"({"name":"[memory]","ts":4,"args":{"Device Type":0,"Device Id":-1,"Addr":1,"Bytes":5}})");
  ASSERT_EQ(recording.timelines.size(), 2u);
  EXPECT_EQ(recording.timelines[0].device, 1);
  EXPECT_EQ(recording.timelines[0].events.size(), 3u);
  EXPECT_TRUE(recording.timelines[0].totals.empty());  // releases before 1.11 state none
  EXPECT_EQ(recording.timelines[1].events.size(), 1u);
}

TEST(ChromeTrace, BadRecordsAreCounted) {
  const Recording recording = ReadTrace(
      Memory(1, R"("Addr":18446664908872351744,"Bytes":"512")") + "," +  // numbers in quotes
      Memory(2, R"("Addr":64,"Bytes":[1])") + "," + Memory(3, R"("Addr":64,"Bytes":1e300)") + "," +
      Memory(4, R"("Addr":64,"Bytes":-9223372036854775808)") + "," + Memory(5, R"("Bytes":7)") +
      "," + R"({"name":"[memory]","ts":"soon","args":{"Bytes":1,"Addr":1}},)" +
      R"({"name":"[memory]","ts":1e300,"args":{"Bytes":1,"Addr":1}},)" +
      R"({"name":"[memory]","args":null}, {"name":["[memory]"]}, 7, null, [[]], "x")");
  ASSERT_EQ(recording.timelines.size(), 1u);
  const Timeline& timeline = recording.timelines[0];
  ASSERT_EQ(timeline.events.size(), 2u);
  EXPECT_EQ(timeline.events[0].address, 0xffffb80000000000u);
  EXPECT_EQ(timeline.events[0].size, 512);
  EXPECT_EQ(timeline.events[1].action, Action::kOther);
  EXPECT_EQ(recording.skipped.at("memory events without a usable size or device"), 3);
  EXPECT_EQ(recording.skipped.at("memory events without a usable time"), 3);
  EXPECT_EQ(recording.skipped.at("memory events without an address"), 1);
}

TEST(ChromeTrace, SizesCannotAddUpToAnOverflow) {
  std::string events = Memory(0, R"("Addr":1,"Bytes":1125899906842625)");  // a pebibyte and one
  for (int i = 0; i < 9000; ++i) {
    events += "," + Memory(i, R"("Addr":1,"Bytes":1125899906842624,"Total Reserved":9e18)");
  }
  const Recording recording = ReadTrace(events);
  EXPECT_EQ(recording.timelines[0].events.size(), 256u);
  EXPECT_EQ(recording.skipped.at("memory events without a usable size or device"), 1);
  EXPECT_EQ(recording.skipped.at("memory events beyond 256 pebibytes in all"), 8744);
  EXPECT_TRUE(recording.timelines[0].totals.empty());
}

TEST(ChromeTrace, SaysWhatIsMissing) {
  const auto none = ReadChromeTrace(FromText(R"({"traceEvents": [{"ph": "X", "name": "a"}]})"));
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.error().hint.find("profile_memory=True"), std::string::npos);
  const auto host = ReadChromeTrace(FromText(
      R"({"traceEvents":[{"name":"[memory]","ts":4,"args":{"Device Type":0,"Bytes":5}}]})"));
  ASSERT_FALSE(host.ok());
  EXPECT_NE(host.error().message.find("host"), std::string::npos);
}

TEST(ChromeTrace, TruncatedAnywhereIsAnErrorWithItsOffset) {
  const std::string whole = "{\"baseTimeNanoseconds\": 5, \"traceEvents\": [" +
                            Memory(1, R"("Addr":64,"Bytes":512,"x":[{"y":"\u00e9 é"}])") + "]}";
  ASSERT_TRUE(ReadChromeTrace(FromText(whole)).ok());
  for (std::size_t n = 0; n < whole.size(); ++n) {
    const auto cut = ReadChromeTrace(FromText(whole.substr(0, n)));
    ASSERT_FALSE(cut.ok()) << n;
    ASSERT_EQ(cut.error().offset, n) << cut.error().ToLine();
  }
}

TEST(ChromeTrace, DeepNestingIsRefusedWithItsOffset) {
  const std::string head = "{\"traceEvents\": [{\"args\": ";
  const auto deep = ReadChromeTrace(FromText(head + std::string(2'000'000, '[')));
  ASSERT_FALSE(deep.ok());
  EXPECT_EQ(deep.error().offset, head.size() + 126);
  const auto wrong = ReadChromeTrace(FromText("{\"traceEvents\": [nan]}"));
  ASSERT_FALSE(wrong.ok());
  EXPECT_GE(wrong.error().offset, 17u);
  EXPECT_EQ(wrong.error().message.find('\n'), std::string::npos);
}

TEST(ChromeTrace, ManyNestedCallsStayLinear) {
  // Each event lies one call deeper: every stack differs, and whole ones would need n² frames.
  std::string events = Memory(0, R"("Addr":1,"Bytes":1)");
  for (int i = 1; i < 3000; ++i) {
    events += "," + Span("cpu_op", ("f" + std::to_string(i)).c_str(), i, 100000 - 2 * i) + "," +
              Memory(i, R"("Addr":1,"Bytes":1)");
  }
  const Recording recording = ReadTrace(events);
  const Timeline& timeline = recording.timelines[0];
  EXPECT_EQ(timeline.stacks.stack(timeline.events.back().stack).size(), 256u);
}

TEST(ChromeTrace, Recognised) {
  EXPECT_TRUE(RecogniseChromeTrace("\n {\"schemaVersion\": 1, \"traceEvents\" : []}"));
  EXPECT_TRUE(RecogniseChromeTrace("[{\"name\": \"[memory]\", \"ph\": \"i\"}]"));
  EXPECT_FALSE(RecogniseChromeTrace(""));
  EXPECT_FALSE(
      RecogniseChromeTrace("{\"segments\": [{\"frames\": [{\"name\": \"traceEvents\"}]}]}"));
  EXPECT_FALSE(RecogniseChromeTrace("[[1, 2]]"));
  EXPECT_FALSE(RecogniseChromeTrace("traceEvents and [memory] in a log"));
}

TEST(CallNames, AreParsed) {
  const auto check = [](std::string_view name, std::string_view file, int line,
                        std::string_view function) {
    const CallName got = ParseCallName(name, true);
    EXPECT_EQ(got.file, file) << name;
    EXPECT_EQ(got.line, line) << name;
    EXPECT_EQ(got.function, function) << name;
  };
  check("mine.py(125): <module>", "mine.py", 125, "<module>");
  check("C:\\P (x86)\\a.py(3): f(): g", "C:\\P (x86)\\a.py", 3, "f(): g");
  check("nn.Module: Linear_0", "", 0, "nn.Module: Linear_0");
  check("a.py(99999999999): f", "", 0, "a.py(99999999999): f");
  check("(1): f", "", 0, "(1): f");
  check("a.py(): f", "", 0, "a.py(): f");
  EXPECT_EQ(ParseCallName("a.py(1): f", false).function, "a.py(1): f");
}

Bytes Sum(const CategorySample& sample) {
  return std::accumulate(sample.bytes.begin(), sample.bytes.end(), Bytes{0});
}
Bytes Peak(const Recording& recording) {
  Bytes peak = 0;
  for (const CategorySample& sample : recording.categories->samples) {
    peak = std::max(peak, Sum(sample));
  }
  return peak;
}

TEST(MemoryTimeline, BothFormsAgree) {
  const Recording rows = ReadData(ReadMemoryTimeline, "timeline.json.gz");
  const Recording raw = ReadData(ReadMemoryTimeline, "timeline.raw.json.gz");
  ASSERT_TRUE(rows.categories && raw.categories);
  const auto& a = rows.categories->samples;
  const auto& b = raw.categories->samples;
  EXPECT_EQ(a.size(), 871u);
  EXPECT_EQ(Peak(rows), 411241472);
  EXPECT_EQ(Peak(raw), Peak(rows));
  EXPECT_EQ(a[0].time_us, 1794713319040236);
  EXPECT_EQ(b[0].time_us, a[0].time_us);
  EXPECT_EQ(a[0].bytes[0], 58831872);  // the parameters, there before the recording
  EXPECT_EQ(a.back().bytes, b.back().bytes);
  EXPECT_TRUE(rows.skipped.empty());
  EXPECT_TRUE(raw.skipped.empty());
}

TEST(MemoryTimeline, ThePictureIsRefusedWithAdvice) {
  Result<Input> input = Input::Open(kData + "timeline.html");
  ASSERT_TRUE(input.ok());
  EXPECT_TRUE(RecogniseMemoryTimeline(input->bytes()));
  const auto read = ReadMemoryTimeline(*input);
  ASSERT_FALSE(read.ok());
  EXPECT_NE(read.error().hint.find(".raw.json"), std::string::npos);
}

TEST(MemoryTimeline, StrangeRecordsAreCounted) {
  const Recording raw = ReadGood(
      ReadMemoryTimeline,
      FromText(R"([[-1,1,100,0],[2000,2,50,7],[2500,2,"x",1],[2600,2,5],[2700,2,5,8],[2800,2,5,-1],
                   [3000,4,-50,7],[3000,2,9223372036854775807,0],{"a":[1]},[]])"));
  ASSERT_EQ(raw.categories->samples.size(), 2u);
  EXPECT_EQ(raw.categories->samples[0].bytes[0], 100);
  EXPECT_EQ(raw.categories->samples[0].bytes[7], 50);
  EXPECT_EQ(raw.categories->samples[1].bytes[7], 0);
  EXPECT_EQ(raw.skipped.at("samples of another shape"), 7);
  const Recording rows =
      ReadGood(ReadMemoryTimeline, FromText("[[1,2,3],[[0,1,0,0,0,0,0,0,0],[1,2],[null]]]"));
  ASSERT_EQ(rows.categories->samples.size(), 3u);
  EXPECT_EQ(rows.categories->samples[2].bytes[0], 1);
  EXPECT_EQ(rows.skipped.at("samples of another shape"), 2);
}

TEST(MemoryTimeline, WithoutSamplesIsAnError) {
  for (const char* text :
       {"[[],[]]", "[[1,2,3]]", "[[]]", "{}", "7", "[[{}]]", "[[1,2,3,4,5],[[]"}) {
    EXPECT_FALSE(ReadMemoryTimeline(FromText(text)).ok()) << text;
  }
}

TEST(MemoryTimeline, TruncatedAnywhereIsAnErrorWithItsOffset) {
  for (const std::string whole : {"[[1, 2], [[0,1,2,3,4,5,6,7,8], [0,1,2,3,4,5,6,7,8]]]",
                                  "[[-1, 1, 5146, 0], [17, 2, 64, 7]]"}) {
    ASSERT_TRUE(ReadMemoryTimeline(FromText(whole)).ok());
    for (std::size_t n = 0; n < whole.size(); ++n) {
      const auto cut = ReadMemoryTimeline(FromText(whole.substr(0, n)));
      ASSERT_FALSE(cut.ok()) << n;
      ASSERT_EQ(cut.error().offset, n) << cut.error().ToLine();
    }
  }
}

TEST(MemoryTimeline, Recognised) {
  EXPECT_TRUE(RecogniseMemoryTimeline("[[-1, 1, 5146, 0]]"));
  EXPECT_TRUE(RecogniseMemoryTimeline(" [ [17"));
  EXPECT_FALSE(RecogniseMemoryTimeline("[{\"address\": 1}]"));
  EXPECT_FALSE(RecogniseMemoryTimeline("[["));
  EXPECT_FALSE(RecogniseMemoryTimeline("<html>a blog about the Memory Timeline</html>"));
}

}  // namespace
}  // namespace plimsoll::profiler_test
