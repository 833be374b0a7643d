#include "training_run.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

namespace plimsoll::bench {
namespace {

constexpr int kLayers = 48;
constexpr std::int64_t kHidden = 1024;
constexpr std::int64_t kVocabulary = 50304;
constexpr std::int64_t kBatch = 8;

// One operator of a transformer block: what it leaves, in units of tokens × hidden × 2 bytes.
struct Op {
  const char* function;
  double output;
  double temporary;  // freed as soon as the operator returns
  bool saved;        // kept for the backward pass
};
constexpr std::array<Op, 18> kOps = {{
    {"layer_norm", 2, 0, true},
    {"layer_norm_stats", 0.004, 0, true},
    {"cast_qkv_weight", 0.75, 0, true},
    {"linear_qkv", 3, 0.25, true},
    {"split_heads", 3, 0, false},
    {"scaled_dot_product_attention", 1, 1.5, true},
    {"logsumexp", 0.03, 0.001, true},
    {"merge_heads", 1, 0, true},
    {"linear_out", 1, 0.25, false},
    {"dropout_mask", 0.5, 0, true},
    {"residual_add", 2, 0, true},
    {"layer_norm_2", 2, 0, true},
    {"layer_norm_2_stats", 0.004, 0, true},
    {"linear_up", 4, 1, true},
    {"gelu", 4, 2, true},
    {"linear_down", 1, 1, false},
    {"dropout_mask_2", 0.5, 0, true},
    {"residual_add_2", 2, 0, true},
}};

// The parameters of a block, in elements of four bytes.
constexpr std::array<std::int64_t, 12> kParameters = {
    kHidden, kHidden, 3 * kHidden* kHidden, 3 * kHidden, kHidden* kHidden,     kHidden,
    kHidden, kHidden, 4 * kHidden* kHidden, 4 * kHidden, 4 * kHidden* kHidden, kHidden};

const std::string kTorch = "/home/user/venv/lib/python3.12/site-packages/torch/";

enum class Phase { kLoad, kInput, kForward, kForwardFree, kBackward, kOptimizer, kZeroGrad };

class Trainer {
 public:
  Trainer(std::size_t events, std::size_t frames)
      : run_{CachingAllocator(events), {}, {}}, depth_(frames) {}

  TrainingRun Run() && {
    for (int layer = 0; layer < kLayers; ++layer) {
      for (std::size_t i = 0; i < kParameters.size(); ++i) {
        parameters_.push_back(
            {Make(kParameters[i] * 4, Phase::kLoad, layer, i), kParameters[i] * 4});
      }
    }
    const std::int64_t embedding = kVocabulary * kHidden * 4;
    parameters_.push_back({Make(embedding, Phase::kLoad, kLayers, 0), embedding});
    for (step_ = 0; !run_.allocator.full(); ++step_) Step();
    return std::move(run_);
  }

 private:
  struct Tensor {
    std::uint64_t address = 0;
    std::int64_t size = 0;
  };

  void Step() {
    // Sequence lengths vary from batch to batch, as in life.
    static constexpr std::array<std::int64_t, 5> kLengths = {1024, 768, 1024, 896, 640};
    tokens_ = kBatch * kLengths[static_cast<std::size_t>(step_) % kLengths.size()];
    const std::uint64_t batch = Make(tokens_ * 8 * 2, Phase::kInput, 0, 0);
    Drop(batch_, Phase::kInput, 0, 1);
    batch_ = batch;
    Forward();
    Backward();
    Optimize();
  }

  void Forward() {
    saved_.clear();
    std::uint64_t passing = 0;
    for (int layer = 0; layer < kLayers; ++layer) {
      for (std::size_t i = 0; i < kOps.size(); ++i) {
        const Op& op = kOps[i];
        std::uint64_t temporary = 0;
        if (op.temporary > 0) temporary = Make(Size(op.temporary), Phase::kForward, layer, i);
        const std::uint64_t output = Make(Size(op.output), Phase::kForward, layer, i);
        if (temporary) Drop(temporary, Phase::kForwardFree, layer, i);
        // An output that nobody saves lives until the next operator has read it.
        if (passing) Drop(passing, Phase::kForwardFree, layer, i);
        passing = op.saved ? 0 : output;
        if (op.saved) saved_.push_back(output);
      }
    }
    saved_.push_back(Make(tokens_ * kVocabulary * 2, Phase::kForward, kLayers, 0));
    saved_.push_back(Make(4, Phase::kForward, kLayers, 1));
  }

