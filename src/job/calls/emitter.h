// What a rule says about a call: the allocations and releases that really happen in it, in order.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "allocator/settings/version.h"
#include "hardware/gpu.h"
#include "job/calls/call.h"
#include "job/calls/workspace.h"

namespace plimsoll {

class Calibration;
struct AskedWorkspaces;

/// Before the rules, in this order.
struct WorkspaceSources {
  /// What was measured on the card; null if nothing was.
  const Calibration* measured = nullptr;
  /// What cuDNN said of it at the capture; null if it was not asked, or of another card.
  const AskedWorkspaces* asked = nullptr;
};

/// A block that a call took and that is not one of its results.
struct Slot {
  std::uint32_t value = 0xffffffffu;
  bool valid() const { return value != 0xffffffffu; }
};

/// A compiled region that runs as a CUDA graph.
struct GraphRegion {
  /// A forward has a backward; in inference there is none.
  enum class Kind : std::uint8_t { kForward, kBackward, kInference };
  Kind kind = Kind::kForward;
  /// The same at each run of it.
  std::int64_t graph = 0;
  /// Inputs that may lie elsewhere at the next run.
  std::vector<Tensor> moving = {};
};

class Emitter {
 public:
  virtual ~Emitter() = default;

  /// For whom the step is lowered.
  virtual const Gpu& gpu() const = 0;
  /// What is known of convolutions on it.
  virtual WorkspaceSources sources() const = 0;
  /// The release that will train.
  virtual TorchVersion torch() const = 0;

  /// Takes a block that is not a result. Nothing is taken for 0 bytes; giving that back is no harm.
  virtual Slot Take(Bytes bytes) = 0;
  virtual Slot Take(const Workspace& workspace) = 0;
  virtual void Give(Slot slot) = 0;
  /// Takes a workspace and gives it back at once. A library that is refused it does without.
  virtual void Borrow(const Workspace& workspace) = 0;
  /// PyTorch's search for the fastest way of a call, at the first of this key in this thread: the
  /// workspace is taken if there is room and given back, then whatever is cached is.
  virtual void Search(std::string_view key, int thread, const Workspace& workspace) = 0;

  /// The call's i-th new storage is made here. Those that a rule does not mention are made, in
  /// order, when it returns.
  virtual void Make(std::size_t fresh) = 0;
  /// The same, where the real kernel asks for another size than the capture saw.
  virtual void Make(std::size_t fresh, Bytes bytes) = 0;
  /// The new storage is in truth that of an argument: the call works in place.
  virtual void Reuse(std::size_t fresh, Storage argument) = 0;

  /// Takes a block that is given back when `storage` dies, or before that with GiveHeld. `name`
  /// tells several of one storage apart and orders them: at its death the negative ones go first,
  /// then the storage itself, then the others, each from the lowest name up.
  virtual void Hold(Storage storage, int name, Bytes bytes) = 0;
  /// Gives back what was held for the storage under this name; no harm if there is nothing.
  virtual void GiveHeld(Storage storage, int name) = 0;

  /// Taken at the first call of this name in this thread and kept for good: a library's workspace.
  virtual void Keep(std::string_view name, int thread, Bytes bytes) = 0;

  /// What follows is a run of this region; of none any more where it is null.
  virtual void UseGraph(const GraphRegion* region) = 0;

  /// Whether the storage dies before the next call but one: the argument of a sum of gradients.
  virtual bool DiesSoon(Storage storage) const = 0;
};

/// What one operator allocates beyond what the capture shows.
using Rule = void (*)(const Call& call, Emitter& emit);

}  // namespace plimsoll
