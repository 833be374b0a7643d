#include "train/checkpointing/running_statistics.h"

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>

#include <functional>
#include <mutex>
#include <vector>

namespace plimsoll::train {
namespace {

namespace nn = torch::nn;

class Keeper final : public RecomputeWatcher {
 public:
  explicit Keeper(nn::Module& model) {
    for (const auto& module : model.modules()) {
      AddIfA<nn::BatchNorm1dImpl>(module) || AddIfA<nn::BatchNorm2dImpl>(module) ||
          AddIfA<nn::BatchNorm3dImpl>(module) || AddIfA<nn::InstanceNorm1dImpl>(module) ||
          AddIfA<nn::InstanceNorm2dImpl>(module) || AddIfA<nn::InstanceNorm3dImpl>(module);
    }
  }

  void Begin() override {
    const std::lock_guard lock(mutex_);
    if (depth_++ > 0) return;
    for (const auto& stop : stops_) restores_.push_back(stop());
  }
  void End() override {
    const std::lock_guard lock(mutex_);
    if (--depth_ > 0) return;
    for (const auto& restore : restores_) restore();
    restores_.clear();
  }

 private:
  /// A momentum of 0 leaves what is there, bit for bit; without tracking, nothing is counted.
  template <class Norm>
  bool AddIfA(const std::shared_ptr<nn::Module>& module) {
    const auto norm = std::dynamic_pointer_cast<Norm>(module);
    if (norm == nullptr || !norm->options.track_running_stats()) return norm != nullptr;
    // Not owned: the keeper may live as long as a graph of the model does.
    stops_.push_back([weak = std::weak_ptr<Norm>(norm)]() -> std::function<void()> {
      const auto here = weak.lock();
      if (here == nullptr) return [] {};
      const auto options = here->options;
      if (here->is_training()) here->options.momentum(0.0).track_running_stats(false);
      return [here, options] { here->options = options; };
    });
    return true;
  }

  std::vector<std::function<std::function<void()>()>> stops_;
  std::vector<std::function<void()>> restores_;
  std::mutex mutex_;
  int depth_ = 0;
};

}  // namespace

std::shared_ptr<RecomputeWatcher> KeepRunningStatistics(nn::Module& model) {
  return std::make_shared<Keeper>(model);
}

}  // namespace plimsoll::train
