// What a run did, a JSON line a step, for people and for tools.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "train/trainer/trainer.h"

namespace plimsoll::train {

/// {"step": 3, "loss": 2.31, "ms": 41.2, "peak_allocated": ..., "peak_reserved": ...,
/// "micro_batch": 8, "checkpoint": "all", "offload": false, "scale": 1, "skipped": false,
/// "retries": 0}
std::string LogLine(const StepReport& report);

/// Appends; every line is on its way to the disk when Write returns.
class RunLog {
 public:
  explicit RunLog(const std::filesystem::path& path);
  void Write(const StepReport& report);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

/// Records the CUDA allocator's events from now on.
void RecordMemory(c10::Device device);
/// Writes them as a snapshot that `plimsoll explain` and PyTorch's own viewer read.
void WriteSnapshot(const std::filesystem::path& path);

}  // namespace plimsoll::train
