#include "readers/nsys/nsys.h"

#include <gtest/gtest.h>
#include <sqlite3.h>

#include <string>
#include <vector>

#include "timeline/stack_builder.h"

namespace plimsoll::nsys_test {
namespace {

const std::string kData = std::string(PLIMSOLL_TEST_DATA) + "/nsys/";

std::string Content(const std::string& name) {
  Result<Input> input = Input::Open(kData + name);
  if (!input) {
    ADD_FAILURE() << input.error().ToLine();
    return "";
  }
  return std::string(input->bytes());
}
Result<Recording> ReadBytes(std::string bytes) {
  Result<Input> input = Input::FromMemory("test.sqlite", std::move(bytes));
  if (!input) return input.error();
  Result<Recording> recording = ReadNsys(*input);
  if (recording) {
    for (const Timeline& timeline : recording->timelines) {
      EXPECT_EQ(timeline.Validate(), std::nullopt);
    }
  }
  return recording;
}
std::string StackText(const Timeline& timeline, StackId stack) {
  std::string out;
  for (const FrameId id : timeline.stacks.stack(stack)) {
    const Frame& frame = timeline.stacks.frame(id);
    if (!out.empty()) out += " < ";
    out += timeline.stacks.strings[frame.function];
    const std::string_view file = timeline.stacks.strings[frame.file];
    if (!file.empty()) out += " in " + std::string(file);
  }
  return out;
}

TEST(Nsys, ReadsEveryKindInOrderOfTime) {
  const Result<Recording> read = ReadBytes(Content("usage.sqlite"));
  ASSERT_TRUE(read.ok()) << read.error().ToLine();
  ASSERT_EQ(read->timelines.size(), 2u);
  const Timeline& first = read->timelines[0];
  EXPECT_EQ(first.device, 0);
  std::vector<Action> actions;
  for (const Event& event : first.events) actions.push_back(event.action);
  EXPECT_EQ(actions, (std::vector<Action>{
                         Action::kSegmentAlloc, Action::kAlloc, Action::kSegmentAlloc,
                         Action::kAlloc, Action::kSegmentAlloc, Action::kAlloc,
                         Action::kFreeRequested, Action::kFreeCompleted, Action::kSegmentFree}));
  EXPECT_EQ(first.events[1].size, 20 * kMiB);
  EXPECT_EQ(first.events[1].time_us, 1790000000000001);
  EXPECT_EQ(first.streams[first.events[1].stream], 7u);
  EXPECT_EQ(first.events[5].size, 512 * kMiB);
  EXPECT_EQ(first.events[8].address, first.events[1].address);
  EXPECT_EQ(first.host_reserved, 8 * kMiB);
  EXPECT_EQ(read->timelines[1].device, 1);
  EXPECT_EQ(read->timelines[1].events[1].size, 4 * kMiB);
  EXPECT_EQ(read->format, "Nsight Systems SQLite export");
  EXPECT_EQ(read->skipped.at("memory events of the host"), 1);
  EXPECT_EQ(read->skipped.at("memory events of a kind that is not known"), 1);
  EXPECT_EQ(read->skipped.at("memory events that neither allocate nor free"), 1);
}

TEST(Nsys, NamesTheCallsAndTheirBacktraces) {
  const Result<Recording> read = ReadBytes(Content("usage.sqlite"));
  ASSERT_TRUE(read.ok());
  const Timeline& timeline = read->timelines[0];
  EXPECT_EQ(StackText(timeline, timeline.events[1].stack),
            "cudaMalloc_v3020 < cudaMalloc_v3020 in libc10_cuda.so < "
            "c10::cuda::CUDACachingAllocator::Native::alloc_block in libc10_cuda.so");
  EXPECT_EQ(StackText(timeline, timeline.events[3].stack), "lookup_table");
  EXPECT_EQ(StackText(timeline, timeline.events[5].stack),
            "cudaMalloc_v3020 < ncclCudaMalloc in libnccl.so.2");
  EXPECT_EQ(StackText(timeline, timeline.events[6].stack), "cudaFree_v3020");
}

TEST(Nsys, ProcessesAreKeptApart) {
  const Result<Recording> read = ReadBytes(Content("processes.sqlite"));
  ASSERT_TRUE(read.ok());
  ASSERT_EQ(read->timelines.size(), 2u);
  EXPECT_EQ(read->timelines[0].events.size(), 5u);
  EXPECT_EQ(read->timelines[1].events.size(), 2u);
  EXPECT_EQ(read->format,
            "Nsight Systems SQLite export (process 100 on device 0, process 200 on device 0)");
}

TEST(Nsys, SaysHowToRecord) {
  for (const char* name : {"no_memory.sqlite", "view.sqlite"}) {
    const Result<Recording> read = ReadBytes(Content(name));
    ASSERT_FALSE(read.ok()) << name;
    EXPECT_NE(read.error().hint.find("--cuda-memory-usage=true"), std::string::npos);
  }
  const Result<Recording> wal = ReadBytes(Content("wal.sqlite"));
  ASSERT_FALSE(wal.ok());
  EXPECT_NE(wal.error().message.find("WAL"), std::string::npos) << wal.error().ToLine();
}

TEST(Nsys, StrangeTypesAreCounted) {
  const Result<Recording> read = ReadBytes(Content("strange_types.sqlite"));
  ASSERT_TRUE(read.ok()) << read.error().ToLine();
  EXPECT_EQ(read->skipped.at("memory events without a usable time, address, size or device"), 6);
  ASSERT_EQ(read->timelines.size(), 1u);
  EXPECT_EQ(read->timelines[0].events.size(), 2u);
  EXPECT_EQ(read->timelines[0].events[0].size, 512);
}

TEST(Nsys, CutOffAnywhereIsAnError) {
  const std::string whole = Content("usage.sqlite");
  for (std::size_t n = 16; n < whole.size(); n += n < 200 ? 1 : 37) {
    const Result<Recording> cut = ReadBytes(whole.substr(0, n));
    ASSERT_FALSE(cut.ok()) << n;
    ASSERT_EQ(cut.error().offset, n) << cut.error().ToLine();
  }
}

TEST(Nsys, DamagedBytesNeverCrash) {
  const std::string whole = Content("usage.sqlite");
  for (std::size_t at = 16; at < whole.size(); at += 5) {
    for (const char byte : {'\0', '\x7f', '\xff'}) {
      std::string damaged = whole;
      damaged[at] = byte;
      const Result<Recording> read = ReadBytes(std::move(damaged));
      if (!read) {
        ASSERT_EQ(read.error().message.find('\n'), std::string::npos);
      }
    }
  }
}

/// A tree of pages whose every branch leads to the same page: 150^5 leaves in 7 KiB.
TEST(Nsys, PagesThatRepeatThemselvesEndInAnError) {
  std::string bytes = Content("processes.sqlite");
  constexpr std::size_t kPage = 1024;
  ASSERT_EQ(bytes.size(), 2 * kPage);
  const std::string leaf = bytes.substr(kPage, kPage);
  // Page 2, the table's root, becomes a tree of five levels above the old leaf.
  bytes.resize(kPage);
  for (std::uint32_t page = 2; page <= 6; ++page) {
    std::string node(kPage, '\0');
    node[0] = 5;  // inner node of a table
    const std::size_t cells = 150;
    node[3] = 0;
    node[4] = static_cast<char>(cells);
    const std::size_t content = 12 + 2 * cells;
    node[5] = static_cast<char>(content >> 8);
    node[6] = static_cast<char>(content & 0xff);
    node[11] = static_cast<char>(page + 1);
    for (std::size_t i = 0; i < cells; ++i) {
      node[12 + 2 * i] = static_cast<char>(content >> 8);
      node[13 + 2 * i] = static_cast<char>(content & 0xff);
    }
    node[content + 3] = static_cast<char>(page + 1);
    node[content + 4] = 1;
    bytes += node;
  }
  bytes += leaf;
  bytes[31] = 7;  // pages in the file
  const Result<Recording> read = ReadBytes(bytes);
  ASSERT_FALSE(read.ok());
  EXPECT_NE(read.error().message.find("cannot be read"), std::string::npos);
}

/// The bytes of a database that these statements make.
std::string Made(const std::vector<std::string>& statements) {
  sqlite3* handle = nullptr;
  EXPECT_EQ(sqlite3_open(":memory:", &handle), SQLITE_OK);
  for (const std::string& statement : statements) {
    EXPECT_EQ(sqlite3_exec(handle, statement.c_str(), nullptr, nullptr, nullptr), SQLITE_OK)
        << sqlite3_errmsg(handle);
  }
  sqlite3_int64 size = 0;
  unsigned char* const bytes = sqlite3_serialize(handle, "main", &size, 0);
  std::string made(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
  sqlite3_free(bytes);
  sqlite3_close(handle);
  return made;
}

// Reading a generated column runs its functions, as long as they like and not to be interrupted.
TEST(Nsys, GeneratedColumnsAreNotRead) {
  const std::string busy =
      "instr(replace(hex(zeroblob(9000)), '0', 'ab'), replace(hex(zeroblob(4000)), '0', 'ab') || "
      "'c')";
  for (const char* kind : {"VIRTUAL", "STORED"}) {
    std::vector<std::string> statements = {
        "CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (start INTEGER, address INTEGER, bytes INTEGER, "
        "memoryOperationType INTEGER, deviceId INTEGER GENERATED ALWAYS AS (7 + " +
        busy + ") " + kind + ")"};
    for (int i = 0; i < 5; ++i) {
      statements.push_back(
          "INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS (start, address, bytes, memoryOperationType) "
          "VALUES (" +
          std::to_string(i) + ", " + std::to_string(4096 * (i + 1)) + ", 512, 0)");
    }
    const Result<Recording> read = ReadBytes(Made(statements));
    ASSERT_TRUE(read.ok()) << read.error().ToLine();
    ASSERT_EQ(read->timelines.size(), 1u);
    EXPECT_EQ(read->timelines[0].device, 0) << "the column counts as missing";
    EXPECT_EQ(read->timelines[0].events.size(), 10u);
  }
}

TEST(Nsys, LongNamesInDeepChainsAreCut) {
  std::vector<std::string> statements = {
      "CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (start, address, bytes, memoryOperationType, "
      "correlationId)",
      "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (globalTid, correlationId, nameId, callchainId)",
      "CREATE TABLE CUDA_CALLCHAINS (id, stackDepth, symbol, module)",
      "CREATE TABLE StringIds (id, value)",
      "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 199) "
      "INSERT INTO StringIds SELECT i, i || hex(zeroblob(100000)) FROM n WHERE i < 4",
      "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 199) "
      "INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS SELECT i, 4096 * i, 512, 0, i FROM n",
      "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME SELECT 0, start, 1, start FROM "
      "CUDA_GPU_MEMORY_USAGE_EVENTS",
      "INSERT INTO CUDA_CALLCHAINS SELECT a.start, b.start, (a.start + b.start) % 4, b.start % 4 "
      "FROM CUDA_GPU_MEMORY_USAGE_EVENTS a, CUDA_GPU_MEMORY_USAGE_EVENTS b"};
  const Result<Recording> read = ReadBytes(Made(statements));
  ASSERT_TRUE(read.ok()) << read.error().ToLine();
  const StackTable& stacks = read->timelines.at(0).stacks;
  for (std::size_t i = 0; i < stacks.strings.size(); ++i) {
    EXPECT_LE(stacks.strings[StringId(i)].size(), kLongestName + 3);
  }
}

TEST(Nsys, Recognised) {
  EXPECT_TRUE(RecogniseNsys(Content("no_memory.sqlite")));
  EXPECT_FALSE(RecogniseNsys("SQLite format 3"));
  EXPECT_FALSE(RecogniseNsys(""));
  EXPECT_FALSE(ReadBytes(std::string("SQLite format 3\0", 16)).ok());
}

}  // namespace
}  // namespace plimsoll::nsys_test
