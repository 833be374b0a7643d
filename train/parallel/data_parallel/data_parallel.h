// Data parallel: each rank has the whole model and a part of the batch, and all have the gradients
// of the whole batch. On torch's own engine for it, the reducer of DistributedDataParallel.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "train/gradients/micro_batch.h"
#include "train/parallel/ranks/ranks.h"

namespace c10d {
class Logger;
class Reducer;
}  // namespace c10d

namespace plimsoll::train {

struct DataParallelOptions {
  /// Gradients are sent in buckets of this size, each as soon as it is complete, while backward
  /// goes on. The first one is smaller, so that sending begins early.
  Bytes bucket = 25 * kMiB;
  Bytes first_bucket = kMiB;
  /// Parameters may stay without a gradient in some steps, or on some ranks. Finding them costs a
  /// walk over the graph in each step; without this they are an error.
  bool unused_parameters = false;
  /// Each step begins with the buffers (running statistics) of rank 0.
  bool sync_buffers = true;
  /// Gradients travel as bf16, half the bytes, and are summed in it.
  bool send_bf16 = false;
};

/// Gradients are views of what is sent, so that they need no memory twice. It stays so if they are
/// set to zero, zero_grad(false); where they are dropped they are copied once in the next backward.
/// One rank alone trains as if this were not there.
class DataParallel {
 public:
  /// All ranks get the parameters and buffers of rank 0. An error if the models differ. The model
  /// and the ranks must outlive it.
  DataParallel(torch::nn::Module& model, Ranks& ranks, const DataParallelOptions& options = {});
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// RAII guard: backward adds to the gradients of this rank alone.
  class NoSync {
   public:
    explicit NoSync(DataParallel& parallel) : parallel_(parallel), outer_(parallel.sync_) {
      parallel.sync_ = false;
    }
    ~NoSync() { parallel_.sync_ = outer_; }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    DataParallel& parallel_;
    bool outer_;
  };

  /// What ranks do together before the first forward of a step: buffers become those of rank 0.
  /// Forward calls it if nobody has.
  void BeginStep();
  /// Calls it and returns its result, the loss. Its backward makes each gradient the mean of those
  /// of all ranks, unless there is a NoSync.
  at::Tensor Forward(const std::function<at::Tensor()>& loss);
  /// The same for gradients that are there already, from backwards under NoSync.
  void Reduce();

  /// Makes gradients of zero that lie in what is sent, so that also those of the first step, and of
  /// pieces, take no memory of their own. Nothing where that is so already.
  void PlaceGradients();
  /// They stay where they are, as zeros.
  void ClearGradients();

  /// Adds the gradients of the loss over all ranks' rows, each row counting the same wherever it
  /// is, and returns that loss. Ranks may have different numbers of rows and pieces, also none; the
  /// weight decides as on one rank.
  at::Tensor AccumulateGradients(const LossFunction& loss, const Batch& batch,
                                 const Pieces& pieces);
  /// This rank's share of that, and of the loss, where all ranks' rows have the weight `whole`. Its
  /// last piece sends the gradients; under NoSync nothing is sent.
  at::Tensor AddShare(const LossFunction& loss, const Batch& batch, const Pieces& pieces,
                      double whole);

 private:
  void NameParameters();
  void MakeReducer();
  /// In the backward that was to send them.
  void CheckAllGotGradients() const;
  at::Tensor AddPieces(const LossFunction& loss, const Batch& rows, Pieces pieces, double whole);

  torch::nn::Module& model_;
  Ranks& ranks_;
  std::vector<at::Tensor> parameters_;
  /// By their place in it.
  std::unordered_map<std::size_t, std::string> names_;
  /// Null where they need not, or alone.
  std::shared_ptr<std::vector<char>> got_gradient_;
  std::vector<unsigned> hooks_;
  std::vector<at::Tensor> synced_buffers_;
  DataParallelOptions options_;
  bool sync_ = true;
  bool placed_ = false;
  /// In a backward that sends.
  std::optional<Ranks::Waiting> waiting_;
  /// A step ends when gradients are sent.
  bool begun_ = false;
  /// None alone, and none between a Try that did not go well and the next step.
  std::shared_ptr<c10d::Reducer> reducer_;
  /// The reducer tells it of unused parameters, without asking whether it is there.
  std::shared_ptr<c10d::Logger> logger_;
  std::shared_ptr<void> on_break_;
};

/// Of all ranks' rows. An error if there is nothing to learn from.
double WeightOfAll(Ranks& ranks, const Batch& batch, const Pieces& pieces);

}  // namespace plimsoll::train
