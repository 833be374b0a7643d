// Runs that are under way: where `plimsoll run` enters itself, so that `plimsoll watch` finds it,
// and what the ranks report meanwhile.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "launch/run_folder.h"

namespace plimsoll {

/// Enters a run in the register, a folder of this user's alone, for as long as it lives. Where that
/// cannot be, the run goes on without.
class Registration {
 public:
  explicit Registration(const RunFolder& folder);
  ~Registration();
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

 private:
  std::string entry_;
};

/// What PyTorch's allocator has on one device of one process, as that process said last.
struct LiveDevice {
  /// As CUDA counts those that this process sees.
  int device = 0;
  /// As the driver counts them, unless the process cannot know.
  std::optional<int> gpu = {};
  /// Without "GPU-" in front; empty before PyTorch 2.4.
  std::string uuid = {};
  Bytes allocated = 0;
  Bytes reserved = 0;
  Bytes peak_allocated = 0;
  Bytes peak_reserved = 0;
  /// In pools of CUDA graphs and of torch.cuda.MemPool; requests that were refused beforehand, by
  /// per_process_memory_fraction. Newer releases tell them.
  std::optional<Bytes> private_pools = {};
  std::optional<std::int64_t> rejections = {};
};

/// What a process and all that it started hold of the host's memory.
struct LiveHost {
  /// What they share is counted for each.
  Bytes resident = 0;
  std::int64_t processes = 0;
};

struct LiveProcess {
  std::int64_t pid = 0;
  std::optional<int> rank = {};
  std::int64_t optimizer_steps = 0;
  /// By `plimsoll run --budget`.
  std::optional<Bytes> budget = {};
  /// Page-locked memory of the host that PyTorch's allocator holds, where this release tells.
  std::optional<Bytes> pinned = {};
  /// Seconds since 1970.
  double wrote = 0;
  std::vector<LiveDevice> devices = {};
  /// As the kernel says, where this was asked for.
  std::optional<LiveHost> host = {};
};

/// Of the processes of this user's runs on this machine that are alive, by number, with what they
/// hold of the host's memory. Files that are
/// not as the hook writes them are passed over: of their content only figures within reason are
/// taken.
std::vector<LiveProcess> ReadLiveProcesses();

/// Of the processes of one run, in its hook's folder: on this machine and alive.
std::vector<LiveProcess> ReadReportsOf(const std::string& hook);

/// What one process reported; nothing where that is not as the hook writes it, or from another
/// host.
std::optional<LiveProcess> ParseLiveProcess(std::string_view text, std::string_view host);

}  // namespace plimsoll
