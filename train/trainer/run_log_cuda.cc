#include <torch/csrc/cuda/memory_snapshot.h>

#include "base/printable.h"
#include "files/output.h"
#include "train/trainer/run_log.h"

namespace plimsoll::train {

void RecordMemory(c10::Device device) {
  TORCH_CHECK(device.is_cuda(), "only a CUDA device's memory can be recorded, not that of ",
              device);
  torch::cuda::_record_memory_history("all", "all", "all", 1000000);
}

void WriteSnapshot(const std::filesystem::path& path) {
  const auto error = WriteFile(path.string(), torch::cuda::_memory_snapshot_pickled());
  TORCH_CHECK(!error.has_value(), Printable(error->ToLine()));
}

}  // namespace plimsoll::train
