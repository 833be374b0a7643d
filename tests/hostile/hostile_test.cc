// What nobody may be able to do to us with a file: crash the program, make it run code, fill the
// memory, or keep it busy. And what we owe whoever has a broken file: one line that says where.
//
// Runs in seconds, so that it also runs under the sanitizers on every commit; fuzz/ goes further.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <random>
#include <string>
#include <string_view>

#include "base/nightly_for_tests.h"
#include "bounded.h"
#include "diagnose/explain.h"
#include "document.h"
#include "files/input.h"
#include "readers/registry.h"
#include "report/json.h"
#include "report/text.h"

namespace plimsoll::hostile {
namespace {

using namespace std::string_literals;

// What is being read just now, for whoever has to find out why the test died. The sanitizers end
// in SIGABRT too (abort_on_error=1, see tools/run_tests).
char g_case[256] = "";

void SayWhere(int) {
  const std::string_view text(g_case);
  if (write(STDERR_FILENO, "\ndied while reading: ", 21) < 0) _exit(1);
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) _exit(1);
  if (write(STDERR_FILENO, "\n", 1) < 0) _exit(1);
  std::signal(SIGABRT, SIG_DFL);
  std::abort();
}

// The small snapshot is cut at every byte and changed at every tenth (by night every third); the
// larger files here and there, and less often with the address sanitizer, which makes each read ten
// to forty times slower.
#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kStride = 17;
#else
constexpr std::size_t kStride = 5;
#endif
std::size_t SmallStride() { return IsNightly() ? 3 : 10; }

std::string LibtorchFile() {
  const Result<Input> input =
      Input::Open(PLIMSOLL_TEST_DATA "/snapshots/libtorch_mlp_cpp.pickle.xz");
  return input ? std::string(input->bytes()) : "";
}

/// Reads the bytes and checks what holds for any bytes at all.
Result<Recording> ReadHostile(std::string bytes, const std::string& what) {
  std::snprintf(g_case, sizeof g_case, "%s", what.c_str());
  const std::size_t size = bytes.size();
  const Result<Input> input = Input::FromMemory("hostile.pickle", std::move(bytes));
  Result<Recording> recording = input ? Read(*input) : Result<Recording>(input.error());
  if (recording) {
    for (const Timeline& timeline : recording->timelines) {
      EXPECT_EQ(timeline.Validate(), std::nullopt) << what;
    }
    // What can be read must be explained, alone and as two ranks.
    if (const Result<Explanation> part = ExplainRecording(*recording, {})) {
      EXPECT_FALSE(ExplanationText(*part, {}).empty()) << what;
      EXPECT_FALSE(ExplanationJson(Join({*part, *part})).empty()) << what;
    }
    return recording;
  }
  const Error& error = recording.error();
  const std::string line = error.ToLine();
  EXPECT_FALSE(error.message.empty()) << what;
  EXPECT_EQ(line.find('\n'), std::string::npos) << what << ": " << line;
  EXPECT_EQ(line.rfind("hostile.pickle", 0), 0u) << what << ": " << line;
  // Offsets are those of the unpacked bytes, which may be more than were given.
  const std::size_t most = input ? std::max(size, input->bytes().size()) : size;
  EXPECT_LE(error.offset.value_or(0), most) << what;
  return recording;
}

/// As ReadHostile, for a pickle that must be refused: the error says where, unless there is too
/// little to tell that it is one.
void ExpectRefused(std::string bytes, const std::string& what) {
  const bool unknown = bytes.size() < 2;
  const Result<Recording> recording = ReadHostile(std::move(bytes), what);
  ASSERT_FALSE(recording.ok()) << what;
  EXPECT_TRUE(unknown || recording.error().offset.has_value())
      << what << ": " << recording.error().ToLine();
}

std::string Repeat(std::string_view piece, std::size_t count) {
  std::string out;
  out.reserve(piece.size() * count);
  for (std::size_t i = 0; i < count; ++i) out += piece;
  return out;
}

std::string Little(std::uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
  return out;
}

const std::string kProtocol4 = "\x80\x04";

TEST(Hostile, TheFilesThemselvesAreFine) {
  const Node snapshot = SmallSnapshot();
  for (const std::string& bytes : {AsPickle(snapshot), AsJson(snapshot)}) {
    EXPECT_LT(bytes.size(), 4096u);
    const Result<Recording> recording = ReadHostile(bytes, "the small snapshot");
    ASSERT_TRUE(recording.ok()) << recording.error().ToLine();
    ASSERT_FALSE(recording->timelines.empty());
    EXPECT_EQ(recording->timelines[0].events.size(), 6u);
    EXPECT_EQ(recording->timelines[0].segments.size(), 1u);
    EXPECT_EQ(recording->timelines[0].blocks.size(), 2u);
  }
  const Result<Recording> libtorch = ReadHostile(LibtorchFile(), "libtorch");
  ASSERT_TRUE(libtorch.ok()) << libtorch.error().ToLine();
  EXPECT_FALSE(libtorch->timelines.empty());
}

void CutAnywhere(const std::string& bytes, std::size_t stride) {
  for (std::size_t size = 0; size < bytes.size(); size += stride) {
    ASSERT_NO_FATAL_FAILURE(
        ExpectRefused(bytes.substr(0, size), "cut after byte " + std::to_string(size)));
  }
}

TEST(Hostile, TruncatedPickle) { CutAnywhere(AsPickle(SmallSnapshot()), 1); }
TEST(Hostile, TruncatedLibtorchPickle) { CutAnywhere(LibtorchFile(), kStride); }

TEST(Hostile, TruncatedJson) {
  const std::string bytes = AsJson(SmallSnapshot());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const Result<Recording> recording =
        ReadHostile(bytes.substr(0, size), "JSON cut after byte " + std::to_string(size));
    ASSERT_FALSE(recording.ok()) << size;
  }
}

