#include "train/graphs/graphed_step.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace plimsoll::train::graphed_step_test {
namespace {

template <class Call>
std::string ErrorOf(Call call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(GraphedStep, RefusesTheCpu) {
  torch::nn::Linear model(4, 4);
  const Batch batch{{torch::randn({2, 4})}};
  const std::string error = ErrorOf([&] {
    GraphedStep(
        *model, [&](const Batch& in) { return Tensors{model(in.tensors[0])}; }, batch);
  });
  EXPECT_NE(error.find("captured on a CUDA device only"), std::string::npos) << error;
}

TEST(GraphedStep, SaysWhichShapeChanged) {
  const Batch captured{{torch::randn({2, 4}), torch::zeros({2}, at::kLong)}};
  CheckSameShapes(captured, captured);
  const std::string fewer = ErrorOf([&] { CheckSameShapes(captured, captured.Rows(0, 1)); });
  EXPECT_NE(fewer.find("tensor 0 of the batch was float [2, 4] at the capture"), std::string::npos)
      << fewer;
  const Batch other_type{{captured.tensors[0], captured.tensors[1].to(at::kInt)}};
  const std::string type = ErrorOf([&] { CheckSameShapes(captured, other_type); });
  EXPECT_NE(type.find("tensor 1"), std::string::npos) << type;
  EXPECT_NE(ErrorOf([&] { CheckSameShapes(captured, Batch{}); }).find("gets 0"), std::string::npos);
}

}  // namespace
}  // namespace plimsoll::train::graphed_step_test
