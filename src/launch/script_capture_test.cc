#include "launch/script_capture.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "files/input.h"
#include "files/output.h"

namespace plimsoll::script_capture_test {
namespace {

namespace fs = std::filesystem;

class ScriptCapture : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "plimsoll_script_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  /// A program of this name in the folder: a shell script.
  std::string Program(const std::string& name, const std::string& text) {
    const std::string path = (folder_ / name).string();
    EXPECT_FALSE(WriteFile(path, "#!/bin/sh\n" + text));
    EXPECT_EQ(::chmod(path.c_str(), 0700), 0);
    return path;
  }
  ScriptJob Job(const std::string& python) const {
    return {.command = {python, "train.py", "{batch}"},
            .batches = {{4, 8}},
            .gpu = "H200",
            .step_file = (folder_ / "out.step.json").string()};
  }

  fs::path folder_;
};

TEST_F(ScriptCapture, PythonIsTheFirstWord) {
  EXPECT_EQ(PythonOf({"/opt/v/bin/python3.12", "train.py"}), "/opt/v/bin/python3.12");
  EXPECT_EQ(PythonOf({"train.py"}), "python3");
  EXPECT_EQ(PythonOf({}), "python3");
}

TEST_F(ScriptCapture, PythonStandsBesideALauncher) {
  const std::string python = Program("python3", "");
  EXPECT_EQ(PythonOf({Program("torchrun", ""), "train.py"}), python);
}

TEST_F(ScriptCapture, TheArchiveIsRunWithTheCommand) {
  // "$1" is the archive; what it is called with goes where the step file should.
  const std::string python =
      Program("python", "test -s \"$1\" || exit 9\nout=\"$3\"\nshift 3\necho \"$@\" > \"$out\"\n");
  const ScriptJob job = Job(python);
  ASSERT_FALSE(CaptureScript(job));
  const Result<Input> made = Input::Open(job.step_file);
  ASSERT_TRUE(made);
  const std::string text(made->bytes());
  EXPECT_TRUE(text.starts_with("--gpu H200 --batches 4,8 --complaint ")) << text;
  EXPECT_TRUE(text.ends_with(" -- " + python + " train.py {batch}\n")) << text;
}

TEST_F(ScriptCapture, TheNetworkIsAllowedWhereThatIsAsked) {
  const std::string python = Program("python", "out=\"$3\"\necho \"$@\" > \"$out\"\n");
  ScriptJob job = Job(python);
  for (const bool allowed : {false, true}) {
    job.allow_network = allowed;
    ASSERT_FALSE(CaptureScript(job));
    const Result<Input> made = Input::Open(job.step_file);
    ASSERT_TRUE(made);
    EXPECT_EQ(made->bytes().find(" --allow-network ") != std::string::npos, allowed)
        << made->bytes();
  }
}

TEST_F(ScriptCapture, AFolderForTemporaryFilesMayBeEmptied) {
  const std::string python = Program("python", "rm -r \"$(dirname \"$1\")\"\nexit 2\n");
  const auto error = CaptureScript(Job(python));
  ASSERT_TRUE(error);
  EXPECT_TRUE(error->message.ends_with("was removed while the script ran")) << error->message;
  EXPECT_NE(error->hint.find("TMPDIR"), std::string::npos) << error->hint;
}

TEST_F(ScriptCapture, WhatIsAssumedIsPassedOn) {
  const std::string python = Program("python", "out=\"$3\"\necho \"$@\" > \"$out\"\n");
  ScriptJob job = Job(python);
  ASSERT_FALSE(ReadAssumptions("mask=0.5,routing=worst", job.assume));
  ASSERT_FALSE(CaptureScript(job));
  const Result<Input> made = Input::Open(job.step_file);
  ASSERT_TRUE(made);
  EXPECT_NE(made->bytes().find(" --assume routing=worst,mask=0.5 "), std::string::npos)
      << made->bytes();
}

TEST_F(ScriptCapture, WhatThePackageSaysIsTheError) {
  const std::string python =
      Program("python", "shift 8\nprintf 'train.py:3: no\\nChange it\\n' > \"$1\"\nexit 2\n");
  const std::optional<Error> error = CaptureScript(Job(python));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->message, "train.py:3: no");
  EXPECT_EQ(error->hint, "Change it");
}

