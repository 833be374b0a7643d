#include "launch/logged_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

namespace plimsoll::logged_command_test {
namespace {

std::string Typed(std::string_view log) {
  return fmt::format("{}", fmt::join(CommandIn(log).words, " "));
}

TEST(LoggedCommand, TheScriptOfATraceback) {
  constexpr std::string_view kLog =
      "epoch 1\n"
      "Traceback (most recent call last):\n"
      "  File \"/home/me/train.py\", line 57, in <module>\n"
      "    main()\n"
      "  File \"/home/me/util.py\", line 2, in <module>\n"
      "  File \"/opt/lib/python3.12/site-packages/torch/nn/module.py\", line 9, in forward\n"
      "torch.OutOfMemoryError: CUDA out of memory.\n";
  EXPECT_EQ(Typed(kLog), "python /home/me/train.py");
  EXPECT_FALSE(CommandIn(kLog).with_arguments);
}

TEST(LoggedCommand, TheScriptThatAnotherRanByItsPath) {
  EXPECT_EQ(CommandIn("Traceback (most recent call last):\n"
                      "  File \"/work/limit_run.py\", line 20, in <module>\n"
                      "    runpy.run_path(sys.argv[0], run_name=\"__main__\")\n"
                      "  File \"<frozen runpy>\", line 286, in run_path\n"
                      "  File \"<frozen runpy>\", line 88, in _run_code\n"
                      "  File \"train.py\", line 60, in <module>\n"
                      "    main()\n"
                      "  File \"/work/model.py\", line 3, in <module>\n")
                .words,
            (std::vector<std::string>{"python", "train.py"}));
}

TEST(LoggedCommand, RanksOfTorchrun) {
  EXPECT_EQ(Typed("[rank1]: Traceback (most recent call last):\r\n"
                  "[rank1]:   File \"train.py\", line 57, in <module>\r\n"
                  "E1117 torch.distributed.elastic.multiprocessing.api failed\r\n"),
            "torchrun --nproc-per-node gpu train.py");
}

TEST(LoggedCommand, WhatALauncherSays) {
  EXPECT_EQ(Typed("subprocess.CalledProcessError: Command '['/usr/bin/python3', '-u', 'sft.py', "
                  "'--lr', '1e-4']' returned non-zero exit status 1.\n"),
            "python sft.py --lr 1e-4");
  EXPECT_TRUE(CommandIn("cmd=['python', 'a.py', 'x']").with_arguments);
}

TEST(LoggedCommand, TheLauncherStays) {
  EXPECT_EQ(
      Typed("[INFO] [runner.py:568:main] cmd = /usr/bin/python3 -u -m deepspeed.launcher.launch "
            "--world_info=eyJ --master_port=29500 train_ds.py --lr 1e-4\n"),
      "deepspeed train_ds.py --lr 1e-4");
  EXPECT_EQ(Typed("[ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python', '-u', 'ds.py', "
                  "'--local_rank=1', '--bs', '4'] exits with return code = 1\n"),
            "deepspeed ds.py --bs 4");
  EXPECT_EQ(
      Typed("  File \"/opt/lib/python3/site-packages/accelerate/commands/launch.py\", line 9, "
            "in simple_launcher\n"
            "subprocess.CalledProcessError: Command '['/usr/bin/python3', 'sft.py', '--lr', "
            "'1e-4']' returned non-zero exit status 1.\n"),
      "accelerate launch sft.py --lr 1e-4");
  EXPECT_EQ(Typed("cmd=['python', 'a.py', '--local_rank=0', '--x']\n"),
            "torchrun --nproc-per-node gpu a.py --x");
  EXPECT_EQ(Typed("torchrun --nproc-per-node 8 train.py --bs 4\n"),
            "torchrun --nproc-per-node 8 train.py --bs 4");
  EXPECT_EQ(Typed("[launch.py:1:main]\n  File \"a.py\", line 1, in <module>\n"), "deepspeed a.py");
}

TEST(LoggedCommand, WhatAShellEchoed) {
  EXPECT_EQ(Typed("+ CUDA_VISIBLE_DEVICES=0 python train.py --batch-size 64\n"),
            "python train.py --batch-size 64");
  EXPECT_EQ(Typed("(env) me@node7:~/x$ torchrun --nproc-per-node 4 train.py\n"),
            "torchrun --nproc-per-node 4 train.py");
  EXPECT_EQ(Typed("$ python -m pack.train --fast\n"), "python -m pack.train --fast");
}

TEST(LoggedCommand, NothingThatAShellWouldRun) {
  EXPECT_EQ(Typed("$ python train.py; rm -rf ~\n"), "");
  EXPECT_EQ(Typed("$ python train.py $(reboot)\n"), "");
  EXPECT_EQ(Typed("Command '['python', 'a.py', '`reboot`']'\n"), "");
  EXPECT_EQ(Typed("  File \"a b;reboot.py\", line 1, in <module>\n"), "");
  EXPECT_EQ(Typed("$ rm train.py\n# python is nice\n"), "");
  EXPECT_EQ(Typed("[['a', ['b']"), "");
}

TEST(LoggedCommand, TheBatchSizeGetsAPlace) {
  const auto with = [](std::vector<std::string> words) {
    return fmt::format("{}", fmt::join(WithBatchPlace(std::move(words)).words, " "));
  };
  EXPECT_EQ(with({"python", "t.py", "--batch-size", "64"}), "python t.py --batch-size {batch}");
  EXPECT_EQ(with({"t.py", "--per_device_train_batch_size=4"}),
            "t.py --per_device_train_batch_size={batch}");
  EXPECT_EQ(with({"t.py", "data.batch_size=8", "lr=1"}), "t.py data.batch_size={batch} lr=1");
  EXPECT_EQ(with({"t.py", "-b", "2", "8"}), "t.py -b {batch} 8");
  EXPECT_EQ(with({"t.py", "--per-device-batch", "4"}), "t.py --per-device-batch {batch}");
  EXPECT_EQ(with({"t.py", "--train_bs=4"}), "t.py --train_bs={batch}");
  EXPECT_EQ(with({"t.py", "--train_batch_size", "64", "--micro-batch-size", "4"}),
            "t.py --train_batch_size 64 --micro-batch-size {batch}");
  EXPECT_EQ(with({"t.py", "--per_device_eval_batch_size", "4"}),
            "t.py --per_device_eval_batch_size 4");
  EXPECT_EQ(with({"t.py", "--global-batch-size=64"}), "t.py --global-batch-size=64");
  EXPECT_EQ(with({"t.py", "--batch-size", "auto"}), "t.py --batch-size auto");
}

TEST(LoggedCommand, TheDevicesThatItWasGiven) {
  const LoggedCommand seen =
      CommandIn("$ OMP_NUM_THREADS=4 CUDA_VISIBLE_DEVICES=2,3 python a.py\n");
  EXPECT_EQ(seen.words, (std::vector<std::string>{"python", "a.py"}));
  EXPECT_EQ(seen.variables, std::vector<std::string>{"CUDA_VISIBLE_DEVICES=2,3"});
  EXPECT_TRUE(CommandIn("$ CUDA_VISIBLE_DEVICES=$(reboot) python a.py\n").variables.empty());
}

}  // namespace
}  // namespace plimsoll::logged_command_test