TEST(Hostile, TruncatedXz) {
  std::string packed;
  std::FILE* file = std::fopen(PLIMSOLL_TEST_DATA "/snapshots/libtorch_mlp_cpp.pickle.xz", "rb");
  ASSERT_NE(file, nullptr);
  for (int c = 0; (c = std::fgetc(file)) != EOF;) packed += static_cast<char>(c);
  std::fclose(file);
  for (std::size_t size = 0; size < packed.size(); size += kStride) {
    const Result<Recording> recording =
        ReadHostile(packed.substr(0, size), "xz cut after byte " + std::to_string(size));
    ASSERT_FALSE(recording.ok()) << size;
  }
  for (std::size_t at = 0; at < packed.size(); at += 3 * kStride) {
    std::string bytes = packed;
    bytes[at] ^= 0x55;
    (void)ReadHostile(bytes, "xz with byte " + std::to_string(at) + " flipped");
  }
}

void FlipBytes(const std::string& bytes, std::string_view values, std::size_t stride) {
  for (std::size_t at = 0; at < bytes.size(); at += stride) {
    for (const char value : values) {
      std::string spoiled = bytes;
      spoiled[at] = value;
      (void)ReadHostile(std::move(spoiled), "byte " + std::to_string(at) + " set to " +
                                                std::to_string(static_cast<unsigned char>(value)));
    }
    for (const int mask : {0x01, 0x80}) {
      std::string spoiled = bytes;
      spoiled[at] = static_cast<char>(spoiled[at] ^ mask);
      (void)ReadHostile(std::move(spoiled),
                        "byte " + std::to_string(at) + " xor " + std::to_string(mask));
    }
  }
}

// Besides the extremes, the opcodes that move the stack, end a group or refer back.
TEST(Hostile, FlippedPickle) {
  FlipBytes(AsPickle(SmallSnapshot()), "\x00\xff\x7f(.0e2haust]}\x85\x94\x8a"s, SmallStride());
}
TEST(Hostile, FlippedLibtorchPickle) { FlipBytes(LibtorchFile(), "\x00\xff("s, 11 * kStride); }
TEST(Hostile, FlippedJson) {
  FlipBytes(AsJson(SmallSnapshot()), "\x00\xff[]{}\",:-9e\\"s, SmallStride());
}

