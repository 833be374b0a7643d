// The account and the arithmetic of one message, both from the same figures.
#include <fmt/format.h>

#include <algorithm>

#include "diagnose/error_texts/advice.h"
#include "diagnose/error_texts/sentences.h"

namespace plimsoll {
namespace {

class Lines {
 public:
  void Add(AccountItem what, std::optional<Bytes> bytes, Confidence confidence,
           std::string because) {
    if (!bytes) return;
    lines_.push_back(
        {.what = what, .bytes = *bytes, .confidence = confidence, .because = std::move(because)});
  }

  /// What the lines leave of the whole. What they exceed it by is rounding, of the largest: figures
  /// have two decimals.
  void FillUp(Bytes whole, AccountItem what, std::string because) {
    Bytes rest = whole;
    for (const AccountLine& line : lines_) rest -= line.bytes;
    if (rest > 0) Add(what, rest, Confidence::kHigh, std::move(because));
    if (rest >= 0 || lines_.empty()) return;
    AccountLine& largest = *std::ranges::max_element(lines_, {}, &AccountLine::bytes);
    largest.bytes = std::max<Bytes>(0, largest.bytes + rest);
  }

  std::vector<AccountLine> Take() { return std::move(lines_); }

 private:
  std::vector<AccountLine> lines_;
};

void AddAllocator(const Figures& f, Lines& lines) {
  if (f.tensors) {
    lines.Add(AccountItem::kUnattributed, f.tensors, Confidence::kHigh,
              "in tensors; the text does not say what they are for");
  } else if (f.reserved) {
    lines.Add(AccountItem::kUnattributed, *f.reserved - f.pools.value_or(0), Confidence::kMedium,
              "reserved; the text does not say how much of it is in tensors");
  }
  lines.Add(AccountItem::kCached, f.pools, Confidence::kHigh,
            "free, but kept for CUDA graphs (the text calls it allocated)");
  if (f.tensors) {
    lines.Add(AccountItem::kFragmented, f.reserved_free, Confidence::kHigh,
              "reserved but unallocated: left between tensors in use");
  }
  if (!f.held && f.own) {
    lines.Add(AccountItem::kUnattributed, f.own, Confidence::kMedium,
              "in use by this process; the text does not say how much of it is PyTorch's");
  }
}

void AddOutside(const Figures& f, Lines& lines) {
  const bool mps = f.message.source == MessageSource::kTorchMps;
  lines.Add(AccountItem::kOutside, f.outside,
            f.whose == Unnamed::kContext || f.own_pid ? Confidence::kMedium : Confidence::kHigh,
            mps ? "other allocations, as printed"
            : f.whose == Unnamed::kContext
                ? fmt::format("neither free nor {}: {}", f.reserved ? "reserved" : "allocated",
                              FactsOf(f.message).context)
                : "what the driver counts for this process, less what PyTorch holds");
}

void AddUnnamed(const Figures& f, Lines& lines) {
  if (f.unnamed == 0) return;
  lines.Add(AccountItem::kUnnamed, f.unnamed, Confidence::kHigh,
            f.whose == Unnamed::kNothing ? "rounding of the figures"
            : f.whose == Unnamed::kDriver
                ? "counted for no process: drivers keep some for themselves"
            : f.contradictory ? "in use; the text's figures for the processes exceed the device"
                              : "in use by nobody whom the text names");
}

/// What the lines leave of the device: in use where the text says what is free, else not known.
void AddRest(const Figures& f, Lines& lines) {
  if (f.unassigned) {
    lines.FillUp(*f.capacity, AccountItem::kUnknown,
                 fmt::format("{} of it is in use by processes that the text names; it does not say "
                             "whether this is one of them",
                             S(*f.unassigned)));
    return;
  }
  const bool free = f.free && !f.free_contradicts;
  lines.FillUp(*f.capacity, free ? AccountItem::kUnnamed : AccountItem::kUnknown,
               free ? "in use; the text does not say by whom"
                    : "the text does not say how much of it was free");
}

/// Where the device's bytes are, as far as the message tells.
TextAccount OfDevice(const Figures& f) {
  Lines lines;
  AddAllocator(f, lines);
  AddOutside(f, lines);
  lines.Add(AccountItem::kOtherProcesses, f.others_sum, Confidence::kHigh, "as the driver counts");
  AddUnnamed(f, lines);
  if (!f.free_contradicts) {
    lines.Add(AccountItem::kFree, f.free, Confidence::kHigh, "according to the driver");
  }
  if (!f.capacity || f.oversubscribed) return {ShareBasis::kHeld, lines.Take()};
  AddRest(f, lines);
  return {ShareBasis::kCapacity, lines.Take()};
}

/// Where the bytes are that the process may take.
TextAccount OfLimit(const Figures& within) {
  Lines lines;
  AddAllocator(within, lines);
  AddOutside(within, lines);
  lines.Add(AccountItem::kFree, within.free, Confidence::kHigh, "what is left of the limit");
  lines.FillUp(*within.capacity, AccountItem::kUnknown,
               "left of the limit, or reserved but unallocated: the text does not say which");
  return {ShareBasis::kLimit, lines.Take()};
}

/// Programs without an allocator of PyTorch's say at most what was free.
TextAccount OfOthers(const Figures& f) {
  // What is left for a server's KV cache is not what is free on the device.
  const bool cache = f.message.subject == "the KV cache";
  if (f.message.source == MessageSource::kHostMemory || cache || !f.free) return {};
  Lines lines;
  lines.Add(AccountItem::kFree, f.free, Confidence::kHigh, "as printed");
  if (!f.capacity || *f.free > *f.capacity) return {ShareBasis::kHeld, lines.Take()};
  lines.FillUp(*f.capacity, AccountItem::kUnnamed, "in use; the text does not say by whom");
  return {ShareBasis::kCapacity, lines.Take()};
}

std::string Outside(const Figures& f) {
  const std::string who = f.own_pid
                              ? fmt::format("in use by process {}, which is this one,", *f.own_pid)
                              : std::string("in use by this process");
  const std::string what = f.reserved ? "reserved" : "in tensors";
  if (*f.outside <= f.slack) {
    return fmt::format("{} {} - {} {} = nothing beyond rounding outside PyTorch", S(*f.own), who,
                       S(*f.held), what);
  }
  return fmt::format("{} {} - {} {} = {} outside PyTorch", S(*f.own), who, S(*f.held), what,
                     S(*f.outside));
}

std::string Rest(const Figures& f) {
  std::string line =
      fmt::format("{} capacity - {} free - {} {}", S(*f.capacity), S(*f.free),
                  S(f.own ? *f.own : *f.held), f.own ? "this process" : "held by PyTorch");
  if (f.others_sum) line += fmt::format(" - {} other processes", S(*f.others_sum));
  switch (f.whose) {
    case Unnamed::kNothing:
      return line + " = nothing beyond rounding";
    case Unnamed::kContext:
      return line + fmt::format(" = {} outside PyTorch", S(*f.outside));
    case Unnamed::kDriver:
    case Unnamed::kStrangers:
      return line + fmt::format(" = {} in use by nobody whom the text names", S(f.unnamed));
  }
  return line;
}

}  // namespace

TextAccount AccountOf(const Figures& f, OomCause why) {
  if (!f.IsTorch()) return OfOthers(f);
  const std::optional<Figures> within = WithinLimit(f);
  if (within && why == OomCause::kLimit) return OfLimit(*within);
  return OfDevice(f);
}

std::vector<AccountLine> DeviceLines(const Figures& f) { return OfDevice(f).lines; }

std::vector<std::string> ArithmeticOf(const Figures& f) {
  std::vector<std::string> lines;
  if (f.missing.value_or(0) > 0 && !f.free) {
    lines.push_back(fmt::format("{} asked for - ({} capacity - {} held) = {} missing at least",
                                S(*f.requested), S(*f.capacity), S(*f.held), S(*f.missing)));
  } else if (f.missing.value_or(0) > 0) {
    // A server counts what is left of its share.
    const bool server = f.message.source == MessageSource::kServer;
    lines.push_back(fmt::format("{} {} - {} {} = {} missing", S(*f.requested),
                                server ? "needed" : "asked for", S(*f.free),
                                server ? "left for it" : "free", S(*f.missing)));
  }
  if (!f.IsTorch()) return lines;
  const bool any = f.reserved_free.value_or(0) > 0 || f.message.reserved_free;
  if (f.message.allocated && f.reserved && any) {
    lines.push_back(
        fmt::format("{} allocated + {} reserved but unallocated = {} reserved by PyTorch",
                    S(*f.message.allocated), S(*f.reserved_free), S(*f.reserved)));
  }
  if (f.own && f.held && f.outside) lines.push_back(Outside(f));
  if (f.oversubscribed) {
    lines.push_back(
        fmt::format("{} held by PyTorch - {} capacity = {} that cannot be on the device",
                    S(*f.held), S(*f.capacity), S(*f.held - *f.capacity)));
  } else if (f.capacity && f.free && f.held && !f.contradictory) {
    lines.push_back(Rest(f));
  }
  return lines;
}

}  // namespace plimsoll
