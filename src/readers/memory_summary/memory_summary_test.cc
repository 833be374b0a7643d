#include "readers/memory_summary/memory_summary.h"

#include <gtest/gtest.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "readers/error_text/error_text.h"

namespace plimsoll::memory_summary_test {
namespace {

const char kTable[] =
    R"(|===========================================================================|
|                  PyTorch CUDA memory summary, device ID 3                 |
|---------------------------------------------------------------------------|
|            CUDA OOMs: 2            |        cudaMalloc retries: 17        |
|===========================================================================|
|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |
|---------------------------------------------------------------------------|
| Allocated memory      | 496530 KiB |   5767 MiB |  61316 MiB |  60831 MiB |
|       from large pool | 443392 KiB |   5715 MiB |  61147 MiB |  60714 MiB |
|       from small pool |  53138 KiB |     86 MiB |    169 MiB |    117 MiB |
|---------------------------------------------------------------------------|
| Requested memory      | 487779 KiB |   5756 MiB |  61265 MiB |  60788 MiB |
|---------------------------------------------------------------------------|
| GPU reserved memory   |   6152 MiB |   6152 MiB |   6152 MiB |      0 B   |
|---------------------------------------------------------------------------|
| Allocations           |     729    |    1093    |    3633    |    2904    |
|       from small pool |     655    |     971    |    2166 K  |    1511    |
|===========================================================================|
)";

std::string Abbreviated() {
  std::string table = kTable;
  while (true) {
    const std::size_t at = table.find("|       from");
    if (at == std::string::npos) return table;
    table.erase(at, table.find('\n', at) + 1 - at);
  }
}

std::vector<MemorySummary> TablesOf(const std::string& text) {
  const Result<Input> input = Input::FromMemory("run.log", text);
  Result<Recording> recording = ReadErrorText(*input);
  return recording.ok() ? recording->summaries : std::vector<MemorySummary>{};
}

TEST(MemorySummaryReader, EveryRow) {
  const auto tables = TablesOf(kTable);
  ASSERT_EQ(tables.size(), 1u);
  const MemorySummary& t = tables[0];
  EXPECT_EQ(t.device, 3);
  EXPECT_EQ(t.ooms, 2);
  EXPECT_EQ(t.retries, 17);
  ASSERT_EQ(t.rows.size(), 5u);
  EXPECT_EQ(t.rows[0].metric, "Allocated memory");
  EXPECT_EQ(t.rows[0].pool, "");
  EXPECT_EQ(t.rows[0].current, 496530 * kKiB);
  EXPECT_EQ(t.rows[0].peak, 5767 * kMiB);
  EXPECT_EQ(t.rows[0].total_allocated, 61316 * kMiB);
  EXPECT_EQ(t.rows[0].total_freed, 60831 * kMiB);
  EXPECT_EQ(t.rows[2].metric, "Allocated memory");
  EXPECT_EQ(t.rows[2].pool, "from small pool");
  EXPECT_EQ(t.rows[4].metric, "GPU reserved memory");
  EXPECT_EQ(t.rows[4].total_freed, 0);
  ASSERT_GE(t.counts.size(), 1u);
  EXPECT_EQ(t.counts[0].metric, "Allocations");
  EXPECT_EQ(t.counts[0].peak, 1093);
}

TEST(MemorySummaryReader, Abbreviated) {
  const auto tables = TablesOf(Abbreviated());
  ASSERT_EQ(tables.size(), 1u);
  EXPECT_EQ(tables[0].rows.size(), 3u);
}

TEST(MemorySummaryReader, InsideALogWithPrefixesAndEscapes) {
  std::string prefixed;
  std::string escaped = "{\"summary\": \"";
  for (std::size_t at = 0; at < std::string(kTable).size();) {
    const std::string table = kTable;
    const std::size_t end = table.find('\n', at);
    prefixed += "[rank3]: " + table.substr(at, end - at) + "\n";
    escaped += table.substr(at, end - at) + "\\n";
    at = end + 1;
  }
  for (const std::string& text :
       {"step 1\n" + prefixed + "step 2\n" + Abbreviated(), escaped + "\"}" + Abbreviated()}) {
    const auto tables = TablesOf(text);
    ASSERT_EQ(tables.size(), 2u);
    EXPECT_EQ(tables[0].rows.size(), 5u);
    EXPECT_EQ(tables[1].rows.size(), 3u);
  }
}

TEST(MemorySummaryReader, WithAnErrorMessageBeside) {
  const std::string text = "RuntimeError: CUDA error: out of memory\n" + std::string(kTable);
  Result<Input> input = Input::FromMemory("run.log", text);
  Result<Recording> recording = ReadErrorText(*input);
  ASSERT_TRUE(recording.ok());
  EXPECT_EQ(recording->summaries.size(), 1u);
  EXPECT_EQ(recording->messages.size(), 1u);
  EXPECT_EQ(recording->format, "error text with torch.cuda.memory_summary()");
}

TEST(MemorySummaryReader, CutAnywhere) {
  const std::string table = kTable;
  std::size_t rows = 0;
  for (std::size_t length = 0; length <= table.size(); ++length) {
    const auto tables = TablesOf(table.substr(0, length));
    const std::size_t now = tables.empty() ? 0 : tables[0].rows.size();
    EXPECT_GE(now, rows);
    rows = now;
  }
  EXPECT_EQ(rows, 5u);
}

/// The number behind a key of a JSON file.
Bytes NumberOf(const std::string& json, const std::string& key) {
  const std::size_t at = json.find(key);
  EXPECT_NE(at, std::string::npos) << key;
  Bytes value = 0;
  const char* begin = json.data() + at + key.size();
  EXPECT_EQ(std::from_chars(begin, json.data() + json.size(), value).ec, std::errc());
  return value;
}

TEST(MemorySummaryReader, RealTablesAgreeWithTheStatistics) {
  int files = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(PLIMSOLL_TEST_DATA) + "/snapshots")) {
    if (entry.path().extension() != ".json") continue;
    SCOPED_TRACE(entry.path());
    std::ifstream file(entry.path());
    const std::string json(std::istreambuf_iterator<char>(file), {});
    if (json.find("memory summary") == std::string::npos) continue;
    const std::vector<MemorySummary> tables = TablesOf(json);
    ASSERT_EQ(tables.size(), 1u);
    EXPECT_EQ(tables[0].rows.size(), 15u);
    EXPECT_EQ(tables[0].counts.size(), 14u);
    EXPECT_EQ(tables[0].ooms, NumberOf(json, "\"num_ooms\": "));
    EXPECT_EQ(tables[0].retries, NumberOf(json, "\"num_alloc_retries\": "));
    EXPECT_LT(std::abs(tables[0].rows[0].peak - NumberOf(json, "\"allocated_bytes.all.peak\": ")),
              kMiB);
    EXPECT_LT(std::abs(tables[0].rows[9].peak - NumberOf(json, "\"reserved_bytes.all.peak\": ")),
              kMiB);
    EXPECT_EQ(tables[0].counts[0].current, NumberOf(json, "\"allocation.all.current\": "));
    ++files;
  }
  EXPECT_GE(files, 20);
}

TEST(MemorySummaryReader, ATitleAloneIsNoTable) {
  EXPECT_TRUE(TablesOf("PyTorch CUDA memory summary, device ID 0\nand so on").empty());
  EXPECT_TRUE(TablesOf("").empty());
}

}  // namespace
}  // namespace plimsoll::memory_summary_test
