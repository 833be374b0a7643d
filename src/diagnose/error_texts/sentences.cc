#include "diagnose/error_texts/sentences.h"

#include <fmt/format.h>

#include <algorithm>

#include "diagnose/error_texts/advice.h"

namespace plimsoll {
namespace {

std::string DeviceName(const OomMessage& m) {
  const VendorFacts& facts = FactsOf(m);
  if (m.device) return fmt::format("{} {}", facts.device, *m.device);
  return VendorOf(m) == Vendor::kOther ? "the device" : fmt::format("the {}", facts.device);
}

std::string WhoAsked(const OomMessage& m) {
  const std::string rank = m.rank ? fmt::format("Rank {}", *m.rank) : "The program";
  return m.where.empty() ? rank : fmt::format("{}, at {},", rank, m.where);
}

/// The sentence where the text names no request.
std::string WithoutRequest(const OomMessage& m) {
  switch (m.host) {
    case HostEvent::kNone:
      if (m.subject == "the weights") return WhoAsked(m) + " did not load the model.";
      if (m.source == MessageSource::kHipInUse || m.source == MessageSource::kDriverNotReady) {
        return WhoAsked(m) + " ended with an error of the driver.";
      }
      if (m.source == MessageSource::kBrokenSegment) {
        return WhoAsked(m) + " ended with an assertion of PyTorch's allocator.";
      }
      return m.device ? fmt::format("{} ran out of memory on {}.", WhoAsked(m), DeviceName(m))
                      : WhoAsked(m) + " ran out of memory.";
    case HostEvent::kRequest:
    case HostEvent::kPinned:
    case HostEvent::kDriver:
    case HostEvent::kPageFile:
    case HostEvent::kSharedMemory:
    case HostEvent::kJavaHeap:
      return WhoAsked(m) + " ran out of host memory.";
    default:
      return m.rank ? fmt::format("Rank {} was killed.", *m.rank) : "A process was killed.";
  }
}

/// "Rank 3 asked for 2.50 GiB on GPU 5 (79.15 GiB in all), where 1.19 GiB was free."
std::string WhatWasAsked(const Figures& f) {
  const OomMessage& m = f.message;
  if (m.source == MessageSource::kTorchAbsurd) return WhoAsked(m) + " asked for an absurd size.";
  // Nobody is refused nothing: the text ends in the middle of the figure.
  if (f.requested.value_or(0) == 0) return WithoutRequest(m);
  if (m.source == MessageSource::kServer && m.subject == "the KV cache" && f.free) {
    return fmt::format("The KV cache needs {}, and {} is left for it on {}.", S(*f.requested),
                       S(*f.free), DeviceName(m));
  }
  const std::string where = m.source == MessageSource::kHostMemory ? "of host memory"
                            : m.source == MessageSource::kVirtualAddress
                                ? "of addresses"
                                : fmt::format("on {}", DeviceName(m));
  std::string out = fmt::format("{} asked for {} {}", WhoAsked(m), S(*f.requested), where);
  if (f.capacity) out += fmt::format(" ({} in all)", S(*f.capacity));
  if (f.free) out += fmt::format(", where {} was free", S(*f.free));
  // A few free megabytes are none: people ask why it fails all the same.
  const bool hardly = f.free && *f.free >= *f.requested && !f.free_suffices && f.IsTorch();
  if (hardly) out += " (too little in practice: the driver keeps pages of 2 MiB back)";
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
  if (what == AccountItem::kUnnamed) return "in use by nobody whom the text names";
  return AccountItemWords(what);
}

/// "The GPU held: 70.10 GiB in tensors, 6.83 GiB in free pieces, …": the three largest lines.
std::string WhatFills(const std::vector<AccountLine>& account) {
  std::vector<AccountLine> lines = account;
  std::erase_if(lines, [](const AccountLine& l) {
    return l.bytes < 64 * kMiB || l.what == AccountItem::kFree || l.what == AccountItem::kUnknown;
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
  return "The GPU held: " + out + ".";
}

void AddOddities(const Figures& f, std::vector<std::string>& notes) {
  const OomMessage& m = f.message;
  if (std::any_of(m.processes.begin(), m.processes.end(),
                  [](const ProcessUse& p) { return !p.bytes; }) &&
      f.IsTorch()) {
    notes.push_back(
        "For some processes the driver did not say what they use, as on Windows and WSL.");
  }
  if (f.oversubscribed) {
    notes.push_back(
        "The account does not add up to the capacity: a part of it lies in the host's memory.");
  }
  if (f.free_contradicts && !f.held) {
    notes.push_back(fmt::format(
        "The {} free are more than the device has; what is free is left out of the account.",
        S(*f.free)));
  } else if (f.free_contradicts) {
    notes.push_back(fmt::format(
        "The {} that PyTorch holds and the {} free are more than the device has, so that "
        "they are not of the same moment; what is free is left out of the account.",
        S(*f.held), S(*f.free)));
  }
  if (f.contradictory && !f.message.processes.empty()) {
    notes.push_back(
        "The figures for the processes exceed the device, as on parts of a GPU (MIG, vGPU); they "
        "are left out.");
  }
}

}  // namespace

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
        "another pid, and its {} hold what PyTorch has, {}.",
        *f.own_pid, S(*f.own), S(*f.held)));
  }
  if (f.pools) {
    notes.push_back(
        fmt::format("The {} \"allocated in private pools\" are free memory that CUDA graphs keep; "
                    "the text adds them to what is allocated.",
                    S(*f.pools)));
  }
  if (m.graph_estimate && *m.graph_estimate < 0) {
    notes.push_back(fmt::format(
        "The server printed that its CUDA graphs would take -{}: others gave memory back while it "
        "measured, so that the KV cache which it then chose may be too large by as much.",
        S(-*m.graph_estimate)));
  }
  if (m.expandable_on) {
    notes.push_back(
        "The message leaves out the hint about expandable_segments, as newer releases do where "
        "these are on already.");
  }
  AddOddities(f, notes);
  return notes;
}

std::string VerdictOf(const Figures& f, const Judgement& judgement) {
  std::string verdict = WhatWasAsked(f) + " " + judgement.findings.front().title + ".";
  // A limit may be meant: then the question is what fills it.
  if (judgement.why == OomCause::kLimit && judgement.findings.size() > 1) {
    verdict += " " + judgement.findings[1].title + ".";
  }
  const std::string fills = f.IsTorch() ? WhatFills(DeviceLines(f)) : "";
  if (!fills.empty()) verdict += " " + fills;
  if (f.message.signs.went_on) verdict += " The program caught this error and went on.";
  return verdict;
}

}  // namespace plimsoll
