#include "train/data/loader.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <set>

#include "train/data/folder_for_tests.h"
#include "train/data/synthetic.h"

namespace plimsoll::train {
namespace {

/// Samples are their numbers. Later batches may be ready before earlier ones.
class Numbers : public Source {
 public:
  explicit Numbers(std::int64_t size) : size_(size) {}

  std::int64_t size() const override { return size_; }
  Batch Get(std::span<const std::int64_t> indices, const at::TensorOptions& where) const override {
    ++calls;
    std::this_thread::sleep_for(std::chrono::microseconds(indices[0] % 3 * 200));
    const at::Tensor rows =
        at::empty({static_cast<std::int64_t>(indices.size())}, where.dtype(at::kLong));
    std::copy(indices.begin(), indices.end(), rows.data_ptr<std::int64_t>());
    for (const std::int64_t index : indices) {
      if (index == bad) throw DataError("number " + std::to_string(index) + ": is bad");
    }
    return {{rows}};
  }

  mutable std::atomic<int> calls = 0;
  std::atomic<std::int64_t> bad = -1;

 private:
  std::int64_t size_;
};

using Rows = std::vector<std::int64_t>;

Rows RowsOf(const Batch& batch) {
  const auto* data = batch.tensors[0].data_ptr<std::int64_t>();
  return {data, data + batch.size()};
}

std::vector<Rows> Take(Loader& loader, int batches) {
  std::vector<Rows> taken;
  for (int i = 0; i < batches; ++i) taken.push_back(RowsOf(loader.Next()));
  return taken;
}

std::vector<Rows> TakeFrom(std::int64_t size, const LoaderOptions& options, int batches) {
  Loader loader(std::make_shared<Numbers>(size), options);
  return Take(loader, batches);
}

TEST(Loader, HasOneOrderForAnyNumberOfThreads) {
  const auto alone = TakeFrom(23, {.batch = 4, .workers = 0}, 20);
  for (const int workers : {1, 2, 5}) {
    for (const int prefetch : {1, 3, 30}) {
      EXPECT_EQ(alone, TakeFrom(23, {.batch = 4, .workers = workers, .prefetch = prefetch}, 20));
    }
  }
}

TEST(Loader, GoesThroughAllSamplesInAnEpoch) {
  const auto taken = TakeFrom(23, {.batch = 4, .seed = 3}, 12);
  std::set<std::vector<std::int64_t>> orders;
  for (std::size_t epoch = 0; epoch < 2; ++epoch) {
    Rows order;
    for (std::size_t i = 0; i < 6; ++i) {
      order.insert(order.end(), taken[6 * epoch + i].begin(), taken[6 * epoch + i].end());
    }
    EXPECT_EQ(std::set<std::int64_t>(order.begin(), order.end()).size(), 23U);
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 2U) << "each epoch has its own order";
  EXPECT_EQ(taken[5].size(), 3U);
  EXPECT_NE(taken, TakeFrom(23, {.batch = 4, .seed = 4}, 12));
}

TEST(Loader, KeepsTheOrderWhereItIsToldTo) {
  EXPECT_EQ(TakeFrom(5, {.batch = 2, .shuffle = false}, 4),
            (std::vector<Rows>{{0, 1}, {2, 3}, {4}, {0, 1}}));
  EXPECT_EQ(TakeFrom(5, {.batch = 2, .shuffle = false, .drop_last = true}, 3),
            (std::vector<Rows>{{0, 1}, {2, 3}, {0, 1}}));
}

TEST(Loader, GoesOnFromAPosition) {
  for (const int workers : {0, 3}) {
    const LoaderOptions options = {.batch = 4, .workers = workers};
    Loader whole(std::make_shared<Numbers>(23), options);
    Take(whole, 9);
    const std::int64_t position = whole.position();
    EXPECT_EQ(whole.epoch(), 1);
    const auto rest = Take(whole, 10);
    Loader resumed(std::make_shared<Numbers>(23), options);
    resumed.Seek(position);
    EXPECT_EQ(resumed.position(), position);
    EXPECT_EQ(Take(resumed, 10), rest);
    resumed.Seek(position);
    EXPECT_EQ(Take(resumed, 10), rest);
  }
}

TEST(Loader, HoldsNoMoreThanItMay) {
  const auto source = std::make_shared<Numbers>(1000);
  Loader loader(source, {.batch = 1, .workers = 4, .prefetch = 3});
  loader.Next();
  for (int i = 0; i < 100 && source->calls < 4; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(source->calls, 4);
}

TEST(Loader, ThrowsWhatAWorkerMet) {
  for (const int workers : {0, 2}) {
    const auto source = std::make_shared<Numbers>(10);
    source->bad = 5;
    Loader loader(source, {.batch = 2, .shuffle = false, .workers = workers});
    EXPECT_EQ(Take(loader, 2).size(), 2U);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(ErrorOf<DataError>([&] { loader.Next(); }), "number 5: is bad");
      EXPECT_EQ(loader.position(), 2);
    }
    source->bad = -1;
    EXPECT_EQ(Take(loader, 2), (std::vector<Rows>{{4, 5}, {6, 7}})) << "once it is mended";
  }
}

TEST(Loader, PassesOverABadBatch) {
  const auto source = std::make_shared<Numbers>(10);
  source->bad = 1;
  Loader loader(source, {.batch = 2, .shuffle = false});
  EXPECT_THROW(loader.Next(), DataError);
  loader.Seek(1);
  EXPECT_EQ(RowsOf(loader.Next()), (Rows{2, 3}));
}

TEST(Loader, EndsAtAnyTime) {
  const auto source = std::make_shared<Numbers>(50);
  for (int i = 0; i < 50; ++i) {
    Loader loader(source, {.batch = 3, .workers = 3, .prefetch = 1 + i % 4});
    if (i % 2 == 0) Take(loader, i % 5);
    if (i % 3 == 0) loader.Seek(i);
    source->bad = i % 7 == 0 ? i : -1;
  }
}

TEST(Loader, RefusesWhatCannotBe) {
  const auto source = std::make_shared<Numbers>(3);
  EXPECT_THROW(Loader(source, {.batch = 0}), c10::Error);
  EXPECT_THROW(Loader(source, {.batch = 4, .drop_last = true}), c10::Error);
  EXPECT_THROW(Loader(source, {.workers = 1, .prefetch = 0}), c10::Error);
  EXPECT_THROW(Loader(source, {}).Seek(-1), c10::Error);
}

TEST(Loader, AsksForPinnedMemoryOnlyWhereThereIsAGpu) {
  Loader loader(SyntheticVectors({}), {.batch = 2, .pinned = true});
  EXPECT_EQ(loader.Next().tensors[0].is_pinned(), torch::cuda::is_available());
}

}  // namespace
}  // namespace plimsoll::train
