// Batches, loaded ahead in the background.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "train/data/source.h"

namespace plimsoll::train {

struct LoaderOptions {
  std::int64_t batch = 1;
  /// The order of the samples is anew in each epoch, and follows from the seed.
  bool shuffle = true;
  std::uint64_t seed = 0;
  /// Leaves out the last batch of an epoch if it would be smaller.
  bool drop_last = false;
  /// Threads. None: batches are loaded when they are asked for.
  int workers = 2;
  /// So many batches are held ready, or in the making, at most. On a CPU with a budget they count.
  int prefetch = 4;
  /// In pinned memory, from which copies to a GPU go on by themselves. Without a GPU as usual.
  bool pinned = false;
};

/// The same batches in the same order, however many threads load them.
class Loader {
 public:
  Loader(std::shared_ptr<const Source> source, LoaderOptions options);

  /// Batches go on for ever, epoch after epoch. A batch that could not be loaded ahead is tried
  /// once more now that it is wanted, and what that throws is thrown here; the position stays, so
  /// that the next call tries again.
  Batch Next();

  std::int64_t batches_per_epoch() const { return batches_per_epoch_; }
  /// Of the batch that comes next, counted from the first one of the first epoch. A loader of the
  /// same source and options that seeks here goes on with the same batches.
  std::int64_t position() const;
  std::int64_t epoch() const { return position() / batches_per_epoch_; }
  void Seek(std::int64_t position);

 private:
  using Order = std::shared_ptr<const std::vector<std::int64_t>>;

  Batch Load(std::int64_t number) const;
  std::vector<std::int64_t> IndicesOf(std::int64_t number) const;
  Order OrderOf(std::int64_t epoch) const;
  std::optional<Batch> TryLoad(std::int64_t number) const;
  void Work(const std::stop_token& stop);

  std::shared_ptr<const Source> source_;
  LoaderOptions options_;
  std::int64_t batches_per_epoch_ = 0;

  /// Two epochs are in use at once where one ends.
  mutable std::mutex orders_mutex_;
  mutable std::map<std::int64_t, Order> orders_;

  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::condition_variable_any room_;
  std::int64_t position_ = 0;
  /// The next one that a worker takes.
  std::int64_t next_ = 0;
  /// How often there was a Seek: what was begun before it is of no use.
  std::int64_t seeks_ = 0;
  /// Nothing in place of a batch that could not be loaded.
  std::map<std::int64_t, std::optional<Batch>> loaded_;

  /// Last, so that they end first. Each ends after the batch that it is at.
  std::vector<std::jthread> workers_;
};

}  // namespace plimsoll::train
