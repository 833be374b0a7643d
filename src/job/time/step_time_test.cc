#include "job/time/step_time.h"

#include <gtest/gtest.h>

#include "job/lowering/job_for_tests.h"
#include "job/rules/testing.h"
#include "job/transforms/block_offload.h"

namespace plimsoll::step_time_test {
namespace {

using testing_job::Always;
using testing_job::Each;
using testing_job::JobMaker;

using Sizes = std::vector<std::int64_t>;

class KernelTimeTest : public testing::Test {
 protected:
  TensorUse Tensor(const Sizes& sizes, DType dtype = DType::kFloat32, Sizes strides = {}) {
    return maker_.MakeTensor(dtype, sizes, std::move(strides));
  }
  double Of(std::string_view op, std::vector<Argument> args, const std::vector<TensorUse>& results,
            const Gpu& gpu = H200(), bool tf32 = false) {
    const CallRecord record = maker_.MakeCall(op, std::move(args), results);
    return OfRecord(record, gpu, tf32);
  }
  double OfRecord(const CallRecord& record, const Gpu& gpu = H200(), bool tf32 = false) {
    const AtBatch at(maker_.job(), 2);
    const TimeModel model = TimeModelOf(gpu);
    return TimeOf(Call(record, at, Stage::kForward),
                  {.model = model, .gpu = gpu, .torch = {}, .matmul_tf32 = tf32})
        .us;
  }
  double ProductOf(std::int64_t m, std::int64_t n, std::int64_t k, DType dtype,
                   const Gpu& gpu = H200(), bool tf32 = false) {
    return Of("aten.mm.default", {Arg(Tensor({m, k}, dtype)), Arg(Tensor({k, n}, dtype))},
              {Tensor({m, n}, dtype)}, gpu, tf32);
  }
  static const Gpu& H200() {
    static const Gpu kGpu = *FindGpu("H200");
    return kGpu;
  }
  CallMaker maker_;
};

TEST_F(KernelTimeTest, LargeProductsRunNearTheRateOfTheCard) {
  const double flops = 2.0 * 8192 * 8192 * 8192;
  const double half = flops / ProductOf(8192, 8192, 8192, DType::kBFloat16) * 1e6;
  const double plain = flops / ProductOf(8192, 8192, 8192, DType::kFloat32) * 1e6;
  const double tf32 = flops / ProductOf(8192, 8192, 8192, DType::kFloat32, H200(), true) * 1e6;
  EXPECT_GT(half, 0.5 * *H200().rates.bf16);
  EXPECT_LT(half, *H200().rates.bf16);
  EXPECT_GT(plain, 0.5 * H200().rates.fp32);
  EXPECT_LT(plain, H200().rates.fp32);
  EXPECT_GT(tf32, 3 * plain);
}

TEST_F(KernelTimeTest, ToAllowTf32IsNeverSlower) {
  for (const Gpu& gpu : Gpus()) {
    for (const std::int64_t width : {64, 768, 1023, 50257}) {
      EXPECT_LE(ProductOf(4096, width, 770, DType::kFloat32, gpu, true),
                ProductOf(4096, width, 770, DType::kFloat32, gpu))
          << gpu.name << " " << width;
    }
  }
}

TEST_F(KernelTimeTest, OddWidthsAreSlower) {
  EXPECT_GT(ProductOf(8192, 50257, 768, DType::kBFloat16),
            2 * ProductOf(8192, 50304, 768, DType::kBFloat16));
}

TEST_F(KernelTimeTest, WhatCannotGoByVectorsIsSlower) {
  const std::int64_t rows = 32768;
  const auto add = [&](TensorUse other) {
    return Of("aten.add.Tensor", {Arg(Tensor({rows, 1024}, DType::kBFloat16)), Arg(other)},
              {Tensor({rows, 1024}, DType::kBFloat16)});
  };
  EXPECT_GT(add(Tensor({1024}, DType::kBFloat16)), add(Tensor({rows, 1024}, DType::kBFloat16)));
  const auto copy = [&](Sizes strides) {
    return Of("aten.clone.default", {Arg(Tensor({1024, 1024, 8}, DType::kFloat32, strides))},
              {Tensor({1024, 1024, 8})});
  };
  EXPECT_GT(copy({1, 1024 * 8, 1024}), 2 * copy({1024 * 8, 8, 1}));
}

TEST_F(KernelTimeTest, ADepthwiseConvolutionGoesByItsKernelAndItsLayout) {
  const auto time = [&](std::int64_t kernel, std::int64_t dilation, bool last) {
    const Sizes strides = last ? Sizes{56 * 56 * 96, 1, 56 * 96, 96} : Sizes{};
    const auto image = [&] { return Tensor({32, 96, 56, 56}, DType::kBFloat16, strides); };
    const std::int64_t padding = dilation * (kernel / 2);
    const auto pair = [](std::int64_t n) { return ListArg(Sizes{n, n}); };
    return Of("aten.convolution.default",
              {Arg(image()),
               Arg(Tensor({96, 1, kernel, kernel}, DType::kBFloat16)),
               {},
               pair(1),
               pair(padding),
               pair(dilation),
               Arg(false),
               pair(0),
               Arg(std::int64_t{96})},
              {image()});
  };
  EXPECT_LT(time(3, 1, true), time(3, 1, false)) << "cuDNN's kernels";
  EXPECT_GT(time(7, 1, true), time(3, 1, true));
  EXPECT_GT(time(3, 2, true), 5 * time(3, 1, true)) << "not written for dilation";
  EXPECT_GT(time(9, 1, true), 5 * time(7, 1, true)) << "nor for large kernels";
}

TEST_F(KernelTimeTest, AViewTakesNothing) {
  const auto no_memory = [&](std::string_view op) {
    CallRecord record = maker_.MakeCall(op, {Arg(Tensor({100}))}, {Tensor({100})});
    record.fresh.clear();
    return OfRecord(record);
  };
  EXPECT_EQ(no_memory("aten.view.default"), 0);
  EXPECT_GT(no_memory("aten.mul_.Tensor"), 0);
  EXPECT_EQ(Of("aten.empty.memory_format", {}, {Tensor({100})}), 0);
}

TEST_F(KernelTimeTest, ACardWithHalfOfEverythingTakesTwiceAsLong) {
  Gpu slow = H200();
  slow.bandwidth /= 2;
  slow.rates.fp32 /= 2;
  slow.rates.fp16 /= 2;
  slow.rates.bf16 = *slow.rates.bf16 / 2;
  slow.rates.tf32 = *slow.rates.tf32 / 2;
  EXPECT_NEAR(ProductOf(8192, 8192, 8192, DType::kBFloat16, slow) /
                  ProductOf(8192, 8192, 8192, DType::kBFloat16),
              2, 0.02);
  const auto relu = [&](const Gpu& gpu) {
    return Of("aten.relu.default", {Arg(Tensor({1 << 30}))}, {Tensor({1 << 30})}, gpu);
  };
  EXPECT_NEAR(relu(slow) / relu(H200()), 2, 0.02);
}

TEST_F(KernelTimeTest, CallsThatMakeNoSenseAreTimedByTheirTraffic) {
  EXPECT_EQ(Of("aten.mm.default", {}, {}), 0);
  EXPECT_GT(Of("aten.mm.default", {Arg(Tensor({8}))}, {Tensor({8})}), 0);
  EXPECT_GE(Of("aten.convolution.default", {}, {Tensor({8})}), 0);
  EXPECT_GE(Of("aten.convolution_backward.default", {Arg(Tensor({8}))}, {Tensor({8})}), 0);
  EXPECT_GE(Of("plimsoll.attention", {Arg(Tensor({8}))}, {Tensor({8})}), 0);
  EXPECT_GE(Of("aten.native_layer_norm.default", {}, {Tensor({8})}), 0);
}

/// Generation asks for one token at a time.
TEST_F(KernelTimeTest, AttentionOfOneQueryIsNoSlowerThanOfATileOfThem) {
  const auto attention = [&](std::int64_t queries) {
    const TensorUse query = Tensor({64, 16, queries, 64}, DType::kBFloat16);
    const TensorUse keys = Tensor({64, 16, 95, 64}, DType::kBFloat16);
    return Of("plimsoll.attention", {Arg(query), Arg(keys), Arg(keys), {}, Arg(0.0), Arg(false)},
              {query, Tensor({64, 16, queries})});
  };
  EXPECT_LE(attention(1), attention(64));
  EXPECT_LT(attention(64), attention(128));
}

/// Step after step, whatever the width; a narrow one in one kernel, but not in bf16.
TEST_F(KernelTimeTest, ARecurrentLayerTakesTimeForEachStep) {
  const auto lstm = [&](std::int64_t steps, std::int64_t hidden, DType dtype, std::int64_t layers) {
    const TensorUse input = Tensor({8, steps, 64}, dtype);
    std::vector<Argument> args = {Arg(input), {}, {}, {}, {}, {}};
    for (const std::int64_t size : {std::int64_t{2}, hidden, std::int64_t{0}, layers}) {
      args.push_back(Arg(size));
    }
    args.push_back(Arg(true));  // the batch comes first
    return Of("aten._cudnn_rnn.default", args, {Tensor({8, steps, hidden}, dtype)});
  };
  const double one = lstm(100, 512, DType::kFloat32, 1);
  EXPECT_GT(one, 1000);
  EXPECT_GT(lstm(200, 512, DType::kFloat32, 1), 1.7 * one);
  EXPECT_NEAR(lstm(100, 512, DType::kFloat32, 3), 3 * one, 0.01 * one);
  EXPECT_LT(lstm(100, 128, DType::kFloat32, 1), 0.3 * one);
  EXPECT_EQ(lstm(100, 128, DType::kBFloat16, 1), lstm(100, 512, DType::kBFloat16, 1));
}

/// What waits on the host costs what the kernels beside the copies do not cover.
TEST(StepTime, CopiesBesideTheKernelsTakeNothingIfThereIsWorkEnough) {
  const auto times = [](std::int64_t between) {
    JobMaker maker;
    const Storage weight = maker.Parameter(1);
    maker.BeginStep();
    maker.Begin(Stage::kForward);
    const auto call = [&](const char* module, const Number& floats, Storage of) {
      const Storage made =
          maker.Make("aten.relu.default", floats, {Arg(maker.Floats(of, {Always(1)}))});
      maker.last_call().module = maker.job.strings.Intern(module);
      return made;
    };
    const Storage saved = call("h.0", Each(50'000'000), weight);
    const Storage out = call("h.0", Each(1), saved);
    for (std::int64_t i = 0; i < between; ++i) call("h.1", Each(500'000'000), out);
    maker.Begin(Stage::kBackward);
    for (std::int64_t i = 0; i < between; ++i) call("h.1", Each(500'000'000), out);
    call("h.0", Each(1), saved);
    maker.Free(saved);
    const Gpu gpu = *FindGpu("H200");
    const double plain = StepTime(maker.job, maker.variant(), gpu, 2).us;
    const Variant waiting =
        OffloadBlocks(maker.job, maker.variant(), {*ParseCheckpointSegment("h.0[host:h.1]")});
    return std::pair(plain, StepTime(maker.job, waiting, gpu, 2).us);
  };
  const auto [plain, copied] = times(1);
  EXPECT_GT(copied, 1.5 * plain);
  const auto [long_plain, hidden] = times(60);
  EXPECT_LT(hidden, 1.02 * long_plain);
}

TEST(StepTime, IsThatOfTheLastStepAndGrowsWithTheBatch) {
  JobMaker maker;
  maker.BeginStep();
  maker.Make("aten.relu.default", Each(1'000'000'000));
  maker.BeginStep();
  maker.Make("aten.relu.default", Each(1'000'000));
  const Gpu gpu = *FindGpu("H200");
  const double two = StepTime(maker.job, maker.variant(), gpu, 2000).gpu.us;
  const double four = StepTime(maker.job, maker.variant(), gpu, 4000).gpu.us;
  EXPECT_NEAR(four / two, 2, 0.01);
  // 8 GB at 4.8 TB/s, of which a part is reached.
  EXPECT_GT(two, 1e6 * 8e9 / 4.8e12);
  EXPECT_LT(two, 2e6 * 8e9 / 4.8e12);
}

TEST(StepTime, TheHostAndTheGpuWorkSideBySide) {
  JobMaker maker;
  const Gpu gpu = *FindGpu("H200");
  EXPECT_EQ(StepTime(maker.job, maker.variant(), gpu, 2).us, 0);
  maker.BeginStep();
  maker.Begin(Stage::kForward);
  for (int i = 0; i < 100; ++i) maker.Make("aten.relu.default", Each(1));
  const StepDuration small = StepTime(maker.job, maker.variant(), gpu, 2);
  EXPECT_GT(small.host_us, 10 * small.gpu.us) << "kernels wait for the host";
  EXPECT_NEAR(small.us / small.host_us, 1, 0.05);
  const StepDuration large = StepTime(maker.job, maker.variant(), gpu, 1'000'000'000);
  EXPECT_EQ(large.host_us, small.host_us);
  EXPECT_NEAR(large.us / large.gpu.us, 1, 0.05) << "the host is long done";
  HostModel fast;
  fast.forward /= 10;
  EXPECT_LT(StepTime(maker.job, maker.variant(), gpu, 2, {}, fast).us, small.us);
}

TEST(StepTime, AGraphTakesTheHostAsLongHoweverMuchIsInIt) {
  const auto host_us = [](int kernels) {
    JobMaker maker;
    maker.variant().compiled = true;
    const auto mark = [&](std::string_view op) {
      maker.Make(op, Each(1));
      maker.last_call().results.clear();
      maker.last_call().fresh.clear();
    };
    maker.BeginStep();
    maker.Begin(Stage::kForward);
    mark("inductor.graph");
    for (int i = 0; i < kernels; ++i) maker.Make("aten.relu.default", Each(1));
    mark("inductor.graph_end");
    maker.Make("aten.relu.default", Each(1));
    return StepTime(maker.job, maker.variant(), *FindGpu("H200"), 2).host_us;
  };
  EXPECT_EQ(host_us(100), host_us(1));
  const HostModel host;
  EXPECT_EQ(host_us(1), host.step + 2 * host.written) << "what is behind it is issued again";
}

TEST(StepTime, WhatACheckpointRepeatsTakesTheHostLonger) {
  const auto host_us = [](std::vector<std::string_view> backward) {
    JobMaker maker;
    maker.BeginStep();
    maker.Begin(Stage::kForward);
    for (const char* op : {"aten.relu.default", "aten.silu.default", "aten.tanh.default",
                           "aten.gelu.default", "aten.exp.default"}) {
      maker.Make(op, Each(1));
    }
    maker.Begin(Stage::kBackward);
    for (const std::string_view op : backward) maker.Make(op, Each(1));
    return StepTime(maker.job, maker.variant(), *FindGpu("H200"), 2).host_us;
  };
  const double gradients =
      host_us({"aten.exp.default", "aten.gelu.default", "aten.tanh.default", "aten.silu.default"});
  const double repeated =
      host_us({"aten.relu.default", "aten.silu.default", "aten.tanh.default", "aten.gelu.default"});
  EXPECT_GT(repeated, gradients + HostModel{}.checkpoint);
  const double alike =
      host_us({"aten.relu.default", "aten.relu.default", "aten.relu.default", "aten.relu.default"});
  EXPECT_EQ(alike, gradients);
}

TEST(StepTime, HasARangeThatIsNarrowerWhereTheHostWasMeasured) {
  JobMaker maker;
  maker.BeginStep();
  maker.Begin(Stage::kForward);
  for (int i = 0; i < 100; ++i) maker.Make("aten.relu.default", Each(1));
  const Gpu gpu = *FindGpu("H200");
  HostModel measured;
  measured.measured = true;
  const StepDuration unknown = StepTime(maker.job, maker.variant(), gpu, 2);
  const StepDuration known = StepTime(maker.job, maker.variant(), gpu, 2, {}, measured);
  EXPECT_EQ(known.us, unknown.us);
  EXPECT_LT(unknown.low_us, known.low_us);
  EXPECT_LT(known.low_us, known.us);
  EXPECT_LT(known.us, known.high_us);
  EXPECT_LT(known.high_us, unknown.high_us);
  // Where the GPU decides, the host does not widen it; a card that was not timed does.
  const StepDuration busy = StepTime(maker.job, maker.variant(), gpu, 1'000'000'000);
  EXPECT_LT(busy.high_us, 1.2 * busy.us);
  const StepDuration scaled = StepTime(maker.job, maker.variant(), *FindGpu("L4"), 1'000'000'000);
  EXPECT_GT(scaled.high_us, 1.3 * scaled.us);
}

TEST(StepTime, OptimizersThatLoopTakeLessForACall) {
  const auto host_us = [](std::string_view op, int calls) {
    JobMaker maker;
    maker.BeginStep();
    maker.Begin(Stage::kOptimizer);
    for (int i = 0; i < calls; ++i) maker.Make(op, Each(1));
    return StepTime(maker.job, maker.variant(), *FindGpu("H200"), 2).host_us - HostModel{}.step;
  };
  EXPECT_NEAR(host_us("aten.add_.Tensor", 50), 50 * HostModel{}.loop, 1);
}

TEST(StepTime, WhatIsRefusedItsWorkspaceIsSlower) {
  JobMaker maker;
  maker.BeginStep();
  maker.Begin(Stage::kForward);
  testing_job::AddConvolution(maker);
  const Gpu gpu = *FindGpu("H200");
  const auto last = static_cast<std::uint32_t>(maker.variant().calls.size() - 1);
  const double with = StepTime(maker.job, maker.variant(), gpu, 4000).gpu.us;
  const double without = StepTime(maker.job, maker.variant(), gpu, 4000, {{last, 1}}).gpu.us;
  EXPECT_GT(without, with);
  EXPECT_EQ(StepTime(maker.job, maker.variant(), gpu, 4000, {{last + 9, 1}}).gpu.us, with);
}

}  // namespace
}  // namespace plimsoll::step_time_test
