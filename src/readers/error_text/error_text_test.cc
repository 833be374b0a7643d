// The nuisances: what terminals, launchers, web pages and people do to a message.
#include "readers/error_text/error_text.h"

#include "readers/error_text/testing.h"

namespace plimsoll::error_text_test {
namespace {

const char kMessage[] =
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 5 has a total "
    "capacity of 79.15 GiB of which 1.19 GiB is free. Process 4242 has 517.00 MiB memory in use. "
    "Including non-PyTorch memory, this process has 77.41 GiB memory in use. Of the allocated "
    "memory 70.10 GiB is allocated by PyTorch, with 512.00 MiB allocated in private pools (e.g., "
    "CUDA Graphs), and 6.83 GiB is reserved by PyTorch but unallocated. If reserved but "
    "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to "
    "avoid fragmentation.  See documentation for Memory Management  "
    "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)";

void ExpectWhole(const OomMessage& m, const std::string& how) {
  SCOPED_TRACE(how);
  EXPECT_EQ(m.device, 5);
  EXPECT_EQ(m.requested, GiB(2.5));
  EXPECT_EQ(m.capacity, GiB(79.15));
  EXPECT_EQ(m.free, GiB(1.19));
  ASSERT_EQ(m.processes.size(), 2u);
  EXPECT_EQ(m.processes[0].pid, 4242);
  EXPECT_EQ(m.processes[0].bytes, MiB(517));
  EXPECT_EQ(m.processes[1].pid, std::nullopt);
  EXPECT_EQ(m.processes[1].bytes, GiB(77.41));
  EXPECT_EQ(m.allocated, GiB(70.10));
  EXPECT_EQ(m.private_pools, MiB(512));
  EXPECT_EQ(m.reserved_free, GiB(6.83));
  EXPECT_EQ(VersionsOf(m), "2.4 to 2.10");
  EXPECT_FALSE(m.cut_off);
}

/// The message broken after every `width` characters, each line with a prefix.
std::string Wrapped(std::size_t width, const std::string& prefix, const std::string& end = "\n") {
  const std::string message = kMessage;
  std::string out;
  for (std::size_t i = 0; i < message.size(); i += width) {
    out += prefix + message.substr(i, width) + end;
  }
  return out;
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

TEST(Nuisances, WrappedAtEveryWidth) {
  for (std::size_t width = 12; width < 160; ++width) {
    ExpectWhole(ReadOne(Wrapped(width, "")), "width " + std::to_string(width));
  }
}

TEST(Nuisances, WrappedWithThePrefixOnEveryLine) {
  for (const char* prefix :
       {"[rank3]: ", "[rank3]:[E301 12:00:00.5 x.cpp:12] ", "3: ", "> ", "> > ", "    ", "&gt; ",
        "- ", "[default3]:", "[1,3]<stderr>:", "2025-03-01T12:00:00.123456789Z stderr F ",
        "2025-03-01 12:00:00,123 ", "(RayTrainWorker pid=99, ip=10.0.0.1) ",
        "node7: ", "trainer-1  | ", "[2025-03-01 12:00:00] [ERROR] ", "localhost: "}) {
    for (std::size_t width : {33u, 60u, 80u}) {
      const OomMessage m = ReadOne(Wrapped(width, prefix));
      ExpectWhole(m, prefix);
    }
  }
}

TEST(Nuisances, RankOfThePrefix) {
  for (const char* prefix : {"[rank3]: ", "[rank3]:[E301 12:00:00.5 x.cpp:12] ",
                             "3: ", "[default3]:", "[1,3]<stderr>:", "[Rank 3] ",
                             "> [rank3]: ", "2025-03-01 12:00:00 [rank3]: ", "\x1b[31m[rank3]: "}) {
    EXPECT_EQ(ReadOne(prefix + std::string(kMessage)).rank, 3) << prefix;
  }
  EXPECT_EQ(ReadOne(kMessage).rank, std::nullopt);
  EXPECT_EQ(ReadOne("node7: " + std::string(kMessage)).rank, std::nullopt);
}

TEST(Nuisances, LinesOfOtherRanksBetween) {
  const std::string text =
      "[rank0]: Allocation on device 0 would exceed allowed memory. (out of memory)\n"
      "[rank1]: Allocation on device 1 would exceed allowed memory. (out of memory)\n"
      "[rank0]: Currently allocated     : 1.00 GiB\n"
      "[rank1]: Currently allocated     : 3.00 GiB\n"
      "[rank1]: Requested               : 4.00 GiB\n"
      "[rank0]: Requested               : 2.00 GiB\n";
  const Recording recording = ReadText(text);
  ASSERT_EQ(recording.messages.size(), 2u);
  EXPECT_EQ(recording.messages[0].allocated, GiB(1));
  EXPECT_EQ(recording.messages[0].requested, GiB(2));
  EXPECT_EQ(recording.messages[1].rank, 1);
  EXPECT_EQ(recording.messages[1].allocated, GiB(3));
  EXPECT_EQ(recording.messages[1].requested, GiB(4));
}

TEST(Nuisances, Colours) {
  const std::string red = "\x1b[1;31m";
  const std::string plain = "\x1b[0m";
  ExpectWhole(ReadOne(red + kMessage + plain), "around");
  ExpectWhole(ReadOne(Replaced(kMessage, " GiB", plain + " " + red + "GiB" + plain)), "inside");
  ExpectWhole(ReadOne(Replaced(kMessage, "memory", red + "mem" + plain + "ory")), "in words");
}

TEST(Nuisances, FirstLineIsMissing) {
  const OomMessage m = ReadOne(
      "GPU 1 has a total capacity of 47.40 GiB of which 3.10 GiB is free. 36.00 GiB allowed; Of "
      "the "
      "allocated memory 7.25 GiB is allocated by PyTorch");
  EXPECT_EQ(m.device, 1);
  EXPECT_EQ(m.capacity, GiB(47.4));
  EXPECT_EQ(m.allowed, GiB(36));
  EXPECT_EQ(m.allocated, GiB(7.25));
  EXPECT_FALSE(m.requested);
  EXPECT_FALSE(
      RecogniseErrorText("The node has a total capacity of 36 GiB of which 3 GiB is free"));
}

TEST(Nuisances, Markdown) {
  ExpectWhole(ReadOne("I get\n```\n" + std::string(kMessage) + "\n```\nwhat now?"), "fence");
  ExpectWhole(ReadOne("- `" + std::string(kMessage) + "`"), "code");
  ExpectWhole(ReadOne(Replaced(kMessage, "2.50 GiB", "**2.50 GiB**")), "bold");
  ExpectWhole(ReadOne("> " + Wrapped(70, "> ")), "quote");
}

TEST(Nuisances, HtmlEntities) {
  const OomMessage m = ReadOne(
      "CUDA out of memory. Tried to allocate 20.00&nbsp;MiB (GPU&#32;0; 23.69 GiB total capacity");
  EXPECT_EQ(m.requested, MiB(20));
  EXPECT_EQ(ReadOne("x CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 23.69 GiB total "
                    "capacity; 21.90 GiB already allocated; 14.69 MiB free; 22.51 GiB reserved in "
                    "total by PyTorch) If reserved memory is &gt;&gt; allocated memory try setting "
                    "max_split_size_mb")
                .torch->ToString(),
            "1.10 to 2.0");
  ExpectWhole(ReadOne(Replaced(kMessage, " ", "&nbsp;")), "&nbsp;");
}

TEST(Nuisances, NonBreakingSpacesAndWindowsLineEnds) {
  ExpectWhole(ReadOne(Replaced(kMessage, " ", "\xc2\xa0")), "nbsp");
  ExpectWhole(ReadOne(Wrapped(80, "", "\r\n")), "crlf");
  ExpectWhole(ReadOne("\xef\xbb\xbf" + std::string(kMessage)), "byte order mark");
}

TEST(Nuisances, Utf16OfPowerShell) {
  std::string text = "\xff\xfe";
  for (const char* c = kMessage; *c != '\0'; ++c) (text += *c) += '\0';
  ExpectWhole(ReadOne(text), "utf-16");
}

TEST(Nuisances, JsonEscapes) {
  const std::string log =
      "{\"level\": \"error\", \"rank\": 6, \"text\": \"Traceback (most recent call last):\\n  File "
      "\\\"/home/me/train.py\\\", line 57, in main\\n    loss.backward()\\n\\u001b[31m" +
      std::string(kMessage) + "\\u001b[0m\\n\"}";
  const OomMessage m = ReadOne(log);
  ExpectWhole(m, "json");
  EXPECT_EQ(m.where, "train.py:57 in main");
  EXPECT_EQ(m.rank, 6);
  ExpectWhole(ReadOne("{\"text\": \"" + Replaced(Wrapped(64, ""), "\n", "\\\\n") + "\"}"), "twice");
}

TEST(Nuisances, CutOffAnywhere) {
  const std::string message = kMessage;
  std::size_t fields_before = 0;
  for (std::size_t length = 0; length <= message.size(); ++length) {
    const std::string text = message.substr(0, length);
    const Recording recording = ReadText(text);
    // The name of the exception alone says that memory ran out, and no more.
    const bool stated = text.find("OutOfMemory") != std::string::npos;
    const bool opened = text.find("CUDA out of memory") != std::string::npos;
    ASSERT_EQ(recording.messages.size(), stated ? 1u : 0u) << text;
    EXPECT_EQ(RecogniseErrorText(text), stated);
    if (!opened) continue;
    const OomMessage& m = recording.messages.front();
    EXPECT_EQ(m.source, MessageSource::kTorchCuda);
    EXPECT_EQ(m.cut_off, text.find("but unallocated") == std::string::npos) << text;
    std::size_t fields = m.processes.size();
    for (const auto& field :
         {m.requested, m.capacity, m.free, m.allocated, m.private_pools, m.reserved_free}) {
      if (field) ++fields;
    }
    EXPECT_GE(fields, fields_before) << text;
    fields_before = fields;
    // What is read is right, whatever is missing.
    EXPECT_EQ(m.requested.value_or(GiB(2.5)), GiB(2.5)) << text;
    EXPECT_EQ(m.capacity.value_or(GiB(79.15)), GiB(79.15)) << text;
    EXPECT_EQ(m.device.value_or(5), 5) << text;
    EXPECT_EQ(m.reserved_free.value_or(GiB(6.83)), GiB(6.83)) << text;
  }
  EXPECT_EQ(fields_before, 8u);
}

TEST(Nuisances, CutOffInsideTheLog) {
  const OomMessage m = ReadOne(
      "RuntimeError: CUDA out of memory. Tried to allocate 2.87 GiB (GPU 0; 14.76 GiB total cap\n"
      "Anyone with this error?\n");
  EXPECT_TRUE(m.cut_off);
  EXPECT_EQ(m.requested, GiB(2.87));
  EXPECT_EQ(m.device, 0);
}

TEST(Context, TheUsersLine) {
  const std::string text =
      "Traceback (most recent call last):\n"
      "  File \"/home/me/run.py\", line 9, in <module>\n    main()\n"
      "  File \"/home/me/train.py\", line 57, in main\n    loss = model(x)\n"
      "  File \"/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py\", line 1751, in "
      "_call_impl\n    return forward_call(*args, **kwargs)\n" +
      std::string(kMessage);
  EXPECT_EQ(ReadOne(text).where, "train.py:57 in main");
  EXPECT_EQ(ReadOne(Replaced(text, "/home/me", "/usr/lib/python3/dist-packages/me")).where, "");
  EXPECT_EQ(ReadOne(Replaced("x\n" + text, "\n", "\n[rank2]: ")).where, "train.py:57 in main");
  // The traceback of another rank between the lines is not ours.
  const std::string mixed =
      Replaced(Replaced("x\n" + text, "\n", "\n[rank2]: "), "    loss = model(x)\n",
               "    loss = model(x)\n[rank5]:   File \"/home/me/other.py\", line 3, in other\n");
  EXPECT_EQ(ReadOne(mixed).where, "train.py:57 in main");
}

TEST(Context, TwoRanksLineByLine) {
  std::string text;
  for (const char* line : {"Traceback (most recent call last):", "  File \"t.py\", line 1, in f",
                           "RuntimeError: CUDA error: out of memory"}) {
    for (const char* rank : {"[rank0]: ", "[rank1]: "}) text.append(rank).append(line).append("\n");
  }
  const Recording recording = ReadText(text);
  ASSERT_EQ(recording.messages.size(), 2u);
  EXPECT_EQ(recording.messages[0].where, "t.py:1 in f");
  EXPECT_EQ(recording.messages[1].where, "t.py:1 in f");
}

TEST(Context, OnlyTheLastTraceback) {
  EXPECT_EQ(
      ReadOne("Traceback (most recent call last):\n  File \"a.py\", line 1, in a\nKeyError\n\n"
              "During handling of the above exception, another exception occurred:\n\n"
              "Traceback (most recent call last):\n  File \"/x/site-packages/b.py\", line 2, "
              "in b\n" +
              std::string(kMessage))
          .where,
      "");
}

TEST(Context, RankOfTheLaunchersReport) {
  EXPECT_EQ(ReadOne("[0]:\n  time      : 2025-03-01_12:00:00\n  host      : node7\n  rank      : 2 "
                    "(local_rank: 1)\n  exitcode  : 1 (pid: 99)\n  error_file: /tmp/e.json\n  "
                    "traceback : Traceback (most recent call last):\n    File \"train.py\", line "
                    "5, in f\n  " +
                    std::string(kMessage))
                .rank,
            2);
  EXPECT_EQ(ReadOne(std::string(kMessage) + "\nE0301 failed (exitcode: 1) local_rank: 6 (pid: 99) "
                                            "of binary: python\n")
                .rank,
            6);
  EXPECT_EQ(ReadOne("export MASTER_PORT=1 RANK=4 WORLD_SIZE=8\n" + std::string(kMessage)).rank, 4);
}

TEST(Context, DeviceOfTheCode) {
  EXPECT_EQ(ReadOne("Traceback (most recent call last):\n  File \"t.py\", line 5, in f\n    "
                    "x.to(\"cuda:2\")\nRuntimeError: CUDA error: out of memory\n")
                .device,
            2);
}

TEST(Repeats, OfOneRankAreOneMessage) {
  const std::string prefixed = "[rank1]: " + std::string(kMessage) + "\n";
  const Recording recording = ReadText(prefixed + "ERROR:root:" + prefixed +
                                       prefixed.substr(0, 200) + "\nsomething\n" + kMessage);
  ASSERT_EQ(recording.messages.size(), 1u);
  ExpectWhole(recording.messages[0], "kept");
  EXPECT_EQ(recording.messages[0].rank, 1);
  EXPECT_EQ(recording.messages[0].line, 1u);
  EXPECT_EQ(recording.skipped.at("messages that repeat another one"), 3);
}

TEST(Repeats, OfTwoRanksAreTwo) {
  std::string text;
  for (int rank : {0, 1, 2}) text += "[rank" + std::to_string(rank) + "]: " + kMessage + "\n";
  const Recording recording = ReadText(text + text);
  ASSERT_EQ(recording.messages.size(), 3u);
  EXPECT_EQ(recording.messages[2].rank, 2);
}

TEST(Repeats, OtherFiguresAreAnotherMessage) {
  const Recording recording =
      ReadText(std::string(kMessage) + "\n" + Replaced(kMessage, "2.50 GiB", "2.52 GiB"));
  EXPECT_EQ(recording.messages.size(), 2u);
}

TEST(Repeats, TheBareSentenceBesideTheWholeOne) {
  EXPECT_EQ(ReadText(std::string(kMessage) + "\nCUDA out of memory. Exiting\n").messages.size(),
            1u);
}

TEST(Hostile, BinaryIsNotText) {
  std::string packed;
  for (int i = 0; i < 512; ++i) packed += static_cast<char>(i % 256);
  EXPECT_FALSE(RecogniseErrorText(packed + kMessage));
  EXPECT_FALSE(RecogniseErrorText(""));
  EXPECT_FALSE(RecogniseErrorText("loss 0.3, memory 512 MiB, out of data"));
}

TEST(Hostile, ManyOpeningsTakeLinearTime) {
  std::string text;
  for (int i = 0; i < 30'000; ++i) text += "CUDA out of memory. Tried to allocate 1.00 GiB (GPU ";
  EXPECT_EQ(ReadText(text).messages.size(), 1u);
  text.clear();
  for (int i = 0; i < 25'000; ++i) {
    text += "CUDA out of memory. Tried to allocate " + std::to_string(i) + ".00 KiB.\n";
  }
  const Recording recording = ReadText(text);
  EXPECT_EQ(recording.messages.size(), 20'000u);
  EXPECT_EQ(recording.skipped.at("messages beyond the first 20000 different ones"), 5'000);
}

TEST(Hostile, HugeNumbers) {
  const OomMessage m = ReadOne(
      "CUDA out of memory. Tried to allocate 99999999999999999999999999.00 GiB (GPU "
      "99999999999999999999; 99999999999999999 GiB total capacity; 18446744073709551615 bytes "
      "already allocated; 1.00 GiB free)");
  EXPECT_EQ(m.requested, std::nullopt);
}

}  // namespace
}  // namespace plimsoll::error_text_test
