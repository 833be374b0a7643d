#include "train/parallel/ranks.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <sstream>

#include "train/parallel/nccl.h"
#include "train/recovery.h"

namespace plimsoll::train {
namespace {

using c10::intrusive_ptr;
using std::chrono::milliseconds;
using Backend = c10d::ProcessGroup::BackendType;

/// Without the stack that torch's errors carry.
std::string FirstLine(const std::exception& error) {
  const std::string_view text = error.what();
  return std::string(text.substr(0, text.find('\n')));
}

/// How often a rank says that it is there. Finding who is missing takes up to five of these, and is
/// part of the time limit.
milliseconds IntervalOf(milliseconds limit) {
  return std::clamp(limit / 15, milliseconds(10), milliseconds(1000));
}

/// The time that a collective may take, so that the error comes within the limit.
milliseconds CollectiveLimit(milliseconds limit) { return limit - 5 * IntervalOf(limit); }

/// Of each group that this process makes, so that none meets what the one before it left.
std::string NewPrefix(const Launch& launch) {
  static std::atomic<int> made = 0;
  return "plimsoll/" + launch.attempt + "/" + std::to_string(made++);
}

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

/// Opened once, and there until the process ends: ranks that are quick may already meet for the
/// next group while this one still leaves the last.
void KeepStore(const Launch& launch, milliseconds limit) {
  static auto& kept = *new std::map<std::uint16_t, intrusive_ptr<c10d::Store>>;
  intrusive_ptr<c10d::Store>& store = kept[launch.port];
  if (!store) store = OpenStore(launch, /*keep=*/true, limit);
}

/// As Python's: the interfaces of GLOO_SOCKET_IFNAME, else the one of the machine's own name.
void AddDevices(c10d::ProcessGroupGloo::Options& options) {
  const char* names = std::getenv("GLOO_SOCKET_IFNAME");
  if (names == nullptr || *names == '\0') {
    options.devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
  } else {
    std::istringstream list(names);
    for (std::string name; std::getline(list, name, ',');) {
      options.devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(name));
    }
  }
  options.threads = static_cast<int>(options.devices.size()) * 2;
}

intrusive_ptr<c10d::Backend> MakeGloo(const intrusive_ptr<c10d::Store>& store, const Launch& launch,
                                      milliseconds limit) {
  auto options = c10d::ProcessGroupGloo::Options::create(limit);
  AddDevices(*options);
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, launch.rank, launch.size, options);
}

intrusive_ptr<c10d::ProcessGroup> MakeGroup(const intrusive_ptr<c10d::Store>& store,
                                            const Launch& launch, const RanksOptions& options) {
  const milliseconds limit = CollectiveLimit(options.time_limit);
  const bool nccl = options.transport == Transport::kNccl ||
                    (options.transport == Transport::kOfDevice && options.device.is_cuda());
  auto group = c10::make_intrusive<c10d::ProcessGroup>(launch.rank, launch.size);
  const auto gloo_store = c10::make_intrusive<c10d::PrefixStore>("gloo", store);
  const auto gloo = MakeGloo(gloo_store, launch, limit);
  group->setBackend(c10::DeviceType::CPU, Backend::GLOO, gloo);
  group->setDefaultBackend(nccl ? Backend::NCCL : Backend::GLOO);
  if (nccl) {
    const auto nccl_store = c10::make_intrusive<c10d::PrefixStore>("nccl", store);
    group->setBackend(c10::DeviceType::CUDA, Backend::NCCL,
                      MakeNccl(nccl_store, launch.rank, launch.size, limit));
  } else if (options.device.is_cuda()) {
    group->setBackend(c10::DeviceType::CUDA, Backend::GLOO, gloo);
  }
  return group;
}

/// Named otherwise in newer releases.
template <class Group>
Ranks::Work GatherOf(Group& group, at::Tensor& whole, at::Tensor& part) {
  if constexpr (requires { group.all_gather_single(whole, part); }) {
    return group.all_gather_single(whole, part);
  } else {
    return group._allgather_base(whole, part);
  }
}

template <class Group>
Ranks::Work SumPartsOf(Group& group, at::Tensor& part, at::Tensor& whole) {
  if constexpr (requires { group.reduce_scatter_single(part, whole); }) {
    return group.reduce_scatter_single(part, whole);
  } else {
    return group._reduce_scatter_base(part, whole);
  }
}

/// gloo's own errors are plain runtime errors, which only their text tells apart.
bool IsOfTransport(const std::exception& error) {
  if (dynamic_cast<const c10::DistError*>(&error) != nullptr) return true;
  const std::string_view text = error.what();
  return text.find("gloo") != std::string_view::npos || text.find("NCCL") != std::string_view::npos;
}

}  // namespace

Ranks::Ranks() { launch_.local_rank = 0, launch_.local_size = 1; }

