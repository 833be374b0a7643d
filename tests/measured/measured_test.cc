// Every recorded run in tests/data against what PyTorch itself measured (the .json beside it).
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "diagnose/explain.h"
#include "readers/registry.h"

namespace plimsoll::measured_test {

namespace fs = std::filesystem;
const fs::path kData = PLIMSOLL_TEST_DATA;

std::vector<std::string> Traces(std::initializer_list<const char*> folders) {
  std::vector<std::string> names;
  for (const char* folder : folders) {
    for (const fs::directory_entry& entry : fs::directory_iterator(kData / folder)) {
      const std::string name = entry.path().filename().string();
      if (name.ends_with(".pickle.xz")) {
        names.push_back(std::string(folder) + "/" + name.substr(0, name.size() - 10));
      }
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<nlohmann::json> Truth(const std::string& name) {
  std::ifstream file(kData / (name + ".json"));
  if (!file) return std::nullopt;
  return nlohmann::json::parse(file);
}

Explanation Explain(const std::string& name) {
  const Result<Recording> recording = ReadFile((kData / (name + ".pickle.xz")).string());
  EXPECT_TRUE(recording.ok()) << recording.error().ToLine();
  EXPECT_TRUE(recording->skipped.empty());
  Result<Explanation> explanation = ExplainRecording(*recording, {});
  EXPECT_TRUE(explanation.ok());
  return std::move(*explanation);
}

Explanation ExplainRanks(const std::string& scenario) {
  std::vector<Explanation> parts;
  for (int rank = 0; rank < 4; ++rank) {
    parts.push_back(Explain("ranks/" + scenario + ".rank" + std::to_string(rank)));
  }
  return Join(std::move(parts));
}

/// Findings that are more than information.
std::vector<std::string> Alarms(const Explanation& explanation) {
  std::vector<std::string> ids;
  for (const Finding& f : explanation.findings) {
    if (f.severity != Severity::kInfo) ids.emplace_back(FindingName(f.id));
  }
  return ids;
}

const Finding* Find(const Explanation& explanation, const std::string& id) {
  for (const Finding& f : explanation.findings) {
    if (FindingName(f.id) == id) return &f;
  }
  return nullptr;
}

Bytes Line(const RankReport& rank, const std::string& what) {
  for (const AccountLine& line : rank.account) {
    if (AccountItemName(line.what) == what) return line.bytes;
  }
  return 0;
}

TEST(Measured, PeaksEqualPyTorchsToTheByte) {
  int compared = 0;
  for (const std::string& name : Traces({"snapshots", "ranks", "torture", "large"})) {
    const auto truth = Truth(name);
    if (!truth) continue;
    const Explanation explanation = Explain(name);
    const RankReport& rank = explanation.ranks.at(0);
    EXPECT_EQ(rank.peak_allocated, truth->at("peak_allocated").get<Bytes>()) << name;
    EXPECT_EQ(rank.peak_reserved, truth->at("peak_reserved").get<Bytes>()) << name;
    Bytes sum = 0;
    for (const AccountLine& line : rank.account)
      sum += line.what == AccountItem::kFree ? 0 : line.bytes;
    EXPECT_EQ(sum, rank.instant.reserved) << name << ": the lines add up to what is held";
    ++compared;
  }
  EXPECT_EQ(compared, 54);
}

TEST(Measured, CategoriesAreWithinOnePerCent) {
  int compared = 0;
  for (const std::string& name : Traces({"snapshots"})) {
    const auto truth = Truth(name);
    if (!truth) continue;
    const auto& spec = truth->at("spec");
    const std::string family = spec.at("family");
    // These record no clean model phase: static inputs are in it, or it was lost to the ring.
    if (family == "graph" || family == "stream" || family == "ring") continue;
    double model = 0;
    bool stepped = false;
    for (const auto& phase : truth->at("phases")) {
      const std::string which = phase.at("phase");
      if (which == "model") model = phase.at("allocated");
      stepped |= which.starts_with("step");
    }
    const Explanation explanation = Explain(name);
    const RankReport& rank = explanation.ranks.at(0);
    const auto peak = [&](Category c) {
      return double((*rank.peaks)[static_cast<std::size_t>(c)]);
    };
    EXPECT_NEAR(peak(Category::kParameters), model, 0.01 * model) << name;
    if (stepped) {
      EXPECT_NEAR(peak(Category::kGradients), model, 0.01 * model) << name;
    }
    if (stepped && spec.value("opt", "adamw").starts_with("adam")) {
      EXPECT_NEAR(peak(Category::kOptimizerState), 2 * model, 0.02 * model) << name;
    }
    EXPECT_LT(double(Line(rank, "unattributed")), 0.02 * double(*rank.instant.allocated)) << name;
    ++compared;
  }
  EXPECT_EQ(compared, 21);
}

TEST(Measured, StepsAreCounted) {
  int compared = 0;
  for (const std::string& name : Traces({"snapshots"})) {
    const auto truth = Truth(name);
    if (!truth || name.find("ring") != std::string::npos) continue;
    std::int64_t steps = 0;
    for (const auto& phase : truth->at("phases")) {
      steps += phase.at("phase").get<std::string>().starts_with("step") ? 1 : 0;
    }
    if (steps == 0) continue;
    EXPECT_EQ(Explain(name).ranks.at(0).steps, steps) << name;
    ++compared;
  }
  EXPECT_EQ(compared, 21);
}

TEST(Verdict, AKeptGraphIsALeak) {
  const Explanation e = Explain("snapshots/resnet50_kept_graph");
  const Finding* leak = Find(e, "leak");
  ASSERT_NE(leak, nullptr);
  EXPECT_NE(leak->title.find("train.py:139"), std::string::npos) << leak->title;
  EXPECT_GT(leak->remedies.at(0).saves.value(), 5 * kGiB);
  EXPECT_EQ(Find(e, "eval_spike"), nullptr);
  EXPECT_EQ(Find(e, "longest_batch"), nullptr);
}

TEST(Verdict, KeptOutputsAreALeakOfTheirExactSize) {
  const Explanation e = Explain("snapshots/gpt2_kept_outputs");
  EXPECT_EQ(Alarms(e), std::vector<std::string>{"leak"});
  // 2 × 512 tokens × 50,257 words, two bytes each: 98.16 MiB.
  EXPECT_TRUE(Find(e, "leak")->title.starts_with("98.16 MiB more each step"))
      << Find(e, "leak")->title;
}

TEST(Verdict, AKeptLossIsCrumbs) {
  const Explanation e = Explain("snapshots/gpt2_leak");
  EXPECT_TRUE(Alarms(e).empty());
  EXPECT_NE(Find(e, "crumbs"), nullptr);
}

TEST(Verdict, BatchesOfChangingSizeAreALongestBatch) {
  for (const char* name : {"default", "expand", "gc06", "pow2", "split128", "split64gc"}) {
    const Explanation e = Explain(std::string("snapshots/llama_var_") + name);
    EXPECT_EQ(Alarms(e), std::vector<std::string>{"longest_batch"}) << name;
    EXPECT_TRUE(Find(e, "longest_batch")->title.starts_with("step 7 ")) << name;
  }
}

TEST(Verdict, ValidationWithALargerBatchIsASpike) {
  const Explanation e = Explain("snapshots/resnet50_eval_spike");
  EXPECT_EQ(Alarms(e), std::vector<std::string>{"eval_spike"});
}

TEST(Verdict, OnlyTheLastOfManyRefusalsIsFatal) {
  const Explanation e = Explain("snapshots/unet_adam_fp32_oom");
  const RankReport& rank = e.ranks.at(0);
  ASSERT_EQ(rank.ooms.size(), 27u);
  for (std::size_t i = 0; i < 27; ++i) EXPECT_EQ(rank.ooms[i].fatal, i == 26) << i;
  EXPECT_EQ(rank.ooms.back().why, OomCause::kLimit);
  EXPECT_NE(Find(e, "limit"), nullptr);
  EXPECT_NE(Find(e, "workspace_refused"), nullptr);
  EXPECT_EQ(Find(e, "leak"), nullptr);
}

TEST(Verdict, PlainTrainingRaisesNoAlarm) {
  for (const char* name :
       {"resnet50_sgdm_fp32", "resnet50_sgdm_amp16", "gpt2_adamw_bf16", "gpt2_accum4",
        "gpt2_adamw_bf16_ckpt", "deeplab_adam_fp32", "mlp_adam_defaults", "unet_adam_fp32_fit",
        "ring_resnet50", "stream_resnet18", "graph_gpt", "libtorch_mlp_cpp"}) {
    EXPECT_EQ(Alarms(Explain(std::string("snapshots/") + name)), std::vector<std::string>{})
        << name;
  }
}

TEST(Verdict, EvenRanksAreEven) {
  const Explanation e = ExplainRanks("ddp_even");
  EXPECT_TRUE(Alarms(e).empty());
  EXPECT_TRUE(e.verdict.starts_with("The 4 ranks are even")) << e.verdict;
  EXPECT_TRUE(Alarms(ExplainRanks("fsdp")).empty());
}

TEST(Verdict, TheRankWithLargerImagesIsNamed) {
  const Explanation e = ExplainRanks("ddp_big_images");
  const Finding* odd = Find(e, "rank_imbalance");
  ASSERT_NE(odd, nullptr);
  EXPECT_EQ(odd->rank, 2);
  EXPECT_EQ(Alarms(e), std::vector<std::string>{"rank_imbalance"});
  EXPECT_NE(odd->evidence.at(0).find("activations"), std::string::npos);
}

}  // namespace plimsoll::measured_test
