// Texts drawn from all wordings of PyTorch's allocators are explained: the account adds up, and no
// figure of the answer contradicts the text. PLIMSOLL_DRAWN_TEXTS: how many; PLIMSOLL_DRAWN_SEED:
// the first seed, which is printed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <string>

#include "answer/invariants.h"
#include "answer/shares.h"
#include "cli/drawn_text_for_tests.h"
#include "diagnose/explain.h"
#include "readers/error_text/error_text.h"
#include "readers/registry.h"
#include "report/text.h"

namespace plimsoll::drawn_texts_test {
namespace {

/// Sums of printed figures: half a unit of the second decimal of TiB each.
constexpr Bytes kRounding = 32 * kMiB;

std::uint64_t FromEnvironment(const char* name, std::uint64_t otherwise) {
  const char* const value = std::getenv(name);
  return value != nullptr ? std::strtoull(value, nullptr, 10) : otherwise;
}

class Checker {
 public:
  explicit Checker(const DrawnText& drawn) : drawn_(drawn) {}

  std::vector<std::string> Run(const Explanation& answer) {
    wrong_ = BrokenInvariants(answer);
    for (const RankReport& rank : answer.ranks) CheckAccount(rank);
    if (drawn_.comparable && answer.ranks.size() == 1) CompareWithText(answer.ranks[0]);
    CheckSentences(ExplanationText(answer, {}));
    return std::move(wrong_);
  }

 private:
  void Require(bool holds, const std::string& what) {
    if (!holds) wrong_.push_back(what);
  }

  void CheckAccount(const RankReport& rank) {
    if (rank.account.empty()) return;
    const Whole whole = WholeOf(rank);
    Bytes sum = 0;
    double shares = 0;
    for (const AccountLine& line : rank.account) {
      Require(line.bytes >= 0, "a line below 0");
      const std::optional<double> share = ShareOf(rank, line);
      if (!share) continue;
      sum += line.bytes;
      shares += *share;
      Require(line.bytes <= whole.bytes, "a line larger than the whole");
    }
    Require(shares <= 1.0001, "shares beyond 100 %");
    const bool known = whole.basis != ShareBasis::kHeld;
    Require(!known || std::abs(sum - whole.bytes) <= kRounding, "the lines do not add up");
  }

  static bool Near(Bytes a, Bytes b) { return std::abs(a - b) <= kRounding; }

  void CompareWithText(const RankReport& rank) {
    const SaidFigures& said = drawn_.said;
    Require(rank.capacity.has_value() <= said.capacity.has_value(), "a capacity that is not said");
    Require(rank.instant.allocated.has_value() <= said.allocated.has_value(),
            "an allocated figure that is not said");
    Require(rank.instant.reserved.has_value() <=
                (said.reserved || (said.allocated && said.unallocated)),
            "a reserved figure that is not said");
    // An Apple GPU's figures may leave nothing of what is allowed.
    const bool zero = drawn_.text.find("0 bytes") != std::string::npos ||
                      drawn_.text.find("MPS allocated") != std::string::npos;
    for (const AccountLine& line : rank.account) {
      if (line.what == AccountItem::kFree && WholeOf(rank).basis == ShareBasis::kCapacity) {
        Require(said.free && Near(line.bytes, *said.free), "free is not as said");
      }
      if (line.what == AccountItem::kFree && line.bytes == 0 && !zero) {
        Require(WholeOf(rank).basis != ShareBasis::kCapacity && rank.instant.reserved.has_value(),
                "free is 0 where it is unknown");
      }
      if (line.what == AccountItem::kOtherProcesses) {
        Require(line.bytes <= said.named + kRounding, "other processes hold more than is said");
      }
      if (line.what == AccountItem::kUnnamed && said.capacity && said.free && drawn_.consistent) {
        Require(line.bytes <= *said.capacity - *said.free - said.named -
                                  said.this_process.value_or(0) + kRounding,
                "in use by nobody, though the text names somebody");
      }
    }
  }

  void CheckSentences(const std::string& text) {
    std::string flat = drawn_.text;  // without the line ends of a terminal
    std::erase(flat, '\n');
    if (flat.find("0 bytes") != std::string::npos) return;
    const std::size_t zero = text.find(" 0 bytes");
    const std::size_t near = zero == std::string::npos || zero < 80 ? 0 : zero - 80;
    Require(zero == std::string::npos, "a sentence says: " + text.substr(near, 160));
  }

  const DrawnText& drawn_;
  std::vector<std::string> wrong_;
};

std::vector<std::string> WrongIn(const DrawnText& drawn) {
  if (!RecogniseErrorText(drawn.text)) return {};
  const Result<Input> input = Input::FromMemory("run.log", drawn.text);
  const Result<Recording> recording = Read(*input);
  if (!recording) return {};
  const Result<Explanation> answer = ExplainRecording(*recording, ExplainOptions{});
  if (!answer) return {"the text is recognised and not explained"};
  return Checker(drawn).Run(*answer);
}

TEST(DrawnTexts, EveryAccountAddsUpAndContradictsNothing) {
  const std::uint64_t count = FromEnvironment("PLIMSOLL_DRAWN_TEXTS", 4000);
  const std::uint64_t seed = FromEnvironment("PLIMSOLL_DRAWN_SEED", 1);
  std::cout << count << " texts from seed " << seed << "\n";
  std::map<std::string, std::pair<int, std::string>> wrong;
  for (std::uint64_t i = 0; i < count; ++i) {
    const DrawnText drawn = TextGrammar(seed + i).Draw();
    for (const std::string& what : WrongIn(drawn)) {
      auto& [times, example] = wrong[what.substr(0, what.find_first_of("0123456789"))];
      if (++times == 1) example = fmt::format("seed {}: {}\n{}", seed + i, what, drawn.text);
    }
  }
  for (const auto& [what, found] : wrong) {
    ADD_FAILURE() << found.first << " times: " << found.second;
  }
}

}  // namespace
}  // namespace plimsoll::drawn_texts_test
