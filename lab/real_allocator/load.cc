// PyTorch's own caching allocator under random load: load SPEC.json, result as JSON on stdout.
//
// The settings come from PYTORCH_CUDA_ALLOC_CONF, as in Python. Nothing is computed: memory of
// random sizes is taken and given back on several streams. SPEC has the keys that Spec below reads;
// the random numbers depend on the seed only, so every release gets the same requests until its
// answers (an out-of-memory error) differ.
#include <c10/cuda/CUDAStream.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "context.h"
#include "dump.h"
#include "fake_cuda.h"
#include "release.h"

namespace {

using nlohmann::json;
namespace native = release::native;

// The same numbers everywhere: the standard's distributions differ between libraries.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  double Unit() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  double Uniform(double low, double high) { return low + (high - low) * Unit(); }
  // In [low, high).
  std::uint64_t Below(std::uint64_t low, std::uint64_t high) {
    return low + engine_() % (high - low);
  }
  bool Chance(double probability) { return Unit() < probability; }
  template <typename T>
  const T& Choice(const std::vector<T>& values) {
    return values[Below(0, values.size())];
  }

 private:
  std::mt19937_64 engine_;
};

struct Spec {
  explicit Spec(const json& spec)
      : seed(spec.at("seed")),
        allocs(spec.at("allocs")),
        live(static_cast<std::uint64_t>(spec.at("live_gib").get<double>() * 0x1p30)),
        streams(spec.value("streams", 1)),
        record_stream(spec.value("record_stream", 0.0)),
        empty_every(spec.value("empty_every", 0)),
        pools(spec.value("pools", spec.value("pool", false) ? 1 : 0)),
        pool_chance(spec.value("pool_chance", 0.3)),
        pools_die(spec.value("pools_die", false)),
        use_on_oom(spec.value("use_on_oom", false)),
        no_split(spec.value("no_split", false)),
        at_address(spec.value("at_address", 0.0)),
        capture_every(spec.value("capture_every", 0)),
        sizes(spec.value("sizes", std::vector<std::uint64_t>{})),
        log2(spec.value("log2", std::pair<double, double>{9, 28.5})),
        total(spec.value("total", std::uint64_t{150109880320})),
        capacity(spec.value("capacity", std::uint64_t{149557477376})),
        scatter(spec.value("scatter", std::uint64_t{0})) {
    if (spec.contains("fraction")) {
      fraction = spec.at("fraction");
    } else if (spec.contains("cap_gib")) {
      fraction = spec.at("cap_gib").get<double>() * 0x1p30 / static_cast<double>(total);
    }
  }

  std::uint64_t seed, allocs;
  std::uint64_t live;  // bytes held before something is given back for sure
  int streams;
  double record_stream;         // how often memory is freed while another stream still uses it
  std::uint64_t empty_every;    // empty_cache after so many allocations
  int pools;                    // private pools (torch.cuda.MemPool)
  double pool_chance;           // how often an allocation goes into one
  bool pools_die;               // pools are dropped and replaced at random
  bool use_on_oom, no_split;    // kinds of pools
  double at_address;            // how often memory is asked for at the address of something freed
  std::uint64_t capture_every;  // so many allocations apart, some are captured into a graph
  std::vector<std::uint64_t> sizes;  // choose among these only
  std::pair<double, double> log2;
  std::uint64_t total, capacity, scatter;
  std::optional<double> fraction;  // of torch.cuda.set_per_process_memory_fraction
};

struct PrivatePool {
  release::PoolId id;
  int references = 0;  // ours, to be released when the pool dies
};

struct Tensor {
  c10::DataPtr data;
  std::uint64_t size;
  c10::cuda::CUDAStream stream;
};

struct Freed {
  std::uint64_t address;
  c10::cuda::CUDAStream stream;
  std::uint64_t size;
};

class Load {
 public:
  explicit Load(const Spec& spec) : spec_(spec), random_(spec.seed) {}

  json Run() {
    fake_cuda_configure(spec_.total, spec_.capacity, spec_.scatter);
    release::Init();
    if (spec_.fraction) native::setMemoryFraction(*spec_.fraction, 0);
    release::RecordHistory(&InCall::Current, 2'000'000);
    native::attachAllocatorTraceTracker([this](const native::TraceEntry&) { CountEntry(); });
    streams_.push_back(c10::cuda::getDefaultCUDAStream(0));
    while (static_cast<int>(streams_.size()) < spec_.streams) {
      streams_.push_back(c10::cuda::getStreamFromPool(false, 0));
    }
    for (int i = 0; i < 24; ++i) common_.push_back(std::exp2(random_.Uniform(8, 29)));
    for (int i = 0; i < spec_.pools; ++i) pools_.push_back(NewPool());
    try {
      for (std::uint64_t i = 0; i < spec_.allocs; ++i) Step(i);
    } catch (const c10::Error& error) {  // a broken assertion of the allocator's own
      stopped_ = error.what_without_backtrace();
    }
    return Result();
  }

