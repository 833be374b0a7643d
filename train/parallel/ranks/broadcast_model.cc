#include "train/parallel/ranks/broadcast_model.h"

#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <optional>
#include <vector>

#include "train/light/lora.h"

namespace plimsoll::train {

void BroadcastModel(const torch::nn::Module& model, Ranks& ranks) {
  if (ranks.alone()) return;
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> trained = TrainedParameters(model);
  ranks.Guard([&] { c10d::verify_params_across_processes(ranks.group(), trained, std::nullopt); });
  // Those that are not trained too.
  std::vector<at::Tensor> tensors;
  for (const auto& list : {model.parameters(), model.buffers()}) {
    for (const at::Tensor& tensor : list) tensors.push_back(tensor.detach());
  }
  ranks.Broadcast(tensors);
}

}  // namespace plimsoll::train
