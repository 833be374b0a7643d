// The processes that train one model together, on PyTorch's own engine (c10d).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "train/parallel/ranks/launch.h"
#include "train/parallel/ranks/roll_call.h"

namespace plimsoll::train {

class Meeting;

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
  /// One rank alone does all that several do, over a transport: to try one, or to see what it
  /// takes.
  bool even_alone = false;
};

/// One rank's view of all, or of some of them. Alone it needs nothing: no address, no socket, and
/// each function below returns at once. All its ranks must call the same functions in the same
/// order, from one thread. What goes wrong between ranks is a RankError, but for running out of
/// memory, which stays what it is. After a RankError nothing more can be done with it but to let it
/// go.
class Ranks {
 public:
  /// Alone.
  Ranks();
  /// Returns when all have come.
  explicit Ranks(const Launch& launch, const RanksOptions& options = {});
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  /// This one among its members.
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  /// Nothing is sent.
  bool alone() const { return alone_; }
  /// Of all ranks that were started, the members, in their order.
  const std::vector<int>& members() const { return members_; }
  /// Among all ranks that were started.
  const Launch& launch() const { return launch_; }

  /// Some of all ranks that were started, as a group of their own; this one must be among them.
  /// Only they need to call it. Errors name ranks by their number among all. Not after this one has
  /// gone.
  std::unique_ptr<Ranks> Some(std::vector<int> members) const;

  /// What this rank is about to do, for the errors of others: "backward of step 3".
  void Doing(std::string what);

  /// Calls the function, in which ranks do something together, and agrees on how it went: empty
  /// where it ended on all; else who ran out of memory, the same list on every rank. Then nothing
  /// of what ranks had begun together goes on, and what each has done is to be undone and may be
  /// tried again. Whatever else a rank throws it throws, and the others get a RankError that says
  /// so. For all ranks that were started, never for some of them.
  std::vector<int> Try(const std::function<void()>& function);

  /// In place, over all ranks. BegunWork has the functions that only begin something.
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
  /// What each has to say, by rank.
  std::vector<std::string> Tell(const std::string& text);
  void Barrier();

  /// RAII guard: this rank waits for others. Their errors name a rank that does not wait as the one
  /// that keeps them waiting. Functions of this class make one themselves.
  class Waiting {
   public:
    explicit Waiting(Ranks& ranks);
    ~Waiting();
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

    /// How long something that is waited for may take. Not alone.
    std::chrono::milliseconds limit() const;

   private:
    std::shared_ptr<Meeting> meeting_;
  };

  /// RAII guard: collectives of all groups of this process become no-ops, in which the rank's own
  /// values stand for those of the others, so that one rank can try what memory something takes.
  /// Not messages from rank to rank, nor what is done with group().
  class Rehearsal {
   public:
    explicit Rehearsal(Ranks& ranks);
    ~Rehearsal();
    Rehearsal(const Rehearsal&) = delete;
    Rehearsal& operator=(const Rehearsal&) = delete;

   private:
    std::shared_ptr<Meeting> meeting_;
  };
  bool rehearsing() const;
  /// Collectives send nothing.
  bool silent() const { return alone() || rehearsing(); }

  /// For what this class does not do; not alone. Call it within Guard. After a Try that did not go
  /// well it is another one, and nothing may hold the former: see OnBreak.
  const c10::intrusive_ptr<c10d::ProcessGroup>& group();
  /// RAII guard: the function is called when a Try did not go well, to let go of the group and of
  /// all work that was begun. It must not throw.
  [[nodiscard]] std::shared_ptr<void> OnBreak(std::function<void()> let_go);
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
  Ranks(std::shared_ptr<Meeting> meeting, std::vector<int> members);
  /// Throws a RankError if the error came from the transport.
  void Explain(const std::exception& error);
  std::vector<int> EndRound(RollCall::End end, const std::string& text);
  /// Does it, counted and guarded; nothing where it is silent.
  template <class Function>
  void Together(Function&& begin);

  Launch launch_;
  /// Null where one rank alone was started.
  std::shared_ptr<Meeting> meeting_;
  std::vector<int> members_{0};
  int rank_ = 0;
  bool alone_ = true;
  /// Not made by Some: when it goes, this process leaves.
  bool of_all_ = false;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  /// Lets go of it.
  std::shared_ptr<void> on_break_;
};

}  // namespace plimsoll::train
