// One rank of DDP and of FSDP2, predicted from captures of the plain jobs, against what four ranks
// measured on an H200 over gloo: tests/data/ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "job/answer/predict.h"
#include "job/file/step_file.h"
#include "job/parallel/collective.h"
#include "job/parallel/data_parallel.h"
#include "job/parallel/fully_sharded.h"
#include "job/parallel/mesh.h"
#include "job/parallel/pipeline.h"
#include "job/rules/calibration.h"
#include "job/transforms/job_editor.h"

namespace plimsoll::predict_ranks_test {

const std::filesystem::path kRanks = std::filesystem::path(PLIMSOLL_TEST_DATA) / "ranks";

struct Row {
  std::string name;
  int rank = 0;
  std::string step;
  std::int64_t batch = 1;
  int steps = 1;
};

std::vector<Row> Jobs() {
  std::vector<Row> jobs;
  for (int rank = 0; rank < 4; ++rank) {
    jobs.push_back({"ddp_even", rank, "fcn_resnet50_320", 4, 4});
    const char* images = rank == 2 ? "fcn_resnet50_512" : "fcn_resnet50_320";
    jobs.push_back({"ddp_big_images", rank, images, 4, 4});
    jobs.push_back({"fsdp", rank, "gpt2_16x1024", 2, 3});
  }
  return jobs;
}

/// A copy of its first variant to change: to read it takes as long as to predict it, and many rows
/// have the same.
Job StepNamed(const std::string& name) {
  static std::map<std::string, Job> read;
  const auto [at, missing] = read.try_emplace(name);
  if (missing) at->second = *ReadJob(*Input::Open((kRanks / (name + ".step.json.gz")).string()));
  return CopyOf(at->second, 0);
}

Result<Prediction> PredictRank(const Row& row) {
  Job step = StepNamed(row.step);
  Variant& variant = step.variants.front();
  step.backend = Backend::kGloo;
  variant = row.name == "fsdp" ? AddFullySharded(step, variant, {.ranks = 4})
                               : AddDataParallel(step, variant, {.ranks = 4});
  return Predict(step, *FindGpu("H200"),
                 {.batch = row.batch,
                  .steps = row.steps,
                  .torch = TorchVersion{2, 11},
                  .calibration = Calibration::BuiltIn("H200")});
}

TEST(MeasuredPredictRanks, PeaksOfEveryRank) {
  for (const Row& row : Jobs()) {
    SCOPED_TRACE(row.name + " " + std::to_string(row.rank));
    std::ifstream file(kRanks / (row.name + ".rank" + std::to_string(row.rank) + ".json"));
    const nlohmann::json measured = nlohmann::json::parse(file);
    const Result<Prediction> p = PredictRank(row);
    ASSERT_TRUE(p.ok()) << p.error().ToLine();
    const auto allocated = measured["peak_allocated"].get<double>();
    EXPECT_LE(std::abs(double(p->trial.needs.allocated.best) / allocated - 1), 0.01);
    const auto reserved = measured["peak_reserved"].get<double>();
    EXPECT_LE(std::abs(double(p->trial.needs.reserved.best) / reserved - 1), 0.02);
    EXPECT_GE(p->trial.needs.reserved.high, measured["peak_reserved"].get<Bytes>());
  }
}

/// As the row says.
Result<Variant> Changed(Job& step, const nlohmann::json& row) {
  const auto text = [&](const char* key) { return row[key].get<std::string>(); };
  const Variant plain = step.variants.front();
  if (row.contains("ddp")) return AddDataParallel(step, plain, *ParseDataParallel(text("ddp")));
  if (row.contains("fsdp")) {
    const Sharding sharding = *ParseSharding(text("fsdp"));
    const auto fit = std::ranges::find_if(step.variants, [&](const Variant& variant) {
      return !CannotShard(step, variant, sharding);
    });
    EXPECT_NE(fit, step.variants.end());
    return AddFullySharded(step, *fit, sharding);
  }
  Pipeline pipeline = *ParsePipeline(text("pipeline"));
  pipeline.stage = row["stage"].get<int>();
  return AddPipeline(step, plain, pipeline);
}

/// Peaks of one job in many ways.
TEST(MeasuredPredictRanks, PeaksOfAGpt) {
  std::ifstream file(kRanks / "gpt_12x1024.json");
  for (const nlohmann::json& row : nlohmann::json::parse(file)) {
    SCOPED_TRACE(row.dump());
    Result<Job> step = ReadJob(*Input::Open((kRanks / "gpt_12x1024.step.json.gz").string()));
    ASSERT_TRUE(step.ok());
    Result<Variant> variant = Changed(*step, row);
    ASSERT_TRUE(variant.ok());
    step->variants = {std::move(*variant)};
    const Result<Prediction> p = Predict(*step, *FindGpu("H200"),
                                         {.batch = row["batch"],
                                          .steps = 4,
                                          .torch = TorchVersion{2, 11},
                                          .calibration = Calibration::BuiltIn("H200")});
    ASSERT_TRUE(p.ok()) << p.error().ToLine();
    const auto allocated = row["peak_allocated"].get<double>();
    const auto reserved = row["peak_reserved"].get<double>();
    const bool pipeline = row.contains("pipeline");
    EXPECT_LE(std::abs(double(p->trial.needs.allocated.best) / allocated - 1),
              pipeline ? 0.021 : 1e-6);
    EXPECT_LE(std::abs(double(p->trial.needs.reserved.best) / reserved - 1), pipeline ? 0.02 : 0);
  }
}

/// Scripts as they are, which name gloo themselves.
TEST(MeasuredPredictRanks, PeaksOfScripts) {
  std::ifstream file(kRanks / "run_scripts.json");
  for (const nlohmann::json& row : nlohmann::json::parse(file)) {
    SCOPED_TRACE(row.dump());
    const auto name = row["step"].get<std::string>() + ".step.json.gz";
    Result<Job> step = ReadJob(*Input::Open((kRanks / name).string()));
    ASSERT_TRUE(step.ok());
    Result<Variant> variant = Changed(*step, row);
    ASSERT_TRUE(variant.ok());
    step->variants = {std::move(*variant)};
    const Result<Prediction> p = Predict(*step, *FindGpu("H200"),
                                         {.batch = row["batch"],
                                          .steps = row["steps"],
                                          .torch = TorchVersion{2, 11},
                                          .calibration = Calibration::BuiltIn("H200")});
    ASSERT_TRUE(p.ok()) << p.error().ToLine();
    const auto allocated = row["peak_allocated"].get<double>();
    EXPECT_LE(std::abs(double(p->trial.needs.allocated.best) / allocated - 1), 0.001);
    EXPECT_EQ(p->trial.needs.reserved.best, row["peak_reserved"].get<Bytes>());
    EXPECT_EQ(BytesOf(p->account, AccountItem::kNccl), 0);
  }
}

/// One rank of meshes of eight, each dimension as PyTorch's own tools have it.
TEST(MeasuredPredictRanks, PeaksOfMeshes) {
  std::ifstream file(kRanks / "mesh.json");
  int within_a_percent = 0;
  int reserved_within = 0;
  int rows = 0;
  for (const nlohmann::json& row : nlohmann::json::parse(file)) {
    SCOPED_TRACE(row.dump());
    Job step = StepNamed(row["step"].get<std::string>());
    const Result<Mesh> mesh = ParseMesh(row["mesh"].get<std::string>());
    ASSERT_TRUE(mesh.ok()) << mesh.error().ToLine();
    Result<Variant> rank = AddMesh(step, step.variants.front(), *mesh);
    ASSERT_TRUE(rank.ok()) << rank.error().ToLine();
    step.variants = {std::move(*rank)};
    const Result<Prediction> p = Predict(step, *FindGpu("H200"),
                                         {.batch = row["batch"],
                                          .steps = 3,
                                          .torch = TorchVersion{2, 11},
                                          .calibration = Calibration::BuiltIn("H200")});
    ASSERT_TRUE(p.ok()) << p.error().ToLine();
    // A variable of the script that measured experts held one whole weight of theirs.
    const auto kept = row.value("kept_by_script", 0.0);
    const double allocated = row["peak_allocated"].get<double>() - kept;
    const double off = std::abs(double(p->trial.needs.allocated.best) / allocated - 1);
    EXPECT_LE(off, 0.013);
    ++rows;
    within_a_percent += off <= 0.01 ? 1 : 0;
    const double reserved = row["peak_reserved"].get<double>() - kept;
    const double reserved_off = std::abs(double(p->trial.needs.reserved.best) / reserved - 1);
    EXPECT_LE(reserved_off, 0.2);
    reserved_within += reserved_off <= 0.06 ? 1 : 0;
  }
  EXPECT_GE(rows, 65);
  EXPECT_GE(within_a_percent, rows - 4);
  EXPECT_GE(reserved_within, rows - 4);
}

Bytes BytesOfExperts(const Job& job, const Variant& variant) {
  Bytes sum = 0;
  for (const ModelTensor& tensor : variant.model_tensors) {
    const bool of_experts = job.strings[tensor.name].find(".experts.") != std::string_view::npos;
    if (of_experts) sum += BytesOf(job, tensor);
  }
  return sum;
}

/// However a model has its experts: as a list of modules, or in one tensor.
TEST(MeasuredPredictRanks, ExpertsAreDivided) {
  for (const char* name : {"mixtral_list", "mixtral_stacked"}) {
    SCOPED_TRACE(name);
    const std::string file = (kRanks / (std::string(name) + ".step.json.gz")).string();
    Result<Job> step = ReadJob(*Input::Open(file));
    ASSERT_TRUE(step.ok());
    const Variant whole = step->variants.front();
    const Result<Variant> rank = AddMesh(*step, whole, *ParseMesh("expert=4"));
    ASSERT_TRUE(rank.ok()) << rank.error().ToLine();
    EXPECT_EQ(BytesOfExperts(*step, *rank) * 4, BytesOfExperts(*step, whole));
    Bytes sent = 0;
    std::size_t exchanges = 0;
    for (const CallRecord& call : rank->calls) {
      const auto collective = CollectiveOf(*step, call);
      if (!collective) continue;
      ++exchanges;
      sent += collective->bytes.least();
    }
    // Two layers in two captured steps: there and back, forward and backward, each time two choices
    // for 4 x 256 tokens of 256 floats.
    EXPECT_EQ(sent, Bytes{2} * 2 * 4 * 2 * 4 * 256 * 256 * 4);
    EXPECT_EQ(exchanges % (2 * 2 * 4), 0u);
    const Result<Variant> uneven = AddMesh(*step, whole, *ParseMesh("expert=3"));
    ASSERT_FALSE(uneven.ok());
    EXPECT_EQ(uneven.error().message, "8 experts cannot be divided by 3");
    EXPECT_FALSE(AddMesh(*step, whole, *ParseMesh("expert=2,tensor=2")).ok());
  }
  Result<Job> dense = ReadJob(*Input::Open((kRanks / "gpt_6x768.step.json.gz").string()));
  ASSERT_TRUE(dense.ok());
  const Result<Variant> none = AddMesh(*dense, dense->variants.front(), *ParseMesh("expert=2"));
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().message, "the model has no experts that something chooses among");
}

TEST(MeasuredPredictRanks, NcclHasALineOfItsOwn) {
  Result<Job> step = ReadJob(*Input::Open((kRanks / "fcn_resnet50_320.step.json.gz").string()));
  ASSERT_TRUE(step.ok());
  step->variants = {AddDataParallel(*step, step->variants.front(), {.ranks = 4})};
  const Result<Prediction> p = Predict(*step, *FindGpu("H200"), {.batch = 4, .steps = 2});
  ASSERT_TRUE(p.ok());
  const Bytes nccl = BytesOf(p->account, AccountItem::kNccl);
  EXPECT_GT(nccl, 0);
  EXPECT_EQ(p->trial.needs.device.best, p->trial.needs.reserved.best + p->gpu.context.bytes + nccl);
  EXPECT_GT(p->trial.needs.device.high - p->trial.needs.device.best, nccl) << "an estimate";
}

}  // namespace plimsoll::predict_ranks_test
