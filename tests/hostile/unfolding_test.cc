// Small files that stand for a great deal, and what makes a program busy: each within the bounds,
// all the way through every command.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/nightly_for_tests.h"
#include "bounded.h"
#include "diagnose/explain.h"
#include "diagnose/recorded_history.h"
#include "diagnose/what_if.h"
#include "files/input.h"
#include "files/packed_for_tests.h"
#include "readers/registry.h"
#include "report/exports/exports.h"
#include "report/history_pack.h"
#include "report/json.h"
#include "report/page.h"
#include "report/text.h"

namespace plimsoll::hostile {
namespace {

using namespace std::string_literals;

// So many times less than by night: what grows faster than it should shows at a fourth, too. Under
// the address sanitizer everything takes many times as long.
#if defined(__SANITIZE_ADDRESS__)
const std::size_t kLess = 20;
#else
const std::size_t kLess = IsNightly() ? 1 : 4;
#endif

std::string Little(std::uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
  return out;
}

// Pieces of a pickle. Texts are remembered in the order in which they are written.
std::string Text(std::string_view text) {
  return "X" + Little(text.size(), 4) + std::string(text) + "\x94";
}
std::string Get(std::uint64_t item) { return "j" + Little(item, 4); }
std::string Number(std::int64_t value) {
  return "\x8a\x08" + Little(static_cast<std::uint64_t>(value), 8);
}

/// An event list under way: the keys are items 0 to 8, `more` may remember others from 9 on.
class Snapshot {
 public:
  enum Item { kAction, kAddr, kSize, kStream, kFrames, kFilename, kName, kLine, kForward, kNext };

  explicit Snapshot(const std::string& more = "") {
    bytes_ = "\x80\x04(";
    for (const char* key : {"action", "addr", "size", "stream", "frames", "filename", "name",
                            "line", "forward_frames"}) {
      bytes_ += Text(key);
    }
    bytes_ +=
        more + "1}(" + "X" + Little(8, 4) + "segments]X" + Little(13, 4) + "device_traces](](";
  }

  void Event(std::string_view action, std::int64_t address, std::int64_t size,
             const std::string& more = "") {
    bytes_ += "}(" + Get(kAction) + "X" + Little(action.size(), 4) + std::string(action) +
              Get(kAddr) + Number(address) + Get(kSize) + Number(size) + more + "u";
  }
  static std::string Frame(std::uint64_t file, std::int64_t line, std::uint64_t name) {
    return "}(" + Get(kFilename) + Get(file) + Get(kLine) + Number(line) + Get(kName) + Get(name) +
           "u";
  }
  std::string Take() { return std::move(bytes_) + "eeu."; }