  void Backward() {
    gradients_.clear();
    std::uint64_t incoming = Make(tokens_ * kVocabulary * 2, Phase::kBackward, 0, 0);
    for (std::size_t k = 0; k < 2; ++k) PopSaved(k);
    std::size_t parameter = parameters_.size();
    for (int layer = kLayers; layer-- > 0;) {
      for (std::size_t i = kOps.size(); i-- > 0;) {
        const std::uint64_t outgoing =
            Make(Size(std::max(kOps[i].output, 0.5)), Phase::kBackward, 0, i);
        Drop(incoming, Phase::kBackward, 1, i);
        incoming = outgoing;
        if (i % 3 != 2) {  // two of three operators have a parameter: 12 a block
          const std::int64_t size = parameters_[--parameter - 1].size;
          gradients_.push_back(Make(size, Phase::kBackward, 2, i));
        }
        if (kOps[i].saved) PopSaved(i);
      }
    }
    Drop(incoming, Phase::kBackward, 1, 0);
    gradients_.push_back(Make(parameters_.back().size, Phase::kBackward, 2, 0));
  }

  void Optimize() {
    Annotate("Optimizer.step#AdamW.step", true);
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const int layer = static_cast<int>(i / kParameters.size());
      if (step_ == 0) {
        for (std::size_t k = 0; k < 2; ++k) Make(parameters_[i].size, Phase::kOptimizer, layer, k);
      }
      const std::uint64_t temporary =
          Make(parameters_[i].size, Phase::kOptimizer, layer, 2 + i % kParameters.size());
      Drop(temporary, Phase::kOptimizer, layer, 20 + i % kParameters.size());
    }
    Annotate("Optimizer.step#AdamW.step", false);
    Annotate("Optimizer.zero_grad#AdamW.zero_grad", true);
    for (const std::uint64_t gradient : gradients_) Drop(gradient, Phase::kZeroGrad, 0, 0);
    Annotate("Optimizer.zero_grad#AdamW.zero_grad", false);
  }

  void PopSaved(std::size_t op) {
    if (saved_.empty()) return;
    Drop(saved_.back(), Phase::kBackward, 3, op);
    saved_.pop_back();
  }

  std::int64_t Size(double output) const {
    const auto bytes =
        static_cast<std::int64_t>(output * static_cast<double>(tokens_ * kHidden * 2));
    return (bytes + 511) / 512 * 512;
  }

  std::uint64_t Make(std::int64_t size, Phase phase, int layer, std::size_t op) {
    return run_.allocator.Allocate((size + 511) / 512 * 512, StackOf(phase, layer, op));
  }
  void Drop(std::uint64_t address, Phase phase, int layer, std::size_t op) {
    run_.allocator.Free(address, StackOf(phase, layer, op));
  }
  void Annotate(const char* name, bool start) {
    if (!run_.allocator.full()) run_.annotations.push_back({name, start, run_.allocator.now()});
  }

  std::uint32_t StackOf(Phase phase, int layer, std::size_t op) {
    const auto [it, fresh] = known_stacks_.try_emplace({phase, layer, op}, 0);
    if (fresh) {
      it->second = static_cast<std::uint32_t>(run_.stacks.stacks.size());
      run_.stacks.stacks.push_back(phase == Phase::kBackward ? BackwardStack(layer, op)
                                                             : PythonStack(phase, layer, op));
    }
    return it->second;
  }

  std::uint32_t FrameOf(const std::string& name, const std::string& file, int line) {
    const auto [it, fresh] = known_frames_.try_emplace({name, file, line}, 0);
    if (fresh) {
      it->second = static_cast<std::uint32_t>(run_.stacks.frames.size());
      run_.stacks.frames.push_back({name, file, line});
    }
    return it->second;
  }

