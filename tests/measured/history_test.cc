// The history of every recorded run says the same of any instant as its account does.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "diagnose/explain.h"
#include "diagnose/recorded_history.h"
#include "readers/registry.h"
#include "timeline/redact.h"

namespace plimsoll::history_test {

namespace fs = std::filesystem;
const fs::path kSnapshots = fs::path(PLIMSOLL_TEST_DATA) / "snapshots";

Bytes HeldAt(const History& history, Position at) {
  Bytes sum = 0;
  for (const HistoryBlock& b : history.blocks) sum += b.made <= at && b.released > at ? b.size : 0;
  return sum;
}

Bytes ReservedAt(const History& history, Position at) {
  Bytes sum = 0;
  for (const HistorySpan& s : history.spans) sum += s.from <= at && s.to > at ? s.size : 0;
  return sum;
}

Bytes LineOf(const RankReport& rank, std::string_view what) {
  for (const AccountLine& line : rank.account) {
    if (AccountItemName(line.what) == what) return line.bytes;
  }
  return 0;
}

Bytes OfCategoryAt(const History& history, std::size_t category, Position at) {
  Bytes sum = 0;
  for (const HistoryBlock& b : history.blocks) {
    if (b.category == category && b.made <= at && b.released > at) sum += b.requested;
  }
  return sum;
}

class EverySnapshot : public testing::TestWithParam<std::string> {};

TEST_P(EverySnapshot, SaysOfAnyInstantWhatItsAccountSays) {
  const Result<Recording> recording = ReadFile((kSnapshots / GetParam()).string());
  ASSERT_TRUE(recording.ok());
  for (const Timeline& timeline : recording->timelines) {
    const History history = RecordedHistory(AnalysedTrace(timeline));
    const auto events = static_cast<std::int64_t>(timeline.events.size());
    ASSERT_EQ(history.times.size(), timeline.events.size());
    for (std::int64_t i = 0; i < 3 && events > 0; ++i) {
      const std::int64_t at = (events - 1) * (i + 1) / 3;
      const Result<Explanation> there = ExplainRecording(*recording, {.at_event = at});
      ASSERT_TRUE(there.ok());
      const auto rank =
          std::find_if(there->ranks.begin(), there->ranks.end(),
                       [&](const RankReport& r) { return r.device == timeline.device; });
      ASSERT_NE(rank, there->ranks.end());
      const auto position = static_cast<Position>(at);
      EXPECT_EQ(HeldAt(history, position), *rank->instant.allocated) << "event " << at;
      EXPECT_EQ(ReservedAt(history, position), *rank->instant.reserved) << "event " << at;
      for (std::size_t c = 0; c < history.categories.size(); ++c) {
        EXPECT_EQ(OfCategoryAt(history, c, position), LineOf(*rank, history.categories[c]))
            << history.categories[c] << " at event " << at;
      }
    }
  }
}

TEST_P(EverySnapshot, IsTheSameWithoutItsFileNames) {
  const std::string path = (kSnapshots / GetParam()).string();
  const Result<Recording> plain = ReadFile(path);
  Result<Recording> redacted = ReadFile(path);
  ASSERT_TRUE(plain.ok() && redacted.ok());
  RedactFileNames(*redacted, 7);
  const Result<Explanation> expected = ExplainRecording(*plain, {});
  const Result<Explanation> actual = ExplainRecording(*redacted, {});
  ASSERT_TRUE(expected.ok() && actual.ok());
  ASSERT_EQ(actual->ranks.size(), expected->ranks.size());
  for (std::size_t r = 0; r < actual->ranks.size(); ++r) {
    EXPECT_EQ(actual->ranks[r].peaks, expected->ranks[r].peaks);
    for (const AccountLine& line : expected->ranks[r].account) {
      EXPECT_EQ(LineOf(actual->ranks[r], AccountItemName(line.what)), line.bytes)
          << AccountItemName(line.what);
    }
    for (const Holder& holder : actual->ranks[r].holders) {
      EXPECT_EQ(holder.where.find("train.py"), std::string::npos) << holder.where;
    }
  }
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(kSnapshots)) {
    const std::string name = entry.path().filename().string();
    if (name.find(".pickle") != std::string::npos) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(History, EverySnapshot, testing::ValuesIn(Names()), [](const auto& given) {
  std::string name = given.param.substr(0, given.param.find('.'));
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '-'; }, '_');
  return name;
});

}  // namespace plimsoll::history_test