 private:
  void Step(std::uint64_t i) {
    while (!live_.empty() && (held_ > spec_.live || random_.Chance(.47))) DropOne();
    const std::uint64_t size = Size();
    if (spec_.capture_every != 0 && i % spec_.capture_every == spec_.capture_every / 2) Capture();
    if (spec_.pools_die && random_.Chance(.01)) ReplacePool();
    if (!MakeAtAddress(size)) Make(size);
    if (spec_.empty_every != 0 && i % spec_.empty_every == spec_.empty_every - 1) EmptyCache();
    if (i % 500 == 499) cudaDeviceSynchronize();
  }

  std::uint64_t Size() {
    if (!spec_.sizes.empty()) return random_.Choice(spec_.sizes);
    const double kind = random_.Unit();
    if (kind < .45) return random_.Choice(common_);
    if (kind < .60) return random_.Below(1, 1 << 20);
    return std::exp2(random_.Uniform(spec_.log2.first, spec_.log2.second));
  }

  // A request for memory at an address that was given back, as resize_ makes it: no larger than
  // what was there, or a part of it.
  bool MakeAtAddress(std::uint64_t size) {
    if (spec_.at_address == 0 || freed_.empty() || !random_.Chance(spec_.at_address)) return false;
    const Freed& from = random_.Choice(freed_);
    c10::cuda::setCurrentCUDAStream(from.stream);
    const std::uint64_t offset =
        random_.Chance(.5) ? 0 : random_.Below(0, from.size / 512 + 1) * 512;
    size = std::min(size, from.size);
    const InCall call("make_at_address");
    fake_cuda_tick();
    try {
      void* address = reinterpret_cast<void*>(from.address + offset);
      live_.push_back({release::AllocateAt(size, address), size, from.stream});
    } catch (const c10::Error&) {  // something else is there, or the rest is too small
      return false;
    }
    held_ += size;
    return true;
  }

  // One request, perhaps in a private pool. Half of everything goes when there is no memory.
  void Make(std::uint64_t size) {
    c10::cuda::setCurrentCUDAStream(random_.Choice(streams_));
    PrivatePool* pool = nullptr;
    if (!pools_.empty() && random_.Chance(spec_.pool_chance)) {
      pool = &pools_[random_.Below(0, pools_.size())];
    }
    const bool made = pool == nullptr ? TryMake(size) : TryMakeIn(*pool, size);
    if (made) return;
    ++ooms_;
    for (std::size_t n = live_.size() / 2 + 1; n > 0 && !live_.empty(); --n) {
      Drop(random_.Below(0, live_.size()));
    }
  }

  // As torch.cuda.use_mem_pool does it.
  bool TryMakeIn(PrivatePool& pool, std::uint64_t size) {
    Mark("begin_pool", pool.id);
    native::beginAllocateToPool(0, pool.id, [](cudaStream_t) { return true; });
    const bool made = TryMake(size);
    native::endAllocateToPool(0, pool.id);
    Mark("end_pool", pool.id);
    if (TORCH_MINOR >= 6) {
      native::releasePool(0, pool.id);
    } else {
      ++pool.references;
    }
    return made;
  }

  bool TryMake(std::uint64_t size) {
    const InCall call("make");
    fake_cuda_tick();
    try {
      live_.push_back({native::get()->allocate(size), size, c10::cuda::getCurrentCUDAStream()});
    } catch (const c10::OutOfMemoryError& error) {
      if (messages_.size() < 3) messages_.push_back(error.what_without_backtrace());
      return false;
    }
    held_ += size;
    return true;
  }

  void DropOne() {
    const std::uint64_t recent = live_.size() > 40 ? live_.size() - 40 : 0;
    const std::uint64_t index = random_.Below(random_.Chance(.7) ? recent : 0, live_.size());
    if (spec_.record_stream > 0 && random_.Chance(spec_.record_stream)) {
      const c10::cuda::CUDAStream stream = random_.Choice(streams_);
      fake_cuda_busy(stream.stream(), random_.Below(1, 60));
      native::recordStream(live_[index].data, stream);
    }
    if (spec_.at_address > 0) Remember(live_[index]);
    Drop(index);
  }