std::vector<Node> WrongValues() {
  const Node one{.kind = Node::kInt, .number = 1};
  return {
      {.kind = Node::kNone},
      {.kind = Node::kBool, .number = 1},
      {.kind = Node::kInt, .number = -1},
      {.kind = Node::kInt, .number = INT64_MAX},
      {.kind = Node::kInt, .number = INT64_MIN},
      {.kind = Node::kFloat},
      {.kind = Node::kText, .text = "text"},
      {.kind = Node::kText, .text = ""},
      {.kind = Node::kText, .text = std::string(70000, 'x')},
      {.kind = Node::kList},
      {.kind = Node::kList, .items = {one}},
      {.kind = Node::kList, .items = {{.kind = Node::kList, .items = {one, one}}}},
      {.kind = Node::kDict},
      {.kind = Node::kDict, .fields = {{"frames", one}}},
      {.kind = Node::kDict, .fields = {{"action", one}, {"addr", {.kind = Node::kList}}}},
  };
}

void ReadBoth(const Node& snapshot, const std::string& what) {
  (void)ReadHostile(AsPickle(snapshot), what + " as pickle");
  (void)ReadHostile(AsJson(snapshot), what + " as JSON");
}

TEST(Hostile, WrongTypeAnywhere) {
  const std::vector<Node> wrong = WrongValues();
  Node snapshot = SmallSnapshot();
  const std::size_t count = AllNodes(snapshot).size();
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t k = 0; k < wrong.size(); ++k) {
      if (!IsWorthATry(i + k)) continue;
      Node spoiled = snapshot;
      *AllNodes(spoiled)[i] = wrong[k];
      ReadBoth(spoiled, "node " + std::to_string(i) + " replaced by " + std::to_string(k));
    }
  }
}

// A name that is cut gets an entry of its own among the texts; keys that come after it keep their
// meaning.
TEST(Hostile, KeysAfterANameThatIsCut) {
  Node snapshot = SmallSnapshot();
  for (Node* node : AllNodes(snapshot)) {
    if (node->kind == Node::kText && node->text == "forward") node->text.assign(70'000, 'f');
  }
  const Result<Recording> plain = ReadHostile(AsPickle(SmallSnapshot()), "plain");
  ASSERT_TRUE(plain);
  for (const std::string& bytes : {AsPickle(snapshot), AsJson(snapshot)}) {
    const Result<Recording> read = ReadHostile(bytes, "a long name");
    ASSERT_TRUE(read);
    const Timeline& cut = read->timelines.front();
    const Timeline& whole = plain->timelines.front();
    ASSERT_EQ(cut.events.size(), whole.events.size());
    for (std::size_t i = 0; i < whole.events.size(); ++i) {
      EXPECT_EQ(cut.events[i].action, whole.events[i].action);
      EXPECT_EQ(cut.events[i].size, whole.events[i].size);
    }
    EXPECT_EQ(cut.segments.size(), whole.segments.size());
  }
}

TEST(Hostile, MissingAndRepeatedKeys) {
  Node snapshot = SmallSnapshot();
  const std::size_t count = AllNodes(snapshot).size();
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t k = 0; k < AllNodes(snapshot)[i]->fields.size(); ++k) {
      const std::string what = "node " + std::to_string(i) + " field " + std::to_string(k);
      Node spoiled = snapshot;
      auto& without = AllNodes(spoiled)[i]->fields;
      without.erase(without.begin() + static_cast<std::ptrdiff_t>(k));
      ReadBoth(spoiled, what + " left out");
      spoiled = snapshot;
      auto& twice = AllNodes(spoiled)[i]->fields;
      twice.push_back({twice[k].first, {.kind = Node::kInt, .number = 7}});
      ReadBoth(spoiled, what + " twice");
      spoiled = snapshot;
      AllNodes(spoiled)[i]->fields[k].first = "blocks";
      ReadBoth(spoiled, what + " renamed");
    }
  }
}

