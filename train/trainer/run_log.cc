#include "train/trainer/run_log.h"

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

namespace plimsoll::train {

std::string LogLine(const StepReport& report) {
  nlohmann::ordered_json line;
  line["step"] = report.step;
  line["loss"] = report.loss;
  line["ms"] = report.seconds * 1000;
  line["peak_allocated"] = report.memory.peak_allocated;
  line["peak_reserved"] = report.memory.peak_reserved;
  line["micro_batch"] = report.levers.micro_batch;
  line["checkpoint"] = report.levers.checkpoint.ToString();
  line["offload"] = report.levers.offload;
  line["chunked_loss"] = report.levers.chunked_loss;
  if (report.optimizer) line["optimizer"] = FormName(*report.optimizer);
  line["scale"] = report.scale;
  line["skipped"] = report.skipped;
  line["retries"] = report.retries;
  return line.dump();
}

RunLog::RunLog(const std::filesystem::path& path)
    : path_(path.string()), file_(std::fopen(path.c_str(), "a")) {
  TORCH_CHECK(file_ != nullptr, path_, ": cannot be written: ", std::strerror(errno));
}

void RunLog::Write(const StepReport& report) {
  const std::string line = LogLine(report) + "\n";
  const bool written = std::fwrite(line.data(), 1, line.size(), file_.get()) == line.size() &&
                       std::fflush(file_.get()) == 0;
  TORCH_CHECK(written, path_, ": cannot be written: ", std::strerror(errno));
}

}  // namespace plimsoll::train
