#include "diagnose/error_texts/sentences.h"

#include <fmt/format.h>

#include <algorithm>

namespace plimsoll {
namespace {

// More than this beside the allocator, with no process lines, is more likely somebody else.
constexpr Bytes kUsualOutside = 5 * kGiB / 2;
constexpr Bytes kMostDriverReserve = 640 * kMiB;

std::string S(Bytes bytes) { return FormatBytes(bytes); }

void AddLine(std::vector<AccountLine>& account, AccountItem what, Bytes bytes,
             Confidence confidence, std::string because) {
  account.push_back(
      {.what = what, .bytes = bytes, .confidence = confidence, .because = std::move(because)});
}

/// Adds to a line that is there, or makes one.
void AddTo(std::vector<AccountLine>& account, AccountItem what, Bytes bytes, Confidence confidence,
           const std::string& because) {
  for (AccountLine& line : account) {
    if (line.what != what) continue;
    line.bytes += bytes;
    line.confidence = std::max(line.confidence, confidence);
    line.because += "; " + because;
    return;
  }
  AddLine(account, what, bytes, confidence, because);
}

/// What the device has beyond the lines so far: context, other processes, or rounding.
void AddRest(const Figures& f, std::vector<AccountLine>& account) {
  Bytes rest = *f.capacity;
  for (const AccountLine& line : account) rest -= line.bytes;
  if (rest == 0) return;
  for (AccountLine& line : account) {
    // Figures have two decimals: a sum may miss the capacity by a few megabytes.
    if (line.what == AccountItem::kOutside && std::abs(rest) <= f.slack && line.bytes + rest >= 0) {
      line.bytes += rest;
      return;
    }
  }
  if (rest < 0) return;
  if (f.own && rest <= kMostDriverReserve) {
    AddTo(account, AccountItem::kOutside, rest, Confidence::kMedium,
          fmt::format("{} that no process is charged with, as drivers keep", S(rest)));
  } else if (f.own) {
    AddTo(account, AccountItem::kOtherProcesses, rest, Confidence::kLow,
          fmt::format("{} used by no process that the text names", S(rest)));
  } else if (rest <= kUsualOutside) {
    AddTo(account, AccountItem::kOutside, rest, Confidence::kMedium,
          f.message.source == MessageSource::kTorchAsync
              ? "neither free nor allocated: free pieces of the pool, a CUDA context, libraries"
              : "neither free nor reserved by PyTorch: a CUDA context, NCCL, libraries");
  } else {
    AddTo(account, AccountItem::kOtherProcesses, rest, Confidence::kLow,
          "neither free nor reserved by PyTorch, and more than a context; the text does not say "
          "whose it is");
  }
}

std::string DeviceName(const OomMessage& m) {
  if (m.source == MessageSource::kTorchMps) return "the Apple GPU";
  return m.device ? fmt::format("GPU {}", *m.device) : "the device";
}

std::string WhoAsked(const OomMessage& m) {
  const std::string rank = m.rank ? fmt::format("Rank {}", *m.rank) : "The program";
  return m.where.empty() ? rank : fmt::format("{}, at {},", rank, m.where);
}

/// "Rank 3 asked for 2.50 GiB on GPU 5 (79.15 GiB), of which 1.19 GiB was free."
std::string WhatWasAsked(const Figures& f) {
  const OomMessage& m = f.message;
  const bool host = m.source == MessageSource::kHostMemory;
  if (m.source == MessageSource::kTorchAbsurd) return WhoAsked(m) + " asked for an absurd size.";
  if (!f.requested)
    return WhoAsked(m) + (host ? " ran out of host memory." : " ran out of memory.");
  const std::string where = host ? "of host memory"
                            : m.source == MessageSource::kVirtualAddress
                                ? "of addresses"
                                : fmt::format("on {}", DeviceName(m));
  std::string out = fmt::format("{} asked for {} {}", WhoAsked(m), S(*f.requested), where);
  if (f.capacity) out += fmt::format(" ({} in all)", S(*f.capacity));
  if (f.free) out += fmt::format(", where {} was free", S(*f.free));
  return out + ".";
}

std::string_view NameForPeople(AccountItem what, Confidence confidence) {
  // A figure by elimination is not known to be in tensors.
  if (what == AccountItem::kUnattributed)
    return confidence == Confidence::kHigh ? "in tensors" : "in use";
  if (what == AccountItem::kFragmented) return "reserved but in free pieces";
  if (what == AccountItem::kCached) return "kept for CUDA graphs";
  if (what == AccountItem::kOutside) return "outside PyTorch's allocator";
  if (what == AccountItem::kOtherProcesses) return "of other processes";
  return AccountItemWords(what);
}

/// "It holds 70.10 GiB in tensors, 6.83 GiB in free pieces, …": the three largest lines.
std::string WhatFills(const std::vector<AccountLine>& account) {
  std::vector<AccountLine> lines = account;
  std::erase_if(lines, [](const AccountLine& l) {
    return l.bytes < 64 * kMiB || l.what == AccountItem::kFree;
  });
  std::stable_sort(lines.begin(), lines.end(),
                   [](const AccountLine& a, const AccountLine& b) { return a.bytes > b.bytes; });
  if (lines.size() > 3) lines.resize(3);
  if (lines.empty()) return {};
  std::string out;
  for (const AccountLine& line : lines) {
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", S(line.bytes),
                       NameForPeople(line.what, line.confidence));
  }
  return "On it: " + out + ".";
}

}  // namespace

