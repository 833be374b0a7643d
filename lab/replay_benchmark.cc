// Events a second: following a record, verifying it, replaying it, searching settings for it. All
// on the largest real trace (107,161 events).
#include <benchmark/benchmark.h>

#include "allocator/replay/replay.h"
#include "allocator/replay/tune.h"
#include "allocator/replay/verify.h"
#include "readers/registry.h"

namespace plimsoll {
namespace {

const Timeline& LargeTrace() {
  static const Result<Recording> recording =
      ReadFile(PLIMSOLL_TEST_DATA "/large/big_gpt2m_all.pickle.xz");
  return recording->timelines.front();
}

const Verification& Verified() {
  static const Verification verified = Verify(LargeTrace(), Follow(LargeTrace()), {});
  return verified;
}

void CountEvents(benchmark::State& state, std::size_t runs = 1) {
  state.SetItemsProcessed(state.iterations() *
                          static_cast<std::int64_t>(LargeTrace().events.size() * runs));
}

void BM_FollowTheRecord(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(Follow(LargeTrace()));
  CountEvents(state);
}

void BM_VerifyTheModel(benchmark::State& state) {
  const Ledger ledger = Follow(LargeTrace());
  for (auto _ : state) benchmark::DoNotOptimize(Verify(LargeTrace(), ledger, {}));
  CountEvents(state);
}

void Replayed(benchmark::State& state, const AllocatorSettings& settings) {
  const ReplayOptions options{.rules = {settings, Verified().rules.version}, .limits = {}};
  for (auto _ : state) {
    benchmark::DoNotOptimize(Replay(LargeTrace(), Verified().workload, options));
  }
  CountEvents(state);
}

void BM_ReplayPlain(benchmark::State& state) { Replayed(state, {}); }

void BM_ReplayExpandable(benchmark::State& state) {
  Replayed(state, {.expandable_segments = true});
}

void BM_ReplayMaxSplit(benchmark::State& state) { Replayed(state, {.max_split_size = 128 * kMiB}); }

void BM_TuneOnAllCores(benchmark::State& state) {
  std::size_t settings = 0;
  for (auto _ : state) {
    const TuneResult result =
        Tune(LargeTrace(), Verified(), {.limits = {}, .version = Verified().rules.version});
    settings = result.rows.size();
  }
  CountEvents(state, settings);
  state.counters["settings"] = static_cast<double>(settings);
}

BENCHMARK(BM_FollowTheRecord)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_VerifyTheModel)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_ReplayPlain)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_ReplayExpandable)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_ReplayMaxSplit)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_TuneOnAllCores)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace plimsoll

BENCHMARK_MAIN();
