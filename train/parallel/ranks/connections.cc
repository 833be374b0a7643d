#include "train/parallel/ranks/connections.h"

#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <map>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "train/parallel/ranks/gloo.h"
#include "train/parallel/ranks/nccl.h"

namespace plimsoll::train {
namespace {

using c10::intrusive_ptr;
using std::chrono::milliseconds;
using GroupBackend = c10d::ProcessGroup::BackendType;

/// Through which ranks connect. Whoever waits here for another rank's address learns at once that
/// it has ended, where the launcher that keeps the store says so.
class StoreToConnect final : public c10d::PrefixStore {
 public:
  StoreToConnect(const char* prefix, intrusive_ptr<c10d::Store> store, const Launch& launch)
      : PrefixStore(prefix, std::move(store)),
        launcher_(getUnderlyingNonPrefixStore()),
        who_(c10::str("rank ", launch.rank, " of ", launch.size, ": ")) {}

  std::vector<std::uint8_t> get(const std::string& key) override {
    Await({key}, getTimeout());
    return PrefixStore::get(key);
  }
  std::vector<std::vector<std::uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    Await(keys, getTimeout());
    return PrefixStore::multiGet(keys);
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, getTimeout()); }
  void wait(const std::vector<std::string>& keys, const milliseconds& limit) override {
    // Whose words say what is missing after the limit.
    if (!Await(keys, limit)) PrefixStore::wait(keys, milliseconds(1));
  }

 private:
  /// Returns when the keys are there, or false after the limit.
  bool Await(const std::vector<std::string>& keys, milliseconds limit) {
    constexpr milliseconds kPause{5};
    const auto end = std::chrono::steady_clock::now() + limit;
    while (!check(keys)) {
      if (std::chrono::steady_clock::now() > end) return false;
      const auto ended = RankThatEnded(*launcher_);
      if (ended) throw RankError(who_ + *ended + ", and nobody can connect to it.");
      std::this_thread::sleep_for(kPause);
    }
    return true;
  }

  intrusive_ptr<c10d::Store> launcher_;
  std::string who_;
};

/// Releases that cannot change it keep the longer one.
template <class Gloo>
void SetLimit(Gloo& gloo, milliseconds limit) {
  if constexpr (requires { gloo.setTimeout(limit); }) gloo.setTimeout(limit);
}

}  // namespace

std::string FirstLine(const std::exception& error) {
  const std::string_view text = error.what();
  return std::string(text.substr(0, text.find('\n')));
}

milliseconds IntervalOf(milliseconds limit) {
  return std::clamp(limit / 15, milliseconds(10), milliseconds(1000));
}

milliseconds CollectiveLimit(milliseconds limit) { return limit - 6 * IntervalOf(limit); }

intrusive_ptr<c10d::Store> OpenStore(const Launch& launch, bool keep, milliseconds limit) {
  c10d::TCPStoreOptions options;
  options.port = launch.port;
  options.isServer = keep;
  options.waitWorkers = false;
  options.timeout = limit;
  try {
    return c10::make_intrusive<c10d::TCPStore>(launch.address, options);
  } catch (const std::exception& error) {
    std::ostringstream text;
    text << "rank " << launch.rank << " of " << launch.size << ": "
         << (keep ? "cannot open the store of all ranks at " : "cannot reach the store at ")
         << launch.address << " port " << launch.port
         << " (the variables MASTER_ADDR and MASTER_PORT): " << FirstLine(error);
    throw RankError(text.str());
  }
}

void KeepStore(const Launch& launch, milliseconds limit) {
  static auto& kept = *new std::map<std::uint16_t, intrusive_ptr<c10d::Store>>;
  intrusive_ptr<c10d::Store>& store = kept[launch.port];
  if (!store) store = OpenStore(launch, /*keep=*/true, limit);
}

intrusive_ptr<c10d::ProcessGroup> MakeGroup(const GroupPlace& place, const Launch& launch,
                                            const RanksOptions& options) {
  const auto& [store, rank, size, first] = place;
  const milliseconds limit = CollectiveLimit(options.time_limit);
  const bool nccl = options.transport == Transport::kNccl ||
                    (options.transport == Transport::kOfDevice && options.device.is_cuda());
  auto group = c10::make_intrusive<c10d::ProcessGroup>(rank, size);
  const auto gloo_store = c10::make_intrusive<StoreToConnect>("gloo", store, launch);
  const auto gloo =
      MakeGloo(gloo_store, rank, size, first ? std::max(limit, options.meeting_limit) : limit);
  SetLimit(*gloo, limit);
  group->setBackend(c10::DeviceType::CPU, GroupBackend::GLOO, gloo);
  group->setDefaultBackend(nccl ? GroupBackend::NCCL : GroupBackend::GLOO);
  if (nccl) {
    const auto nccl_store = c10::make_intrusive<c10d::PrefixStore>("nccl", store);
    group->setBackend(c10::DeviceType::CUDA, GroupBackend::NCCL,
                      MakeNccl(nccl_store, rank, size, limit));
  } else if (options.device.is_cuda()) {
    group->setBackend(c10::DeviceType::CUDA, GroupBackend::GLOO, gloo);
  }
  return group;
}

}  // namespace plimsoll::train
