// What the ranks of a pipeline send one another in a step.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "train/checkpointing/checkpoint.h"
#include "train/parallel/pipeline/pipeline_schedule.h"
#include "train/parallel/ranks/begun_work.h"
#include "train/parallel/ranks/ranks.h"

namespace plimsoll::train {

/// What must be known of a tensor before it can be received.
struct TensorForm {
  at::ScalarType type = at::kFloat;
  std::vector<std::int64_t> sizes;
  /// Whether its gradient comes back.
  bool wants_gradient = false;

  bool operator==(const TensorForm&) const = default;
};
using TensorForms = std::vector<TensorForm>;

TensorForms FormsOf(const Tensors& tensors);
/// Those whose gradients come back.
TensorForms FormsOfGradients(const TensorForms& forms);

/// The ranks of one pipeline. NCCL does one thing after the other between two ranks, whatever its
/// direction, so that there each way needs a group of its own; gloo tells messages apart.
class PipelineWays {
 public:
  /// Of all ranks that were started, those of this pipeline.
  PipelineWays(Ranks& ranks, const std::vector<int>& members, int chunks, c10::Device device);

  /// Connects those that are not, on all of them in the same order.
  void Connect();
  Ranks& all() { return *ways_[0]; }
  /// Wraps: from the last rank to the first, or back.
  Ranks& Of(bool backward, bool wraps) {
    return *ways_[((backward ? 1 : 0) + (wraps ? 2 : 0)) % ways_.size()];
  }
  /// Where tensors are sent from: gloo knows no GPU.
  c10::Device wire() const { return wire_; }

 private:
  c10::Device wire_;
  std::vector<std::unique_ptr<Ranks>> own_;
  std::vector<Ranks*> ways_;
};

/// Of one step; what it holds goes with it. Nobody waits for what was sent: tensors are kept until
/// something that came from the other rank shows that they have arrived.
class PipelineMessages {
 public:
  PipelineMessages(PipelineWays& ways, const PipelineShape& shape, c10::Device device);

  /// What the action gives to the rank after it.
  void SendForms(const PipelineAction& action, const TensorForms& forms);
  void Send(const PipelineAction& action, const Tensors& tensors);
  /// What the action waits for. Begun ahead of need, it goes on by itself.
  TensorForms ReceiveForms(const PipelineAction& action);
  void BeginReceive(const PipelineAction& action, const TensorForms& forms);
  Tensors Receive(const PipelineAction& action, const TensorForms& forms);
  void FinishSends();

 private:
  struct Message {
    Tensors tensors;
    std::vector<BegunWork> works;
  };
  struct Sent {
    Message message;
    int to = 0;
    /// Its place among the actions of that rank.
    int awaited_by = 0;
  };

  int PartOf(const PipelineAction& action) const { return action.chunk * shape_.stages + rank_; }
  /// Of the action with this part's and micro-batch's backward or forward, among those of its rank.
  int PlaceOf(bool backward, int part, int micro_batch) const;
  Ranks& WayTo(const PipelineAction& action);
  Ranks& WayFrom(const PipelineAction& action);
  /// Different for all messages of a step.
  int TagOf(bool backward, int sender, int micro_batch, std::size_t index) const;
  int TagTo(const PipelineAction& action, std::size_t index) const;
  int TagFrom(const PipelineAction& action, std::size_t index) const;
  void Keep(const PipelineAction& action, Message message);
  void LetGoOfArrived(const PipelineAction& received);

  PipelineWays& ways_;
  PipelineShape shape_;
  int rank_;
  c10::Device device_;
  /// By part, then micro-batch; forwards, then backwards.
  std::array<std::vector<int>, 2> places_;
  std::deque<Sent> sent_;
  /// By their first tag.
  std::map<int, Message> coming_;
};

}  // namespace plimsoll::train
