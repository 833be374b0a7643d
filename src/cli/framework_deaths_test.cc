// Logs of fifteen frameworks, five ways to run out of memory in each (tests/data/frameworks): the
// first remedy is a switch of that framework, and its effect is computed or said to be unknown.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>

#include "answer/invariants.h"
#include "diagnose/error_texts/messages.h"
#include "diagnose/ways/engine_words.h"
#include "diagnose/ways/switches.h"
#include "readers/registry.h"

namespace plimsoll::framework_deaths_test {
namespace {

struct Death {
  std::string log;
  std::string framework;
  std::string typed;
};

std::vector<Death> Deaths() {
  std::ifstream in(PLIMSOLL_TEST_DATA "/frameworks/deaths.tsv");
  std::vector<Death> deaths;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with('#')) continue;
    const std::size_t first = line.find('\t');
    const std::size_t second = line.find('\t', first + 1);
    deaths.push_back({line.substr(0, first), line.substr(first + 1, second - first - 1),
                      line.substr(second + 1)});
  }
  return deaths;
}

std::string Joined(const std::vector<std::string>& lines) {
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  return all;
}

Framework FrameworkNamed(std::string_view name) {
  for (std::size_t i = 0; i < kFrameworkCount; ++i) {
    if (FrameworkName(static_cast<Framework>(i)) == name) return static_cast<Framework>(i);
  }
  return Framework::kOwnLoop;
}

/// Whether the lines are of a row of the framework's table.
bool IsSwitchOf(Framework framework, const std::string& code) {
  for (const Switch& each : SwitchesOf(framework)) {
    const std::string_view begin = each.code.substr(0, each.code.find_first_of("{\n"));
    // The model that the log names stands in the place of MODEL.
    const std::string_view fixed = begin.substr(0, begin.find("MODEL"));
    if (!fixed.empty() && code.starts_with(fixed)) return true;
  }
  for (const EngineWord& word : EngineWords()) {
    if (word.framework == framework && code.find(word.key) != std::string::npos) return true;
  }
  return false;
}

TEST(FrameworkDeaths, TheFirstRemedyIsASwitchOfTheFramework) {
  const std::vector<Death> deaths = Deaths();
  std::map<std::string, int> of_framework;
  for (const Death& death : deaths) {
    SCOPED_TRACE(death.log);
    ++of_framework[death.framework];
    const Result<Recording> recording =
        ReadFile(std::string(PLIMSOLL_TEST_DATA "/frameworks/") + death.log);
    ASSERT_TRUE(recording.ok());
    ASSERT_FALSE(recording->messages.empty());
    const Framework framework = FrameworkNamed(death.framework);
    EXPECT_TRUE(recording->messages.back().signs.frameworks.Has(framework));
    const Explanation explanation = ExplainMessages(*recording);
    EXPECT_TRUE(BrokenInvariants(explanation).empty());
    ASSERT_FALSE(explanation.findings.empty());
    ASSERT_FALSE(explanation.findings.front().remedies.empty());
    const Remedy& first = explanation.findings.front().remedies.front();
    const std::string code = Joined(first.code);
    EXPECT_NE(code.find(death.typed), std::string::npos) << first.change << "\n" << code;
    EXPECT_TRUE(IsSwitchOf(framework, code)) << code;
    EXPECT_EQ(code.find('{' + std::string("batch}")), std::string::npos) << code;
    EXPECT_TRUE(first.saves || !explanation.savings.empty());
  }
  EXPECT_EQ(of_framework.size() + 1, kFrameworkCount);
  for (const auto& [framework, count] : of_framework) EXPECT_GE(count, 5) << framework;
}

}  // namespace
}  // namespace plimsoll::framework_deaths_test
