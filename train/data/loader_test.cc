#include "train/data/loader.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <set>

#include "train/budget/cpu_allocator.h"
#include "train/common/wait_for_tests.h"
#include "train/data/folder_for_tests.h"
#include "train/data/synthetic.h"

namespace plimsoll::train::loader_test {
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
  EXPECT_TRUE(WaitUntil([&] { return source->calls >= 4; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(source->calls, 4);
}

TEST(Loader, BatchesAheadCountInNoBudget) {
  CpuAllocator& memory = CpuAllocator::Installed();
  constexpr Bytes kBatch = 8 * 4096;
  for (const int workers : {0, 1, 3}) {
    const auto source = std::make_shared<Numbers>(20 * 4096);
    const Bytes before = memory.allocated();
    Loader loader(source, {.batch = 4096, .workers = workers, .prefetch = 5});
    // One batch, and never two.
    memory.SetLimit(before + kBatch + kBatch / 2);
    for (int i = 0; i < 50; ++i) {
      const Batch batch = loader.Next();
      EXPECT_EQ(memory.allocated(), before + kBatch);
    }
    const Batch kept = loader.Next();
    EXPECT_THROW(loader.Next(), c10::OutOfMemoryError);
    EXPECT_EQ(loader.position(), 51);
    memory.SetLimit(std::nullopt);
    EXPECT_EQ(loader.Next().size(), 4096) << "nothing was lost";
  }
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
  EXPECT_THROW(Loader(source, {.batch = -1}), c10::Error);
  EXPECT_THROW(Loader(source, {.batch = 4, .drop_last = true}), c10::Error);
  EXPECT_THROW(Loader(source, {.workers = -1}), c10::Error);
  EXPECT_THROW(Loader(source, {.workers = 1, .prefetch = 0}), c10::Error);
  EXPECT_THROW(Loader(source, {.budget = -1}), c10::Error);
  EXPECT_THROW(Loader(source, {.bucket = -1}), c10::Error);
  EXPECT_THROW(Loader(source, {.max_broken = -1}), c10::Error);
  EXPECT_THROW(Loader(nullptr, {}), c10::Error);
  EXPECT_THROW(Loader(std::make_shared<Numbers>(0), {}), c10::Error);
  EXPECT_THROW(Loader(source, {}).Seek(-1), c10::Error);
  EXPECT_THROW(Loader(source, {}).Seek(INT64_MAX), c10::Error);
}

TEST(Loader, AsksForPinnedMemoryOnlyWhereThereIsAGpu) {
  Loader loader(SyntheticVectors({}), {.batch = 2, .pinned = true});
  EXPECT_EQ(loader.Next().tensors[0].is_pinned(), torch::cuda::is_available());
}

/// Sample n is n, as often as it is long, and its half.
class Sentences : public Source {
 public:
  explicit Sentences(std::vector<std::int64_t> lengths) : lengths_(std::move(lengths)) {}

  std::int64_t size() const override { return static_cast<std::int64_t>(lengths_.size()); }
  std::int64_t Length(std::int64_t index) const override {
    return lengths_[static_cast<std::size_t>(index)];
  }
  Batch Get(std::span<const std::int64_t> indices, const at::TensorOptions& where) const override {
    if (indices.size() != 1) throw std::logic_error("sentences are not of one length");
    const std::int64_t index = indices[0];
    if (broken.contains(index))
      throw DataError("sentence " + std::to_string(index) + ": is broken");
    return {
        {at::full({1, Length(index)}, index, where.dtype(at::kLong)),
         at::full({1, Length(index)}, static_cast<double>(index) / 2, where.dtype(at::kFloat))}};
  }

  std::set<std::int64_t> broken;

 private:
  std::vector<std::int64_t> lengths_;
};

std::shared_ptr<Sentences> ManySentences() {
  std::vector<std::int64_t> lengths;
  Random random(1, 1);
  for (int i = 0; i < 97; ++i) lengths.push_back(1 + random.Below(30));
  return std::make_shared<Sentences>(lengths);
}

/// Whole batches, to be compared.
std::vector<at::Tensor> TakeTensors(Loader& loader, std::int64_t batches) {
  std::vector<at::Tensor> taken;
  for (std::int64_t i = 0; i < batches; ++i) {
    for (const at::Tensor& tensor : loader.Next().tensors) taken.push_back(tensor);
  }
  return taken;
}

void ExpectSameTensors(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i])) << i;
}

