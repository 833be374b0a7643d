#include "job/transforms/resplit.h"

#include <gtest/gtest.h>

#include "job/lowering/job_for_tests.h"

namespace plimsoll::resplit_test {
namespace {

using testing_job::Always;
using testing_job::JobMaker;
using testing_job::RequestsOf;

/// A loop that accumulates. In bytes: a batch has 400, what the forward makes 800, a gradient 40,
/// what the optimizer makes 80. A batch goes before the loader's next one comes: that of the last
/// micro-batch stays while the optimizer runs.
class Loop {
 public:
  explicit Loop(int micro_batches, bool keeps_losses) : keeps_losses_(keeps_losses) {
    maker_.Parameter(1);
    for (int step = 0; step < 3; ++step) {
      maker_.BeginStep();
      for (int i = 0; i < micro_batches; ++i) MicroBatch(i == 0, i + 1 == micro_batches);
      for (const Storage loss : losses_) maker_.Free(loss);
      losses_.clear();
    }
    maker_.variant().passes = micro_batches;
  }

  std::string As(int micro_batches) {
    const Variant variant = Resplit(maker_.job, maker_.variant(), micro_batches);
    return RequestsOf(Lower(maker_.job, variant, *FindGpu("H200"), {.batch = 2, .steps = 3}));
  }

 private:
  TensorUse Use(Storage storage) { return maker_.Floats(storage, {Always(1)}); }

  void MicroBatch(bool first, bool last) {
    maker_.Begin(Stage::kTransfer);
    const Storage batch = maker_.Make("aten._to_copy.default", Always(100));
    maker_.Begin(Stage::kForward);
    const Storage activation = maker_.Make("aten.exp.default", Always(200), {Arg(Use(batch))});
    if (keeps_losses_) losses_.push_back(maker_.Make("aten.sum.default", Always(1)));
    maker_.Begin(Stage::kBackward);
    const Storage gradient =
        maker_.Make("aten.mul.Tensor", Always(10), {Arg(Use(activation))}, /*thread=*/1);
    if (first) {
      gradient_ = gradient;
      maker_.Label(Category::kGradients, gradient);
    } else {
      maker_.Free(gradient);
    }
    maker_.Free(activation);
    maker_.Begin(Stage::kOptimizer);
    if (last) {
      maker_.Free(maker_.Make("aten._foreach_sqrt.default", Always(20), {Arg(Use(gradient_))}));
      maker_.Free(gradient_);
    }
    maker_.Free(batch);
  }

  const bool keeps_losses_;
  JobMaker maker_;
  Storage gradient_ = 0;
  std::vector<Storage> losses_;
};

/// Made another number of micro-batches, a loop asks for what the same loop with that number does.
TEST(Resplit, EveryNumberOfMicroBatchesIsThatLoop) {
  for (const bool keeps_losses : {false, true}) {
    for (const int from : {2, 3, 4}) {
      for (const int to : {1, 2, 3, 5, 8}) {
        EXPECT_EQ(Loop(from, keeps_losses).As(to), Loop(to, keeps_losses).As(to))
            << from << " to " << to << (keeps_losses ? ", losses are kept" : "");
      }
    }
  }
}

}  // namespace
}  // namespace plimsoll::resplit_test
