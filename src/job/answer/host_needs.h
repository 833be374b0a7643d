// What a job has in the memory of its machine, by stage: what PyTorch and CUDA take there by
// themselves, what the script imports, its tensors, pinned memory, and the workers of its loaders.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "job/trial/setting.h"

namespace plimsoll {

/// At most, while one part of the job's life runs.
struct HostPart {
  /// PyTorch and CUDA, with the libraries that are loaded by then.
  Bytes base = 0;
  /// Modules, arrays and texts of the script.
  Bytes imports = 0;
  /// Tensors that are not pinned.
  Bytes tensors = 0;
  /// With what PyTorch's allocator rounds up and keeps.
  Bytes pinned = 0;
  /// Other processes that fetch batches, and what each of them has for itself.
  std::int64_t workers = 0;
  Bytes of_workers = 0;
  /// Batches on their way from them, in /dev/shm.
  Bytes shared = 0;
  /// The line that asks for the last of the tensors.
  std::string where = {};

  /// Of the process that trains.
  Bytes resident() const { return base + imports + tensors + pinned; }
  Bytes with_workers() const { return resident() + of_workers + shared; }
};

struct HostNeeds {
  /// As in Peaks::parts.
  std::vector<HostPart> parts = {};
  /// The one that takes most.
  std::size_t most = 0;
  /// Processes like this one on the machine.
  std::int64_t ranks = 1;

  const HostPart& peak() const { return parts[most]; }
  Bytes of_machine() const;
  /// The most of any part, of one process.
  Bytes shared() const;
  Bytes pinned() const;
};

/// Nothing where the capture did not look at the host.
std::optional<HostNeeds> FindHostNeeds(const Setting& setting);

/// Whether the host has room for the process and its like; true where either is not known.
bool FitsItsHost(const Setting& setting);

}  // namespace plimsoll
