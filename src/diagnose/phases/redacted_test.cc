// A record without the names of the user's files (timeline/redact.h) says the same of its stacks.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "diagnose/phases/stack_traits.h"
#include "timeline/redact.h"

namespace plimsoll::redacted_test {
namespace {

/// A stack for each file, called from the user's own.
Recording Calls(const std::vector<std::string>& files, const std::string& function) {
  Recording recording;
  StackTable& stacks = recording.timelines.emplace_back().stacks;
  const FrameId user = stacks.AddFrame(
      {stacks.strings.Intern("main"), stacks.strings.Intern("/home/alice/pytorch/mine.py"), 1});
  stacks.AddStack(std::array{user});
  for (const std::string& file : files) {
    const StringId name = stacks.strings.Intern(function);
    const FrameId frame = stacks.AddFrame({name, stacks.strings.Intern(file), 2});
    stacks.AddStack(std::array{frame, user});
    stacks.AddStack(std::array{frame});
  }
  return recording;
}

void ExpectTheSame(const std::vector<std::string>& files, const std::string& function) {
  const Recording plain = Calls(files, function);
  Recording redacted = Calls(files, function);
  RedactFileNames(redacted, 1);
  const StackAnalysis before(plain.timelines[0]);
  const StackAnalysis after(redacted.timelines[0]);
  for (std::size_t s = 0; s < plain.timelines[0].stacks.stack_count(); ++s) {
    SCOPED_TRACE(files[0] + " " + function + ", stack " + std::to_string(s));
    const StackTraits& a = before.of(StackId(s));
    const StackTraits& b = after.of(StackId(s));
    EXPECT_EQ(a.signs, b.signs);
    EXPECT_EQ(a.framed, b.framed);
    EXPECT_EQ(a.root_in_torch, b.root_in_torch);
    EXPECT_EQ(a.root, b.root);
    EXPECT_EQ(a.site, b.site);
    EXPECT_EQ(a.caller, b.caller);
    EXPECT_EQ(a.user_frame, b.user_frame);
  }
}

TEST(Redacted, PyTorchIsFoundWhereverItLies) {
  for (const std::string torch : {"/home/alice/pytorch/torch/", "torch/", "/home/alice/mytorch/",
                                  "/v/lib/python3.12/site-packages/torch/", "/x-packages/torch/"}) {
    for (const std::string known :
         {"nn/modules/module.py", "_tensor.py", "optim/optimizer.py", "autograd/graph.py",
          "autograd/function.py", "utils/checkpoint.py"}) {
      for (const char* function : {"_call_impl", "_apply", "step"}) {
        ExpectTheSame({torch + known, torch + "optim/adam.py", torch + "nn/modules/linear.py",
                       torch + "distributed/run.py"},
                      function);
      }
    }
  }
}

TEST(Redacted, LibrariesStayLibraries) {
  for (const std::string file :
       {"/v/lib/python3.12/threading.py", "/home/alice/lib/python/mine.py",
        "/tmp/torchinductor_alice/ab/c.py", "/v/lib/python3.12/site-packages/apex/a.py",
        "<frozen runpy>", "<string>", "/usr/lib/python3/dist-packages/a.py", "??",
        "/home/alice/net.cc", "/home/alice/torch/nn.py"}) {
    ExpectTheSame({file, "/home/alice/other.py"}, "forward");
  }
}

}  // namespace
}  // namespace plimsoll::redacted_test
