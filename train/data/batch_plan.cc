#include "train/data/batch_plan.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "train/data/random.h"

namespace plimsoll::train {
namespace {

void CheckPlan(const BatchPlanOptions& options) {
  TORCH_CHECK(options.batch >= 0, "a batch of ", options.batch, " samples cannot be");
  TORCH_CHECK(options.budget >= 0, "a budget of ", options.budget, " for a batch cannot be");
  TORCH_CHECK(options.bucket >= 0, "buckets of a length of ", options.bucket, " cannot be");
  TORCH_CHECK(options.batch > 0 || options.budget > 0,
              "a batch needs a number of samples, or a budget");
}

std::int64_t LengthOf(const Source& source, std::int64_t index, const BatchPlanOptions& options) {
  if (options.bucket == 0 && options.budget == 0) return 1;
  const std::int64_t length = source.Length(index);
  TORCH_CHECK(length >= 1, "sample ", index, " has a length of ", length);
  TORCH_CHECK(options.budget == 0 || length <= options.budget, "sample ", index,
              " has a length of ", length, ", which is more than the budget of ", options.budget,
              " for a batch");
  return length;
}

}  // namespace

BatchPlan::BatchPlan(const Source& source, const BatchPlanOptions& options) : options_(options) {
  CheckPlan(options_);
  MakeBuckets(source);
  MakeSlots();
  TORCH_CHECK(!slots_.empty(), "no batch can be made of ", source.size(), " samples");
}

void BatchPlan::MakeBuckets(const Source& source) {
  struct Found {
    std::vector<std::int64_t> samples;
    std::int64_t longest = 1;
  };
  std::map<std::int64_t, Found> by_length;
  for (std::int64_t i = 0; i < source.size(); ++i) {
    const std::int64_t length = LengthOf(source, i, options_);
    Found& found = by_length[options_.bucket == 0 ? 0 : length / options_.bucket];
    found.samples.push_back(i);
    found.longest = std::max(found.longest, length);
  }
  for (auto& [number, found] : by_length) {
    const std::int64_t fit =
        options_.budget == 0 ? options_.batch : options_.budget / found.longest;
    const std::int64_t batch = options_.batch == 0 ? fit : std::min(options_.batch, fit);
    buckets_.push_back({std::move(found.samples), batch});
  }
}

void BatchPlan::MakeSlots() {
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const std::size_t samples = buckets_[i].samples.size();
    const auto batch = static_cast<std::size_t>(buckets_[i].batch);
    for (std::size_t begin = 0; begin < samples; begin += batch) {
      const std::size_t end = std::min(samples, begin + batch);
      if (end - begin == batch || !options_.drop_last) slots_.push_back({i, begin, end});
    }
  }
}

std::vector<std::int64_t> BatchPlan::Indices(std::int64_t number) const {
  TORCH_CHECK(number >= 0, "there is no batch ", number);
  const auto order = OrderOf(number / batches_per_epoch());
  const Slot& slot = order->slots[static_cast<std::size_t>(number % batches_per_epoch())];
  const std::vector<std::int64_t>& samples = order->buckets[slot.bucket];
  return {samples.begin() + static_cast<std::ptrdiff_t>(slot.begin),
          samples.begin() + static_cast<std::ptrdiff_t>(slot.end)};
}

std::shared_ptr<const BatchPlan::Order> BatchPlan::OrderOf(std::int64_t epoch) const {
  const std::lock_guard lock(mutex_);
  if (!options_.shuffle) epoch = 0;
  std::shared_ptr<const Order>& kept = orders_[epoch];
  if (!kept) {
    auto order = std::make_shared<Order>();
    Random random(options_.seed, static_cast<std::uint64_t>(epoch));
    for (const Bucket& bucket : buckets_) {
      order->buckets.push_back(bucket.samples);
      if (options_.shuffle) Shuffle(order->buckets.back(), random);
    }
    order->slots = slots_;
    // Of one bucket the smaller batch stays the last one.
    if (options_.shuffle && buckets_.size() > 1) Shuffle(order->slots, random);
    kept = std::move(order);
  }
  std::shared_ptr<const Order> wanted = kept;
  std::erase_if(orders_, [&](const auto& entry) { return std::abs(entry.first - epoch) > 1; });
  return wanted;
}

}  // namespace plimsoll::train
