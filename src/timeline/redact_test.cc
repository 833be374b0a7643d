#include "timeline/redact.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace plimsoll::redact_test {
namespace {

constexpr std::uint64_t kSalt = 42;

/// One frame and one stack for each file, all in one timeline.
Recording WithFiles(const std::vector<std::string>& files) {
  Recording recording;
  StackTable& stacks = recording.timelines.emplace_back().stacks;
  for (const std::string& file : files) {
    const StringId function = stacks.strings.Intern("forward");
    const FrameId frame = stacks.AddFrame({function, stacks.strings.Intern(file), 7});
    stacks.AddStack(std::array{frame});
  }
  return recording;
}

std::string FileOf(const Recording& recording, std::size_t stack) {
  const StackTable& stacks = recording.timelines[0].stacks;
  return std::string(stacks.strings[stacks.frame(stacks.stack(StackId(stack))[0]).file]);
}

std::string Redacted(const std::string& file, std::uint64_t salt = kSalt) {
  Recording recording = WithFiles({file});
  RedactFileNames(recording, salt);
  return FileOf(recording, 0);
}

std::string RedactedText(const std::string& text) {
  Recording recording;
  recording.messages.push_back({.where = text});
  RedactFileNames(recording, kSalt);
  return recording.messages[0].where;
}

TEST(Redact, TheUsersFilesLoseTheirNames) {
  const std::string name = Redacted("/home/alice/secret/train.py");
  EXPECT_TRUE(name.starts_with("file-")) << name;
  EXPECT_TRUE(name.ends_with(".py")) << name;
  EXPECT_EQ(name.size(), std::string("file-123456.py").size());
  EXPECT_EQ(Redacted("/home/alice/secret/train.py"), name);
  EXPECT_NE(Redacted("/home/alice/secret/train.py", 43), name);
  EXPECT_NE(Redacted("/home/alice/other/train.py"), name);
  EXPECT_TRUE(Redacted("C:\\Users\\alice\\net.cc").ends_with(".cc"));
  EXPECT_EQ(Redacted("/home/alice/run.of_the_secret_project").size(), 11u);
}

TEST(Redact, KnownAnswerOfSipHash) {
  // Computed apart, with the key (42, 0x9e3779b97f4a7c15).
  EXPECT_EQ(Redacted("/home/alice/train.py"), "file-6b8713.py");
}

TEST(Redact, LibrariesKeepTheirNamesWithoutWhatIsBefore) {
  const std::string venv = "/home/alice/venv/lib/python3.11/";
  EXPECT_EQ(Redacted(venv + "site-packages/torch/_tensor.py"), "…/site-packages/torch/_tensor.py");
  EXPECT_EQ(Redacted(venv + "site-packages/transformers/a.py"),
            "…/site-packages/transformers/a.py");
  EXPECT_EQ(Redacted("/usr/lib/python3/dist-packages/apex/a.py"), "…/dist-packages/apex/a.py");
  EXPECT_EQ(Redacted(venv + "threading.py"), "…/lib/python3.11/threading.py");
  EXPECT_EQ(Redacted("/build/alice/pytorch/aten/src/ATen/Context.cpp"),
            "…/aten/src/ATen/Context.cpp");
  EXPECT_EQ(Redacted("/usr/lib/x86_64-linux-gnu/libc.so.6"), "/usr/lib/x86_64-linux-gnu/libc.so.6");
  for (const char* same : {"", "??", "<string>", "<frozen importlib._bootstrap>"}) {
    EXPECT_EQ(Redacted(same), same);
  }
}

TEST(Redact, FoldersThatOnlyLookLikeALibrarysKeepNothingElse) {
  // diagnose/stack_traits.cc takes these for libraries, before and after.
  const std::string compiled = Redacted("/tmp/torchinductor_alice/ab/cabc.py");
  EXPECT_TRUE(compiled.starts_with("…/torchinductor/file-")) << compiled;
  const std::string own = Redacted("/home/alice/lib/python/secret.py");
  EXPECT_TRUE(own.starts_with("…/lib/python/file-")) << own;
  const std::string dashed = Redacted("/home/alice/lib/python3-secret/secret.py");
  EXPECT_TRUE(dashed.starts_with("…/lib/python/file-")) << dashed;
}

TEST(Redact, PyTorchBuiltFromSourceKeepsItsFolder) {
  Recording recording = WithFiles({"/home/alice/pytorch/torch/optim/adam.py",
                                   "/home/alice/pytorch/torch/nn/modules/module.py",
                                   "/home/alice/pytorch/torches/mine.py"});
  RedactFileNames(recording, kSalt);
  EXPECT_EQ(FileOf(recording, 0), "…/torch/optim/adam.py");
  EXPECT_EQ(FileOf(recording, 1), "…/torch/nn/modules/module.py");
  EXPECT_TRUE(FileOf(recording, 2).starts_with("file-"));
}

TEST(Redact, NoTwoFilesBecomeOne) {
  std::vector<std::string> files = {"/a/site-packages/x.py", "/b/site-packages/x.py"};
  // Among so many some agree in the first six digits of their hashes.
  for (int i = 0; i < 20'000; ++i) files.push_back("/me/" + std::to_string(i) + ".py");
  Recording recording = WithFiles(files);
  RedactFileNames(recording, kSalt);
  std::set<std::string> names;
  for (std::size_t i = 0; i < files.size(); ++i) names.insert(FileOf(recording, i));
  EXPECT_EQ(names.size(), files.size());
  EXPECT_EQ(FileOf(recording, 0), "…/site-packages/x.py");
  EXPECT_TRUE(FileOf(recording, 1).ends_with("/site-packages/x.py"));
}

TEST(Redact, StacksStayAsTheyAre) {
  Recording recording = WithFiles({"/me/a.py", "/me/b.py"});
  Timeline& timeline = recording.timelines[0];
  const StackId both = timeline.stacks.AddStack(std::array{FrameId(1), FrameId(0)});
  timeline.annotations.push_back({.name = timeline.stacks.strings.Intern("Optimizer.step#Adam")});
  timeline.notes.push_back({.text = timeline.stacks.strings.Intern("at /me/a.py:3, twice")});
  RedactFileNames(recording, kSalt);
  const StackTable& stacks = timeline.stacks;
  ASSERT_EQ(stacks.frame_count(), 2u);
  ASSERT_EQ(stacks.stack_count(), 3u);
  ASSERT_EQ(stacks.stack(both).size(), 2u);
  EXPECT_EQ(stacks.stack(both)[0], FrameId(1));
  EXPECT_EQ(stacks.frame(FrameId(1)).line, 7);
  EXPECT_EQ(stacks.strings[stacks.frame(FrameId(1)).function], "forward");
  EXPECT_EQ(stacks.strings[timeline.annotations[0].name], "Optimizer.step#Adam");
  EXPECT_EQ(stacks.strings[timeline.notes[0].text], "at " + FileOf(recording, 0) + ":3, twice");
}

TEST(Redact, PathsInTexts) {
  const std::string name = Redacted("/home/alice/train.py");
  EXPECT_EQ(RedactedText("File \"/home/alice/train.py\", line 57"),
            "File \"" + name + "\", line 57");
  EXPECT_EQ(RedactedText("at /home/alice/train.py:57:3."), "at " + name + ":57:3.");
  EXPECT_EQ(RedactedText("train.py:57 in main"), Redacted("train.py") + ":57 in main");
  EXPECT_EQ(RedactedText("/v/site-packages/torch/_tensor.py:5"),
            "…/site-packages/torch/_tensor.py:5");
  const std::string folder = RedactedText("reading /data/alice/corpus now");
  EXPECT_TRUE(folder.starts_with("reading path-")) << folder;
  EXPECT_TRUE(folder.ends_with(" now")) << folder;
  for (const char* same :
       {"Optimizer.step#AdamW.step", "model/conv2d/Conv2D", "jit(f)/dot_general",
        "at::operator/(at::Tensor const&)", "3.5 GiB/s", "a : b. ", "/dev/nvidia0"}) {
    EXPECT_EQ(RedactedText(same), same);
  }
  for (const char* path : {"loading:/scratch/alice/run", "run@/data/alice/x", "D:/work/alice/run",
                           "\\\\server\\share\\alice", "/dev/shm/alice/secret.py"}) {
    EXPECT_EQ(RedactedText(path).find("alice"), std::string::npos) << RedactedText(path);
  }
  EXPECT_EQ(RedactedText("see https://pytorch.org/docs/stable"),
            "see https://pytorch.org/docs/stable");
  const std::string traced = Redacted("<eval_with_key>.3 from /me/secret.py:20 in forward");
  EXPECT_TRUE(traced.starts_with("<eval_with_key>.3 from file-")) << traced;
  EXPECT_TRUE(traced.ends_with(".py:20 in forward")) << traced;
}

TEST(Redact, MessagesToo) {
  Recording recording;
  recording.file = "/home/alice/log.txt";
  recording.messages.push_back(
      {.subject = "/home/alice/net.py", .buffers = {{.where = "gemma.py:175", .what = "dot"}}});
  RedactFileNames(recording, kSalt);
  EXPECT_EQ(recording.file, "/home/alice/log.txt");
  EXPECT_EQ(recording.messages[0].subject, Redacted("/home/alice/net.py"));
  EXPECT_EQ(recording.messages[0].buffers[0].where, Redacted("gemma.py") + ":175");
  EXPECT_EQ(recording.messages[0].buffers[0].what, "dot");
}

}  // namespace
}  // namespace plimsoll::redact_test