TEST(Loader, KeepsEachBatchWithinItsBudgetAndBucket) {
  const auto source = ManySentences();
  Loader loader(source, {.batch = 0, .budget = 64, .bucket = 8, .padding = {-1, -100}});
  std::set<std::int64_t> seen;
  std::vector<std::int64_t> widths;
  for (std::int64_t i = 0; i < loader.batches_per_epoch(); ++i) {
    const Batch batch = loader.Next();
    EXPECT_LE(batch.tensors[0].numel(), 64);
    EXPECT_EQ(batch.tensors[0].sizes(), batch.tensors[1].sizes());
    std::set<std::int64_t> buckets;
    for (std::int64_t row = 0; row < batch.size(); ++row) {
      const std::int64_t index = batch.tensors[0][row][0].item<std::int64_t>();
      EXPECT_TRUE(seen.insert(index).second);
      const std::int64_t length = source->Length(index);
      buckets.insert(length / 8);
      EXPECT_TRUE(batch.tensors[0][row].slice(0, 0, length).eq(index).all().item<bool>());
      EXPECT_TRUE(batch.tensors[0][row].slice(0, length).eq(-1).all().item<bool>());
      EXPECT_TRUE(batch.tensors[1][row].slice(0, length).eq(-100).all().item<bool>());
    }
    EXPECT_EQ(buckets.size(), 1U);
    widths.push_back(batch.tensors[0].size(1));
  }
  EXPECT_EQ(seen.size(), 97U);
  EXPECT_FALSE(std::is_sorted(widths.begin(), widths.end())) << "short and long ones in turn";
  EXPECT_EQ(loader.epoch(), 1);
}

TEST(Loader, HasTheSameBucketsForAnyNumberOfThreadsAndFromAnyPosition) {
  const LoaderOptions alone{.batch = 5, .workers = 0, .budget = 90, .bucket = 10};
  Loader first(ManySentences(), alone);
  const auto all = TakeTensors(first, 40);
  for (const int workers : {1, 3}) {
    LoaderOptions options = alone;
    options.workers = workers;
    Loader loader(ManySentences(), options);
    ExpectSameTensors(TakeTensors(loader, 40), all);
    Loader resumed(ManySentences(), options);
    resumed.Seek(30);
    ExpectSameTensors(TakeTensors(resumed, 10), {all.begin() + 60, all.end()});
  }
}

TEST(Loader, SaysWhichSampleIsLongerThanTheBudget) {
  const auto source = std::make_shared<Sentences>(std::vector<std::int64_t>{3, 9, 4});
  EXPECT_EQ(ErrorOf<c10::Error>([&] { Loader(source, {.budget = 8}); }),
            "sample 1 has a length of 9, which is more than the budget of 8 for a batch");
}

TEST(Loader, AugmentsTheSameWithAnyNumberOfThreads) {
  const auto augment = [](Sample& sample, std::int64_t epoch, Random& random) {
    // A cut of its own length, and noise.
    const std::int64_t keep = 1 + random.Below(sample[0].size(0));
    sample[0] = sample[0].slice(0, 0, keep) * 1000 + epoch;
    sample[1] = sample[1].slice(0, 0, keep) + random.Uniform();
  };
  LoaderOptions options{
      .batch = 6, .workers = 0, .bucket = 100, .padding = {-1}, .augment = augment};
  Loader alone(ManySentences(), options);
  const auto all = TakeTensors(alone, 60);
  for (const int workers : {1, 4}) {
    options.workers = workers;
    Loader loader(ManySentences(), options);
    ExpectSameTensors(TakeTensors(loader, 60), all);
  }
  // Each epoch is given, and changes a sample in another way.
  std::map<std::int64_t, std::map<std::int64_t, float>> noise;
  for (std::size_t i = 0; i < all.size(); i += 2) {
    for (std::int64_t row = 0; row < all[i].size(0); ++row) {
      const std::int64_t value = all[i][row][0].item<std::int64_t>();
      noise[value / 1000][value % 1000] = all[i + 1][row][0].item<float>();
    }
  }
  EXPECT_EQ(noise.size(), 97U);
  for (const auto& [index, by_epoch] : noise) {
    ASSERT_GE(by_epoch.size(), 3U);
    EXPECT_NE(by_epoch.at(0), by_epoch.at(1));
  }
}

TEST(Loader, LeavesOutBrokenSamplesAndCountsThem) {
  for (const int workers : {0, 2}) {
    const auto source = std::make_shared<Sentences>(std::vector<std::int64_t>(12, 2));
    source->broken = {1, 4, 5};
    Loader loader(source,
                  {.batch = 2, .shuffle = false, .workers = workers, .bucket = 5, .max_broken = 3});
    std::vector<Rows> taken;
    for (int i = 0; i < 10; ++i) {
      const at::Tensor first = loader.Next().tensors[0].select(1, 0).contiguous();
      taken.emplace_back(first.data_ptr<std::int64_t>(),
                         first.data_ptr<std::int64_t>() + first.numel());
    }
    EXPECT_EQ(taken,
              (std::vector<Rows>{
                  {0}, {2, 3}, {6, 7}, {8, 9}, {10, 11}, {0}, {2, 3}, {6, 7}, {8, 9}, {10, 11}}));
    EXPECT_EQ(loader.position(), 12) << "a batch of broken ones is passed over";
    const BrokenSamples broken = loader.broken();
    EXPECT_EQ(broken.count, 3) << "each once, though met twice";
    ASSERT_EQ(broken.first.size(), 3U);
    EXPECT_EQ(broken.first[0].index, 1);
    EXPECT_EQ(broken.first[0].reason, "sentence 1: is broken");
  }
}