  void Remember(const Tensor& tensor) {
    if (freed_.size() >= 50) freed_.erase(freed_.begin());
    freed_.push_back(
        {reinterpret_cast<std::uint64_t>(tensor.data.get()), tensor.stream, tensor.size});
  }

  void Drop(std::uint64_t index) {
    const InCall call("drop");
    fake_cuda_tick();
    held_ -= live_[index].size;
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  void EmptyCache() {
    Mark("empty_cache");
    const InCall call("empty_cache");
    fake_cuda_tick();
    native::emptyCache();
  }

  PrivatePool NewPool() {
    PrivatePool pool{{0, ++last_pool_}};
    Mark("create_pool", pool.id);
    release::CreatePool(pool.id);
    if (TORCH_MINOR >= 6) pool.references = 1;
    if (spec_.use_on_oom) release::SetUseOnOom(pool.id);
    if (spec_.no_split) release::SetNoSplit(pool.id);
    return pool;
  }

  // `del pool` in Python gives up the reference; its memory can be released once that was the last.
  void ReplacePool() {
    PrivatePool& pool = pools_[random_.Below(0, pools_.size())];
    Mark("release_pool", pool.id);
    for (; pool.references > 0; --pool.references) native::releasePool(0, pool.id);
    pool = NewPool();
    if (random_.Chance(.5)) EmptyCache();
  }

  // Ten requests into a graph's pool, as torch.cuda.graph makes them; the previous graph is
  // dropped.
  void Capture() {
    EmptyCache();
    if (graph_) {
      Mark("release_pool", graph_->id);
      native::releasePool(0, graph_->id);
    }
    graph_ = PrivatePool{{++last_pool_, 0}};
    const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool(true, 0);
    c10::cuda::setCurrentCUDAStream(stream);
    Mark("begin_capture", graph_->id);
    fake_cuda_capture(stream.stream(), 1);
    release::MarkCapture(true);
    const cudaStream_t handle = stream.stream();
    native::beginAllocateToPool(0, graph_->id, [handle](cudaStream_t s) { return s == handle; });
    for (int i = 0; i < 10; ++i) {
      TryMake(Size());
      if (!live_.empty() && random_.Chance(.5)) Drop(live_.size() - 1);
    }
    fake_cuda_capture(stream.stream(), 0);
    release::MarkCapture(false);
    native::endAllocateToPool(0, graph_->id);
    Mark("end_capture", graph_->id);
  }

  // A retry and empty_cache wait for all events; other frees are completed when theirs are done.
  void CountEntry() {
    const std::uint64_t waits = fake_cuda_counts().waits;
    if (waits != waits_) Mark("wait");
    waits_ = waits;
    ++entries_;
  }

  // What the trace does not say: calls, and before which entry they happened.
  void Mark(const char* what) { marks_.push_back({entries_, what}); }
  void Mark(const char* what, const release::PoolId& pool) {
    marks_.push_back({entries_, what, {pool.first, pool.second}});
  }

  json Result() {
    const FakeCudaCounts counts = fake_cuda_counts();
    json result = DumpSnapshot();
    result["stats"] = DumpStats();
    result["total"] = spec_.total;
    result["capacity"] = spec_.capacity;
    result["fraction"] = spec_.fraction ? json(*spec_.fraction) : json(nullptr);
    result["ooms"] = ooms_;
    result["stopped"] = stopped_;
    result["oom_messages"] = messages_;
    result["marks"] = marks_;
    result["driver"] = {{"cudaMalloc", counts.mallocs},
                        {"cudaMalloc failed", counts.failed_mallocs},
                        {"cudaFree", counts.frees},
                        {"cuMemCreate", counts.creates},
                        {"cuMemCreate failed", counts.failed_creates},
                        {"cuMemRelease", counts.releases},
                        {"cuMemAddressReserve", counts.reserves}};
    return result;
  }

  const Spec spec_;
  Random random_;
  std::vector<c10::cuda::CUDAStream> streams_;
  std::vector<std::uint64_t> common_;
  std::vector<PrivatePool> pools_;
  std::optional<PrivatePool> graph_;
  std::uint64_t last_pool_ = 0;
  std::vector<Tensor> live_;
  std::vector<Freed> freed_;
  std::uint64_t held_ = 0, ooms_ = 0, entries_ = 0, waits_ = 0;
  json stopped_;  // the message, if the allocator failed with anything but a lack of memory
  json messages_ = json::array();
  json marks_ = json::array();
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: load SPEC.json\n";
    return 2;
  }
  std::ifstream file(argv[1]);
  Load load{Spec(json::parse(file))};
  std::cout << load.Run().dump() << std::endl;
  _exit(0);  // there is no device to shut down
}
