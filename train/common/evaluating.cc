#include "train/common/evaluating.h"

namespace plimsoll::train {

Evaluating::Evaluating(torch::nn::Module& model) {
  // The model itself need not be in a shared_ptr.
  std::vector<torch::nn::Module*> modules{&model};
  for (const auto& module : model.modules(/*include_self=*/false)) modules.push_back(module.get());
  for (torch::nn::Module* const module : modules) {
    if (module->is_training()) training_.push_back(module);
  }
  // Each by itself: parts may have been in evaluation before.
  for (torch::nn::Module* const module : training_) module->eval();
}

Evaluating::~Evaluating() {
  for (auto module = training_.rbegin(); module != training_.rend(); ++module) (*module)->train();
}

}  // namespace plimsoll::train
