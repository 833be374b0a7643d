#include "readers/error_text/prose.h"

#include <gtest/gtest.h>

#include <string>

#include "readers/error_text/error_text.h"

namespace plimsoll::prose_test {
namespace {

bool OnlyTalk(const std::string& text) {
  const std::string words = "out of memory";
  const std::size_t at = text.find(words);
  return OnlySpeaksOfIt(text, at, at + words.size());
}

TEST(Prose, TalkIsNoReport) {
  for (const char* text :
       {"this avoids CUDA out of memory", "may run out of memory on small cards",
        "restarts when a worker runs out of memory", "If you get out of memory, lower the batch",
        "we never ran out of memory", "out of memory errors are common",
        "  --low  for cards that go out of memory",
        "if \"out of memory\" in str(e):", "raise on out of memory",
        "raise RuntimeError(\"out of memory\")", "retries: 3  # after the GPU goes out of memory",
        "jobs that go out of memory are restarted", "keeps small cards from running out of memory",
        "see https://example.org/#out of memory", "reduces the chance of out of memory",
        "out of memory is not the problem here",
        "The job is resubmitted if it\nruns out of memory twice"}) {
    EXPECT_TRUE(OnlyTalk(text)) << text;
  }
}

TEST(Prose, AReportIsNeverTalk) {
  for (const char* text :
       {"out of memory", "RuntimeError: could not run: out of memory",
        "It crashed when the loader began: out of memory",
        "my run goes out of memory when I evaluate", "worker 3 will be restarted: out of memory",
        "step 4 failed when it went out of memory", "--- out of memory ---",
        "could not load the model because out of memory", "ERROR if this persists out of memory",
        "Training will stop now\nout of memory", "The batch may be too large, out of memory",
        "it would not start (out of memory)", "# Training goes out of memory",
        "RuntimeError('out of memory')", "retry 2 of 5 after the GPU went out of memory"}) {
    EXPECT_FALSE(OnlyTalk(text)) << text;
  }
}

TEST(Prose, FiguresProveAReport) {
  EXPECT_TRUE(RecogniseErrorText(
      "if this helps: when it stops it may show CUDA out of memory. Tried to allocate 2.00 GiB "
      "(GPU 0; 8.00 GiB total capacity)"));
}

}  // namespace
}  // namespace plimsoll::prose_test
