#include "train/optimizers/optimizer_step.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "train/optimizers/optimizers_for_tests.h"

namespace plimsoll::train::optimizer_step_test {
namespace {

namespace optim = torch::optim;

template <class Optimizer, class Options>
auto Maker(Options options) {
  return [options](const std::vector<at::Tensor>& parameters) {
    return std::make_unique<Optimizer>(parameters, options);
  };
}

TEST(StepOrNothing, ProtectsAdam) {
  const auto make = Maker<optim::Adam>(optim::AdamOptions(0.01).amsgrad(true).weight_decay(0.1));
  ExpectStepOrNothing(make, 0);
  ExpectStepOrNothing(make, 2);
}

TEST(StepOrNothing, ProtectsAdamW) {
  ExpectStepOrNothing(Maker<optim::AdamW>(optim::AdamWOptions(0.01)), 0);
  ExpectStepOrNothing(Maker<optim::AdamW>(optim::AdamWOptions(0.01)), 2);
}

TEST(StepOrNothing, ProtectsSgd) {
  const auto make = Maker<optim::SGD>(optim::SGDOptions(0.01).momentum(0.9).weight_decay(0.1));
  ExpectStepOrNothing(make, 0);
  ExpectStepOrNothing(make, 2);
}

TEST(StepOrNothing, ProtectsRmsprop) {
  const auto make = Maker<optim::RMSprop>(optim::RMSpropOptions(0.01).centered(true).momentum(0.9));
  ExpectStepOrNothing(make, 0);
  ExpectStepOrNothing(make, 2);
}

TEST(StepOrNothing, ProtectsAdagrad) {
  ExpectStepOrNothing(Maker<optim::Adagrad>(optim::AdagradOptions(0.01)), 0);
  ExpectStepOrNothing(Maker<optim::Adagrad>(optim::AdagradOptions(0.01)), 2);
}

/// With a state of its own making.
class Unknown : public optim::Optimizer {
 public:
  struct State : optim::OptimizerCloneableParamState<State> {};
  explicit Unknown(const std::vector<at::Tensor>& parameters)
      : Optimizer(parameters, std::make_unique<optim::SGDOptions>(0.1)) {
    state_[parameters[0].unsafeGetTensorImpl()] = std::make_unique<State>();
  }
  at::Tensor step(LossClosure) override { return {}; }
};

TEST(StepOrNothing, RefusesAStateItCannotCopy) {
  Unknown optimizer(SomeParameters());
  EXPECT_THROW(StepOrNothing(optimizer), c10::Error);
}

}  // namespace
}  // namespace plimsoll::train::optimizer_step_test
