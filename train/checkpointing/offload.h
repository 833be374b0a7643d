// Activations on the host: what forward saves for backward is copied to (pinned) host memory while
// the device computes on, and comes back ahead of need.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "train/checkpointing/saved_tensors.h"

namespace plimsoll::train {

/// What is saved and on the device is at most keep_last + in_flight at the end of forward, then
/// what falls of that and `prefetch`; plus what stays because it is small.
struct OffloadOptions {
  /// Pieces of memory smaller than this stay: a copy has a price of its own.
  Bytes least = kMiB;
  /// What was saved last stays: backward begins with it.
  Bytes keep_last = 128 * kMiB;
  /// What may wait on the device for its copy to end. Beyond this, computation waits.
  Bytes in_flight = 128 * kMiB;
  /// What backward will want next and is brought back already; one piece at least, none if 0.
  Bytes prefetch = 128 * kMiB;
  /// Host memory to use at most. What does not fit stays on the device.
  std::optional<Bytes> host_limit;
};

/// Since the Offload was made.
struct OffloadStats {
  std::int64_t tensors_moved = 0;
  /// Small, a parameter, or without room on the host.
  std::int64_t tensors_kept = 0;
  /// Copied to the host, and back. A storage that several tensors share is copied once.
  Bytes to_host = 0;
  Bytes to_device = 0;
  /// Host memory held, in use or kept for the next step.
  Bytes host = 0;
};

struct OffloadShared;

/// Use: `SavedTensorScope scope(offload.policy());` around forward. The gradients are bit for bit
/// those without it, and a saved tensor that is changed in place before backward is an error as
/// usual. Inside a checkpoint nothing is saved, so that only its inputs move. Parts of a CUDA graph
/// do not move.
class Offload {
 public:
  /// `staying`: tensors that live on in any case, so that moving them saves nothing: the model's
  /// parameters. They and their views never move; nor do leaves that require a gradient.
  Offload(c10::Device device, std::vector<at::Tensor> staying, OffloadOptions options = {});
  ~Offload();
  Offload(const Offload&) = delete;
  Offload& operator=(const Offload&) = delete;

  /// A new one for each forward. `also_staying`: for this one, say the batch's tensors. It may
  /// outlive the Offload.
  std::shared_ptr<SavedTensorPolicy> policy(const std::vector<at::Tensor>& also_staying = {});

  OffloadStats stats() const;
  /// Gives back the host memory that is not in use.
  void ReleaseHost();

 private:
  std::vector<at::Tensor> staying_;
  std::shared_ptr<OffloadShared> shared_;
};

}  // namespace plimsoll::train
