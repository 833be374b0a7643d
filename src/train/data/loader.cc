#include "train/data/loader.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "train/data/random.h"

namespace plimsoll::train {
namespace {

std::int64_t BatchesOf(std::int64_t samples, const LoaderOptions& options) {
  return (options.drop_last ? samples : samples + options.batch - 1) / options.batch;
}

/// Fisher and Yates's; std::shuffle differs between standard libraries.
void Shuffle(std::vector<std::int64_t>& order, Random random) {
  for (std::size_t left = order.size(); left > 1; --left) {
    const auto pick = static_cast<std::size_t>(random.Below(static_cast<std::int64_t>(left)));
    std::swap(order[left - 1], order[pick]);
  }
}

}  // namespace

Loader::Loader(std::shared_ptr<const Source> source, LoaderOptions options)
    : source_(std::move(source)), options_(options) {
  TORCH_CHECK(options_.batch > 0, "a batch of ", options_.batch, " samples");
  TORCH_CHECK(options_.workers >= 0, "a loader with ", options_.workers, " threads");
  TORCH_CHECK(options_.workers == 0 || options_.prefetch > 0,
              "a loader with threads must be allowed to hold a batch");
  batches_per_epoch_ = BatchesOf(source_->size(), options_);
  TORCH_CHECK(batches_per_epoch_ > 0, "batches of ", options_.batch, " cannot be made of ",
              source_->size(), " samples");
  options_.pinned = options_.pinned && at::globalContext().hasCUDA();
  for (int i = 0; i < options_.workers; ++i) {
    workers_.emplace_back([this](const std::stop_token& stop) { Work(stop); });
  }
}

Batch Loader::Next() {
  std::unique_lock lock(mutex_);
  std::optional<Batch> batch;
  if (!workers_.empty()) {
    ready_.wait(lock, [&] { return loaded_.contains(position_); });
    batch = std::exchange(loaded_[position_], std::nullopt);
  }
  if (!batch) batch = Load(position_);
  loaded_.erase(position_);
  ++position_;
  room_.notify_all();
  return *std::move(batch);
}

std::int64_t Loader::position() const {
  const std::lock_guard lock(mutex_);
  return position_;
}

void Loader::Seek(std::int64_t position) {
  TORCH_CHECK(position >= 0, "there is no batch ", position);
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
    std::optional<Batch> batch = TryLoad(number);
    lock.lock();
    if (seeks != seeks_) continue;
    loaded_[number] = std::move(batch);
    ready_.notify_all();
  }
}

std::optional<Batch> Loader::TryLoad(std::int64_t number) const {
  try {
    return Load(number);
  } catch (...) {
    return std::nullopt;
  }
}

Batch Loader::Load(std::int64_t number) const {
  const auto where = at::TensorOptions(at::kCPU).pinned_memory(options_.pinned);
  return source_->Get(IndicesOf(number), where);
}

std::vector<std::int64_t> Loader::IndicesOf(std::int64_t number) const {
  const std::int64_t begin = number % batches_per_epoch_ * options_.batch;
  const std::int64_t end = std::min(begin + options_.batch, source_->size());
  if (options_.shuffle) {
    const Order order = OrderOf(number / batches_per_epoch_);
    return {order->begin() + begin, order->begin() + end};
  }
  std::vector<std::int64_t> indices(static_cast<std::size_t>(end - begin));
  std::iota(indices.begin(), indices.end(), begin);
  return indices;
}

Loader::Order Loader::OrderOf(std::int64_t epoch) const {
  const std::lock_guard lock(orders_mutex_);
  Order& order = orders_[epoch];
  if (!order) {
    std::vector<std::int64_t> indices(static_cast<std::size_t>(source_->size()));
    std::iota(indices.begin(), indices.end(), 0);
    Shuffle(indices, Random(options_.seed, static_cast<std::uint64_t>(epoch)));
    order = std::make_shared<const std::vector<std::int64_t>>(std::move(indices));
  }
  const Order wanted = order;
  std::erase_if(orders_, [&](const auto& entry) { return std::abs(entry.first - epoch) > 1; });
  return wanted;
}

}  // namespace plimsoll::train
