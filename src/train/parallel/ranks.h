// The processes that train one model together, on PyTorch's own engine (c10d).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "train/parallel/launch.h"
#include "train/parallel/roll_call.h"

namespace plimsoll::train {

/// How ranks speak with one another.
enum class Transport {
  /// NCCL for a CUDA device, gloo for the CPU.
  kOfDevice,
  /// For tensors of both. Also where several ranks share a GPU, which NCCL refuses.
  kGloo,
  kNccl,
};

struct RanksOptions {
  /// Where this rank's model is.
  c10::Device device = c10::kCPU;
  Transport transport = Transport::kOfDevice;
  /// A rank that waits for others gives up after this, with an error that names who is missing.
  std::chrono::milliseconds time_limit = std::chrono::minutes(10);
  /// The same for the start, when machines may come late.
  std::chrono::milliseconds meeting_limit = std::chrono::minutes(5);
};

/// One rank's view of all. Alone it needs nothing: no address, no socket, and each function below
/// returns at once. All ranks must call the same functions in the same order, from one thread.
/// What goes wrong between ranks is a RankError, but for running out of memory, which stays what it
/// is. After a RankError nothing more can be done with it but to let it go.
class Ranks {
 public:
  /// Alone.
  Ranks();
  /// Returns when all have come.
  explicit Ranks(const Launch& launch, const RanksOptions& options = {});
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int rank() const { return launch_.rank; }
  int size() const { return launch_.size; }
  bool alone() const { return launch_.size == 1; }
  const Launch& launch() const { return launch_; }

  /// What this rank is about to do, for the errors of others: "backward of step 3".
  void Doing(std::string what);

  /// In place, over all ranks.
  void Sum(at::Tensor& tensor);
  void Least(at::Tensor& tensor);
  /// The same of one number.
  double Sum(double value);
  /// All get those of `from`, in place.
  void Broadcast(const std::vector<at::Tensor>& tensors, int from = 0);
  /// `whole` is every rank's `part`, one after the other. The part may lie within it.
  void Gather(at::Tensor& whole, const at::Tensor& part);
  /// `part` is this rank's part of the sum of every rank's `whole`.
  void SumParts(at::Tensor& part, const at::Tensor& whole);
  void Barrier();

  /// The same two, begun only; `Wait` for what they return, which is null for one rank alone.
  using Work = c10::intrusive_ptr<c10d::Work>;
  Work BeginGather(at::Tensor& whole, const at::Tensor& part);
  Work BeginSumParts(at::Tensor& part, const at::Tensor& whole);
  void Wait(const Work& work);

  /// For what this class does not do; null alone. Call it within Guard.
  const c10::intrusive_ptr<c10d::ProcessGroup>& group() const { return group_; }
  /// Calls the function. Its error becomes a RankError if it came from the transport.
  template <class Function>
  auto Guard(Function&& function) {
    try {
      return function();
    } catch (const std::exception& error) {
      Explain(error);
      throw;
    }
  }

 private:
  void Leave();
  /// Throws a RankError if the error came from the transport.
  void Explain(const std::exception& error);
  /// Does it, counted and guarded; nothing alone.
  template <class Function>
  void Together(Function&& begin);

  Launch launch_;
  RanksOptions options_;
  std::unique_ptr<RollCall> roll_call_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

}  // namespace plimsoll::train
