// Stacks of LibTorch programs: only C++ frames, most without file and line.
#include "diagnose/phases/stack_traits.h"

#include <gtest/gtest.h>

#include "diagnose/phases/phases.h"

namespace plimsoll::stack_traits_test {
namespace {

constexpr const char* kEngine = "torch::autograd::Engine::evaluate_function(int)";
constexpr const char* kThread = "torch::autograd::Engine::thread_main(int)";

/// Innermost first; "file:line function" or a function alone.
StackId Add(Timeline& t, const std::vector<std::string>& names) {
  std::vector<FrameId> frames;
  for (const std::string& name : names) {
    const std::size_t space = std::min(name.find(' '), name.size());
    const std::string first = name.substr(0, space);
    const bool located = space < name.size() && first.find_first_of("<(") == std::string::npos &&
                         std::isdigit(static_cast<unsigned char>(first.back())) != 0;
    const std::string where = located ? first : "??:0";
    const std::size_t colon = where.rfind(':');
    frames.push_back(t.stacks.AddFrame(
        {.function = t.stacks.strings.Intern(located ? name.substr(space + 1) : name),
         .file = t.stacks.strings.Intern(where.substr(0, colon)),
         .line = std::stoi(where.substr(colon + 1))}));
  }
  return t.stacks.AddStack(frames);
}

std::vector<std::string> Inside(std::vector<std::string> inner) {
  inner.insert(inner.begin(), {"torch::unwind::unwind()", "at::_ops::empty::call(int)"});
  return inner;
}

TEST(CppStack, NamesTheUsersFunction) {
  Timeline t;
  const StackId known = Add(t, Inside({"torch::nn::LinearImpl::forward(at::Tensor const&)",
                                       "my::Block<float>::forward(at::Tensor)", "main", "_start"}));
  const StackId in_file =
      Add(t, Inside({"net.cc:0 my::(anonymous namespace)::Apply(int)", "main"}));
  const StackId on_line = Add(t, Inside({"/home/me/net.cc:7 my::Apply(int)", "main"}));
  const StackAnalysis stacks(t);
  EXPECT_EQ(stacks.WhereOf(known), "my::Block::forward");
  EXPECT_EQ(stacks.WhereOf(in_file), "net.cc in my::Apply");
  EXPECT_EQ(stacks.WhereOf(on_line), "net.cc:7 in my::Apply");
  EXPECT_EQ(stacks.UserFrames(known), (std::vector<std::string>{"my::Block::forward", "main"}));
  EXPECT_EQ(stacks.ModuleChain(known), "Block > LinearImpl");
}

TEST(CppStack, WithoutTheUsersFunctionsNamesPyTorchs) {
  Timeline t;
  const StackId gradient =
      Add(t, Inside({"torch::autograd::generated::AddmmBackward0::apply(int)",
                     "torch::autograd::Node::operator()(int)", kEngine, kThread, "__clone"}));
  const StackId moved =
      Add(t, Inside({"torch::nn::Module::to(c10::Device, bool)", "??", "_start"}));
  const StackAnalysis stacks(t);
  EXPECT_EQ(stacks.WhereOf(gradient), "backward (AddmmBackward0)");
  EXPECT_EQ(stacks.WhereOf(moved), "torch::nn::Module::to");
  EXPECT_TRUE(stacks.of(gradient).root_in_torch);
  // A program without symbols is still the root of its thread.
  EXPECT_FALSE(stacks.of(moved).root_in_torch);
}

TEST(CppStack, FunctionsAloneTellPlacesApart) {
  Timeline t;
  const StackId a = Add(t, Inside({"my::A()", "main"}));
  const StackId b = Add(t, Inside({"my::B()", "main"}));
  const StackId train = Add(t, Inside({"Net::forward(int)", "Train()", "main"}));
  const StackId validate = Add(t, Inside({"Net::forward(int)", "Validate()", "main"}));
  const StackAnalysis stacks(t);
  EXPECT_NE(stacks.of(a).site, stacks.of(b).site);
  EXPECT_EQ(stacks.of(a).root, stacks.of(b).root);
  EXPECT_NE(stacks.of(train).caller, stacks.of(validate).caller);
  EXPECT_EQ(stacks.of(a).caller, 0u);
}

TEST(CppStack, AModuleInTheEngineIsComputedAgain) {
  Timeline t;
  const StackId again = Add(t, Inside({"Net::forward(int)", "Checkpoint::backward(int)", kEngine}));
  const StackId its_gradient = Add(t, Inside({kEngine, "Checkpoint::backward(int)", kEngine}));
  const StackId by_hook =
      Add(t, Inside({"Hooks::Unpack()", "torch::autograd::SavedVariable::unpack(int)", kEngine}));
  const StackId plain = Add(t, Inside({"torch::autograd::SavedVariable::unpack(int)", kEngine}));
  const StackAnalysis stacks(t);
  EXPECT_NE(stacks.of(again).signs & kSignCheckpoint, 0);
  EXPECT_EQ(stacks.of(its_gradient).signs & kSignCheckpoint, 0);
  EXPECT_NE(stacks.of(by_hook).signs & kSignUnpack, 0);
  EXPECT_EQ(stacks.of(plain).signs & kSignUnpack, 0);
}

TEST(CppStack, AClosureIsNotTheOptimizersWork) {
  Timeline t;
  const char* step = "torch::optim::LBFGS::step(std::function<at::Tensor ()>)";
  const StackId state = Add(t, Inside({step, "main"}));
  const StackId called = Add(t, Inside({"Closure(int)", step, "main"}));
  // The lambda itself is inlined into the function that calls it.
  const StackId lambda =
      Add(t, Inside({"std::_Function_handler<at::Tensor (), main::{lambda()#1}>::_M_invoke(int)",
                     step, "main"}));
  const StackId helper = Add(t, Inside({"my::Quantize(int)", "my::Adam8bit::step()", "main"}));
  const StackId model = Add(t, Inside({"Net::forward(int)", "my::Adam8bit::step()", "main"}));
  const StackAnalysis stacks(t);
  const auto is_optimizer = [&](StackId id) { return (stacks.of(id).signs & kSignOptimizer) != 0; };
  EXPECT_TRUE(is_optimizer(state));
  EXPECT_FALSE(is_optimizer(called));
  EXPECT_FALSE(is_optimizer(lambda));
  EXPECT_TRUE(is_optimizer(helper));
  EXPECT_FALSE(is_optimizer(model));
}

TEST(CppStack, TheReducersBucketsAreDdps) {
  Timeline t;
  const StackId stack =
      Add(t, Inside({"c10d::Reducer::initialize_buckets(std::vector<int>)",
                     "c10d::Reducer::Reducer(std::vector<at::Tensor>)", "my::Parallel()", "main"}));
  EXPECT_NE(StackAnalysis(t).of(stack).signs & kSignDdp, 0);
}

TEST(CppStack, DoesNotCountBesidePythons) {
  Timeline t;
  const StackId stack = Add(t, {"my::Net::forward(int)", "/me/train.py:5 main"});
  const StackId thread = Add(t, {"my::Kernel(int)", kEngine, "__clone"});
  const StackAnalysis stacks(t);
  EXPECT_EQ(stacks.WhereOf(stack), "train.py:5 in main");
  EXPECT_EQ(stacks.of(stack).signs, 0);
  EXPECT_FALSE(stacks.of(thread).framed);
}

TEST(PythonStack, PathsOfWindowsAreSplitToo) {
  Timeline t;
  const std::string torch = "C:\\envs\\ml\\lib\\site-packages\\torch\\nn\\modules\\";
  const StackId stack = Add(t, {torch + "linear.py:134 forward",
                                torch + "module.py:1773 _call_impl", "D:\\work\\net.py:12 forward",
                                torch + "module.py:1773 _call_impl", "D:\\work\\train.py:40 step"});
  const StackAnalysis stacks(t);
  EXPECT_EQ(stacks.WhereOf(stack), "net.py:12 in forward");
  EXPECT_EQ(stacks.UserFrames(stack),
            (std::vector<std::string>{"net.py:12 in forward", "train.py:40 in step"}));
  EXPECT_EQ(stacks.ModuleChain(stack), "net:12 > linear:134");
  EXPECT_NE(stacks.of(stack).signs & kSignModuleCall, 0);
}

/// PyTorch's default (stacks="all"): the frames of C++ stand inside those of Python.
TEST(MixedStack, NamesNeitherTheRecorderNorTheInterpreter) {
  Timeline t;
  const StackId python =
      Add(t, {"memory_snapshot.cpp:0 torch::cuda::gather_with_cpp()", "at::_ops::empty::call(int)",
              "_PyEval_EvalFrameDefault", "/home/me/train.py:7 step"});
  const StackId backward =
      Add(t, {"memory_snapshot.cpp:0 torch::cuda::gather_with_cpp()",
              "torch::autograd::generated::LogSoftmaxBackward0::apply(int)", kEngine, kThread});
  const StackAnalysis stacks(t);
  EXPECT_EQ(stacks.WhereOf(python), "train.py:7 in step");
  EXPECT_EQ(stacks.WhereOf(backward), "backward (LogSoftmaxBackward0)");
  EXPECT_NE(stacks.of(backward).signs & kSignEngine, 0);
}

/// Decorators stand between a module's call and its forward, in Hugging Face's models above all.
TEST(PythonStack, AModuleIsNamedByItsForward) {
  Timeline t;
  const std::string torch = "/v/lib/python3.12/site-packages/torch/nn/modules/";
  const StackId stack =
      Add(t, {"/v/net.py:3 helper", "/v/net.py:9 forward", "/v/generic.py:939 wrapper",
              torch + "module.py:1773 _call_impl", "/home/me/train.py:7 step"});
  const StackAnalysis stacks(t);
  EXPECT_EQ(stacks.ModuleChain(stack), "net:9");
}

TEST(CompiledCode, IsNamedByTheLineThatItIsFor) {
  const std::string written =
      "/home/me/cache/hu/chuab3kgqkj3zhxbcml6wfm5scgcwjdib2kpv5ltg5ibwpe3xihm.py:1679 call";
  const std::string library = "/v/lib/python3.12/site-packages/transformers/gpt2.py:697 forward";
  Timeline t;
  const StackId forward = Add(t, {written, library, "/home/me/train.py:9 loss"});
  const StackId backward = Add(t, {written, library});
  const StackId alone = Add(t, {written});
  // A file of the user's with a name of that length.
  const StackId own = Add(t, {"/home/me/" + std::string(52, 'c') + ".py:1 step"});
  const StackAnalysis stacks(t);
  EXPECT_EQ(stacks.WhereOf(forward), "train.py:9 in loss");
  EXPECT_EQ(stacks.WhereOf(backward), "gpt2.py:697 in forward");
  EXPECT_TRUE(stacks.WhereOf(alone).ends_with(".py:1679 in call"));
  EXPECT_EQ(stacks.WhereOf(own), std::string(52, 'c') + ".py:1 in step");
}

}  // namespace
}  // namespace plimsoll::stack_traits_test
