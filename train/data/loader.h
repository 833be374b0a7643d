// Batches, loaded ahead in the background.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "train/data/batch_plan.h"
#include "train/data/collate.h"
#include "train/data/random.h"
#include "train/data/source.h"

namespace plimsoll::train {

/// Changes a sample, or throws DataError to have it left out as a broken one. The random numbers
/// follow from the loader's seed, the epoch and the sample's number alone. Called from several
/// threads at once.
using Augmentation = std::function<void(Sample& sample, std::int64_t epoch, Random& random)>;

struct LoaderOptions {
  /// As in BatchPlanOptions.
  std::int64_t batch = 1;
  bool shuffle = true;
  std::uint64_t seed = 0;
  bool drop_last = false;
  /// Threads. None: batches are loaded when they are asked for.
  int workers = 2;
  /// So many batches are held ready, or in the making, at most. Until Next gives it, a batch counts
  /// in no budget, also where the device is the CPU: how far threads are ahead is chance.
  int prefetch = 4;
  /// In pinned memory, from which copies to a GPU go on by themselves. Without a GPU as usual.
  bool pinned = false;
  /// As in BatchPlanOptions. With either, the source is asked for one sample at a time, and samples
  /// are padded to the largest of their batch.
  std::int64_t budget = 0;
  std::int64_t bucket = 0;
  /// What each tensor of a sample is padded with, as Collate does.
  std::vector<double> padding;
  /// Empty: samples stay as they are.
  Augmentation augment;
  /// Of each batch, this rank's part: nearly the same cost for all (train/data/deal.h), by
  /// Source::Length. Batches, and so positions, are the same for any number of ranks. A rank may
  /// get a batch without rows.
  int rank = 0;
  int ranks = 1;
  /// So many samples may be broken (DataError), which are then left out of their batches. One more
  /// ends it with a DataError.
  std::int64_t max_broken = 0;
};

/// Samples that could not be used.
struct BrokenSamples {
  struct Reason {
    std::int64_t index = 0;
    std::string reason;
  };

  /// Each sample once, however often it was met.
  std::int64_t count = 0;
  /// Of the first ones.
  std::vector<Reason> first;
};

/// The same batches in the same order, however many threads load them.
class Loader {
 public:
  /// Throws c10::Error for options that cannot be.
  Loader(std::shared_ptr<const Source> source, LoaderOptions options);

  /// Batches go on for ever, epoch after epoch. A batch of which every sample is broken is passed
  /// over; with several ranks, which must stay together, it is one without rows. A batch that could
  /// not be loaded ahead is tried once more now that it is wanted, and what that throws is thrown
  /// here; the position stays, so that the next call tries again.
  Batch Next();

  /// Those of the batches that Next has come to.
  BrokenSamples broken() const;

  std::int64_t batches_per_epoch() const { return plan_.batches_per_epoch(); }
  /// Of the batch that comes next, counted from the first one of the first epoch. A loader of the
  /// same source and options that seeks here goes on with the same batches.
  std::int64_t position() const;
  std::int64_t epoch() const { return position() / batches_per_epoch(); }
  /// So that batches after it can still be counted.
  static constexpr std::int64_t kLastPosition = std::int64_t{1} << 53;
  void Seek(std::int64_t position);

 private:
  /// Without a tensor if all of its samples are broken.
  struct Loaded {
    Batch batch;
    std::vector<BrokenSamples::Reason> broken;
  };

  Loaded Load(std::int64_t number) const;
  /// Without rows, as samples are otherwise.
  Batch Empty(const at::TensorOptions& where) const;
  Loaded LoadOneByOne(const std::vector<std::int64_t>& indices, std::int64_t epoch,
                      const at::TensorOptions& where) const;
  Sample LoadSample(std::int64_t index, std::int64_t epoch) const;
  std::optional<Loaded> TryLoad(std::int64_t number) const;
  Loaded Take(std::unique_lock<std::mutex>& lock);
  void Count(const std::vector<BrokenSamples::Reason>& broken);
  void Work(const std::stop_token& stop);

  std::shared_ptr<const Source> source_;
  LoaderOptions options_;
  BatchPlan plan_;

  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::condition_variable_any room_;
  std::int64_t position_ = 0;
  /// The next one that a worker takes.
  std::int64_t next_ = 0;
  /// How often there was a Seek: what was begun before it is of no use.
  std::int64_t seeks_ = 0;
  /// Nothing in place of a batch that could not be loaded.
  std::map<std::int64_t, std::optional<Loaded>> loaded_;
  /// Why, by the number of the sample.
  std::map<std::int64_t, std::string> broken_;
  std::vector<std::int64_t> first_broken_;

  /// Last, so that they end first. Each ends after the batch that it is at.
  std::vector<std::jthread> workers_;
};

}  // namespace plimsoll::train
