// Which samples make a batch, and in which order the batches of an epoch come.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "train/data/source.h"

namespace plimsoll::train {

struct BatchPlanOptions {
  /// Samples of a batch, at most; 0 leaves it to the budget.
  std::int64_t batch = 1;
  /// What a batch may be at most: its samples times the length of the longest in their bucket, as
  /// Source::Length has it (tokens, pixels). So it holds for the batch after padding. 0: no limit.
  std::int64_t budget = 0;
  /// Samples go into one batch only if their lengths, divided by this, agree when rounded down. 0:
  /// any go together.
  std::int64_t bucket = 0;
  /// The order of the samples is anew in each epoch, and follows from the seed; with buckets, the
  /// order of the batches too.
  bool shuffle = true;
  std::uint64_t seed = 0;
  /// Leaves out the last batch of an epoch, or of a bucket, if it would be smaller.
  bool drop_last = false;
};

/// The same for the same source and options, on every machine. Each epoch has the same number of
/// batches, of the same sizes. May be used from several threads at once.
class BatchPlan {
 public:
  /// Asks for the length of every sample if there are buckets or a budget. Throws
  /// c10::Error if the options cannot be, or a sample is longer than the budget.
  BatchPlan(const Source& source, const BatchPlanOptions& options);

  std::int64_t batches_per_epoch() const { return static_cast<std::int64_t>(slots_.size()); }
  /// Of the batch with this number, counted from the first one of the first epoch.
  std::vector<std::int64_t> Indices(std::int64_t number) const;

 private:
  /// Samples of like length, and how many make a batch.
  struct Bucket {
    std::vector<std::int64_t> samples;
    std::int64_t batch = 0;
  };
  struct Slot {
    std::size_t bucket = 0;
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  /// Of one epoch.
  struct Order {
    std::vector<std::vector<std::int64_t>> buckets;
    std::vector<Slot> slots;
  };

  void MakeBuckets(const Source& source);
  void MakeSlots();
  std::shared_ptr<const Order> OrderOf(std::int64_t epoch) const;

  BatchPlanOptions options_;
  std::vector<Bucket> buckets_;
  std::vector<Slot> slots_;
  /// Two epochs are in use at once where one ends.
  mutable std::mutex mutex_;
  mutable std::map<std::int64_t, std::shared_ptr<const Order>> orders_;
};

}  // namespace plimsoll::train
