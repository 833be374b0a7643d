#include "train/data/batch.h"

namespace plimsoll::train {

Batch Batch::Rows(std::int64_t begin, std::int64_t end) const {
  Batch rows;
  for (const at::Tensor& tensor : tensors) rows.tensors.push_back(tensor.slice(0, begin, end));
  return rows;
}

Batch Batch::To(c10::Device device, bool non_blocking) const {
  Batch moved;
  for (const at::Tensor& tensor : tensors) {
    moved.tensors.push_back(tensor.to(tensor.options().device(device), non_blocking));
  }
  return moved;
}

}  // namespace plimsoll::train
