#include "job/transforms/release.h"

#include <gtest/gtest.h>

#include "job/lowering/job_for_tests.h"

namespace plimsoll::release_test {
namespace {

using testing_job::Always;
using testing_job::JobMaker;
using testing_job::RequestsOf;

/// A storage that is freed after two more are made.
struct Held {
  Held() {
    maker.BeginStep();
    held = maker.Make("aten.relu.default", Always(100));
    made = maker.variant().events.size();
    maker.Make("aten.relu.default", Always(200));
    other = maker.Make("aten.relu.default", Always(300));
    maker.Free(held);
  }
  std::string With(const std::vector<const Release*>& releases) {
    const Variant changed = FreeEarlier(maker.variant(), releases);
    return RequestsOf(Lower(maker.job, changed, *FindGpu("H200"), {.batch = 2, .steps = 1}));
  }
  JobMaker maker;
  Storage held = 0;
  Storage other = 0;
  std::size_t made = 0;
};

TEST(FreeEarlier, MovesTheFree) {
  Held job;
  EXPECT_EQ(job.With({}), "+400 +800 +1200 -400");
  const Release release{.edits = {}, .frees = {{job.made, job.held}}};
  EXPECT_EQ(job.With({&release}), "+400 -400 +800 +1200");
  EXPECT_TRUE(FreeEarlier(job.maker.variant(), {&release}).releases.empty());
}

TEST(FreeEarlier, FreesWhatNeverWas) {
  Held job;
  const Release release{.edits = {}, .frees = {{job.maker.variant().events.size(), job.other}}};
  EXPECT_EQ(job.With({&release}), "+400 +800 +1200 -400 -1200");
}

TEST(FreeEarlier, TheEarlierOfTwoComesFirst) {
  Held job;
  const Release late{.edits = {}, .frees = {{job.made + 1, job.held}}};
  const Release early{.edits = {}, .frees = {{job.made, job.held}}};
  EXPECT_EQ(job.With({&late, &early}), "+400 -400 +800 +1200");
}

}  // namespace
}  // namespace plimsoll::release_test
