#include "launch/shell_command.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "files/output.h"

namespace plimsoll::shell_command_test {
namespace {

TEST(ShellCommand, TheLastPythonCommandIsFound) {
  EXPECT_EQ(
      PythonCommandIn("#!/bin/bash\nset -e\npython prepare.py\n"
                      "export A=1\n\nCUDA_VISIBLE_DEVICES=0 python3 -u train.py \\\n"
                      "  --lr 1e-4 \\\n  --epochs 3 \"$@\" 2>&1 | tee log.txt\n# python old.py\n"),
      "python3 -u train.py --lr 1e-4 --epochs 3 \"$@\"");
  EXPECT_EQ(PythonCommandIn("exec torchrun --nproc-per-node 4 train.py > log &"),
            "torchrun --nproc-per-node 4 train.py");
  EXPECT_EQ(PythonCommandIn("cd src && ../venv/bin/python -m pkg.train;"),
            "../venv/bin/python -m pkg.train");
  EXPECT_EQ(PythonCommandIn("echo done\nmake\n"), "");
  EXPECT_EQ(PythonCommandIn(""), "");
}

TEST(ShellCommand, AShellIsRefusedWithTheCommandToGive) {
  std::string folder = std::filesystem::temp_directory_path() / "plimsoll_shell_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string script = folder + "/train.sh";
  ASSERT_FALSE(WriteFile(script, "#!/bin/sh\npython train.py --lr 1\n"));
  for (const std::vector<std::string>& command : {std::vector<std::string>{"bash", script},
                                                  {"/bin/sh", "-x", script, "8"},
                                                  {script},
                                                  {"bash", "-c", "python train.py --lr 1"}}) {
    const auto error = RefuseShell(command);
    ASSERT_TRUE(error);
    EXPECT_NE(error->hint.find("python train.py --lr 1"), std::string::npos) << error->hint;
  }
  std::filesystem::remove_all(folder);
}

TEST(ShellCommand, WithoutItsScriptTheHintIsAnExample) {
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"bash"}, {"bash", "/nowhere/train.sh"}, {"bash", "/dev/zero"}}) {
    const auto error = RefuseShell(command);
    ASSERT_TRUE(error);
    EXPECT_NE(error->hint.find("python train.py --batch-size {batch}"), std::string::npos);
  }
}

TEST(ShellCommand, OtherCommandsAreLeft) {
  EXPECT_FALSE(RefuseShell({}));
  EXPECT_FALSE(RefuseShell({"python", "train.py"}));
  EXPECT_FALSE(RefuseShell({"torchrun", "train.py"}));
  EXPECT_FALSE(RefuseShell({"./train.py"}));
}

}  // namespace
}  // namespace plimsoll::shell_command_test
