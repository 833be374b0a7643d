#include "job/file/at_length.h"

#include <gtest/gtest.h>

#include "files/input.h"
#include "job/file/step_file.h"
#include "job/lowering/lower.h"

namespace plimsoll {
namespace {

/// Scores of attention: [batch, 8, length, length], and an argument that is batch times length.
constexpr std::string_view kScores = R"({"schema": "plimsoll.step/2", "batches": [4, 8],
 "dimensions": ["batch", "side"],
 "points": [[4, 128], [8, 128], [4, 192], [8, 192], [4, 256]],
 "numbers": [[4, 8, 4, 8, 4], [128, 128, 192, 192, 256],
             [131072, 131072, 294912, 294912, 524288], [16384, 16384, 36864, 36864, 65536],
             [2097152, 4194304, 4718592, 9437184, 8388608], [512, 1024, 768, 1536, 1024]],
 "strings": ["aten.bmm.default"],
 "layouts": [["float32", [[0], 8, [1], [1]], [[2], [3], [1], 1]]],
 "variants": [{"precision": "as_written", "events": [["step"],
   ["call", 0, -1, -1, 0, [{"n": [5]}], {}, [{"t": [1, 0, 0]}], [[1, [4], 0]]]]}],
 "notes": []%MORE%})";

Job Read(std::string text, const std::string& more = "") {
  text.replace(text.find("%MORE%"), 6, more);
  const Result<Job> job = ReadJob(*Input::FromMemory("job.step.json", text));
  EXPECT_TRUE(job) << job.error().message;
  return CopyOf(*job, 0);
}

TEST(AtLength, SizesStridesAndArgumentsAreThoseOfTheLength) {
  const Job job = Read(std::string(kScores));
  ASSERT_TRUE(HasLength(job));
  EXPECT_EQ(NameOfLength(job), "side");
  EXPECT_EQ(CapturedLengths(job), (std::vector<std::int64_t>{128, 192, 256}));
  const JobAtLength at = AtLength(job, 1024);
  EXPECT_EQ(at.job.length, 1024);
  EXPECT_EQ(at.rounded, 0u);
  const AtBatch here(at.job, 3);
  const Layout& layout = here.layout(0);
  EXPECT_EQ(layout.sizes, (std::vector<std::int64_t>{3, 8, 1024, 1024}));
  EXPECT_TRUE(layout.IsContiguous());
  const Call call(at.job.variants[0].calls[0], here, Stage::kForward);
  EXPECT_EQ(call.IntArg(0), 3 * 1024);
}

TEST(AtLength, AStepOfASequenceIsThePointItWasCapturedAt) {
  const Job job = Read(std::string(kScores), R"(, "own_batch": 4, "sequence": [4, 0, [4, 320]])");
  EXPECT_FALSE(HasLength(job));
  ASSERT_EQ(job.sequence.size(), 3u);
  const Job captured = AtStep(job, job.sequence[0]);
  EXPECT_EQ(captured.layouts[0].sizes[2], Number::Always(256));
  const Job between = AtStep(job, job.sequence[2]);
  EXPECT_EQ(between.layouts[0].sizes[2], Number::Always(320));
  EXPECT_EQ(between.layouts[0].strides[1], Number::Always(320 * 320));
}

TEST(AtLength, BrokenFilesAreRefusedInALine) {
  for (const std::string more :
       {R"(, "sequence": [5])", R"(, "sequence": [[4]])", R"(, "sequence": 3)",
        R"(, "as_it_stands": {"schema": "plimsoll.step/1"})"}) {
    std::string text(kScores);
    text.replace(text.find("%MORE%"), 6, more);
    EXPECT_FALSE(ReadJob(*Input::FromMemory("job.step.json", text))) << more;
  }
}

}  // namespace
}  // namespace plimsoll
