#include "diagnose/error_texts/figures.h"

#include <algorithm>

namespace plimsoll {
namespace {

// What a process has on a device beside the allocator's memory: a CUDA context is 0.2 to 0.6 GiB
// today, over 1 GiB with old drivers, and NCCL adds 0.5 to 3 GiB.
constexpr Bytes kLeastContext = 100 * kMiB;
constexpr Bytes kMostContext = 7 * kGiB / 2;

// The driver hands out pages of 2 MiB and keeps some: "20.00 MiB asked for, 26.69 MiB free" is a
// full device.
constexpr Bytes kUsableOnlyInTheory = 64 * kMiB;

std::optional<Bytes> Sum(const std::vector<ProcessUse>& processes) {
  if (processes.empty()) return {};
  Bytes sum = 0;
  for (const ProcessUse& process : processes) {
    if (!process.bytes) return {};
    sum += *process.bytes;
  }
  return sum;
}

}  // namespace

Bytes RoundingOf(Bytes printed) {
  if (printed > kGiB) return kGiB / 200 + 1;
  if (printed > kMiB) return kMiB / 200 + 1;
  return printed > kKiB ? kKiB / 200 + 1 : 0;
}

Figures::Figures(const OomMessage& m)
    : message(m),
      capacity(m.capacity),
      free(m.free),
      requested(m.requested),
      tensors(m.allocated),
      pools(m.private_pools),
      reserved_free(m.reserved_free),
      reserved(m.reserved) {
  if (tensors && pools) tensors = std::max<Bytes>(0, *tensors - *pools);
  if (tensors && reserved_free && !reserved) {
    reserved = *tensors + pools.value_or(0) + *reserved_free;
  }
  if (tensors && reserved && !reserved_free) {
    reserved_free = std::max<Bytes>(0, *reserved - *tensors - pools.value_or(0));
  }
  for (const auto& figure : {m.capacity, m.free, m.allocated, m.reserved, m.reserved_free}) {
    if (figure) slack += RoundingOf(*figure);
  }
  for (const ProcessUse& process : m.processes) slack += RoundingOf(process.bytes.value_or(0));
  oversubscribed = capacity && tensors && reserved.value_or(*tensors) > *capacity + slack;
  free_suffices = free && requested && *free >= *requested + kUsableOnlyInTheory;
  FindOwnProcess();
  others_sum = Sum(others);
  if (own && reserved && *own + slack >= *reserved) outside = std::max<Bytes>(0, *own - *reserved);
  if (capacity && free && (own || reserved)) {
    unnamed = *capacity - *free - own.value_or(reserved.value_or(0)) - others_sum.value_or(0);
  }
}

/// "this process" where the message says so; else the line whose figure exceeds what is reserved by
/// about a context. If several do, the closest.
void Figures::FindOwnProcess() {
  const ProcessUse* mine = nullptr;
  for (const ProcessUse& process : message.processes) {
    if (!process.pid) mine = &process;
  }
  if (mine == nullptr && reserved) {
    for (const ProcessUse& process : message.processes) {
      if (!process.bytes) continue;
      const Bytes beyond = *process.bytes - *reserved;
      if (beyond < kLeastContext - slack || beyond > kMostContext) continue;
      if (mine == nullptr || *process.bytes < *mine->bytes) mine = &process;
    }
    if (mine != nullptr) own_pid = mine->pid;
  }
  for (const ProcessUse& process : message.processes) {
    if (&process == mine) {
      own = process.bytes;
    } else {
      others.push_back(process);
    }
  }
}

bool Figures::IsTorch() const {
  switch (message.source) {
    case MessageSource::kTorchCuda:
    case MessageSource::kTorchHip:
    case MessageSource::kTorchXpu:
    case MessageSource::kTorchMps:
    case MessageSource::kTorchAsync:
    case MessageSource::kTorchRejected:
      return true;
    default:
      return false;
  }
}

}  // namespace plimsoll
