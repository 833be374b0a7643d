#include "readers/log_lines/log_figures.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "readers/error_text/testing.h"

namespace plimsoll::log_figures_test {

const LoggedSeries* Find(const Recording& recording, std::string_view field) {
  for (const LoggedSeries& series : recording.logged) {
    if (series.source.field == field) return &series;
  }
  return nullptr;
}

TEST(LogFigures, EveryRowReadsItsSample) {
  for (const LogWording& wording : LogWordings()) {
    const Recording recording = ReadText(std::string(wording.sample) + "\n");
    // The samples of settings and warnings are read, but no use of memory is in them.
    if (recording.logged.empty()) {
      LogFigures figures("run.log");
      const std::string text = std::string(wording.sample) + "\n";
      const FigurePart part{text, 0, [](std::size_t) { return std::size_t{1}; }};
      const auto rows = LogWordings();
      const auto row = static_cast<std::size_t>(&wording - rows.data());
      const std::size_t last = text.rfind('\n', text.size() - 2) + 1;
      figures.See(row, part, last, last + 1);
      figures.EndPart(part, text.size());
      EXPECT_FALSE(std::move(figures).Take().empty()) << wording.sample;
      continue;
    }
    EXPECT_EQ(recording.logged.front().source.program, wording.program) << wording.sample;
  }
}

TEST(LogFigures, EveryRowIsInTheDocument) {
  std::ifstream file(std::string(PLIMSOLL_TEST_DATA) + "/../../docs/formats/log_lines.md");
  std::ostringstream text;
  text << file.rdbuf();
  for (const LogWording& wording : LogWordings()) {
    EXPECT_NE(text.str().find(wording.sample), std::string::npos)
        << "docs/formats/log_lines.md lacks: " << wording.sample;
    EXPECT_NE(text.str().find(wording.program), std::string::npos) << wording.program;
  }
}

TEST(LogFigures, FigureWithStepRankAndPrecision) {
  const Recording recording = ReadText(
      "[rank3]:step: 40  loss:  6.2  memory: 71.90GiB(90.80%)  tps: 4,310\n"
      "[rank3]:step: 50  loss:  6.1  memory: 72.00GiB(90.93%)  tps: 4,310\n");
  const LoggedSeries* const series = Find(recording, "memory");
  ASSERT_NE(series, nullptr);
  EXPECT_EQ(series->counts, FigureKind::kReserved);
  EXPECT_EQ(series->span, FigureSpan::kSinceLine);
  EXPECT_EQ(series->source.rank, 3);
  EXPECT_EQ(series->count, 2);
  EXPECT_EQ(series->first.step, 40);
  EXPECT_EQ(series->first.value, GiB(71.9));
  EXPECT_EQ(series->half_unit, GiB(0.005));
  EXPECT_EQ(series->last.line, 2);
  const LoggedSeries* const card = Find(recording, "of its percentage");
  ASSERT_NE(card, nullptr);
  EXPECT_TRUE(card->inferred);
  EXPECT_NEAR(double(card->last.value), 79.18 * double(kGiB), 0.02 * double(kGiB));
}

TEST(LogFigures, CutFigureIsNone) {
  const std::string whole = "Step 12 | loss:1.2 peak_memory_active:21.93 peak_memory_alloc:21.70";
  for (std::size_t end = whole.find("active:") + 7; end < whole.size(); ++end) {
    const Recording recording = ReadText(whole.substr(0, end));
    for (const LoggedSeries& series : recording.logged) {
      EXPECT_EQ(series.last.value, GiB(21.93)) << whole.substr(0, end);
    }
  }
  const Recording complete = ReadText(whole + "\n");
  ASSERT_EQ(complete.logged.size(), 2u);
  EXPECT_EQ(complete.logged[1].last.value, GiB(21.7));
}

TEST(LogFigures, GigabytesOfTheProgram) {
  const Recording bridge = ReadText(
      "[Rank 0] (after 2 iterations) memory (GB) | mem-allocated-gigabytes: 31.204 | "
      "mem-reserved-gigabytes: 52.118\n");
  ASSERT_EQ(bridge.logged.size(), 2u);
  EXPECT_EQ(bridge.logged[0].last.value, 31'204'000'000);
  const Recording megatron = ReadText(
      "[Rank 0] (after 2 iterations) memory (MB) | allocated: 1024.00 | max allocated: 2048.00 | "
      "reserved: 3072.00 | max reserved: 4096.00\n");
  ASSERT_EQ(megatron.logged.size(), 4u);
  EXPECT_EQ(megatron.logged[3].last.value, 4 * kGiB);
}

TEST(LogFigures, RayFoldsLines) {
  const Recording recording = ReadText(
      "\x1b[36m(WorkerDict pid=881)\x1b[0m After update_actor, memory allocated (GB): 12.34, "
      "memory "
      "reserved (GB): 40.02, device memory used/total (GB): 46.90/79.11 [repeated 7x across "
      "cluster]\n");
  const LoggedSeries* const series = Find(recording, "memory reserved");
  ASSERT_NE(series, nullptr);
  EXPECT_EQ(series->folded, 7);
  EXPECT_EQ(series->source.process, "WorkerDict pid=881");
  EXPECT_EQ(series->source.phase, "After update_actor");
}

TEST(LogFigures, NumbersBeyondAll) {
  // More zeros behind a point than 64 bits have digits.
  const std::string zeros = "0." + std::string(300, '0') + "1";
  const Recording tiny = ReadText("Peak memory usage: " + zeros + "MiB\n");
  const LoggedSeries* const series = Find(tiny, "Peak memory usage");
  ASSERT_NE(series, nullptr);
  EXPECT_EQ(series->last.value, 0);
  EXPECT_EQ(Find(ReadText("Peak memory usage: 0.000000000000000025e+18MiB\n"), "Peak memory usage")
                ->last.value,
            25 * kMiB);
  const std::string folded =
      "(W pid=1) After update_actor, memory allocated (GB): 1.00, memory "
      "reserved (GB): 2.00, device memory used/total (GB): 3.00/4.00 ";
  for (const char* times : {"999999999999999999", "1e300", "-1"}) {
    const std::string line = folded + "[repeated " + times + "x across cluster]\n";
    for (const LoggedSeries& each : ReadText(line + line + line + line).logged) {
      EXPECT_EQ(each.folded, 0) << times;
    }
  }
  for (const char* where : {"Epoch(train)  [2][1e300/7330]", "Epoch(train)  [2][ 50/1e300]",
                            "Epoch(train)  [1000000][ -5/7330]"}) {
    const Recording step = ReadText(where + std::string("  data_time: 0.01  memory: 8123\n"));
    for (const LoggedSeries& each : step.logged) EXPECT_EQ(each.stepped, 0) << where;
  }
  EXPECT_EQ(
      Find(ReadText("CUDA:-1e300 (NVIDIA A100-SXM4-40GB, 40514MiB)\nallocated 1.00 GB\n"), "CUDA"),
      nullptr);
}

TEST(LogFigures, StepsOfLinesThatWereJoined) {
  const Recording recording = ReadText(
      "[rank3]:step: 40  loss:  6.2  memory: 71.90GiB(90.80%)  tps: 1[rank5]:[titan] step: 41  "
      "loss:  6.2  memory: 70.00GiB(88.41%)  tps: 1\n");
  // Of each rank what is reserved, its share of the card, and tokens a second.
  ASSERT_EQ(recording.logged.size(), 6u);
  EXPECT_EQ(recording.logged[0].source.rank, 3);
  EXPECT_EQ(recording.logged[0].last.step, 40);
  EXPECT_EQ(recording.logged[3].source.rank, 5);
  EXPECT_EQ(recording.logged[3].last.step, 41);
}

TEST(LogFigures, WarningBelongsToTheNextStepOfItsRank) {
  const Recording recording = ReadText(
      "[rank1]:4 CUDA memory allocation retries.\n"
      "[rank0]:step: 39  loss: 1.0  memory: 70.00GiB(88.40%)  tps: 1\n"
      "[rank1]:step: 40  loss: 1.0  memory: 70.00GiB(88.40%)  tps: 1\n");
  const LoggedSeries* const series = Find(recording, "retries");
  ASSERT_NE(series, nullptr);
  EXPECT_EQ(series->last.step, 40);
  EXPECT_EQ(series->last.value, 4);
  EXPECT_EQ(series->source.rank, 1);
}

TEST(LogFigures, ProseIsNoLog) {
  for (const char* text : {"A card with 24 GB of memory is enough: GPU memory 16 GB is not.\n",
                           "The model needs 3.2 GB, reserved for weights.\n"}) {
    Result<Input> input = Input::FromMemory("notes.txt", text);
    ASSERT_TRUE(input.ok());
    EXPECT_FALSE(ReadErrorText(*input).ok()) << text;
  }
}

TEST(LogFigures, MessagesAreNotFigures) {
  const Recording recording = ReadText(
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
      "capacity of 79.15 GiB of which 1.19 GiB is free. Of the allocated memory 75.10 GiB is "
      "allocated by PyTorch, and 1.83 GiB is reserved by PyTorch but unallocated.\n");
  EXPECT_EQ(recording.messages.size(), 1u);
  EXPECT_TRUE(recording.logged.empty());
}

}  // namespace plimsoll::log_figures_test