TEST(Hostile, HugeCounts) {
  const std::string list = kProtocol4 + "]";
  const struct {
    const char* what;
    std::string bytes;
  } cases[] = {
      {"LONG_BINPUT 2^32-1", list + "r" + Little(0xffffffff, 4) + "."},
      {"LONG_BINPUT 2^31", list + "r" + Little(0x80000000, 4) + "."},
      {"LONG_BINGET 2^32-1", list + "j" + Little(0xffffffff, 4) + "."},
      {"BINUNICODE 2^32-1", kProtocol4 + "X" + Little(0xffffffff, 4) + "text."},
      {"BINUNICODE8 2^63", kProtocol4 + "\x8d" + Little(1ull << 63, 8) + "text."},
      {"BINUNICODE8 2^64-1", kProtocol4 + "\x8d" + Little(~0ull, 8) + "text."},
      {"BINBYTES8 2^63", kProtocol4 + "\x8e" + Little(1ull << 63, 8) + "text."},
      {"BYTEARRAY8 2^63", kProtocol4 + "\x96" + Little(1ull << 63, 8) + "text."},
      {"LONG1 of 255 bytes", kProtocol4 + "\x8a\xff."},
      {"LONG4 2^31-1", kProtocol4 + "\x8b" + Little(0x7fffffff, 4) + "."},
      {"LONG4 negative", kProtocol4 + "\x8b" + Little(0xffffffff, 4) + "."},
      {"FRAME 2^63", kProtocol4 + "\x95" + Little(1ull << 63, 8) + "."},
      {"FRAME 2^64-1 and a list", kProtocol4 + "\x95" + Little(~0ull, 8) + "]."},
  };
  for (const auto& [what, bytes] : cases) {
    const Bounded bounded(what);
    const Result<Recording> recording = ReadHostile(bytes, what);
    // The last is only a lie about the frame; an empty list is an empty snapshot of PyTorch 1.13.
    if (bytes.find(']') == std::string::npos || bytes.find("]r") != std::string::npos ||
        bytes.find("]j") != std::string::npos) {
      EXPECT_FALSE(recording.ok()) << what;
    }
  }
}

TEST(Hostile, DeepNesting) {
  constexpr std::size_t kDeep = 1'000'000;
  const struct {
    const char* what;
    std::string bytes;
  } cases[] = {
      {"lists that are never closed", kProtocol4 + Repeat("]", kDeep)},
      {"lists in lists", kProtocol4 + Repeat("]", kDeep) + Repeat("a", kDeep - 1) + "."},
      {"lists in lists by marks", kProtocol4 + Repeat("](", kDeep) + Repeat("e", kDeep) + "."},
      {"lists by LIST", kProtocol4 + Repeat("(", kDeep) + Repeat("l", kDeep) + "."},
      {"dicts in dicts",
       kProtocol4 + Repeat("}\x8c\x08segments", kDeep) + "N" + Repeat("s", kDeep) + "."},
      {"tuples in tuples", kProtocol4 + "N" + Repeat("\x85", kDeep) + "."},
      {"marks", kProtocol4 + Repeat("(", kDeep) + "."},
      {"memoized lists", kProtocol4 + Repeat("]\x94", kDeep) + Repeat("a", kDeep - 1) + "."},
      {"JSON arrays, open", Repeat("[", kDeep)},
      {"JSON arrays", Repeat("[", kDeep) + Repeat("]", kDeep)},
      {"JSON objects", Repeat("{\"segments\":", kDeep / 4) + "1" + Repeat("}", kDeep / 4)},
      {"JSON arrays in segments", "{\"segments\":" + Repeat("[", kDeep) + Repeat("]", kDeep) + "}"},
      {"JSON arrays in a trace",
       "{\"traceEvents\":" + Repeat("[", kDeep) + Repeat("]", kDeep) + "}"},
  };
  for (const auto& [what, bytes] : cases) {
    const Bounded bounded(what);
    (void)ReadHostile(bytes, what);
  }
}