TEST(Loader, EndsWhereMoreSamplesAreBrokenThanMayBe) {
  for (const int workers : {0, 2}) {
    const auto source = std::make_shared<Numbers>(10);
    source->bad = 5;
    LoaderOptions options{.batch = 2, .shuffle = false, .workers = workers, .max_broken = 1};
    Loader one(source, options);
    EXPECT_EQ(Take(one, 5), (std::vector<Rows>{{0, 1}, {2, 3}, {4}, {6, 7}, {8, 9}}));

    const auto sentences = std::make_shared<Sentences>(std::vector<std::int64_t>(10, 2));
    sentences->broken = {2, 5};
    options.bucket = 9;
    Loader two(sentences, options);
    EXPECT_EQ(two.Next().size(), 2);
    EXPECT_EQ(two.Next().size(), 1);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(ErrorOf<DataError>([&] { two.Next(); }),
                "more than 1 samples cannot be used; the last: sentence 5: is broken");
      EXPECT_EQ(two.position(), 2);
    }
    sentences->broken = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    options.max_broken = 100;
    Loader none(sentences, options);
    EXPECT_EQ(ErrorOf<DataError>([&] { none.Next(); }),
              "in a whole epoch no sample could be used; the first: sentence 0: is broken");
  }
}

/// Samples without a tensor.
class Nothing : public Source {
 public:
  std::int64_t size() const override { return 4; }
  Batch Get(std::span<const std::int64_t>, const at::TensorOptions&) const override { return {}; }
};

TEST(Loader, GivesWhatTheSourceGivesEvenIfThatIsNothing) {
  Loader plain(std::make_shared<Nothing>(), {.batch = 2});
  EXPECT_TRUE(plain.Next().tensors.empty());
  Loader one_by_one(std::make_shared<Nothing>(), {.batch = 2, .bucket = 1, .max_broken = 1});
  EXPECT_TRUE(one_by_one.Next().tensors.empty());
}

TEST(Loader, DealsTheSameBatchesToAnyNumberOfRanks) {
  for (const int ranks : {2, 3, 5}) {
    for (const auto& [size, batch] : {std::pair{24, 6}, {23, 4}}) {
      const auto whole = TakeFrom(size, {.batch = batch, .seed = 3}, 14);
      std::vector<std::vector<Rows>> parts;
      for (int rank = 0; rank < ranks; ++rank) {
        parts.push_back(
            TakeFrom(size, {.batch = batch, .seed = 3, .rank = rank, .ranks = ranks}, 14));
      }
      for (std::size_t step = 0; step < whole.size(); ++step) {
        Rows together;
        std::size_t most = 0;
        std::size_t least = together.max_size();
        for (const auto& part : parts) {
          together.insert(together.end(), part[step].begin(), part[step].end());
          most = std::max(most, part[step].size());
          least = std::min(least, part[step].size());
        }
        Rows right = whole[step];
        std::ranges::sort(right);
        std::ranges::sort(together);
        EXPECT_EQ(together, right);
        EXPECT_LE(most, least + 1);
      }
    }
  }
}

TEST(Loader, GivesARankWhoseSamplesAreBrokenABatchWithoutRows) {
  const auto numbers = std::make_shared<Numbers>(4);
  numbers->bad = 2;
  int without = 0;
  for (const int rank : {0, 1, 2, 3}) {
    Loader loader(numbers, {.batch = 4, .workers = 0, .rank = rank, .ranks = 4, .max_broken = 1});
    without += loader.Next().size() == 0 ? 1 : 0;
  }
  EXPECT_EQ(without, 1);
}

TEST(Collate, RefusesWhatIsNotAlike) {
  const at::TensorOptions where(at::kCPU);
  EXPECT_THROW(Collate({}, {}, where), DataError);
  EXPECT_THROW(Collate({{at::ones({2})}, {at::ones({2, 1})}}, {}, where), DataError);
  EXPECT_THROW(Collate({{at::ones({2})}, {at::ones({2}, at::kLong)}}, {}, where), DataError);
  EXPECT_THROW(Collate({{at::ones({2})}, {}}, {}, where), DataError);
  const Batch images = Collate({{at::ones({1, 2, 3})}, {at::ones({1, 3, 2})}}, {7}, where);
  EXPECT_EQ(images.tensors[0].sizes(), (std::vector<std::int64_t>{2, 1, 3, 3}));
  EXPECT_EQ(images.tensors[0].sum().item<float>(), 12 + 7 * 6);
}

}  // namespace
}  // namespace plimsoll::train::loader_test
