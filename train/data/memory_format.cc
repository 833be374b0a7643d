#include "train/data/memory_format.h"

#include <torch/csrc/autograd/grad_mode.h>

namespace plimsoll::train {

void UseChannelsLast(torch::nn::Module& model) {
  const torch::NoGradGuard no_grad;
  for (at::Tensor& parameter : model.parameters()) {
    if (parameter.dim() == 4) {
      parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
    }
  }
}

Batch InChannelsLast(const Batch& batch) {
  Batch changed = batch;
  for (at::Tensor& tensor : changed.tensors) {
    if (tensor.dim() == 4) tensor = tensor.contiguous(at::MemoryFormat::ChannelsLast);
  }
  return changed;
}

}  // namespace plimsoll::train