TEST(Hostile, ReferenceLoops) {
  const std::string segments = "\x8c\x08segments", traces =
                                                       "\x8c\x0d"
                                                       "device_traces";
  const std::string frames =
                        "\x8c\x06"
                        "frames",
                    action =
                        "\x8c\x06"
                        "action\x8c\x05"
                        "alloc";
  const struct {
    const char* what;
    std::string bytes;
  } cases[] = {
      {"a list in itself",
       "]\x94h\x00"
       "a."s},
      {"a dict in itself", "}\x94" + segments + "h\x00s."s},
      {"a list of segments in itself", "}(" + segments +
                                           "]\x94h\x00"
                                           "a"s +
                                           traces + "h\x00u."s},
      {"a trace in itself", "}(" + segments + "]" + traces +
                                "]\x94h\x00"
                                "au."s},
      {"an event in its own frames", "}(" + segments + "]" + traces + "]]}\x94(" + action + frames +
                                         "]h\x00"
                                         "auaau."s},
      {"an event that is its own frames",
       "}(" + segments + "]" + traces + "]]}\x94(" + action + frames + "h\x00uaau."s},
      {"a segment among its own blocks", "}(" + segments +
                                             "]}\x94(\x8c\x07"
                                             "addressK\x01\x8c\x06"
                                             "blocks]h\x00"
                                             "auau."s},
      {"two lists in each other",
       "]\x94]\x94h\x00"
       "ah\x01"
       "a."s},
  };
  for (const auto& [what, bytes] : cases) {
    const Bounded bounded(what);
    (void)ReadHostile(kProtocol4 + bytes, what);
  }
}

// Small files that stand for enormous objects: CPython holds them by reference, and so may we.
TEST(Hostile, SmallFilesThatUnfold) {
  // Each list holds the one before it twice.
  std::string doubling = kProtocol4 + "]\x94";
  for (int i = 0; i < 200; ++i) {
    doubling += "](h" + Little(static_cast<std::uint64_t>(i), 1) + "h" +
                Little(static_cast<std::uint64_t>(i), 1) + "e\x94";
  }
  {
    const Bounded bounded("doubling lists");
    (void)ReadHostile(doubling + ".", "doubling lists");
  }

  // One trace of 50,000 events, as the trace of 50,000 devices.
  const std::string event =
      "}(\x8c\x06"
      "action\x8c\x05"
      "alloc\x8c\x04"
      "addrK\x01\x8c\x04sizeK\x02u";
  const std::string many_devices = kProtocol4 +
                                   "}(\x8c\x08segments]\x8c\x0d"
                                   "device_traces](](" +
                                   Repeat(event, 50'000) + "e\x94" + Repeat("h\x00"s, 50'000) +
                                   "eu.";
  {
    const Bounded bounded("one trace for 50,000 devices");
    (void)ReadHostile(many_devices, "one trace for 50,000 devices");
  }

  // One segment with 20,000 blocks, 20,000 times.
  const std::string block = "}(\x8c\x04sizeK\x02\x8c\x05state\x8c\x08inactiveu";
  const std::string many_segments = kProtocol4 +
                                    "}(\x8c\x08segments](}(\x8c\x07"
                                    "addressK\x01\x8c\x0atotal_sizeK\x02\x8c\x06"
                                    "blocks](" +
                                    Repeat(block, 20'000) + "eu\x94" + Repeat("h\x00"s, 20'000) +
                                    "e\x8c\x0d"
                                    "device_traces]u.";
  {
    const Bounded bounded("one segment 20,000 times");
    (void)ReadHostile(many_segments, "one segment 20,000 times");
  }
}

TEST(Hostile, CodeIsRefusedAndNamed) {
  const std::string filler = "}\x94\x8c\x02os\x8c\x06system";
  const struct {
    const char* opcode;
    std::string bytes;
  } cases[] = {
      {"GLOBAL", "cos\nsystem\n"},
      {"REDUCE", "R"},
      {"BUILD", "b"},
      {"INST", "ios\nsystem\n"},
      {"OBJ", "o"},
      {"NEWOBJ", "\x81"},
      {"NEWOBJ_EX", "\x92"},
      {"STACK_GLOBAL", "\x93"},
      {"EXT1", "\x82\x01"},
      {"EXT2", "\x83\x01\x01"},
      {"EXT4", "\x84\x01\x01\x01\x01"},
      {"PERSID", "Pname\n"},
      {"BINPERSID", "Q"},
  };
  for (const auto& [opcode, bytes] : cases) {
    for (const char* protocol : {"\x80\x02", "\x80\x04", "\x80\x05"}) {
      const std::string before = protocol + filler;
      const Result<Recording> recording = ReadHostile(before + bytes + ".", opcode);
      ASSERT_FALSE(recording.ok()) << opcode;
      const Error& error = recording.error();
      EXPECT_NE(error.message.find("code"), std::string::npos) << error.ToLine();
      EXPECT_NE(error.message.find(opcode), std::string::npos) << error.ToLine();
      EXPECT_EQ(error.offset, before.size()) << error.ToLine();
    }
  }
}

