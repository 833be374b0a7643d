// What a job's process has in the host's memory, by stage: what PyTorch and CUDA take there by
// themselves, what the script imports, and the tensors that it has there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "job/file/job.h"

namespace plimsoll {

struct HostNeeds {
  /// Resident memory of one process at most: the sum of the three below.
  Bytes resident = 0;
  /// PyTorch and CUDA, with the libraries that are loaded by then.
  Bytes base = 0;
  /// Modules, arrays and texts of the script.
  Bytes imports = 0;
  Bytes tensors = 0;
  /// The line that asks for the last of them.
  std::string where = {};
  /// The part in which that is, as in Peaks::parts.
  std::size_t part = 0;
  /// By part: resident memory at most.
  std::vector<Bytes> by_part = {};
};

/// Nothing where the capture did not look at the host.
std::optional<HostNeeds> FindHostNeeds(const Job& job, const Variant& variant, std::int64_t batch);

}  // namespace plimsoll