  // From the operator out to train.py, filled up to the depth with the calls of nested modules.
  std::vector<std::uint32_t> PythonStack(Phase phase, int layer, std::size_t op) {
    const int line = static_cast<int>(op);
    std::vector<std::uint32_t> inner;
    int outer_line = 0;
    switch (phase) {
      case Phase::kLoad:
        inner = {FrameOf("convert", kTorch + "nn/modules/module.py", 1370),
                 FrameOf("_apply", kTorch + "nn/modules/module.py", 965),
                 FrameOf("load_block", "/home/user/model.py", 40 + layer * 20 + line)};
        outer_line = 12;
        break;
      case Phase::kInput:
        inner = {FrameOf("batch", "/home/user/data.py", 31 + line)};
        outer_line = 20;
        break;
      case Phase::kForward:
      case Phase::kForwardFree: {
        const int shift = phase == Phase::kForwardFree ? 1 : 0;
        const char* function = layer < kLayers ? kOps[op].function : "head";
        inner = {FrameOf(function, kTorch + "nn/functional.py", 2000 + line * 37),
                 FrameOf("forward", "/home/user/model.py", 1200 + line * 2 + shift),
                 FrameOf("block_" + std::to_string(layer), "/home/user/model.py", 2000 + layer)};
        outer_line = 22;
        break;
      }
      case Phase::kOptimizer:
        inner = {FrameOf("_multi_tensor_adamw", kTorch + "optim/adamw.py", 400 + line * 3),
                 FrameOf("group_" + std::to_string(layer), kTorch + "optim/adamw.py", 100),
                 FrameOf("step", kTorch + "optim/adamw.py", 232),
                 FrameOf("wrapper", kTorch + "optim/optimizer.py", 526)};
        outer_line = 24;
        break;
      case Phase::kZeroGrad:
      case Phase::kBackward:
        inner = {FrameOf("zero_grad", kTorch + "optim/optimizer.py", 1046)};
        outer_line = 25;
        break;
    }
    const std::array outer = {FrameOf("train_step", "/home/user/train.py", outer_line),
                              FrameOf("epoch", "/home/user/train.py", 57),
                              FrameOf("main", "/home/user/train.py", 88),
                              FrameOf("<module>", "/home/user/train.py", 97)};
    for (std::size_t i = 0; inner.size() + outer.size() < depth_; ++i) {
      const int nested = static_cast<int>(i / 3);
      if (i % 3 == 0) inner.push_back(FrameOf("_call_impl", kTorch + "nn/modules/module.py", 1784));
      if (i % 3 == 1) {
        inner.push_back(FrameOf("_wrapped_call_impl", kTorch + "nn/modules/module.py", 1773));
      }
      if (i % 3 == 2) inner.push_back(FrameOf("forward", "/home/user/model.py", 3000 + nested));
    }
    inner.insert(inner.end(), outer.begin(), outer.end());
    inner.resize(depth_);
    return inner;
  }

  // The backward thread has no Python on its stack.
  std::vector<std::uint32_t> BackwardStack(int role, std::size_t op) {
    static constexpr std::array<const char*, 4> kRoles = {"apply", "release_input", "accumulate",
                                                          "release_variables"};
    const std::string node =
        std::string("torch::autograd::generated::") + kOps[op % kOps.size()].function;
    std::vector<std::uint32_t> stack = {
        FrameOf(node + "_backward::" + kRoles[static_cast<std::size_t>(role)] + "()", "??", 0)};
    while (stack.size() + 3 < depth_) {
      stack.push_back(FrameOf("c10::impl::wrap_kernel_functor_unboxed_<at::_ops::op_" +
                                  std::to_string(stack.size()) + ">::call(c10::OperatorKernel*)",
                              "RegisterCUDA_0.cpp", 0));
    }
    stack.push_back(FrameOf("torch::autograd::Node::operator()", "??", 0));
    stack.push_back(FrameOf("torch::autograd::Engine::evaluate_function", "??", 0));
    stack.push_back(FrameOf("torch::autograd::Engine::thread_main", "??", 0));
    stack.resize(depth_);
    return stack;
  }

  TrainingRun run_;
  std::size_t depth_;
  int step_ = 0;
  std::int64_t tokens_ = 0;
  std::uint64_t batch_ = 0;
  std::vector<Tensor> parameters_;
  std::vector<std::uint64_t> saved_;
  std::vector<std::uint64_t> gradients_;
  std::map<std::tuple<Phase, int, std::size_t>, std::uint32_t> known_stacks_;
  std::map<std::tuple<std::string, std::string, int>, std::uint32_t> known_frames_;
};

}  // namespace

TrainingRun Train(std::size_t events, std::size_t frames_per_stack) {
  return Trainer(events, frames_per_stack).Run();
}

}  // namespace plimsoll::bench