TEST(Hostile, NothingIsExecuted) {
  const std::string mark = testing::TempDir() + "plimsoll_hostile_" + std::to_string(getpid());
  const std::string command = "touch " + mark;
  const std::string attacks[] = {
      "cos\nsystem\n(S'" + command + "'\ntR.",  // protocol 0 has no header
      "\x80\x02"
      "cos\nsystem\n(X" +
          Little(command.size(), 4) + command + "tR.",
      kProtocol4 + "\x8c\x05posix\x8c\x06system\x93(X" + Little(command.size(), 4) + command +
          "tR.",
  };
  for (const std::string& bytes : attacks) {
    EXPECT_FALSE(ReadHostile(bytes, "os.system").ok());
    EXPECT_NE(access(mark.c_str(), F_OK), 0) << "the file ran a command";
  }
}

// Programs of valid opcodes in no sensible order. The seed is fixed: a failure can be repeated.
TEST(Hostile, RandomPrograms) {
  const std::string pieces[] = {
      "(", ".", "0", "1", "2", "N", "a", "e", "s", "u", "}", "]", ")", "t", "l", "d", "K\x01",
      "M\x00\x02"s, "J\xff\xff\xff\xff", "G" + Repeat("\x40", 8), "h\x00"s, "h\x01", "h\x05",
      "j\x02\x00\x00\x00"s, "q\x00"s, "q\x03", "r\x04\x00\x00\x00"s, "\x85", "\x86", "\x87", "\x88",
      "\x89", "\x8a\x06\x00\x00\x00\x00\x20\x7f"s, "\x94", "\x94",
      "\x8c\x06"
      "action",
      "\x8c\x05"
      "alloc",
      "\x8c\x0e"
      "free_completed",
      "\x8c\x04"
      "addr",
      "\x8c\x04size",
      "\x8c\x06"
      "frames",
      "\x8c\x08"
      "filename",
      "\x8c\x04name", "\x8c\x04line",
      "\x8c\x06"
      "blocks",
      "\x8c\x07"
      "address",
      "\x8c\x08segments",
      "\x8c\x0d"
      "device_traces",
      "\x8c\x0atotal_size", "\x8c\x07history",
      "\x8c\x0e"
      "forward_frames",
      "\x8c\x0fsegment_pool_id", "\x8c\x05stage",
      "\x8c\x12"
      "allocator_settings",
      "\x8c\x14"
      "external_annotations",
      // Whole small objects, so that something gets built.
      "}(\x8c\x08"
      "filename\x8c\x01"
      "f\x8c\x04name\x8c\x01n\x8c\x04lineK\x01u",
      "}(\x8c\x06"
      "action\x8c\x05"
      "alloc\x8c\x04"
      "addrK\x01\x8c\x04sizeK\x02u",
      "}(\x8c\x04sizeK\x02\x8c\x05state\x8c\x08inactiveu"};
  std::mt19937 random(20240607);
  for (int i = 0; i < 40'000; ++i) {
    std::string bytes = kProtocol4;
    const std::size_t length = 2 + random() % 60;
    for (std::size_t k = 0; k < length; ++k) bytes += pieces[random() % std::size(pieces)];
    (void)ReadHostile(bytes + ".", "random program " + std::to_string(i));
  }
}

}  // namespace
}  // namespace plimsoll::hostile

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  std::signal(SIGABRT, plimsoll::hostile::SayWhere);
  return RUN_ALL_TESTS();
}
