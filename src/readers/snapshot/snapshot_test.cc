#include "readers/snapshot/snapshot.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "readers/registry.h"

namespace plimsoll::snapshot_test {
namespace {

constexpr Address kBase = 0x7F0000000000;

Recording ReadDialect(const std::string& name) {
  Result<Recording> recording = ReadFile(std::string(PLIMSOLL_TEST_DATA) + "/dialects/" + name);
  EXPECT_TRUE(recording.ok()) << recording.error().ToLine();
  for (const Timeline& t : recording->timelines) EXPECT_EQ(t.Validate(), std::nullopt);
  return std::move(*recording);
}

std::string Where(const Timeline& t, StackId stack, std::size_t frame) {
  const Frame& f = t.stacks.frame(t.stacks.stack(stack)[frame]);
  return std::string(t.stacks.strings[f.file]) + ":" + std::to_string(f.line) + ":" +
         std::string(t.stacks.strings[f.function]);
}

/// Every dialect tells the same story; tests/data/dialects/make_dialects.py writes them.
class Dialect : public testing::TestWithParam<const char*> {};

TEST_P(Dialect, TellsTheSameStory) {
  const Recording recording = ReadDialect(GetParam());
  ASSERT_EQ(recording.timelines.size(), 1u);
  const Timeline& t = recording.timelines[0];
  ASSERT_EQ(t.events.size(), 5u);
  EXPECT_EQ(t.events[0].action, Action::kSegmentAlloc);
  EXPECT_EQ(t.events[0].address, kBase);
  EXPECT_EQ(t.events[0].size, 20 * kMiB);
  EXPECT_EQ(t.events[1].action, Action::kAlloc);
  EXPECT_EQ(t.events[1].size, 2'000'000);
  EXPECT_EQ(t.events[1].time_us, 1001);
  EXPECT_EQ(t.events[3].action, Action::kFreeRequested);
  EXPECT_EQ(t.events[4].action, Action::kFreeCompleted);
  EXPECT_EQ(Where(t, t.events[2].stack, 0), "/home/me/train.py:57:forward");
  EXPECT_EQ(Where(t, t.events[2].stack, 1), "/home/me/train.py:41:<module>");
  EXPECT_EQ(t.events[0].stack, t.events[1].stack) << "equal stacks are one stack";
  ASSERT_EQ(t.segments.size(), 1u);
  EXPECT_FALSE(t.segments[0].small);
  ASSERT_EQ(t.blocks.size(), 2u);
  EXPECT_EQ(t.blocks[0].requested, 2'000'000);
  EXPECT_EQ(t.blocks[0].state, BlockState::kActive);
  EXPECT_EQ(t.blocks[1].state, BlockState::kInactive);
  EXPECT_EQ(t.settings.max_split_size, 128 * kMiB);
  EXPECT_EQ(t.settings.garbage_collection_threshold, 0.5);
  EXPECT_TRUE(recording.skipped.empty());
}

INSTANTIATE_TEST_SUITE_P(All, Dialect,
                         testing::Values("protocol2.pickle", "protocol3.pickle", "protocol4.pickle",
                                         "protocol5.pickle", "libtorch.pickle", "plain.json"));

/// The file, a window at a time, and its bytes, all in memory: the same events.
TEST(Snapshot, IsTheSameReadAsAStream) {
  const std::string packed = std::string(PLIMSOLL_TEST_DATA) + "/large/big_gpt2m_all.pickle.xz";
  const Result<Input> input = Input::Open(packed);
  ASSERT_TRUE(input.ok());
  const std::string plain = testing::TempDir() + "snapshot_test." + std::to_string(::getpid());
  std::ofstream(plain, std::ios::binary) << input->bytes();
  const Result<Recording> whole = Read(*input);
  const Result<Recording> stream = ReadFile(plain);
  std::filesystem::remove(plain);
  ASSERT_TRUE(whole.ok() && stream.ok());
  EXPECT_EQ(whole->skipped, stream->skipped);
  const Timeline& a = whole->timelines.at(0);
  const Timeline& b = stream->timelines.at(0);
  ASSERT_EQ(a.events.size(), b.events.size());
  EXPECT_EQ(a.stacks.stack_count(), b.stacks.stack_count());
  EXPECT_EQ(a.stacks.frame_count(), b.stacks.frame_count());
  const auto same = [](const Event& x, const Event& y) {
    return x.address == y.address && x.size == y.size && x.time_us == y.time_us &&
           x.stack == y.stack && x.stream == y.stream && x.pool == y.pool && x.action == y.action;
  };
  EXPECT_TRUE(std::equal(a.events.begin(), a.events.end(), b.events.begin(), same));
}

TEST(Snapshot, Of113IsAListOfSegmentsWithHistories) {
  const Recording recording = ReadDialect("torch1.13.pickle");
  const Timeline& t = recording.timelines.at(0);
  EXPECT_EQ(t.torch, "1.13");
  ASSERT_EQ(t.blocks.size(), 2u);
  EXPECT_EQ(t.blocks[0].requested, 2'000'000);
  EXPECT_EQ(t.blocks[0].address, kBase) << "computed: blocks had no address then";
  EXPECT_EQ(t.blocks[1].address, kBase + 2'000'384);
  EXPECT_EQ(Where(t, t.blocks[0].stack, 0), "/home/me/train.py:10:make_model");
}

TEST(Snapshot, Of20HasTracesWithoutTimes) {
  const Recording recording = ReadDialect("torch2.0.pickle");
  const Timeline& t = recording.timelines.at(0);
  EXPECT_EQ(t.torch, "2.0");
  EXPECT_EQ(t.events.size(), 5u);
  EXPECT_EQ(t.events[1].time_us, 0);
}

TEST(Snapshot, PoolIdsMayBeTuplesOrLists) {
  const Recording recording = ReadDialect("pools.pickle");
  const Timeline& t = recording.timelines.at(0);
  EXPECT_TRUE(t.events_have_pools);
  EXPECT_EQ(t.pools.at(t.events[1].pool), (PoolId{0, 1}));
  EXPECT_EQ(t.pools.at(t.segments[0].pool), (PoolId{0, 1}));
}

TEST(Snapshot, NewestKeepsItsMetadataAndNamesTheOriginalLine) {
  const Recording recording = ReadDialect("newest.pickle");
  const Timeline& t = recording.timelines.at(0);
  EXPECT_EQ(t.torch, "2.14 or newer");
  ASSERT_EQ(t.events.size(), 6u);
  EXPECT_EQ(t.events[2].action, Action::kAnnotate);
  EXPECT_EQ(Where(t, t.events[3].stack, 0), "/home/me/model.py:33:forward");
  EXPECT_EQ(t.host_reserved, 4096);
  ASSERT_EQ(t.notes.size(), 6u);
  EXPECT_EQ(t.stacks.strings[t.notes[2].text], "weights");
}

TEST(Snapshot, MetadataMayBeATextOrADictionary) {
  const Recording recording = ReadDialect("metadata_dict.pickle");
  const Timeline& t = recording.timelines.at(0);
  ASSERT_EQ(t.notes.size(), 2u);
  EXPECT_EQ(t.notes[0].event, 1u);
  EXPECT_EQ(t.stacks.strings[t.notes[0].text], "phase=rollout, layer=3, cached=True");
  EXPECT_EQ(t.stacks.strings[t.notes[1].text], "a text");
}

TEST(Snapshot, ForwardFramesNameTheLineOfABackwardEvent) {
  const Recording recording = ReadDialect("forward_frames.pickle");
  const Timeline& t = recording.timelines.at(0);
  ASSERT_EQ(t.forward_stacks.size(), 1u);
  EXPECT_EQ(t.forward_stacks[0].event, 2u);
  EXPECT_EQ(Where(t, t.forward_stacks[0].stack, 0), "/home/me/model.py:9:forward");
  EXPECT_EQ(Where(t, t.forward_stacks[0].stack, 1), "/home/me/train.py:41:<module>");
}

TEST(Snapshot, BlocksMayHaveTheVariableThatKeepsThem) {
  const Recording recording = ReadDialect("owners.pickle");
  const Timeline& t = recording.timelines.at(0);
  ASSERT_EQ(t.blocks.size(), 5u);
  EXPECT_EQ(t.stacks.strings[t.blocks[2].owner], "the graph of losses[0]");
  EXPECT_FALSE(t.blocks[3].owner.valid()) << "a number is no name";
}

TEST(Snapshot, DevicesWithoutEventsAreLeftOut) {
  const Recording recording = ReadDialect("devices.pickle");
  ASSERT_EQ(recording.timelines.size(), 2u);
  EXPECT_EQ(recording.timelines[0].device, 1);
  EXPECT_EQ(recording.timelines[1].device, 3);
  for (const Timeline& t : recording.timelines) {
    EXPECT_EQ(t.events.size(), 5u);
    EXPECT_EQ(Where(t, t.events[2].stack, 0), "/home/me/train.py:57:forward");
  }
}

TEST(Snapshot, AddressesMayUseAllSixtyFourBits) {
  const Recording recording = ReadDialect("high_addresses.pickle");
  EXPECT_EQ(recording.timelines.at(0).events[1].address, kBase + (Address{1} << 63));
}

TEST(Snapshot, MissingKeysAreNoError) {
  EXPECT_EQ(ReadDialect("bare.pickle").timelines.at(0).events.size(), 5u);
  EXPECT_EQ(ReadDialect("no_traces.pickle").timelines.at(0).segments.size(), 1u);
}

TEST(Snapshot, SaysWhenItsRingWasFull) {
  const RecordedSettings settings = ReadDialect("overflowed.pickle").timelines.at(0).settings;
  EXPECT_TRUE(settings.trace_overflowed);
  EXPECT_EQ(settings.trace_max_entries, 3);
  EXPECT_FALSE(ReadDialect("protocol4.pickle").timelines.at(0).settings.trace_overflowed);
}

TEST(Snapshot, MetadataMayHaveAnyPlainValuesAndNames) {
  const Recording recording = ReadDialect("metadata_more.pickle");
  const Timeline& t = recording.timelines.at(0);
  ASSERT_EQ(t.notes.size(), 4u);
  EXPECT_EQ(t.stacks.strings[t.notes[0].text], "stage=rollout, temperature=0.5, lora=None");
  EXPECT_EQ(t.stacks.strings[t.notes[1].text], "name=encoder, layer=3");
  EXPECT_EQ(t.stacks.strings[t.notes[2].text], "phase=rollout, layer=3");
  EXPECT_EQ(t.stacks.strings[t.notes[3].text], "{not JSON}");
  EXPECT_TRUE(recording.skipped.empty());
}

TEST(Snapshot, PinnedMemoryHasAHistoryOfItsOwn) {
  for (const char* const name : {"pinned.pickle", "pinned_alone.pickle"}) {
    const Recording recording = ReadDialect(name);
    ASSERT_EQ(recording.timelines.size(), 1u);
    const Timeline& t = recording.timelines[0];
    EXPECT_EQ(t.host_reserved, 5 * kMiB);
    ASSERT_EQ(t.pinned.events.size(), 6u);
    EXPECT_EQ(t.pinned.events[1].size, 3 * kMiB);
    EXPECT_EQ(Where(t, t.pinned.events[1].stack, 0), "/home/me/train.py:10:make_model");
    ASSERT_EQ(t.pinned.pieces.size(), 2u);
    EXPECT_TRUE(t.pinned.pieces[0].in_use);
    EXPECT_FALSE(t.pinned.pieces[1].in_use);
  }
  EXPECT_EQ(ReadDialect("pinned.pickle").timelines[0].events.size(), 5u);
}

TEST(Snapshot, FramesOfCompiledCodeNameTheirNode) {
  const Recording recording = ReadDialect("fx_nodes.pickle");
  const Timeline& t = recording.timelines.at(0);
  const auto node = [&](std::size_t event) {
    const Frame& frame = t.stacks.frame(t.stacks.stack(t.events[event].stack)[0]);
    return frame.node.valid() ? t.stacks.strings[frame.node] : std::string_view();
  };
  EXPECT_EQ(node(1), "mm: aten.mm.default");
  EXPECT_EQ(Where(t, t.events[1].stack, 0), "/home/me/model.py:33:forward");
  EXPECT_EQ(node(2), "input_2: relu");
  EXPECT_EQ(Where(t, t.events[2].stack, 0), "fx_generated_0.py:9:forward");
  EXPECT_EQ(node(0), "");
}

TEST(Snapshot, TellsWhatTheCompilerWasAt) {
  const Recording recording = ReadDialect("compile_context.pickle");
  const Timeline& t = recording.timelines.at(0);
  ASSERT_EQ(t.compile_contexts.size(), 2u);
  EXPECT_EQ(t.compile_contexts[1].event, 2u);
  EXPECT_EQ(t.stacks.strings[t.compile_contexts[1].text], "Torch-Compiled Region: 0/1");
}

TEST(Snapshot, CategoriesMayBeNamesOrNumbers) {
  const Recording recording = ReadDialect("categories.pickle");
  const Timeline& t = recording.timelines.at(0);
  ASSERT_EQ(t.given_categories.size(), 2u);
  EXPECT_EQ(t.stacks.strings[t.given_categories[0].text], "parameter");
  EXPECT_EQ(t.given_categories[1].event, 2u);
  EXPECT_EQ(t.stacks.strings[t.given_categories[1].text], "activation");
  ASSERT_EQ(t.given_of_blocks.size(), 1u);
  EXPECT_EQ(t.given_of_blocks[0].address, kBase);
}

TEST(Snapshot, OfIntelsGpusHasTheSameForm) {
  const Recording recording = ReadDialect("xpu.pickle");
  const Timeline& t = recording.timelines.at(0);
  EXPECT_EQ(t.events.size(), 5u);
  EXPECT_EQ(t.segments.size(), 1u);
  EXPECT_EQ(t.blocks.size(), 2u);
}

TEST(Snapshot, OfMlxHasNoStreams) {
  const Recording recording = ReadDialect("mlx.pickle");
  const Timeline& t = recording.timelines.at(0);
  EXPECT_EQ(t.events.size(), 6u);
  EXPECT_EQ(t.segments.size(), 2u);
  EXPECT_TRUE(recording.skipped.empty());
}

TEST(Snapshot, AStateAloneMayBeOfAnyRelease) {
  const Recording recording = ReadDialect("state_list.pickle");
  const Timeline& t = recording.timelines.at(0);
  EXPECT_EQ(t.torch, "2.1 or newer");
  EXPECT_TRUE(t.events.empty());
  EXPECT_EQ(t.blocks.size(), 2u);
}

TEST(Snapshot, AsTablesOfSqliteTellsTheSameStory) {
  const Recording recording = ReadDialect("tables.sqlite");
  EXPECT_EQ(recording.format, "PyTorch memory snapshot (SQLite)");
  const Recording pickled = ReadDialect("protocol4.pickle");
  const Timeline& t = recording.timelines.at(0);
  const Timeline& p = pickled.timelines.at(0);
  ASSERT_EQ(t.events.size(), p.events.size());
  for (std::size_t i = 0; i < t.events.size(); ++i) {
    EXPECT_EQ(t.events[i].action, p.events[i].action);
    EXPECT_EQ(t.events[i].address, p.events[i].address);
    EXPECT_EQ(t.events[i].size, p.events[i].size);
    EXPECT_EQ(t.events[i].time_us, p.events[i].time_us);
  }
  EXPECT_EQ(Where(t, t.events[2].stack, 0), "/home/me/train.py:57:forward");
  EXPECT_EQ(t.events[0].stack, t.events[1].stack);
  ASSERT_EQ(t.blocks.size(), 2u);
  EXPECT_EQ(t.blocks[0].state, BlockState::kActive);
  EXPECT_EQ(t.blocks[0].requested, 2'000'000);
  const Recording several = ReadDialect("tables_devices.sqlite");
  ASSERT_EQ(several.timelines.size(), 2u);
  EXPECT_EQ(several.timelines[1].events.size(), 5u);
  EXPECT_EQ(several.timelines[1].segments.size(), 1u);
}

}  // namespace
}  // namespace plimsoll::snapshot_test
