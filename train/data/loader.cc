#include "train/data/loader.h"

#include <ATen/Context.h>

#include <utility>

#include "train/budget/cpu_allocator.h"
#include "train/data/deal.h"

namespace plimsoll::train {
namespace {

constexpr std::size_t kReasonsKept = 10;

const Source& Checked(const std::shared_ptr<const Source>& source, const LoaderOptions& options) {
  TORCH_CHECK(source != nullptr, "a loader needs a source");
  TORCH_CHECK(options.workers >= 0, "a loader with ", options.workers, " threads cannot be");
  TORCH_CHECK(options.workers == 0 || options.prefetch > 0,
              "a loader with threads must be allowed to hold a batch");
  TORCH_CHECK(options.ranks >= 1 && options.rank >= 0 && options.rank < options.ranks,
              "a loader for rank ", options.rank, " of ", options.ranks, " cannot be");
  TORCH_CHECK(options.max_broken >= 0, "a limit of ", options.max_broken,
              " broken samples cannot be");
  return *source;
}

BatchPlanOptions PlanOf(const LoaderOptions& options) {
  return {.batch = options.batch,
          .budget = options.budget,
          .bucket = options.bucket,
          .shuffle = options.shuffle,
          .seed = options.seed,
          .drop_last = options.drop_last};
}

/// Others than those that shuffle.
Random RandomOf(std::uint64_t seed, std::int64_t epoch, std::int64_t index) {
  constexpr std::uint64_t kAugmentation = 0x6175676d656e74;
  Random of_epoch(seed ^ kAugmentation, static_cast<std::uint64_t>(epoch));
  return {of_epoch.Next(), static_cast<std::uint64_t>(index)};
}

}  // namespace

Loader::Loader(std::shared_ptr<const Source> source, LoaderOptions options)
    : source_(std::move(source)),
      options_(std::move(options)),
      plan_(Checked(source_, options_), PlanOf(options_)) {
  options_.pinned = options_.pinned && at::globalContext().hasCUDA();
  for (int i = 0; i < options_.workers; ++i) {
    workers_.emplace_back([this](const std::stop_token& stop) { Work(stop); });
  }
}

Batch Loader::Next() {
  std::unique_lock lock(mutex_);
  for (std::int64_t passed = 0; passed < batches_per_epoch(); ++passed) {
    Loaded loaded = Take(lock);
    Count(loaded.broken);
    for (const at::Tensor& tensor : loaded.batch.tensors) {
      CpuAllocator::Installed().CountFromNowOn(tensor);
    }
    loaded_.erase(position_);
    ++position_;
    room_.notify_all();
    if (!loaded.batch.tensors.empty() || loaded.broken.empty()) return std::move(loaded.batch);
  }
  throw DataError("in a whole epoch no sample could be used; the first: " +
                  broken_.at(first_broken_.at(0)));
}

/// The batch at the position. It is not kept, but its place is, so that a next call tries again.
Loader::Loaded Loader::Take(std::unique_lock<std::mutex>& lock) {
  std::optional<Loaded> loaded;
  if (!workers_.empty()) {
    ready_.wait(lock, [&] { return loaded_.contains(position_); });
    loaded = std::exchange(loaded_[position_], std::nullopt);
  }
  return loaded ? *std::move(loaded) : Load(position_);
}

void Loader::Count(const std::vector<BrokenSamples::Reason>& broken) {
  for (const auto& [index, reason] : broken) {
    if (broken_.contains(index)) continue;
    if (static_cast<std::int64_t>(broken_.size()) == options_.max_broken) {
      throw DataError("more than " + std::to_string(options_.max_broken) +
                      " samples cannot be used; the last: " + reason);
    }
    broken_[index] = reason;
    if (first_broken_.size() < kReasonsKept) first_broken_.push_back(index);
  }
}

BrokenSamples Loader::broken() const {
  const std::lock_guard lock(mutex_);
  BrokenSamples broken{.count = static_cast<std::int64_t>(broken_.size())};
  for (const std::int64_t index : first_broken_) broken.first.push_back({index, broken_.at(index)});
  return broken;
}

std::int64_t Loader::position() const {
  const std::lock_guard lock(mutex_);
  return position_;
}

void Loader::Seek(std::int64_t position) {
  TORCH_CHECK(position >= 0 && position <= kLastPosition, "there is no batch ", position);
  const std::lock_guard lock(mutex_);
  if (position == position_) return;
  position_ = next_ = position;
  ++seeks_;
  loaded_.clear();
  room_.notify_all();
}

void Loader::Work(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (room_.wait(lock, stop, [&] { return next_ < position_ + options_.prefetch; })) {
    if (stop.stop_requested()) return;
    const std::int64_t number = next_++;
    const std::int64_t seeks = seeks_;
    lock.unlock();
    std::optional<Loaded> loaded = TryLoad(number);
    lock.lock();
    if (seeks != seeks_) continue;
    loaded_[number] = std::move(loaded);
    ready_.notify_all();
  }
}

std::optional<Loader::Loaded> Loader::TryLoad(std::int64_t number) const {
  try {
    return Load(number);
  } catch (...) {
    return std::nullopt;
  }
}

Loader::Loaded Loader::Load(std::int64_t number) const {
  const CpuAllocator::Uncounted uncounted;
  const auto where = at::TensorOptions(at::kCPU).pinned_memory(options_.pinned);
  std::vector<std::int64_t> indices = plan_.Indices(number);
  const bool padded = options_.budget > 0 || options_.bucket > 0;
  if (options_.ranks > 1) {
    const auto cost = [this](std::int64_t sample) { return source_->Length(sample); };
    indices =
        Deal(std::move(indices), cost, {.ranks = options_.ranks, .padded = padded, .first = number})
            .at(static_cast<std::size_t>(options_.rank));
    if (indices.empty()) return {.batch = Empty(where)};
  }
  const bool alike = !padded;
  if (alike && !options_.augment) {
    try {
      return {.batch = source_->Get(indices, where)};
    } catch (const DataError&) {
      if (options_.max_broken == 0) throw;
    }
  }
  Loaded loaded = LoadOneByOne(indices, number / batches_per_epoch(), where);
  if (options_.ranks > 1 && loaded.batch.tensors.empty()) loaded.batch = Empty(where);
  return loaded;
}

Batch Loader::Empty(const at::TensorOptions& where) const {
  // The first that is not broken.
  for (std::int64_t index = 0;; ++index) {
    try {
      return source_->Get({&index, 1}, where).Rows(0, 0);
    } catch (const DataError&) {
      if (index + 1 >= source_->size()) throw;
    }
  }
}

Loader::Loaded Loader::LoadOneByOne(const std::vector<std::int64_t>& indices, std::int64_t epoch,
                                    const at::TensorOptions& where) const {
  Loaded loaded;
  std::vector<Sample> samples;
  for (const std::int64_t index : indices) {
    try {
      samples.push_back(LoadSample(index, epoch));
    } catch (const DataError& error) {
      if (options_.max_broken == 0) throw;
      loaded.broken.push_back({index, error.what_without_backtrace()});
    }
  }
  if (!samples.empty()) loaded.batch = Collate(samples, options_.padding, where);
  return loaded;
}

Sample Loader::LoadSample(std::int64_t index, std::int64_t epoch) const {
  const Batch one = source_->Get({&index, 1}, at::TensorOptions(at::kCPU));
  Sample sample;
  for (const at::Tensor& tensor : one.tensors) sample.push_back(tensor.select(0, 0));
  if (options_.augment) {
    Random random = RandomOf(options_.seed, epoch, index);
    options_.augment(sample, epoch, random);
  }
  return sample;
}

}  // namespace plimsoll::train
