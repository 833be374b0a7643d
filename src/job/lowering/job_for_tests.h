// For tests: a step written by hand, event by event, and what its lowering asks for.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "job/file/job.h"
#include "job/lowering/lower.h"
#include "job/rules/testing.h"

namespace plimsoll::testing_job {

/// A number at the captured batch sizes, 2 and 3, of what has `n` for each sample.
inline Number Each(std::int64_t n) { return {2 * n, 3 * n}; }
inline Number Always(std::int64_t n) { return {n, n}; }

inline constexpr std::int64_t kMiBOfFloats = kMiB / 4;

/// A GPU with so much beside its context.
inline Gpu WithRoom(Bytes room) {
  Gpu gpu = *FindGpu("H200");
  gpu.memory = gpu.context.bytes + room;
  return gpu;
}

class JobMaker {
 public:
  JobMaker() {
    job.variants.emplace_back().precision = "as_written";
    job.torch = "2.13.0";
    job.gpu = "H200";
  }

  std::uint32_t AddLayout(const std::vector<Number>& sizes, DType dtype = DType::kFloat32) {
    LayoutRecord layout{.dtype = dtype, .sizes = sizes, .strides = sizes};
    Number stride = Always(1);
    for (std::size_t d = sizes.size(); d-- > 0;) {
      layout.strides[d] = stride;
      stride = Number::Each(std::multiplies<>(), stride, sizes[d]);
    }
    job.layouts.push_back(std::move(layout));
    return static_cast<std::uint32_t>(job.layouts.size() - 1);
  }
  TensorUse Floats(Storage storage, const std::vector<Number>& sizes) {
    return {.storage = storage, .layout = AddLayout(sizes)};
  }

  Storage Parameter(std::int64_t floats, bool trainable = true, std::string_view name = "weight") {
    const Storage storage = variant().storages++;
    variant().model_tensors.push_back({.storage = storage,
                                       .layout = AddLayout({Always(floats)}),
                                       .name = job.strings.Intern(name),
                                       .trainable = trainable});
    Add(JobEvent::Kind::kModelTensor, variant().model_tensors.size());
    return storage;
  }
  void BeginStep() { events().push_back({.kind = JobEvent::Kind::kStep}); }
  void Begin(Stage stage) { events().push_back({.kind = JobEvent::Kind::kStage, .stage = stage}); }
  /// A call that makes one storage of so many floats, in one dimension.
  Storage Make(std::string_view op, const Number& floats, std::vector<Argument> args = {},
               int thread = 0) {
    return Make(op, std::vector<Number>{floats}, std::move(args), thread);
  }
  Storage Make(std::string_view op, const std::vector<Number>& sizes,
               std::vector<Argument> args = {}, int thread = 0) {
    const Storage storage = variant().storages++;
    Number bytes = Always(4);
    for (const Number& n : sizes) bytes = Number::Each(std::multiplies<>(), bytes, n);
    CallRecord call;
    call.op = job.strings.Intern(op);
    call.where = job.strings.Intern("train.py:7 in step");
    call.module = job.strings.Intern("layer");
    call.thread = thread;
    call.args = std::move(args);
    call.results = {Floats(storage, sizes)};
    call.fresh = {{.storage = storage, .bytes = bytes}};
    variant().calls.push_back(std::move(call));
    Add(JobEvent::Kind::kCall, variant().calls.size());
    return storage;
  }
  void Free(Storage storage) {
    events().push_back({.kind = JobEvent::Kind::kFree, .index = storage});
  }
  void Label(Category category, Storage storage) {
    events().push_back({.kind = JobEvent::Kind::kLabel, .category = category, .index = storage});
  }

  /// Of what follows the steps.
  void BeginPart(Part part) { variant().later.push_back(std::move(part)); }

  Variant& variant() { return job.variants.front(); }
  CallRecord& last_call() { return variant().calls.back(); }

  Job job;

 private:
  /// Those that are written.
  std::vector<JobEvent>& events() {
    return variant().later.empty() ? variant().events : variant().later.back().events;
  }
  void Add(JobEvent::Kind kind, std::size_t count) {
    events().push_back({.kind = kind, .index = static_cast<std::uint32_t>(count - 1)});
  }
};

/// "+400 -400 ~64": taken, given back, borrowed, in bytes.
inline std::string RequestsOf(const Lowered& lowered) {
  std::string text;
  for (const Request& r : lowered.workload.requests) {
    const char* sign = r.kind == Request::Kind::kAllocate ? "+"
                       : r.kind == Request::Kind::kFree   ? "-"
                                                          : "~";
    text += (text.empty() ? "" : " ") + std::string(sign) +
            std::to_string(lowered.blocks[r.allocation].requested);
  }
  return text;
}

/// A 3x3 convolution of 64 channels, 56 by 56, which takes a workspace.
inline void AddConvolution(JobMaker& maker) {
  const std::vector<Number> sizes = {Each(1), Always(64), Always(56), Always(56)};
  const TensorUse input = maker.Floats(0, sizes);
  const TensorUse weight = maker.Floats(0, {Always(64), Always(64), Always(3), Always(3)});
  const auto pair = [](std::int64_t n) { return ListArg(std::vector<std::int64_t>{n, n}); };
  std::vector<Argument> args = {Arg(input), Arg(weight), {},
                                pair(1),    pair(1),     pair(1),
                                Arg(false), pair(0),     Arg(std::int64_t{1})};
  maker.Make("aten.convolution.default", sizes, std::move(args));
}

/// What a training loop does, three steps as captured: a batch bound until the next one is there,
/// activations, gradients made anew, and state that the first optimizer step makes.
inline JobMaker TrainingLoop() {
  JobMaker maker;
  const Storage weight = maker.Parameter(1000);
  Storage batch = 0;
  Storage gradient = 0;
  for (int i = 0; i < 3; ++i) {
    maker.BeginStep();
    maker.Begin(Stage::kTransfer);
    const Storage next = maker.Make("aten.randn.default", Each(100));
    if (batch != 0) maker.Free(batch);
    batch = next;
    maker.Label(Category::kInputs, batch);
    maker.Begin(Stage::kForward);
    const Storage activation = maker.Make("aten.relu.default", Each(500));
    if (gradient != 0) maker.Free(gradient);
    maker.Begin(Stage::kBackward);
    gradient = maker.Make("aten.mul.Tensor", Always(1000));
    maker.Label(Category::kGradients, gradient);
    maker.Free(activation);
    maker.Begin(Stage::kOptimizer);
    if (i == 0) {
      maker.Label(Category::kOptimizerState, maker.Make("aten.zeros_like.default", Always(2000)));
    }
    const Storage list = maker.Make("aten._foreach_sqrt.default", Always(1001));
    maker.Free(list);
  }
  (void)weight;
  return maker;
}

}  // namespace plimsoll::testing_job
