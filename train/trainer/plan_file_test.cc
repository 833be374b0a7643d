#include "train/trainer/plan_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>

namespace plimsoll::train::plan_file_test {
namespace {

constexpr const char* kPlan = R"({"schema": "plimsoll.plan/1", "ways": [
  {"batch": 2, "passes": 4, "samples": 32, "levers": [
    {"lever": "tf32", "set_to": "on", "value": {"on": true}},
    {"lever": "precision", "set_to": "amp_bf16", "value": {"name": "amp_bf16"}},
    {"lever": "checkpointing", "set_to": "model.layers.0,model.layers.3",
     "value": {"modules": ["model.layers.0", "model.layers.3"]}},
    {"lever": "loss", "set_to": "chunked:8", "value": {"chunks": 8}},
    {"lever": "parallel", "set_to": "fsdp:4:bf16",
     "value": {"kind": "fsdp", "ranks": 4, "keep": "none", "meta": false, "compute": "bf16"}},
    {"lever": "optimizer", "set_to": "adamw:host",
     "value": {"name": "adamw", "form": "host", "in_backward": false}},
    {"lever": "accumulation", "set_to": "4", "value": {"passes": 4}}]},
  {"batch": 16, "passes": 1, "samples": 32, "levers": [
    {"lever": "checkpointing", "set_to": "h.0.mlp.act", "value": {"modules": ["h.0.mlp.act"]}},
    {"lever": "offload", "set_to": "activations", "value": {"what": ["activations"]}},
    {"lever": "parallel", "set_to": "pipeline:4:16:interleaved2",
     "value": {"kind": "pipeline", "ranks": 4, "micro_batches": 16, "chunks": 2}}]},
  {"batch": 8, "passes": 1, "samples": 8, "levers": []}]})";

class PlanFile : public testing::Test {
 protected:
  std::filesystem::path Write(const std::string& text) const {
    std::ofstream(path_) << text;
    return path_;
  }
  std::string ErrorOf(const std::string& text, int way = 0) const {
    try {
      ReadPlan(Write(text), way);
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return {};
  }

 private:
  std::filesystem::path path_ = std::filesystem::path(testing::TempDir()) / "plan.json";
};

TEST_F(PlanFile, SetsWhatATrainerCan) {
  const PlannedWay way = ReadPlan(Write(kPlan));
  EXPECT_EQ(way.ranks, 4);
  EXPECT_EQ(way.batch, 32);
  EXPECT_EQ(way.optimizer, OptimizerForm::kHost);
  EXPECT_EQ(way.left_out, std::vector<std::string>{"tf32 on"});
  TrainerOptions options;
  way.Set(options);
  EXPECT_EQ(options.micro_batch, 2);
  EXPECT_EQ(options.checkpoint->ToString(), "plan:0,3");
  EXPECT_EQ(options.precision, Precision::kBfloat16);
  EXPECT_EQ(options.chunked_loss, true);
  EXPECT_FALSE(options.offload.has_value());
  EXPECT_EQ(options.team.shard, Shard::kParameters);
  EXPECT_EQ(options.team.sharded.compute_dtype, at::kBFloat16);
}

TEST_F(PlanFile, HasPipelines) {
  const PlannedWay way = ReadPlan(Write(kPlan), 1);
  EXPECT_EQ(way.stages, 4);
  EXPECT_EQ(way.chunks, 2);
  EXPECT_EQ(way.micro_batch, 1);
  EXPECT_EQ(way.offload, true);
  // A module within a block is none of the trainer's.
  EXPECT_FALSE(way.checkpoint.has_value());
  EXPECT_EQ(way.left_out, std::vector<std::string>{"checkpointing h.0.mlp.act"});
}

TEST_F(PlanFile, RefusesAWayOfSeveralRanksThatItDoesNotKnow) {
  const std::pair<std::string, std::string> cases[] = {
      {R"({"kind": "tensor", "ranks": 2})", "tensor"},
      {R"({"kind": "mesh", "ranks": 4})", "choose another way"},
      {R"({"kind": "zero2", "ranks": 0})", "how many ranks"},
      {R"({"kind": "zero2", "ranks": -2})", "how many ranks"},
      {R"({"kind": "zero2"})", "how many ranks"},
      {R"({"kind": "fsdp", "ranks": 99999999999})", "how many ranks"}};
  for (const auto& [value, said] : cases) {
    const std::string error =
        ErrorOf(R"({"schema": "plimsoll.plan/1", "ways": [{"batch": 1, "samples": 1, "levers": [)"
                R"({"lever": "parallel", "set_to": "", "value": )" +
                value + "}]}]}");
    EXPECT_NE(error.find("plan.json"), std::string::npos) << value << ": " << error;
    EXPECT_NE(error.find(said), std::string::npos) << error;
  }
}

TEST_F(PlanFile, LeavesOutALeverThatItDoesNotKnow) {
  const PlannedWay way = ReadPlan(
      Write(R"({"schema": "plimsoll.plan/1", "ways": [{"batch": 1, "samples": 1, "levers": [)"
            R"({"lever": "warp_drive", "set_to": "on", "value": {"speed": 9}}]}]})"));
  EXPECT_EQ(way.left_out, std::vector<std::string>{"warp_drive on"});
}

TEST_F(PlanFile, IsOneRankAsCaptured) {
  const PlannedWay way = ReadPlan(Write(kPlan), 2);
  EXPECT_EQ(way.ranks, 1);
  EXPECT_EQ(way.micro_batch, 8);
  EXPECT_TRUE(way.left_out.empty());
}

TEST_F(PlanFile, RefusesWhatIsNone) {
  for (const char* text :
       {"", "[]", "{}", R"({"schema": "plimsoll.predict/1"})", R"({"schema": 3})",
        R"({"schema": "plimsoll.plan/1"})", R"({"schema": "plimsoll.plan/1", "ways": []})",
        R"({"schema": "plimsoll.plan/1", "ways": [3]})",
        R"({"schema": "plimsoll.plan/1", "ways": [{"batch": 0}]})",
        R"({"schema": "plimsoll.plan/1", "ways": [{"batch": 1, "samples": 1}]})",
        R"({"schema": "plimsoll.plan/1", "ways": [{"batch": 1, "samples": 1, "levers": [3]}]})"}) {
    EXPECT_NE(ErrorOf(text).find("plan.json"), std::string::npos) << text;
  }
  EXPECT_NE(ErrorOf(kPlan, 3).find("from 0 to 2"), std::string::npos);
  EXPECT_NE(ErrorOf(kPlan, -1).find("from 0 to 2"), std::string::npos);
  EXPECT_THROW(ReadPlan("/no/such/plan"), c10::Error);
}

TEST_F(PlanFile, IsReadOrRefusedWhateverItsBytesAre) {
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    std::string text = kPlan;
    for (int j = 0; j < 3; ++j) text[random() % text.size()] = static_cast<char>(random() % 256);
    ErrorOf(text, static_cast<int>(random() % 3));
  }
}

}  // namespace
}  // namespace plimsoll::train::plan_file_test
