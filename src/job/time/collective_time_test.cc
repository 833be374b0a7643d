#include "job/time/collective_time.h"

#include <gtest/gtest.h>

#include "job/lowering/job_for_tests.h"
#include "job/time/step_time.h"
#include "job/transforms/job_editor.h"

namespace plimsoll::collective_time_test {
namespace {

using testing_job::Always;
using testing_job::JobMaker;
using Kind = Collective::Kind;

double TimeOn(const char* gpu, Kind kind, double bytes, std::int64_t ranks,
              const Cluster& cluster = {}) {
  return CollectiveTime({kind, {}, ranks}, bytes, *FindGpu(gpu), cluster);
}

TEST(CollectiveTime, AnAllReduceIsAReduceScatterAndAnAllGather) {
  const double gather =
      TimeOn("H100", Kind::kAllGather, 1e9, 8) - TimeOn("H100", Kind::kSend, 0, 8);
  const double reduce =
      TimeOn("H100", Kind::kAllReduce, 1e9, 8) - TimeOn("H100", Kind::kSend, 0, 8);
  EXPECT_DOUBLE_EQ(reduce, 2 * gather);
  // 7/8 of a GB at some 350 GB/s.
  EXPECT_NEAR(gather, 2500, 100);
}

TEST(CollectiveTime, NVLinkIsFasterThanPcie) {
  EXPECT_LT(TimeOn("H100", Kind::kAllReduce, 1e9, 8), TimeOn("RTX 4090", Kind::kAllReduce, 1e9, 8));
}

TEST(CollectiveTime, ASlowNetworkCountsOnceThereAreSeveralNodes) {
  const Cluster slow{.network = 1e9};
  EXPECT_EQ(TimeOn("H100", Kind::kAllReduce, 1e9, 8, slow),
            TimeOn("H100", Kind::kAllReduce, 1e9, 8));
  EXPECT_GT(TimeOn("H100", Kind::kAllReduce, 1e9, 16, slow),
            10 * TimeOn("H100", Kind::kAllReduce, 1e9, 16));
}

/// Work on the GPU, then a collective, more work, and a wait for it.
StepDuration WithCollective(bool early, double bytes) {
  JobMaker maker;
  maker.BeginStep();
  maker.Begin(Stage::kForward);
  const auto work = [&] {
    const Storage storage = maker.Make("aten.relu.default", Always(1 << 28));
    maker.variant().calls.back().args = {
        {TensorUse{.storage = storage, .layout = maker.last_call().results[0].layout}}};
  };
  const auto add = [&](CallRecord call) {
    maker.variant().calls.push_back(std::move(call));
    maker.variant().events.push_back(
        {.kind = JobEvent::Kind::kCall,
         .index = static_cast<std::uint32_t>(maker.variant().calls.size() - 1)});
  };
  work();
  const auto size = static_cast<std::int64_t>(bytes);
  if (size > 0) add(CallOf(maker.job, {Kind::kAllReduce, {size, size}, 8}, early));
  work();
  if (size > 0) add(WaitCall(maker.job));
  return StepTime(maker.job, maker.variant(), *FindGpu("H100"), 2);
}

TEST(CollectiveTime, OnlyWhatDoesNotOverlapIsAdded) {
  const double alone = WithCollective(false, 0).us;
  const double host = 2 * HostModel{}.forward;  // of the two calls that are added
  EXPECT_LE(WithCollective(false, 1e6).us, alone + host);
  const double small = WithCollective(false, 1e9).us;
  const double large = WithCollective(false, 2e9).us;
  EXPECT_NEAR(large - small,
              TimeOn("H100", Kind::kAllReduce, 1e9, 8) - TimeOn("H100", Kind::kSend, 0, 8), 1);
  EXPECT_EQ(WithCollective(false, 1e6).waited_us, 0);
  EXPECT_NEAR(WithCollective(false, 2e9).us - alone - host, WithCollective(false, 2e9).waited_us,
              host);
  // What can begin early does so beside the work before it.
  EXPECT_LT(WithCollective(true, 1e9).us, small);
  EXPECT_EQ(WithCollective(true, 1e9).gpu.us, WithCollective(false, 0).gpu.us);
}

}  // namespace
}  // namespace plimsoll::collective_time_test
