// Every answer that the files of tests/data give keeps the invariants of an answer; and the traces
// of other kinds of jobs (tests/data/kinds) are explained as they were written to be.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "answer/invariants.h"
#include "diagnose/explain.h"
#include "readers/registry.h"

namespace plimsoll::answers_test {

namespace fs = std::filesystem;
const fs::path kData = PLIMSOLL_TEST_DATA;

std::string Listed(const std::vector<std::string>& sentences) {
  std::string text;
  for (const std::string& sentence : sentences) text += "\n  " + sentence;
  return text;
}

std::vector<fs::path> FilesIn(std::initializer_list<const char*> folders) {
  std::vector<fs::path> files;
  for (const char* folder : folders) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(kData / folder)) {
      const std::string name = entry.path().filename().string();
      const bool beside = name.ends_with(".json") || name.ends_with(".py") || name.ends_with(".md");
      if (entry.is_regular_file() && !beside) files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

TEST(Answers, KeepTheirInvariants) {
  int answers = 0;
  for (const fs::path& file : FilesIn({"snapshots", "kinds", "torture", "releases", "dialects",
                                       "libtorch", "errors", "profiler", "nsys"})) {
    const Result<Recording> recording = ReadFile(file.string());
    if (!recording) continue;  // Some are there to be refused.
    const Result<Explanation> answer = ExplainRecording(*recording, {});
    if (!answer) continue;
    ++answers;
    EXPECT_TRUE(BrokenInvariants(*answer).empty()) << file << Listed(BrokenInvariants(*answer));
  }
  EXPECT_GT(answers, 100);
}

TEST(Answers, OfSeveralRanksKeepThemToo) {
  for (const char* job : {"ddp_even", "ddp_big_images", "fsdp"}) {
    std::vector<Explanation> parts;
    for (int rank = 0; rank < 4; ++rank) {
      const std::string name = std::string(job) + ".rank" + std::to_string(rank) + ".pickle.xz";
      const Result<Recording> recording = ReadFile((kData / "ranks" / name).string());
      ASSERT_TRUE(recording.ok());
      parts.push_back(*ExplainRecording(*recording, {}));
    }
    const Explanation answer = Join(std::move(parts));
    EXPECT_TRUE(BrokenInvariants(answer).empty()) << job << Listed(BrokenInvariants(answer));
  }
}

struct Kind {
  std::string name;
  nlohmann::json truth;
  Explanation answer;

  const RankReport& rank() const { return answer.ranks.at(0); }
  bool Has(FindingId id, Severity worst = Severity::kInfo) const {
    return std::any_of(answer.findings.begin(), answer.findings.end(),
                       [&](const Finding& f) { return f.id == id && f.severity <= worst; });
  }
  Bytes Peak(Category c) const { return rank().peaks->at(static_cast<std::size_t>(c)); }
};

std::vector<Kind> Kinds() {
  std::vector<Kind> kinds;
  for (const fs::path& file : FilesIn({"kinds"})) {
    std::string base = file.string();
    base.resize(base.size() - std::string(".pickle.xz").size());
    std::ifstream beside(base + ".json");
    const Result<Recording> recording = ReadFile(file.string());
    EXPECT_TRUE(recording.ok()) << file;
    kinds.push_back({file.filename().string(), nlohmann::json::parse(beside),
                     *ExplainRecording(*recording, {})});
  }
  return kinds;
}

TEST(Kinds, FiguresAreThoseThatPyTorchCounted) {
  for (const Kind& kind : Kinds()) {
    EXPECT_EQ(kind.rank().peak_allocated, kind.truth.at("peak_allocated").get<Bytes>())
        << kind.name;
    EXPECT_EQ(kind.rank().peak_reserved, kind.truth.at("peak_reserved").get<Bytes>()) << kind.name;
    // Blocks are a little larger than what is in them.
    const auto parameters = kind.truth.at("parameters").get<double>();
    EXPECT_NEAR(double(kind.Peak(Category::kParameters)), parameters, 0.03 * parameters)
        << kind.name;
  }
}

TEST(Kinds, CausesAreTheOnesTheyWereWrittenToShow) {
  for (const Kind& kind : Kinds()) {
    SCOPED_TRACE(kind.name + ": " + kind.answer.verdict);
    const auto& spec = kind.truth.at("spec");
    const std::string cause = spec.at("cause").is_null() ? "" : spec.at("cause");
    const bool ran_out = kind.truth.contains("oom");
    EXPECT_EQ(kind.rank().instant.kind == InstantKind::kOutOfMemory, ran_out);
    EXPECT_EQ(kind.Has(FindingId::kLimit, Severity::kHigh), ran_out);
    EXPECT_EQ(kind.Has(FindingId::kLeak, Severity::kLow), cause == "leak");
    EXPECT_EQ(kind.Has(FindingId::kEvalSpike, Severity::kLow), cause == "eval_spike");
    EXPECT_EQ(kind.Has(FindingId::kPrivatePools), cause == "private_pools");
    EXPECT_EQ(kind.Has(FindingId::kKvCache), cause == "kv_cache");
    if (cause == "oom_backward") {
      EXPECT_NE(kind.rank().phase.find("in the backward of step 4"), std::string::npos);
      EXPECT_TRUE(kind.rank().ooms.back().in_backward);
      EXPECT_NE(kind.rank().ooms.back().where.find("record.py"), std::string::npos);
      EXPECT_TRUE(kind.Has(FindingId::kLongestBatch, Severity::kHigh));
    }
  }
}

/// Without a complete step nothing may be said to fit.
TEST(Kinds, FitsIsSaidOnlyAfterACompleteStep) {
  for (const Kind& kind : Kinds()) {
    if (kind.rank().complete_steps > 0) continue;
    for (const Finding& finding : kind.answer.findings) {
      for (const Remedy& remedy : finding.remedies) {
        EXPECT_NE(remedy.effect, Effect::kFits) << kind.name;
      }
    }
  }
}

/// As many as record.py takes.
TEST(Kinds, EveryStepIsFound) {
  const std::map<std::string, std::int64_t> steps = {
      {"own_adam.pickle.xz", 5},      {"own_adam_made_anew.pickle.xz", 5},
      {"hf_trainer.pickle.xz", 5},    {"ema_and_scaler.pickle.xz", 5},
      {"lightning_gpt.pickle.xz", 4}, {"graph_in_a_list.pickle.xz", 5}};
  for (const Kind& kind : Kinds()) {
    const auto known = steps.find(kind.name);
    if (known == steps.end()) continue;
    EXPECT_EQ(kind.rank().steps, known->second) << kind.name;
  }
}

/// Each of these jobs holds its model and optimizer state until it ends.
TEST(Kinds, TheLastStepDoesNotReachIntoTheEndOfTheProgram) {
  for (const Kind& kind : Kinds()) {
    const std::vector<StepReport>& steps = kind.rank().step_table;
    if (steps.size() < 3 || kind.rank().RanOut()) continue;
    EXPECT_GE(steps.back().end_allocated, kind.truth.at("parameters").get<Bytes>()) << kind.name;
    EXPECT_GE(double(steps.back().end_allocated),
              0.75 * double(steps[steps.size() - 2].end_allocated))
        << kind.name;
  }
}

/// The limit of these runs is known only as a range, in which the replay must hold throughout.
TEST(Kinds, WhatDependsOnTheLimitIsNotPromised) {
  for (const Kind& kind : Kinds()) {
    if (kind.name.find("out_in_backward") == std::string::npos) continue;
    for (const Finding& finding : kind.answer.findings) {
      for (const Remedy& remedy : finding.remedies) {
        EXPECT_EQ(remedy.effect, Effect::kUnknown) << kind.name << ": " << remedy.change;
        EXPECT_EQ(remedy.costs.find("this request succeeds"), std::string::npos) << remedy.costs;
      }
    }
  }
}

TEST(Kinds, AdviceNamesLinesOfModelsNotOfWrappers) {
  for (const Kind& kind : Kinds()) {
    for (const Finding& finding : kind.answer.findings) {
      for (const Remedy& remedy : finding.remedies) {
        for (const char* wrapper :
             {"container.py", "operations.py", "module.py", "peft_model.py"}) {
          EXPECT_EQ(remedy.change.find(wrapper), std::string::npos)
              << kind.name << ": " << remedy.change;
        }
        const bool training = remedy.lever == Lever::kCheckpointing ||
                              remedy.lever == Lever::kOptimizer || remedy.lever == Lever::kSharding;
        EXPECT_TRUE(!training || kind.rank().steps > 0) << kind.name << ": " << remedy.change;
      }
    }
  }
}

TEST(Kinds, NoPlaceIsNamedAfterTheRecorder) {
  for (const Kind& kind : Kinds()) {
    for (const Holder& holder : kind.rank().holders) {
      EXPECT_EQ(holder.where.find("gather_with_cpp"), std::string::npos) << kind.name;
      EXPECT_EQ(holder.where.find("_PyEval"), std::string::npos) << kind.name;
    }
  }
}

}  // namespace plimsoll::answers_test