 private:
  std::string bytes_;
};

void ReplayAndTune(const Recording& recording, const AnalysedTrace& trace) {
  const WhatIfOptions options;
  const Result<ReplayableJob> job = PrepareJob(recording, trace, options);
  if (!job) return;
  (void)ReplayJob(*job, options);
  EXPECT_FALSE(TuneJson(TuneJob(*job, options, {})).empty());
}

/// Every command that takes a trace.
void Through(std::string bytes, const std::string& what, bool tune = false) {
  ASSERT_LT(bytes.size(), 10'000'000u) << what;
  const Bounded bounded(what);
  const Result<Input> input = Input::FromMemory("hostile", std::move(bytes));
  if (!input) return;
  const Result<Recording> recording = Read(*input);
  if (!recording) {
    EXPECT_EQ(recording.error().ToLine().find('\n'), std::string::npos);
    return;
  }
  if (const Result<Explanation> part = ExplainRecording(*recording, {})) {
    EXPECT_FALSE(ExplanationText(*part, {}).empty()) << what;
    EXPECT_FALSE(ExplanationJson(*part).empty()) << what;
  }
  for (const Timeline& timeline : recording->timelines) {
    EXPECT_EQ(timeline.Validate(), std::nullopt) << what;
    const AnalysedTrace trace(timeline);
    const History history = RecordedHistory(trace);
    const ExportedRun run{.history = &history};
    EXPECT_FALSE(PerfettoJson({run}).empty()) << what;
    EXPECT_FALSE(SpeedscopeJson(run, kNotYet).empty()) << what;
    EXPECT_FALSE(HistoryCsv(run).empty()) << what;
    EXPECT_FALSE(PackHistory(history).empty()) << what;
    if (tune) ReplayAndTune(*recording, trace);
  }
}

TEST(Unfolding, RangesThatPassTheEndOfTheAddressSpace) {
  for (const std::int64_t address : {std::int64_t{-1}, std::int64_t{-4096}, INT64_MIN, INT64_MAX}) {
    for (const std::int64_t size :
         {std::int64_t{1}, std::int64_t{1} << 20, std::int64_t{1} << 50}) {
      Snapshot snapshot;
      for (const char* action : {"segment_alloc", "alloc", "free_requested", "free_completed",
                                 "segment_map", "segment_unmap", "segment_free", "alloc"}) {
        snapshot.Event(action, address, size);
        const auto before = static_cast<std::uint64_t>(address) - static_cast<std::uint64_t>(size);
        snapshot.Event(action, static_cast<std::int64_t>(before), size);
      }
      Through(snapshot.Take(), "address " + std::to_string(address), true);
    }
  }
}

TEST(Unfolding, ATracebackInManyForwardFrames) {
  std::string text;
  for (int i = 0; i < 4000; ++i) text += "File \"a.py\", line " + std::to_string(i) + ", in f\n";
  Snapshot snapshot(Text(text));
  std::string list = "](";
  for (int i = 0; i < 500; ++i) list += Get(Snapshot::kNext);
  list += "e";
  for (std::size_t i = 0; i < 3000 / kLess; ++i) {
    snapshot.Event("alloc", static_cast<std::int64_t>(i) * 512, 512,
                   Get(Snapshot::kForward) + list);
  }
  Through(snapshot.Take(), "one traceback in all forward_frames");
}

TEST(Unfolding, ATracebackAsTheOriginalOfManyFrames) {
  std::string text;
  for (int i = 0; i < 40'000; ++i) text += "File \"a.py\", line 3, in f\n";
  Snapshot snapshot(Text(text) + Text("fx_original_trace"));
  for (std::size_t i = 0; i < 30'000 / kLess; ++i) {
    const std::string frame = Snapshot::Frame(0, static_cast<std::int64_t>(i), 0);
    snapshot.Event("alloc", static_cast<std::int64_t>(i) * 512, 512,
                   Get(Snapshot::kFrames) + "](" + frame.substr(0, frame.size() - 1) +
                       Get(Snapshot::kNext + 1) + Get(Snapshot::kNext) + "ue");
  }
  Through(snapshot.Take(), "one fx_original_trace in all frames");
}

TEST(Unfolding, ALongNameInManyFrames) {
  for (const std::size_t length : {std::size_t{100'000}, std::size_t{4000}}) {
    Snapshot snapshot(Text(std::string(length, 'n') + ".py"));
    for (std::size_t i = 0; i < 60'000 / kLess; ++i) {
      snapshot.Event(
          "alloc", static_cast<std::int64_t>(i) * 512, 512,
          Get(Snapshot::kFrames) + "](" +
              Snapshot::Frame(Snapshot::kNext, static_cast<std::int64_t>(i), Snapshot::kNext) +
              "e");
    }
    Through(snapshot.Take(), "a name of " + std::to_string(length) + " bytes in all frames");
  }
}

TEST(Unfolding, DeepStacksOfLongNames) {
  std::string more = Text(std::string(4000, 'n') + ".py");
  std::string all;
  for (int i = 0; i < 900; ++i) {
    more += Snapshot::Frame(Snapshot::kNext, i, Snapshot::kNext) + "\x94";
    all += Get(static_cast<std::uint64_t>(Snapshot::kNext + 1 + i));
  }
  Snapshot snapshot(more);
  for (std::size_t i = 0; i < 1900 / kLess; ++i) {
    snapshot.Event("alloc", static_cast<std::int64_t>(i) * 512, 512,
                   Get(Snapshot::kFrames) + "](" + all +
                       Snapshot::Frame(0, static_cast<std::int64_t>(i), 0) + "e");
  }
  Through(snapshot.Take(), "stacks of 900 frames with names of 4 kB");
}

// The standard library's tables have these sizes when they hold some ten thousand.
TEST(Unfolding, KeysThatWouldFallTogether) {
  constexpr std::int64_t kStep = std::int64_t{85229} * 512;
  Snapshot sizes;
  Snapshot streams;
  Snapshot addresses;
  for (std::size_t i = 1; i < 60'000 / kLess; ++i) {
    const auto n = static_cast<std::int64_t>(i);
    sizes.Event("alloc", n << 32, n * kStep);
    streams.Event("alloc", n * 512, 512, Get(Snapshot::kStream) + Number(n * kStep));
    addresses.Event("alloc", (n * kStep) << 16 & ~511, 512);
  }
  Through(sizes.Take(), "sizes that fall together");
  Through(streams.Take(), "streams that fall together");
  Through(addresses.Take(), "addresses that fall together");
}

TEST(Unfolding, SegmentsUponEachOther) {
  for (const char* end : {"segment_free", "segment_unmap"}) {
    for (const char* begin : {"segment_alloc", "segment_map"}) {
      Snapshot snapshot;
      for (std::size_t k = 0; k < 2; ++k) {
        for (std::size_t i = 0; i < 60'000 / kLess; ++i) {
          const auto address = static_cast<std::int64_t>(0x7f0000000000 + i * 1024);
          snapshot.Event(k == 0 ? begin : end, address, std::int64_t{1} << 40);
        }
      }
      Through(snapshot.Take(), begin + " upon each other, "s + end);
    }
  }
}

TEST(Unfolding, AStreamForEachAllocation) {
  Snapshot snapshot;
  for (std::size_t k = 0; k < 3; ++k) {
    for (std::size_t i = 0; i < 20'000 / kLess; ++i) {
      const char* const actions[] = {"alloc", "free_requested", "free_completed"};
      snapshot.Event(actions[k], static_cast<std::int64_t>(i) << 21, 512,
                     Get(Snapshot::kStream) + Number(static_cast<std::int64_t>(i)));
    }
  }
  Through(snapshot.Take(), "a stream for each allocation", true);
}

TEST(Unfolding, AProfilerTraceWithLongNames) {
  std::string trace = "{\"traceEvents\": [";
  for (std::size_t i = 0; i < 900 / kLess; ++i) {
    const std::string n = std::to_string(i);
    trace += "{\"ph\":\"X\",\"cat\":\"python_function\",\"name\":\"" + n +
             std::string(10'000, 'x') + ".py(1): f\",\"ts\":" + n +
             ",\"dur\":1000000},{\"name\":\"[memory]\",\"ts\":" + n +
             ".5,\"args\":{\"Bytes\":512,\"Addr\":" + n + "000}},";
  }
  Through(trace + "{}]}", "a profiler trace with long names");
}

// What unpacks within the limits, and then into a table a row for every six bytes.
TEST(Unfolding, PackedEvents) {
  const std::string piece = "}" + Get(0) + Get(1) + "s";
  std::string events;
  for (std::size_t i = 0; i < 60'000'000 / piece.size() / kLess; ++i) events += piece;
  const std::string snapshot = "\x80\x04(" + Text("action") + Text("alloc") + "1}(X" +
                               Little(8, 4) + "segments]X" + Little(13, 4) + "device_traces](](" +
                               events + "eeu.";
  Through(Gzip(snapshot), "packed events");
}

// Words that a reader of logs looks for, wherever it may look for them again.
TEST(Unfolding, LogsOfNothingButWords) {
  constexpr std::size_t kLine = 16'000;
  const auto line = [](std::string_view head, std::string_view word, std::string_view tail) {
    std::string text(head);
    while (text.size() < kLine) text += word;
    return text + std::string(tail) + "\n";
  };
  for (const std::string& text :
       {line("", "'memory/", "':"), line("", "_mem_gpu", "_alloc_delta = 1MB"),
        line("x", "_mem_gpu", ""), line("GiB(", " k memory:", ""),
        line("GiB( step:x", " memory:", ""), line("GiB( [rank step:", " memory:", ""),
        line("1MiB / 1MiB |", "|", ""), line("memory (GB) |", "| ", ""),
        line("Memory used: 1 GB ", "it :: ", "")}) {
    std::string log;
    while (log.size() + text.size() < 10'000'000 / kLess) log += text;
    Through(std::move(log), text.substr(0, 40));
  }
}

// Short lines of many ranks, each with one above that is of its own.
TEST(Unfolding, LogsOfManyRanks) {
  for (const std::string_view words :
       {"peak memory active:1", "|1MiB / 1MiB", "1 GB Max_MA", "step: 1 memory: 1GiB(1%)"}) {
    std::string log;
    for (int rank = 0; rank < 4096; ++rank) {
      log += std::to_string(rank) + ": 1 CUDA memory allocation retries\n";
    }
    for (int rank = 0; log.size() < 9'999'900 / kLess; ++rank) {
      log += std::to_string(rank % 100) + ": " + std::string(words) + "\n";
    }
    Through(std::move(log), std::string(words));
  }
}

TEST(Unfolding, PackedBlanks) {
  Through(
      Gzip("{\"device_traces\": [[" + std::string((std::size_t{900} << 20) / kLess, ' ') + "]]}"),
      "packed blanks");
}

}  // namespace
}  // namespace plimsoll::hostile
