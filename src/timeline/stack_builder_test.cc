#include "timeline/stack_builder.h"

#include <gtest/gtest.h>

namespace plimsoll::stack_builder_test {
namespace {

class Stacks : public testing::Test {
 protected:
  FrameId Frame(const std::string& function, int line) {
    return builder.AddFrame({.function = table.strings.Intern(function),
                             .file = table.strings.Intern("a.py"),
                             .line = line});
  }
  std::map<std::string, std::int64_t> Skipped() const {
    std::map<std::string, std::int64_t> skipped;
    budget.Report(skipped);
    return skipped;
  }

  StackTable table;
  StackBudget budget;
  StackBuilder builder{table, budget};
};

TEST(CutName, KeepsWholeCharacters) {
  EXPECT_EQ(CutName("short", 5), "short");
  EXPECT_EQ(CutName("longer", 5), "longe…");
  EXPECT_EQ(CutName("größe", 3), "gr…");
}

TEST_F(Stacks, EachIsKeptOnce) {
  const FrameId f = Frame("f", 1);
  EXPECT_EQ(Frame("f", 1), f);
  EXPECT_NE(Frame("f", 2), f);
  const FrameId g = Frame("g", 1);
  const StackId both = builder.AddStack(std::vector{f, g});
  EXPECT_EQ(builder.AddStack(std::vector{f, g}), both);
  EXPECT_NE(builder.AddStack(std::vector{g, f}), both);
  EXPECT_EQ(table.frame_count(), 3u);
  EXPECT_EQ(table.stack_count(), 2u);
  EXPECT_TRUE(Skipped().empty());
}

TEST_F(Stacks, LongNamesAreCut) {
  const FrameId f = Frame(std::string(1'000'000, 'x'), 1);
  const std::string_view name = table.strings[table.frame(f).function];
  EXPECT_EQ(name.size(), kLongestName + 3);
  EXPECT_TRUE(name.ends_with("…"));
  EXPECT_EQ(Skipped().size(), 1u);
}

// One name of four kilobytes in a million frames would be gigabytes wherever frames become text.
TEST_F(Stacks, TheNamesOfAllFramesAreBounded) {
  const std::string name(4000, 'x');
  std::size_t text = 0;
  for (int line = 0; line < 100'000; ++line) {
    text += table.strings[table.frame(Frame(name, line)).function].size();
  }
  EXPECT_EQ(table.frame_count(), 100'000u);
  EXPECT_LT(text, std::size_t{16} << 20);
}

TEST_F(Stacks, DeepAndManyStacksAreBounded) {
  std::vector<FrameId> frames;
  for (int line = 0; line < 5000; ++line) frames.push_back(Frame("f", line));
  const StackId deep = builder.AddStack(frames);
  ASSERT_EQ(table.stack(deep).size(), kDeepestStack);
  EXPECT_EQ(table.stack(deep).front(), frames.front()) << "the innermost stay";
  for (int i = 0; i < 20'000; ++i) {
    std::swap(frames[0], frames[static_cast<std::size_t>(1 + i % 4999)]);
    builder.AddStack(frames);
  }
  std::size_t entries = 0;
  for (std::size_t s = 0; s < table.stack_count(); ++s) entries += table.stack(StackId(s)).size();
  EXPECT_LT(entries, 5'000'000u);
  EXPECT_GT(Skipped().at("frames of stacks that are too many or too deep"), 0);
}

// The same few long names in every stack.
TEST_F(Stacks, SoIsWhatTheySpell) {
  std::vector<FrameId> frames;
  for (int line = 0; line < 500; ++line) frames.push_back(Frame(std::string(4000, 'x'), line));
  std::size_t spelled = 0;
  for (int i = 0; i < 5000; ++i) {
    std::swap(frames[0], frames[static_cast<std::size_t>(1 + i % 499)]);
    std::size_t text = 0;
    for (const FrameId id : table.stack(builder.AddStack(frames))) {
      text += table.strings[table.frame(id).function].size();
    }
    EXPECT_LT(text, std::size_t{300} << 10);
    spelled += text;
  }
  EXPECT_LT(spelled, std::size_t{400} << 20);
}

TEST_F(Stacks, SoAreFrames) {
  for (int line = 0; line < 1'000'100; ++line) Frame("f", line);
  EXPECT_LE(table.frame_count(), 1'000'001u);
}

}  // namespace
}  // namespace plimsoll::stack_builder_test
