// Single operators, captured on fake tensors, against what an H200's allocator recorded.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/input.h"
#include "step/lower.h"
#include "step/step_file.h"

namespace plimsoll {
namespace {

using Json = nlohmann::json;

/// What a captured row allocates and releases of its own in one phase.
std::vector<Bytes> EventsOf(const Lowered& lowered, Phase phase) {
  std::vector<Bytes> events;
  std::vector<char> own(lowered.blocks.size(), false);
  for (std::size_t i = 0; i < lowered.workload.requests.size(); ++i) {
    const Request& request = lowered.workload.requests[i];
    const LoweredBlock& block = lowered.blocks[request.allocation];
    const Phase at = lowered.moments[i].phase;
    const bool makes = request.kind == Request::Kind::kAllocate;
    if (at != Phase::kForward && at != Phase::kBackward) continue;
    if (request.kind == Request::Kind::kBorrow && at == phase) {
      events.insert(events.end(), {block.requested, -block.requested});
    }
    if (makes) own[request.allocation] = true;
    // What a library keeps was there before: other rows had been run.
    if (at != phase || !own[request.allocation] || block.purpose == Purpose::kWorkspaces) continue;
    events.push_back(makes ? block.requested : -block.requested);
  }
  return events;
}

TEST(OperatorsTest, AreAsMeasured) {
  const Result<Input> input = Input::Open(PLIMSOLL_TEST_DATA "/operators/ops_sample.jsonl.xz");
  const Result<Gpu> gpu = FindGpu("H200");
  ASSERT_TRUE(input.ok() && gpu.ok());
  std::string_view rest = input->bytes();
  int rows = 0;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const Json line = Json::parse(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const Result<Input> file = Input::FromMemory("row", line["step"].dump());
    const Result<Step> step = ReadStep(*file);
    ASSERT_TRUE(step.ok()) << step.error().message;
    const Lowered lowered =
        Lower(*step, step->variants[0], *gpu, {.batch = step->batches[0], .steps = 1});
    const Json& row = line["row"];
    EXPECT_EQ(EventsOf(lowered, Phase::kForward), row["forward"].get<std::vector<Bytes>>())
        << row.dump();
    EXPECT_EQ(EventsOf(lowered, Phase::kBackward), row.value("backward", std::vector<Bytes>{}))
        << row.dump();
    EXPECT_TRUE(lowered.unknown.empty()) << row["op"] << " " << lowered.unknown.begin()->first;
    ++rows;
  }
  EXPECT_GE(rows, 250);
}

}  // namespace
}  // namespace plimsoll