TEST_F(ScriptCapture, AModelByItsConfiguration) {
  Program("python3", "out=\"$4\"\necho \"$@\" > \"$out\"\n");
  const std::string path = ::getenv("PATH");
  ASSERT_EQ(::setenv("PATH", (folder_.string() + ":" + path).c_str(), 1), 0);
  const std::string made = (folder_ / "made").string();
  const std::optional<Error> error = CaptureConfiguration(
      {.path = "m/config.json", .sequence = 512, .gpu = "L4", .step_file = made});
  ASSERT_EQ(::setenv("PATH", path.c_str(), 1), 0);
  ASSERT_FALSE(error) << error->ToLine();
  const Result<Input> read = Input::Open(made);
  ASSERT_TRUE(read);
  const std::string text(read->bytes());
  EXPECT_NE(text.find(" configuration -o " + made + " --gpu L4 --seq 512 --complaint "),
            std::string::npos)
      << text;
  EXPECT_TRUE(text.ends_with(" -- m/config.json\n")) << text;
  EXPECT_EQ(text.find("lengths"), std::string::npos) << text;
}

TEST_F(ScriptCapture, AConfigurationIsMadeOverLengthsAroundOne) {
  const std::string python = Program("python3", "out=\"$4\"\necho \"$@\" > \"$out\"\n");
  const std::string path = ::getenv("PATH");
  ASSERT_EQ(::setenv("PATH", (folder_.string() + ":" + path).c_str(), 1), 0);
  const std::string made = (folder_ / "made").string();
  const std::optional<Error> error = CaptureConfiguration({.path = "m/config.json",
                                                           .over_lengths = true,
                                                           .around = 4096,
                                                           .gpu = "L4",
                                                           .step_file = made});
  ASSERT_EQ(::setenv("PATH", path.c_str(), 1), 0);
  ASSERT_FALSE(error) << error->ToLine();
  const Result<Input> read = Input::Open(made);
  ASSERT_TRUE(read);
  EXPECT_NE(read->bytes().find(" --over-lengths --around 4096 --complaint "), std::string::npos)
      << read->bytes();
}

/// A script that never ends does not outlive the program, however that is ended.
TEST_F(ScriptCapture, TheScriptEndsWithTheProgram) {
  const std::string begun = (folder_ / "begun").string();
  const std::string ended = (folder_ / "ended").string();
  const std::string python =
      Program("python", "trap 'echo > " + ended + "; exit 130' INT\necho > " + begun +
                            "\nwhile :; do sleep 0.05; done\n");
  for (const int signal : {SIGKILL, SIGTERM, SIGINT}) {
    fs::remove(begun);
    fs::remove(ended);
    const pid_t program = ::fork();
    if (program == 0) {
      ::signal(SIGINT, SIG_DFL);  // in a shell's background it is ignored, and would stay so
      CaptureScript(Job(python));
      ::_exit(0);
    }
    while (!fs::exists(begun)) ::usleep(10'000);
    ASSERT_EQ(::kill(program, signal), 0);
    ASSERT_EQ(::waitpid(program, nullptr, 0), program);
    while (!fs::exists(ended)) ::usleep(10'000);
  }
}

TEST_F(ScriptCapture, APythonThatFailsIsTold) {
  const std::optional<Error> error = CaptureScript(Job(Program("python", "exit 3\n")));
  ASSERT_TRUE(error);
  EXPECT_NE(error->message.find("exit code 3"), std::string::npos) << error->message;
  EXPECT_TRUE(CaptureScript(Job((folder_ / "python-none").string())));
}

}  // namespace
}  // namespace plimsoll::script_capture_test
