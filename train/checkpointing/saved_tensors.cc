#include "train/checkpointing/saved_tensors.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <utility>

namespace plimsoll::train {
namespace {

thread_local std::shared_ptr<SavedTensorPolicy> current;

class Hooks : public torch::autograd::SavedVariableHooks {
 public:
  explicit Hooks(std::shared_ptr<SavedTensorPolicy> policy) : policy_(std::move(policy)) {}
  void call_pack_hook(const at::Tensor& tensor) override { packed_ = policy_->Pack(tensor); }
  at::Tensor call_unpack_hook() override { return packed_->Unpack(); }

 private:
  std::shared_ptr<SavedTensorPolicy> policy_;
  std::unique_ptr<PackedTensor> packed_;
};

/// Autograd asks the default engine for the hooks of each tensor that it saves.
class HookedEngine : public torch::autograd::Engine {
 public:
  static Engine& Get() {
    // Kept for the program's life: its threads may still run when main ends.
    static auto* const engine = new HookedEngine;
    return *engine;
  }
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (!current) return nullptr;
    return std::make_unique<Hooks>(current);
  }
};

/// Before main: an engine that takes the place of one whose threads run already finds none of its
/// own. Where Python is loaded its engine comes later and stays.
const bool installed = [] {
  torch::autograd::set_default_engine_stub(&HookedEngine::Get);
  return true;
}();

}  // namespace

SavedTensorScope::SavedTensorScope(std::shared_ptr<SavedTensorPolicy> policy)
    : outer_(std::exchange(current, std::move(policy))) {
  TORCH_INTERNAL_ASSERT(installed);
}

SavedTensorScope::~SavedTensorScope() { current = std::move(outer_); }

}  // namespace plimsoll::train
