// That every switch says where it was seen, and that docs/frameworks.md is what the tables say.
// PLIMSOLL_UPDATE_DOCS=1 writes it anew.
#include "diagnose/ways/switches.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>

#include "diagnose/ways/engine_words.h"

namespace plimsoll::switches_test {
namespace {

std::vector<Framework> All() {
  std::vector<Framework> all;
  for (std::size_t i = 0; i + 1 < kFrameworkCount; ++i) all.push_back(static_cast<Framework>(i));
  return all;
}

TEST(Switches, EveryFrameworkHasSomeAndEachIsOfASource) {
  for (Framework framework : All()) {
    const std::string_view name = FrameworkName(framework);
    EXPECT_GE(SwitchesOf(framework).size(), 5U) << name;
    EXPECT_FALSE(SourceOf(framework).repository.empty()) << name;
    EXPECT_FALSE(SourceOf(framework).commit.empty()) << name;
    std::set<TorchWay> ways;
    for (const Switch& each : SwitchesOf(framework)) {
      const std::string_view change = FactsOf(each.way).change;
      EXPECT_TRUE(ways.insert(each.way).second) << name << " has two for: " << change;
      EXPECT_FALSE(each.code.empty()) << name << ": " << change;
      EXPECT_NE(each.source.find('/'), std::string_view::npos) << name << ": " << change;
      EXPECT_NE(each.source.rfind('.'), std::string_view::npos) << name << ": " << change;
      EXPECT_EQ(each.source.find(' '), std::string_view::npos) << name << ": " << change;
    }
  }
  EXPECT_TRUE(SwitchesOf(Framework::kOwnLoop).empty());
}

TEST(Switches, TheOutermostThatHasOneWins) {
  const std::vector<Framework> both = {Framework::kAxolotl, Framework::kHfTrainer};
  EXPECT_EQ(RemedyOf(TorchWay::kAutocast, both)->code.front(), "bf16: auto");
  const std::vector<Framework> peft = {Framework::kPeft, Framework::kAccelerate};
  EXPECT_EQ(RemedyOf(TorchWay::kAutocast, peft)->code.front(),
            "accelerate launch --mixed_precision bf16 ...");
  EXPECT_FALSE(RemedyOf(TorchWay::kServerShare, peft));
  EXPECT_TRUE(RemedyOf(TorchWay::kAutocast, {}));
}

TEST(Switches, WhoeverWritesAConfigurationIsToldNoPython) {
  FrameworkSet found;
  found.Add(Framework::kAxolotl);
  found.Add(Framework::kDeepSpeed);
  EXPECT_EQ(SpokenBy(found), (std::vector<Framework>{Framework::kAxolotl, Framework::kDeepSpeed}));
}

TEST(Switches, FlagsOfAnEngineAreKeysOfWhatRunsIt) {
  const std::vector<Remedy> served = {
      Rule("fewer --max-num-seqs", Lever::kServerSetting, {"vllm serve MODEL --max-num-seqs 64"}),
      Rule("--enforce-eager: no CUDA graphs", Lever::kOther, {"vllm serve MODEL --enforce-eager"})};
  const std::vector<Framework> verl = {Framework::kVerl, Framework::kVllm};
  const std::vector<Remedy> told = InEngineWords(served, verl);
  ASSERT_EQ(told.size(), 2U);
  EXPECT_EQ(told[0].change, "fewer max_num_seqs");
  EXPECT_EQ(told[0].code.front(), "actor_rollout_ref.rollout.max_num_seqs=64");
  EXPECT_EQ(told[1].code.front(), "actor_rollout_ref.rollout.enforce_eager=True");
  // TRL has no word for either.
  EXPECT_TRUE(InEngineWords(served, std::vector{Framework::kTrl, Framework::kVllm}).empty());
  EXPECT_EQ(InEngineWords(served, std::vector{Framework::kVllm}).size(), 2U);
}

TEST(Switches, EveryWayIsSaidOnce) {
  // The last of the list.
  const auto last = static_cast<int>(TorchWay::kAttentionInParts);
  EXPECT_EQ(AllWays().size(), static_cast<std::size_t>(last));
  for (int way = 1; way <= last; ++way) {
    EXPECT_FALSE(FactsOf(static_cast<TorchWay>(way)).change.empty());
  }
}

/// As a cell of a table.
std::string Cell(std::string_view text) {
  std::string cell;
  for (char c : text) {
    if (c == '\n') {
      cell += "`<br>`";
    } else if (c == '|') {
      cell += "\\|";
    } else {
      cell += c;
    }
  }
  return cell;
}

std::string Tables() {
  std::string text;
  for (Framework framework : All()) {
    const FrameworkSource source = SourceOf(framework);
    text += fmt::format(
        "\n### {}\n\nSeen in {} at {} ({}).\n\n| what changes | typed | since | seen in "
        "|\n|---|---|---|---|\n",
        FrameworkName(framework), source.repository, source.commit, source.month);
    for (const Switch& each : SwitchesOf(framework)) {
      text += fmt::format("| {} | `{}` | {} | {} |\n",
                          Cell(each.change.empty() ? FactsOf(each.way).change : each.change),
                          Cell(each.code), each.since, each.source);
    }
    for (const EngineWord& word : EngineWords()) {
      if (word.framework != framework) continue;
      text += fmt::format("| vLLM's `--{}` | `{}` |  | {} |\n", word.flag, word.key, word.source);
    }
  }
  return text;
}

TEST(Switches, TheDocumentHasAllOfThem) {
  const std::string path = PLIMSOLL_TEST_DATA "/../../docs/frameworks.md";
  constexpr std::string_view kMark = "<!-- made by src/diagnose/ways/switches_test.cc -->\n";
  std::ifstream in(path);
  std::string document((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const std::size_t at = document.find(kMark);
  ASSERT_NE(at, std::string::npos);
  const std::string wanted = document.substr(0, at + kMark.size()) + Tables();
  if (std::getenv("PLIMSOLL_UPDATE_DOCS") != nullptr) {
    std::ofstream(path) << wanted;
    return;
  }
  EXPECT_TRUE(document == wanted)
      << "docs/frameworks.md is not what the tables say: run "
         "PLIMSOLL_UPDATE_DOCS=1 diagnose_test --gtest_filter=Switches.*";
}

}  // namespace
}  // namespace plimsoll::switches_test
