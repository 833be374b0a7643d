// Captured steps against what PyTorch measured of the same jobs on an H200: tests/data/steps.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "step/calibration.h"
#include "step/file/step_file.h"
#include "step/predict.h"

namespace plimsoll {
namespace {

const std::filesystem::path kSteps = std::filesystem::path(PLIMSOLL_TEST_DATA) / "steps";

/// One file serves every batch: "gpt2_b8_adamw_fp32" is gpt2_adamw_fp32.step.json.gz at 8.
Result<Step> ReadIt(const nlohmann::json& row) {
  std::string name = row["id"];
  const std::string batch = "_b" + std::to_string(row["batch"].get<int>()) + "_";
  name.replace(name.find(batch), batch.size(), "_");
  const Result<Input> input = Input::Open((kSteps / (name + ".step.json.gz")).string());
  return input ? ReadStep(*input) : Result<Step>(input.error());
}

double ErrorInPercent(Bytes predicted, Bytes measured) {
  return 100 * std::abs(double(predicted) / double(measured) - 1);
}

TEST(MeasuredPredict, PeaksAreThoseOfTheRealRuns) {
  std::ifstream file(kSteps / "measured.json");
  const nlohmann::json rows = nlohmann::json::parse(file);
  ASSERT_EQ(rows.size(), 6u);
  const Result<Gpu> gpu = FindGpu("H200");
  ASSERT_TRUE(gpu.ok());
  for (const nlohmann::json& row : rows) {
    SCOPED_TRACE(row["id"].get<std::string>());
    const Result<Step> step = ReadIt(row);
    ASSERT_TRUE(step.ok()) << step.error().ToLine();
    const Result<Prediction> p = Predict(*step, *gpu,
                                         {.batch = row["batch"],
                                          .torch = TorchVersion{2, 11},
                                          .calibration = Calibration::BuiltIn("H200")});
    ASSERT_TRUE(p.ok()) << p.error().ToLine();
    EXPECT_LE(ErrorInPercent(p->allocated.best, row["peak_allocated"]), 0.1);
    EXPECT_LE(ErrorInPercent(p->reserved.best, row["peak_reserved"]), 0.3);
    EXPECT_GE(p->reserved.high, row["peak_reserved"].get<Bytes>());
    EXPECT_TRUE(p->fits);
    EXPECT_TRUE(p->assumptions.empty()) << p->assumptions.front();
  }
}

/// The rules alone, without what was measured of these very shapes: wider, but not wild.
TEST(MeasuredPredict, TheRulesAloneComeClose) {
  std::ifstream file(kSteps / "measured.json");
  for (const nlohmann::json& row : nlohmann::json::parse(file)) {
    SCOPED_TRACE(row["id"].get<std::string>());
    const Result<Step> step = ReadIt(row);
    ASSERT_TRUE(step.ok());
    const Result<Prediction> p =
        Predict(*step, *FindGpu("H200"), {.batch = row["batch"], .torch = TorchVersion{2, 11}});
    ASSERT_TRUE(p.ok());
    EXPECT_LE(ErrorInPercent(p->allocated.best, row["peak_allocated"]), 2);
    EXPECT_GE(p->reserved.high, row["peak_reserved"].get<Bytes>());
  }
}

}  // namespace
}  // namespace plimsoll