Ranks::Ranks(const Launch& launch, const RanksOptions& options)
    : launch_(launch), options_(options) {
  TORCH_CHECK(launch.size >= 1, "there cannot be ", launch.size, " ranks.");
  TORCH_CHECK(launch.rank >= 0 && launch.rank < launch.size, "there is no rank ", launch.rank,
              " of ", launch.size, ".");
  constexpr milliseconds kLeastLimit{100};
  TORCH_CHECK(options.time_limit >= kLeastLimit, "a time limit of ", options.time_limit.count(),
              " ms is too short for ranks to answer.");
  if (alone()) return;
  const bool keep = launch.rank == 0 && !launch.store_is_kept;
  if (keep) KeepStore(launch, options.meeting_limit);
  const auto connect = [&, prefix = NewPrefix(launch)] {
    return c10::make_intrusive<c10d::PrefixStore>(
        prefix, OpenStore(launch, /*keep=*/false, options.meeting_limit));
  };
  roll_call_ = std::make_unique<RollCall>(
      connect(), connect(),
      RollCall::Place{launch.rank, launch.size, IntervalOf(options.time_limit),
                      launch.store_is_kept ? "the launcher, which keeps the store of all ranks,"
                                           : "rank 0, which keeps the store of all ranks,"});
  try {
    roll_call_->Meet(options.meeting_limit);
    Guard([&] { group_ = MakeGroup(connect(), launch, options); });
  } catch (...) {
    Leave();
    throw;
  }
}

Ranks::~Ranks() { Leave(); }

void Ranks::Leave() {
  if (!roll_call_) return;
  group_.reset();
  roll_call_->Leave();
  // The store ends with the process that keeps it, and others may still want to ask who is missing.
  if (rank() != 0 || launch_.store_is_kept) return;
  try {
    roll_call_->AwaitOthersLeaving(5 * IntervalOf(options_.time_limit));
  } catch (const std::exception&) {
    // Nobody can be asked.
  }
}

void Ranks::Doing(std::string what) {
  if (roll_call_) roll_call_->Doing(std::move(what));
}

void Ranks::Explain(const std::exception& error) {
  const bool explained = dynamic_cast<const RankError*>(&error) != nullptr;
  if (!roll_call_ || explained || IsOutOfMemory(error) || !IsOfTransport(error)) return;
  std::ostringstream text;
  text << "rank " << rank() << " of " << size() << ": " << roll_call_->WhoIsMissing() << ". ("
       << FirstLine(error) << ")";
  throw RankError(text.str());
}

template <class Function>
void Ranks::Together(Function&& begin) {
  if (alone()) return;
  roll_call_->CountCall();
  Guard([&] { begin()->wait(); });
}

void Ranks::Sum(at::Tensor& tensor) {
  Together([&] {
    std::vector<at::Tensor> tensors{tensor};
    return group_->allreduce(tensors);
  });
}

void Ranks::Least(at::Tensor& tensor) {
  Together([&] {
    std::vector<at::Tensor> tensors{tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MIN;
    return group_->allreduce(tensors, options);
  });
}

double Ranks::Sum(double value) {
  at::Tensor sum = at::tensor(value, at::dtype(at::kDouble));
  Sum(sum);
  return sum.item<double>();
}

void Ranks::Broadcast(const std::vector<at::Tensor>& tensors, int from) {
  if (alone() || tensors.empty()) return;
  roll_call_->CountCall();
  constexpr std::size_t kBytesAtOnce = std::size_t{250} << 20U;
  Guard([&] { c10d::broadcast_coalesced(group_, tensors, kBytesAtOnce, from); });
}

void Ranks::Gather(at::Tensor& whole, const at::Tensor& part) { Wait(BeginGather(whole, part)); }

void Ranks::SumParts(at::Tensor& part, const at::Tensor& whole) {
  Wait(BeginSumParts(part, whole));
}

Ranks::Work Ranks::BeginGather(at::Tensor& whole, const at::Tensor& part) {
  if (alone()) {
    if (!whole.is_alias_of(part)) whole.copy_(part);
    return {};
  }
  roll_call_->CountCall();
  at::Tensor given = part;
  return Guard([&] { return GatherOf(*group_, whole, given); });
}

Ranks::Work Ranks::BeginSumParts(at::Tensor& part, const at::Tensor& whole) {
  if (alone()) {
    if (!part.is_alias_of(whole)) part.copy_(whole);
    return {};
  }
  roll_call_->CountCall();
  at::Tensor given = whole;
  return Guard([&] { return SumPartsOf(*group_, part, given); });
}

void Ranks::Wait(const Work& work) {
  if (work) Guard([&] { work->wait(); });
}

void Ranks::Barrier() {
  Together([&] { return group_->barrier(); });
}

}  // namespace plimsoll::train