std::vector<AccountLine> AccountOf(const Figures& f) {
  std::vector<AccountLine> account;
  if (!f.IsTorch()) {
    if (f.free)
      AddLine(account, AccountItem::kFree, *f.free, Confidence::kHigh, "according to the driver");
    return account;
  }
  if (f.tensors) {
    AddLine(account, AccountItem::kUnattributed, *f.tensors, Confidence::kHigh,
            "in tensors; the text does not say what they are for");
  } else if (f.reserved) {
    AddLine(account, AccountItem::kUnattributed, *f.reserved, Confidence::kMedium,
            "reserved; the text does not say how much of it is in tensors");
  }
  if (f.pools) {
    AddLine(account, AccountItem::kCached, *f.pools, Confidence::kHigh,
            "free, but kept for CUDA graphs (the text calls it allocated)");
  }
  if (f.tensors && f.reserved_free) {
    AddLine(account, AccountItem::kFragmented, *f.reserved_free, Confidence::kMedium,
            "PyTorch had given back what it could before it failed: what is left is stuck inside "
            "segments in use");
  }
  if (f.outside) {
    AddLine(account, AccountItem::kOutside, *f.outside, Confidence::kHigh,
            "what the driver counts for this process, less what PyTorch reserved");
  } else if (f.message.source == MessageSource::kTorchMps && f.message.other) {
    AddLine(account, AccountItem::kOutside, *f.message.other, Confidence::kHigh,
            "other allocations, as printed");
  }
  if (f.others_sum) {
    AddLine(account, AccountItem::kOtherProcesses, *f.others_sum, Confidence::kHigh,
            "as the driver counts");
  }
  if (f.free)
    AddLine(account, AccountItem::kFree, *f.free, Confidence::kHigh, "according to the driver");
  if (!f.capacity || !f.free || f.oversubscribed) return account;
  if (f.reserved || f.tensors) {
    AddRest(f, account);
  } else if (*f.capacity > *f.free) {
    AddLine(account, AccountItem::kUnattributed, *f.capacity - *f.free, Confidence::kLow,
            "in use; the text does not say by whom");
  }
  return account;
}

