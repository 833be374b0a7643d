// Activation checkpointing: what a function saves for backward is dropped, and computed again when
// backward comes to it.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace plimsoll::train {

using Tensors = std::vector<at::Tensor>;

/// Runs `function`; its saved tensors are recomputed in backward, with the random numbers and the
/// autocast state of now. The function must do the same again when it is called again: what it
/// saves is compared in number, shape and type, and a difference is an error. Checkpoints nest,
/// inputs need not require a gradient, and a backward that keeps its graph may be repeated.
Tensors Checkpoint(std::function<Tensors(const Tensors&)> function, const Tensors& inputs);

/// For functions of tensors with one result: Checkpoint([&](auto x) { return block(x); }, x).
template <class Function, class... Inputs>
at::Tensor CheckpointOne(Function function, const Inputs&... inputs) {
  const auto call = [function = std::move(function)](const Tensors& given) mutable {
    return [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
      return Tensors{function(given[kIndex]...)};
    }(std::index_sequence_for<Inputs...>());
  };
  return Checkpoint(call, {inputs...})[0];
}

/// Whether this thread is computing something again.
bool IsRecomputing();

/// Is told when something is computed again, on the thread that does it. Recomputations nest, and
/// there may be several at a time.
class RecomputeWatcher {
 public:
  virtual ~RecomputeWatcher() = default;
  virtual void Begin() = 0;
  virtual void End() = 0;
};

/// RAII guard: what is checkpointed on this thread tells the watcher.
class RecomputeScope {
 public:
  explicit RecomputeScope(std::shared_ptr<RecomputeWatcher> watcher);
  ~RecomputeScope();
  RecomputeScope(const RecomputeScope&) = delete;
  RecomputeScope& operator=(const RecomputeScope&) = delete;

 private:
  std::shared_ptr<RecomputeWatcher> outer_;
};

}  // namespace plimsoll::train
