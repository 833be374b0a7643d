#include "launch/live.h"

#include <gtest/gtest.h>

#include <string>

namespace plimsoll::live_test {
namespace {

constexpr const char* kDevice =
    R"({"device":0,"gpu":2,"uuid":"6f1c2c5e-8a8f-3b0e-9a51-0c5d3b0a7f11","allocated":5,)"
    R"("reserved":7,"peak_allocated":6,"peak_reserved":8})";

std::string Report(const std::string& devices, const std::string& more = "") {
  return R"({"schema":"plimsoll.status/1","pid":4321,"host":"here","rank":1,"wrote":17.5,)" + more +
         R"("optimizer_steps":9,"budget":null,"devices":[)" + devices + "]}";
}

TEST(LiveProcess, AsTheHookWritesIt) {
  const std::optional<LiveProcess> process = ParseLiveProcess(Report(kDevice), "here");
  ASSERT_TRUE(process);
  EXPECT_EQ(process->pid, 4321);
  EXPECT_EQ(process->rank, 1);
  EXPECT_EQ(process->optimizer_steps, 9);
  EXPECT_FALSE(process->budget);
  EXPECT_EQ(process->wrote, 17.5);
  ASSERT_EQ(process->devices.size(), 1U);
  EXPECT_EQ(process->devices[0].gpu, 2);
  EXPECT_EQ(process->devices[0].reserved, 7);
  EXPECT_EQ(process->devices[0].uuid, "6f1c2c5e-8a8f-3b0e-9a51-0c5d3b0a7f11");
  EXPECT_FALSE(ParseLiveProcess(Report(kDevice), "elsewhere"));
}

TEST(LiveProcess, NewerReleasesTellMore) {
  std::string device = kDevice;
  EXPECT_FALSE(ParseLiveProcess(Report(device), "here")->devices[0].private_pools);
  device.insert(device.size() - 1, R"(,"private_pools":3,"rejections":2)");
  const LiveDevice told = ParseLiveProcess(Report(device), "here")->devices[0];
  EXPECT_EQ(told.private_pools, 3);
  EXPECT_EQ(told.rejections, 2);
}

TEST(LiveProcess, WhatIsNotAsItShouldBeIsPassedOver) {
  for (const char* text :
       {"", "[]", "7", "{", R"({"schema":"plimsoll.status/1"})",
        R"({"schema":"plimsoll.status/1","host":"here","pid":-1,"wrote":1,"devices":[]})",
        R"({"schema":"plimsoll.status/1","host":"here","pid":1e99,"wrote":1,"devices":[]})"}) {
    EXPECT_FALSE(ParseLiveProcess(text, "here")) << text;
  }
  const auto without = [](std::string device, const std::string& from, const std::string& to) {
    device.replace(device.find(from), from.size(), to);
    return ParseLiveProcess(Report(device), "here").value().devices;
  };
  EXPECT_TRUE(without(kDevice, R"("allocated":5)", R"("allocated":-5)").empty());
  EXPECT_TRUE(without(kDevice, R"("reserved":7)", R"("reserved":18446744073709551615)").empty());
  EXPECT_TRUE(without(kDevice, R"("reserved":7)", R"("reserved":"\u001b[2J")").empty());
  EXPECT_TRUE(without(kDevice, R"("device":0)", R"("device":null)").empty());
  EXPECT_EQ(without(kDevice, "6f1c2c5e", "<script>").at(0).uuid, "");
  EXPECT_TRUE(ParseLiveProcess(Report("1,[],null"), "here").value().devices.empty());
}

}  // namespace
}  // namespace plimsoll::live_test