std::vector<std::string> ArithmeticOf(const Figures& f) {
  std::vector<std::string> lines;
  if (f.requested && f.free && *f.requested > *f.free) {
    lines.push_back(fmt::format("{} asked for - {} free = {} short", S(*f.requested), S(*f.free),
                                S(*f.requested - *f.free)));
  }
  if (f.message.allocated && f.reserved && f.reserved_free) {
    lines.push_back(
        fmt::format("{} allocated + {} reserved but unallocated = {} reserved by PyTorch",
                    S(*f.message.allocated), S(*f.reserved_free), S(*f.reserved)));
  }
  if (f.own && f.reserved) {
    const std::string who =
        f.own_pid ? fmt::format("in use by process {}, which is this one,", *f.own_pid)
                  : std::string("in use by this process");
    const Bytes difference = *f.own - *f.reserved;
    lines.push_back(
        std::abs(difference) <= f.slack
            ? fmt::format("{} {} - {} reserved = nothing beyond rounding outside PyTorch",
                          S(*f.own), who, S(*f.reserved))
            : fmt::format("{} {} - {} reserved = {} outside PyTorch", S(*f.own), who,
                          S(*f.reserved), S(difference)));
  }
  if (f.oversubscribed) {
    const Bytes held = f.reserved.value_or(*f.tensors);
    lines.push_back(
        fmt::format("{} held by PyTorch - {} capacity = {} that cannot be on the device", S(held),
                    S(*f.capacity), S(held - *f.capacity)));
  } else if (f.unnamed) {
    std::string line = fmt::format("{} capacity - {} free - {} {}", S(*f.capacity), S(*f.free),
                                   S(f.own ? *f.own : *f.reserved),
                                   f.own ? "this process" : "reserved by PyTorch");
    if (f.others_sum) line += fmt::format(" - {} other processes", S(*f.others_sum));
    line += std::abs(*f.unnamed) <= f.slack
                ? " = nothing beyond rounding"
                : fmt::format(" = {} {}", S(*f.unnamed),
                              f.own ? "used by nobody whom the text names"
                                    : "outside PyTorch or in other processes");
    lines.push_back(std::move(line));
  }
  return lines;
}

std::vector<std::string> NotesOf(const Figures& f) {
  std::vector<std::string> notes;
  const OomMessage& m = f.message;
  if (m.cut_off)
    notes.push_back("The text ends in the middle of the message; the rest is missing.");
  const bool segment =
      m.source == MessageSource::kTorchCuda || m.source == MessageSource::kTorchHip;
  if (segment && f.requested && (*f.requested == 20 * kMiB || *f.requested == 2 * kMiB)) {
    notes.push_back(fmt::format(
        "\"Tried to allocate {}\" is the segment that PyTorch wanted from the driver; the tensor "
        "may be as small as {}.",
        S(*f.requested), *f.requested == 2 * kMiB ? "a few bytes" : "1 MiB"));
  }
  if (f.own_pid) {
    notes.push_back(fmt::format(
        "Process {} is very likely this program itself: in a container the driver knows it by "
        "another pid, and its {} are PyTorch's {} and a context.",
        *f.own_pid, S(*f.own), S(*f.reserved)));
  }
  if (f.pools) {
    notes.push_back(
        fmt::format("The {} \"allocated in private pools\" are free memory that CUDA graphs keep; "
                    "the text adds "
                    "them to what is allocated.",
                    S(*f.pools)));
  }
  if (std::any_of(m.processes.begin(), m.processes.end(),
                  [](const ProcessUse& p) { return !p.bytes; })) {
    notes.push_back(
        "For some processes the driver did not say what they use, as on Windows and WSL.");
  }
  if (f.oversubscribed) {
    notes.push_back(
        "The account does not add up to the capacity: a part of it lies in the host's memory.");
  }
  return notes;
}

std::string VerdictOf(const Figures& f, const Judgement& judgement) {
  std::string verdict = WhatWasAsked(f) + " " + judgement.reason;
  const std::string fills = f.IsTorch() ? WhatFills(AccountOf(f)) : "";
  if (!fills.empty()) verdict += " " + fills;
  return verdict;
}

}  // namespace plimsoll
