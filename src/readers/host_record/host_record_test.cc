#include "readers/host_record/host_record.h"

#include <gtest/gtest.h>

#include <string>

namespace plimsoll::host_record_test {
namespace {

const std::string kHead =
    R"({"schema":"plimsoll.host/1","host":"n1","began":100.5,"utc_offset":3600,"memory":1000,)"
    R"("shm":64,"group":{"path":"/job","limit":800},"oom_kills":{"group":1,"machine":2}})"
    "\n";

Result<HostRecord> ReadText(std::string text) {
  const Result<Input> input = Input::FromMemory("host.jsonl", std::move(text));
  EXPECT_TRUE(input);
  return ReadHostRecord(*input);
}

TEST(HostRecord, Whole) {
  const Result<HostRecord> read = ReadText(
      kHead +
      R"({"process":7,"started":3,"parent":1,"role":"worker","number":2,"rank":0,"command":"p"}
{"time":101,"available":500,"swap_free":0,"shm":3,"group":400,"oom_kills":{"group":1},"held":[[7,50,60],[8,9,0,4,2]],"others":6}
{"process":7,"started":3,"parent":1,"role":"loader_worker","number":2,"rank":0,"command":"p"}
{"gone":7,"time":101.5,"signal":9,"code":null}
{"end":102,"code":1,"signal":null,"kernel_log":[7],"oom_kills":{"group":2,"machine":3}}
)");
  ASSERT_TRUE(read);
  EXPECT_EQ(read->host, "n1");
  EXPECT_EQ(read->utc_offset, 3600);
  EXPECT_EQ(read->group->limit, 800);
  EXPECT_EQ(read->kills.machine, 2);
  // One of which more was told later, and one that no line tells of.
  ASSERT_EQ(read->processes.size(), 2u);
  EXPECT_EQ(read->processes[0].role, HostRole::kLoaderWorker);
  EXPECT_EQ(read->processes[0].number, 2);
  EXPECT_EQ(read->processes[1].pid, 8);
  ASSERT_EQ(read->samples.size(), 1u);
  EXPECT_EQ(read->samples[0].held[0].shared, 50);  // not more than is resident
  EXPECT_FALSE(read->samples[0].held[0].pinned);
  EXPECT_EQ(read->samples[0].held[1].proportional, 4);
  EXPECT_EQ(read->samples[0].held[1].pinned, 2);
  EXPECT_EQ(read->samples[0].others, 6);
  ASSERT_EQ(read->deaths.size(), 1u);
  EXPECT_EQ(read->deaths[0].signal, 9);
  ASSERT_TRUE(read->end);
  EXPECT_EQ(read->end->named_by_kernel, std::vector<std::int64_t>{7});
  EXPECT_TRUE(read->skipped.empty());
}

TEST(HostRecord, ANumberThatComesAgainIsAnotherProcess) {
  const Result<HostRecord> read = ReadText(
      kHead +
      "{\"process\":7,\"started\":3,\"role\":\"other\"}\n{\"time\":1,\"held\":[[7,5,0]]}\n"
      "{\"process\":7,\"started\":4,\"role\":\"other\"}\n{\"time\":2,\"held\":[[7,6,0]]}\n");
  ASSERT_TRUE(read);
  ASSERT_EQ(read->processes.size(), 2u);
  EXPECT_EQ(read->samples[1].held[0].process, 1u);
}

TEST(HostRecord, WhatAKillCutIsNoDamage) {
  const Result<HostRecord> read = ReadText(kHead + "{\"time\":1,\"held\":[]}\n{\"time\":2,\"he");
  ASSERT_TRUE(read);
  EXPECT_EQ(read->samples.size(), 1u);
  EXPECT_TRUE(read->skipped.empty());
}

TEST(HostRecord, BadLinesAreCounted) {
  std::string text = kHead;
  int bad = 0;
  for (const char* line :
       {"{", "[]", "7", "{}", R"({"process":0,"role":"main"})", R"({"process":1,"role":"king"})",
        R"({"time":-1,"held":[]})", R"({"time":1e99,"held":[]})", R"({"time":1,"held":7})",
        R"({"time":1,"held":[[1,-5,0]]})", R"({"time":1,"held":[[1,1]]})",
        R"({"time":1,"held":[[1,9223372036854775807,0]]})", R"({"gone":1})", R"({"end":"x"})"}) {
    text += std::string(line) + "\n";
    ++bad;
  }
  const Result<HostRecord> read = ReadText(text + "\n  \n{\"time\":5,\"held\":[]}\n");
  ASSERT_TRUE(read);
  EXPECT_EQ(read->skipped.at("lines that could not be read"), bad);
  EXPECT_EQ(read->samples.size(), 1u);
}

TEST(HostRecord, ClocksThatAreSetBack) {
  const Result<HostRecord> read = ReadText(
      kHead + "{\"time\":9,\"held\":[]}\n{\"time\":8,\"held\":[]}\n{\"time\":10,\"held\":[]}\n");
  ASSERT_TRUE(read);
  EXPECT_EQ(read->samples.size(), 2u);
}

TEST(HostRecord, AnotherFile) {
  for (const char* text :
       {"", "\n", "{}", "{\"schema\":\"plimsoll.host/2\"}", "CUDA out of memory"}) {
    const Result<HostRecord> read = ReadText(text);
    ASSERT_FALSE(read) << text;
    EXPECT_EQ(read.error().file, "host.jsonl");
  }
}

}  // namespace
}  // namespace plimsoll::host_record_test
