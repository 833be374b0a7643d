// Throughput of the readers on real files. Bytes are those of the unpacked file.
#include <benchmark/benchmark.h>

#include <string>

#include "files/input.h"
#include "readers/registry.h"

namespace plimsoll {
namespace {

void ReadSnapshot(benchmark::State& state, const char* name) {
  const Result<Input> input = Input::Open(std::string(PLIMSOLL_TEST_DATA "/") + name);
  if (!input) {
    state.SkipWithError(input.error().ToLine().c_str());
    return;
  }
  std::size_t events = 0;
  for (auto _ : state) {
    const Result<Recording> recording = Read(*input);
    if (!recording) {
      state.SkipWithError(recording.error().ToLine().c_str());
      return;
    }
    events = 0;
    for (const Timeline& timeline : recording->timelines) events += timeline.events.size();
    benchmark::DoNotOptimize(events);
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * input->bytes().size()));
  state.counters["events"] = benchmark::Counter(static_cast<double>(events),
                                                benchmark::Counter::kIsIterationInvariantRate);
}

BENCHMARK_CAPTURE(ReadSnapshot, all_frames, "large/big_gpt2m_all.pickle.xz")
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(ReadSnapshot, python_frames, "snapshots/gpt2_adamw_bf16.pickle.xz")
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(ReadSnapshot, cpp_writer, "snapshots/libtorch_mlp_cpp.pickle.xz")
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace plimsoll

BENCHMARK_MAIN();
