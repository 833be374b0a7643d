#include <torch/csrc/cuda/memory_snapshot.h>

#include <fstream>

#include "train/trainer/run_log.h"

namespace plimsoll::train {

void RecordMemory(c10::Device device) {
  TORCH_CHECK(device.is_cuda(), "only a CUDA device's memory can be recorded, not that of ",
              device);
  torch::cuda::_record_memory_history("all", "all", "all", 1000000);
}

void WriteSnapshot(const std::filesystem::path& path) {
  const std::string bytes = torch::cuda::_memory_snapshot_pickled();
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  TORCH_CHECK(out.good(), path.string(), ": cannot be written");
}

}  // namespace plimsoll::train
