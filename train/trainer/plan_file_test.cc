#include "train/trainer/plan_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>

namespace plimsoll::train::plan_file_test {
namespace {

constexpr const char* kPlan = R"({"schema": "plimsoll.plan/1", "ways": [
  {"batch": 2, "passes": 4, "samples": 32, "set": {
    "parallel": "fsdp:4:bf16", "checkpointing": "model.layers.0,model.layers.3", "precision": "amp_bf16",
    "optimizer": "adamw:host", "loss": "chunked:8", "accumulation": "4", "tf32": "on"}},
  {"batch": 16, "passes": 1, "samples": 32, "set": {
    "parallel": "pipeline:4:16:interleaved2", "checkpointing": "h.0.mlp.act", "offload": "activations"}},
  {"batch": 8, "passes": 1, "samples": 8, "set": {}}]})";

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
  for (const std::string value : {"tensor:2", "zero2:0", "zero2:-2", "zero2", "fsdp:99999999999"}) {
    const std::string error = ErrorOf(
        R"({"schema": "plimsoll.plan/1", "ways": [{"batch": 1, "samples": 1, "set": {"parallel": ")" +
        value + R"("}}]})");
    EXPECT_NE(error.find("plan.json"), std::string::npos) << value << ": " << error;
    EXPECT_NE(error.find(value), std::string::npos) << error;
  }
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
        R"({"schema": "plimsoll.plan/1", "ways": [{"batch": 1, "samples": 1}]})"}) {
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
