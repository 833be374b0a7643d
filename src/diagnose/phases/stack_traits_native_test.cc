#include "diagnose/phases/stack_traits_native.h"

#include <gtest/gtest.h>

#include "diagnose/phases/stack_traits.h"

namespace plimsoll::stack_traits_native_test {
namespace {

TEST(NativeName, IsWithoutReturnTypeAndParameters) {
  EXPECT_EQ(NativeName("main"), "main");
  EXPECT_EQ(NativeName("Net::forward(at::Tensor)"), "Net::forward");
  EXPECT_EQ(NativeName("my::Batch::To(c10::Device, bool) const"), "my::Batch::To");
  EXPECT_EQ(NativeName("void torch::nn::Module::to_impl<c10::Device&, bool&>(c10::Device&, bool&)"),
            "torch::nn::Module::to_impl<c10::Device&, bool&>");
  EXPECT_EQ(NativeName("std::enable_if<(3 > 2), int>::type my::f<long>(long)"), "my::f<long>");
  EXPECT_EQ(NativeName("decltype(auto) std::__do_visit<at::Tensor, f(int)::{lambda()#1}>(int)"),
            "std::__do_visit<at::Tensor, f(int)::{lambda()#1}>");
  EXPECT_EQ(NativeName("decltype ({parm#1}->size()) my::size<X>(X const&)"), "my::size<X>");
  EXPECT_EQ(NativeName("non-virtual thunk to my::Net::forward(at::Tensor)"), "my::Net::forward");
}

TEST(NativeName, KeepsWhatIsNoParameterList) {
  EXPECT_EQ(NativeName("my::(anonymous namespace)::Apply(at::Tensor const&)"),
            "my::(anonymous namespace)::Apply");
  EXPECT_EQ(NativeName("(anonymous namespace)::Apply(int)"), "(anonymous namespace)::Apply");
  EXPECT_EQ(NativeName("my::F::operator()(int) const"), "my::F::operator()");
  EXPECT_EQ(NativeName("my::F::operator()<int>(int) const"), "my::F::operator()");
  EXPECT_EQ(NativeName("my::F::operator bool() const"), "my::F::operator bool");
  EXPECT_EQ(NativeName("bool my::operator< <int>(my::A, my::A)"), "my::operator< <int>");
}

TEST(NativeName, IsThatOfTheFunctionAroundALambda) {
  EXPECT_EQ(NativeName("my::Run(Flags&)::{lambda(Batch const&)#2}::operator()(Batch const&) const"),
            "my::Run");
  EXPECT_EQ(NativeName("main::{lambda()#1}::operator()() const"), "main");
  EXPECT_EQ(NativeName("main::$_0::operator()() const"), "main");
  EXPECT_EQ(NativeName("main::'lambda'(int)::operator()(int) const"), "main");
}

TEST(NativeName, LosesTheNamesOfClones) {
  EXPECT_EQ(NativeName("torch::nn::Module::to(c10::Device, bool) [clone .localalias]"),
            "torch::nn::Module::to");
  EXPECT_EQ(NativeName("main [clone .cold]"), "main");
}

TEST(NativeName, OfBrokenTextIsInsideIt) {
  for (const char* text : {"", " ", "(", "a<b", "a(b", "operator", "decltype", "decltype(a", "::{",
                           "a > b", "> a(", "f<x->y>(", "(anonymous namespace)"}) {
    EXPECT_LE(NativeName(text).size(), std::string_view(text).size()) << text;
    ClassifyNative(text);
  }
}

TEST(ShortNativeName, HasNoTemplateArguments) {
  EXPECT_EQ(ShortNativeName("my::AdamOf<torch::optim::AdamW, X<int> >::StateOf(at::Tensor&)"),
            "my::AdamOf::StateOf");
  EXPECT_EQ(ShortNativeName("my::(anonymous namespace)::Apply(int)"), "my::Apply");
  EXPECT_EQ(ShortNativeName("my::Name[abi:cxx11](int)"), "my::Name");
  EXPECT_EQ(ShortNativeName("my::F::operator()(int) const"), "my::F::operator()");
}

TEST(ShortNativeName, HasAClassAndAMember) {
  EXPECT_EQ(ClassOf("my::Net::forward"), "Net");
  EXPECT_EQ(MemberOf("my::Net::forward"), "forward");
  EXPECT_EQ(ClassOf("main"), "");
  EXPECT_EQ(MemberOf("main"), "main");
}

NativeOwner OwnerOf(std::string_view name) { return ClassifyNative(name).owner; }

TEST(ClassifyNative, TellsWhoseCodeItIs) {
  for (const char* name :
       {"main", "train(Net&, torch::optim::Optimizer&)", "my::Net::forward(at::Tensor)",
        "at::Tensor my::gelu<float>(at::Tensor const&)", "attention(at::Tensor)", "clone_weights()",
        "(anonymous namespace)::Step(int)", "standard::f()", "torchvision_like::f()"}) {
    EXPECT_EQ(OwnerOf(name), NativeOwner::kUser) << name;
  }
  for (const char* name :
       {"torch::unwind::unwind()", "torch::cuda::(anonymous namespace)::gather_with_cpp()",
        "c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::allocate(unsigned long)",
        "bool at::cuda::blas::gemm_and_bias<float, float>(bool)",
        "auto at::native::_efficient_attention_forward(at::Tensor const&)",
        "void dispatch_cutlassB<float, at::native::f(int)::{lambda()#1}>(int)",
        "torch::nn::AnyValue torch::nn::AnyModule::any_forward<at::Tensor>(at::Tensor&&)"}) {
    EXPECT_EQ(OwnerOf(name), NativeOwner::kTorch) << name;
  }
  for (const char* name :
       {"_start", "__libc_start_main", "__clone", "clone3", "pthread_condattr_setpshared",
        "execute_native_thread_routine", "GOMP_parallel", "cublasSgemm_v2",
        "decltype(auto) std::__do_visit<at::Tensor>(int)",
        "std::_Function_handler<at::Tensor (my::Batch const&), "
        "my::Run(my::Flags&)::{lambda(my::Batch const&)#2}>::_M_invoke(std::_Any_data const&)"}) {
    EXPECT_EQ(OwnerOf(name), NativeOwner::kRuntime) << name;
  }
  EXPECT_EQ(OwnerOf("??"), NativeOwner::kUnknown);
}

std::uint16_t SignsOf(std::string_view name) { return ClassifyNative(name).signs; }

TEST(ClassifyNative, FindsModuleCalls) {
  EXPECT_EQ(SignsOf("my::GptBlockImpl::forward(at::Tensor)"), kSignModuleCall);
  EXPECT_EQ(SignsOf("Net::forward(at::Tensor)"), kSignModuleCall);
  EXPECT_EQ(SignsOf("torch::nn::LayerNormImpl::forward(at::Tensor const&)"), kSignModuleCall);
  EXPECT_EQ(SignsOf("forward(at::Tensor)"), 0);
  EXPECT_EQ(SignsOf("my::Net::forward_metrics(at::Tensor)"), 0);
}

TEST(ClassifyNative, FindsOptimizers) {
  EXPECT_EQ(SignsOf("torch::optim::AdamW::step(std::function<at::Tensor ()>)"), kSignOptimizer);
  EXPECT_EQ(SignsOf("at::_ops::_fused_adamw_::call(c10::ArrayRef<at::Tensor>)"), kSignOptimizer);
  EXPECT_EQ(SignsOf("my::FusedAdamOf<torch::optim::AdamW>::StateOf(at::Tensor&)"), kSignOptimizer);
  EXPECT_EQ(SignsOf("MySGD::step()"), kSignOptimizer);
  EXPECT_EQ(SignsOf("my::ShardedOptimizer::Step()"), kSignOptimizer);
  // Neither what it is given nor what it is made of makes a function an optimizer's.
  EXPECT_EQ(SignsOf("train(Net&, torch::optim::Optimizer&)"), 0);
  EXPECT_EQ(SignsOf("my::Trainer<Net, torch::optim::Adam>::Fit(int)"), 0);
  EXPECT_EQ(SignsOf("my::Trainer::Step(my::Batch const&)"), 0);
  EXPECT_EQ(SignsOf("my::OptimizedConv::Run(at::Tensor)"), 0);
  EXPECT_EQ(SignsOf("torch::optim::LRScheduler::step()"), 0);
  EXPECT_EQ(SignsOf("at::_ops::_fused_dropout::call(at::Tensor const&, double)"), 0);
}

TEST(ClassifyNative, FindsScalerStepsButNotScaling) {
  EXPECT_EQ(SignsOf("my::GradScaler::Unscale(torch::optim::Optimizer&)"), kSignScalerStep);
  EXPECT_EQ(SignsOf("GradScaler::unscale_(int)"), kSignScalerStep);
  EXPECT_EQ(SignsOf("my::LossScaler::Update()"), kSignScalerStep);
  EXPECT_EQ(SignsOf("at::_ops::_amp_update_scale_::call(at::Tensor&)"), kSignScalerStep);
  EXPECT_EQ(SignsOf("my::GradScaler::Scale(at::Tensor const&)"), 0);
}

TEST(ClassifyNative, FindsModelsBeingMadeAndMoved) {
  EXPECT_EQ(SignsOf("torch::nn::Module::to(c10::Device, bool) [clone .localalias]"), kSignApply);
  EXPECT_EQ(SignsOf("void torch::nn::Module::to_impl<c10::Device&, bool&>(c10::Device&, bool&)"),
            kSignApply);
  EXPECT_EQ(SignsOf("torch::nn::LinearImpl::reset()"), kSignConstructor);
  EXPECT_EQ(SignsOf("torch::nn::LinearImpl::LinearImpl(torch::nn::LinearOptions const&)"),
            kSignConstructor);
  EXPECT_EQ(SignsOf("my::NetImpl::NetImpl(int)"), kSignConstructor);
  EXPECT_EQ(SignsOf("my::Batch::Batch(int)"), 0);
  EXPECT_EQ(SignsOf("my::Batch::To(c10::Device, bool) const"), 0);
}

TEST(ClassifyNative, FindsTheEngine) {
  EXPECT_EQ(SignsOf("torch::autograd::Engine::thread_main(std::shared_ptr<X> const&)"),
            kSignEngine);
  EXPECT_EQ(SignsOf("torch::autograd::Engine::evaluate_function(std::shared_ptr<X>&)"),
            kSignEngine);
  // Waits for the engine's thread and allocates beside it: the main thread.
  EXPECT_EQ(SignsOf("torch::autograd::Engine::execute(int)"), 0);
}

}  // namespace
}  // namespace plimsoll::stack_traits_native_test
