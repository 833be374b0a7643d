#include "train/data/batch.h"

#include <c10/util/Exception.h>

#include <algorithm>

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

Batch Batch::On(c10::Device device) const {
  const auto elsewhere = [&](const at::Tensor& tensor) {
    return tensor.device().type() != device.type();
  };
  return std::ranges::all_of(tensors, elsewhere) ? To(device, /*non_blocking=*/true) : *this;
}

void Batch::CheckRows(std::int64_t least) const {
  TORCH_CHECK(!tensors.empty(), "the batch is empty");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    TORCH_CHECK(tensors[i].defined(), "tensor ", i, " of the batch is not defined");
    TORCH_CHECK(tensors[i].dim() > 0, "tensor ", i,
                " of the batch is a single number, and should have a row for each sample");
    TORCH_CHECK(tensors[i].size(0) == size(), "tensor ", i, " of the batch has ",
                tensors[i].size(0), " rows, and tensor 0 has ", size());
  }
  TORCH_CHECK(size() >= least, "the batch is empty");
}

}  // namespace plimsoll::train
