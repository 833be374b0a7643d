#include "diagnose/error_texts/figures.h"

#include <algorithm>

namespace plimsoll {
namespace {

// What a process has on a device beside the allocator's memory: a CUDA context is 0.1 to 0.6 GiB
// today, 0.7 to 1.7 GiB up to torch 1.12, and NCCL adds 0.1 to 3 GiB.
constexpr Bytes kLeastContext = 100 * kMiB;
constexpr Bytes kMostContext = 7 * kGiB / 2;
// Drivers keep a few hundred megabytes for themselves, and a desktop as much: 190 to 460 MiB in
// texts of GeForce cards, 0 to 15 MiB in those of servers. Cards of this size have no desktop.
constexpr Bytes kMostDriverReserve = 640 * kMiB;
constexpr Bytes kMostDriverReserveOfServers = 64 * kMiB;
constexpr Bytes kServerCard = 60 * kGiB;

// The driver hands out pages of 2 MiB and keeps some: "20.00 MiB asked for, 26.69 MiB free" is a
// full device.
constexpr Bytes kUsableOnlyInTheory = 64 * kMiB;

Bytes SumOfKnown(const std::vector<ProcessUse>& processes) {
  Bytes sum = 0;
  for (const ProcessUse& process : processes) sum += process.bytes.value_or(0);
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
  for (const auto& figure : {m.capacity, m.free, m.allocated, m.reserved, m.reserved_free}) {
    if (figure) slack += RoundingOf(*figure);
  }
  for (const ProcessUse& process : m.processes) slack += RoundingOf(process.bytes.value_or(0));
  FindReserved();
  oversubscribed = capacity && held && *held > *capacity + slack;
  free_suffices = free && requested && *free >= *requested + kUsableOnlyInTheory;
  FindMissing();
  SplitProcesses();
  FindOutside();
}

void Figures::FindMissing() {
  if (free && requested) {
    missing = std::max<Bytes>(0, *requested - *free);
  } else if (requested && capacity && held) {
    // Intel's texts do not say what was free; it was no more than what PyTorch left.
    const Bytes left = std::max<Bytes>(0, *capacity - *held);
    if (*requested > left) missing = *requested - left;
  }
}

void Figures::FindReserved() {
  // PyTorch 1.0 to 1.3 call "cached" what is held besides the tensors; where both exceed the
  // device, it was all that is held.
  if (tensors && reserved_free && capacity && !reserved && message.torch &&
      message.torch->last <= 103 && *reserved_free >= *tensors &&
      *tensors + *reserved_free > *capacity && *reserved_free <= *capacity) {
    reserved = reserved_free;
    reserved_free.reset();
  }
  if (tensors && pools) tensors = std::max<Bytes>(0, *tensors - *pools);
  if (tensors && reserved_free && !reserved) {
    reserved = *tensors + pools.value_or(0) + *reserved_free;
  }
  if (tensors && reserved && !reserved_free) {
    reserved_free = std::max<Bytes>(0, *reserved - *tensors - pools.value_or(0));
  }
  // By rounding, or where a text is broken, the parts may exceed what is reserved.
  if (reserved) {
    const Bytes parts = tensors ? *tensors + reserved_free.value_or(0) : 0;
    reserved = std::max(*reserved, parts + pools.value_or(0));
  }
  held = reserved;
  if (!held && tensors) held = *tensors + pools.value_or(0);
}

/// "this process" where the message says so. Else a line is this process if it holds what the
/// allocator holds, and either the lines are all that is used on the device, so that this process
/// must be among them, or it holds about a context more. If several do, the closest.
const ProcessUse* Figures::FindOwnProcess() const {
  for (const ProcessUse& process : message.processes) {
    if (!process.pid) return &process;
  }
  if (!held) return nullptr;
  const bool complete =
      capacity && free && *capacity - *free - SumOfKnown(message.processes) < *held - slack;
  const ProcessUse* mine = nullptr;
  for (const ProcessUse& process : message.processes) {
    if (!process.bytes) continue;
    const Bytes beyond = *process.bytes - *held;
    const bool alike = beyond >= kLeastContext - slack && beyond <= kMostContext;
    if (!alike && !(complete && beyond >= -slack)) continue;
    if (mine == nullptr || *process.bytes < *mine->bytes) mine = &process;
  }
  return mine;
}

void Figures::SplitProcesses() {
  const ProcessUse* mine = FindOwnProcess();
  // A text that is cut off before it says what PyTorch holds does not tell who is who.
  if (mine == nullptr && !held) {
    if (const Bytes sum = SumOfKnown(message.processes); sum > 0) unassigned = sum;
    DropContradictions();
    return;
  }
  if (mine != nullptr) {
    own = mine->bytes;
    own_pid = mine->pid;
  }
  for (const ProcessUse& process : message.processes) {
    if (&process != mine) others.push_back(process);
  }
  if (!others.empty()) others_sum = SumOfKnown(others);
  if (own && held && *own + slack < *held) own.reset();  // of another moment, or of another device
  DropContradictions();
}

/// Leaves out the figures for the processes, and what is free, where they exceed the device.
void Figures::DropContradictions() {
  if (!capacity) return;
  const Bytes named =
      own.value_or(held.value_or(0)) + others_sum.value_or(0) + unassigned.value_or(0);
  contradictory = !oversubscribed && named + free.value_or(0) > *capacity + slack;
  if (!contradictory) return;
  free_contradicts = free && held.value_or(0) + *free > *capacity + slack;
  own.reset();
  own_pid.reset();
  others.clear();
  others_sum.reset();
  unassigned.reset();
}

void Figures::FindOutside() {
  if (message.source == MessageSource::kTorchMps) outside = message.other;
  if (own && held) outside = std::max<Bytes>(0, *own - *held);
  if (!capacity || !free || !held || oversubscribed) return;
  const Bytes rest = *capacity - *free - *held - outside.value_or(0) - others_sum.value_or(0);
  if (rest < 0 && outside) {
    // Figures have two decimals: what they exceed the card by is rounding.
    outside = std::max<Bytes>(0, *outside + rest);
    return;
  }
  if (rest <= 0) return;
  if (own) {
    unnamed = rest;
    if (rest > slack) {
      const bool server = *capacity >= kServerCard && !message.signs.windows && !message.signs.wsl;
      const Bytes most = server ? kMostDriverReserveOfServers + slack : kMostDriverReserve;
      whose = rest <= most ? Unnamed::kDriver : Unnamed::kStrangers;
    }
  } else if (rest <= (reserved ? kUsualOutside : std::max(kUsualOutside, *held / 2))) {
    // Where only the tensors are told, what the allocator keeps besides them is in it.
    outside = rest;
    whose = Unnamed::kContext;
  } else {
    unnamed = rest;
    whose = Unnamed::kStrangers;
  }
}

bool Figures::IsTorch() const {
  switch (message.source) {
    case MessageSource::kTorchCuda:
    case MessageSource::kTorchHip:
    case MessageSource::kTorchXpu:
    case MessageSource::kTorchMps:
    case MessageSource::kTorchNpu:
    case MessageSource::kTorchOtherDevice:
    case MessageSource::kTorchAsync:
    case MessageSource::kTorchRejected:
      return true;
    default:
      return false;
  }
}

bool Figures::HeldIsAll() const {
  return reserved || message.source == MessageSource::kTorchAsync ||
         message.source == MessageSource::kTorchMps;
}

std::optional<Figures> WithinLimit(const Figures& f) {
  const OomMessage& m = f.message;
  using enum MessageSource;
  const bool of_fraction = m.source == kTorchCuda || m.source == kTorchHip ||
                           m.source == kTorchRejected || m.source == kTorchAsync ||
                           m.source == kTorchMps;
  if (!of_fraction || !m.allowed || !f.held) return {};
  if (f.capacity && *m.allowed > *f.capacity) return {};
  const Bytes outside = m.source == kTorchMps ? f.outside.value_or(0) : 0;
  if (*f.held + outside > *m.allowed + f.slack + RoundingOf(*m.allowed)) return {};
  Figures within = f;
  within.capacity_of = ShareBasis::kLimit;
  within.capacity = m.allowed;
  // The driver's figures are of the device. Where only the tensors are known, PyTorch may hold
  // more.
  within.free.reset();
  const Bytes left = std::max<Bytes>(0, *m.allowed - *f.held - outside);
  if (f.HeldIsAll()) within.free = left;
  within.missing.reset();
  if (f.requested && *f.requested > left) within.missing = *f.requested - left;
  within.own.reset();
  within.own_pid.reset();
  within.others.clear();
  within.others_sum.reset();
  within.unassigned.reset();
  if (m.source != kTorchMps) within.outside.reset();
  within.unnamed = 0;
  within.whose = Unnamed::kNothing;
  within.oversubscribed = within.free_suffices = false;
  within.contradictory = within.free_contradicts = false;
  return within;
}

}  // namespace plimsoll
