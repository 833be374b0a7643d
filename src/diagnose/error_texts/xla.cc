#include "diagnose/error_texts/xla.h"

#include <fmt/format.h>

#include <algorithm>

#include "diagnose/error_texts/advice.h"

namespace plimsoll {
namespace {

Opinion Found(OomCause why, FindingId id, std::string title, std::vector<std::string> evidence) {
  return {.found = Finding{.id = id,
                           .severity = Severity::kHigh,
                           .title = std::move(title),
                           .evidence = std::move(evidence)},
          .why = why};
}

/// What a layout for the device adds to the buffers that the text lists.
Bytes Padding(const OomMessage& m) {
  Bytes sum = 0;
  for (const OomMessage::Buffer& buffer : m.buffers) sum += buffer.padding.value_or(0);
  return sum;
}

/// The totals of TensorFlow's pool.
Opinion OfPool(const Figures& f, std::string_view who) {
  const OomMessage& m = f.message;
  const Bytes limit = *m.allowed;
  const Bytes used = *m.allocated;
  const std::string figures =
      fmt::format("{} in use of a pool of {}, {} asked for", S(used), S(limit), S(*m.requested));
  if (*m.requested > limit) {
    return Found(OomCause::kTooLarge, FindingId::kCapacity,
                 fmt::format("One request of {} is larger than {}'s whole pool of {}",
                             S(*m.requested), who, S(limit)),
                 {figures});
  }
  if (used + *m.requested > limit) {
    return Found(OomCause::kCapacity, FindingId::kCapacity,
                 fmt::format("{}'s pool is full: {} of its {} in use", who, S(used), S(limit)),
                 {figures});
  }
  Opinion opinion =
      Found(OomCause::kFragmentation, FindingId::kFragmentation,
            fmt::format(
                "{}'s pool has {} free, but not in one piece, or the driver gave it less than its "
                "limit",
                who, S(limit - used)),
            {figures});
  opinion.found->remedies.push_back(Rule("an allocator that does not keep one pool",
                                         Lever::kAllocatorSetting,
                                         {"export TF_GPU_ALLOCATOR=cuda_malloc_async"}));
  return opinion;
}

/// A program that was compiled for a TPU and does not fit.
Opinion OfProgram(const Figures& f) {
  const OomMessage& m = f.message;
  const Bytes excess = *m.other - *m.capacity;
  const Bytes padding = Padding(m);
  const std::string figures = fmt::format("{} needed in all, {} on the device: {} too much",
                                          S(*m.other), S(*m.capacity), S(excess));
  if (padding > 0 && padding >= excess) {
    Opinion opinion = Found(
        OomCause::kCapacity, FindingId::kRoundingLoss,
        fmt::format("{} is padding: the device lays arrays out in tiles of 8 by 128, and arrays "
                    "with small last dimensions are blown up",
                    S(padding)),
        {figures});
    opinion.found->remedies.push_back(
        Rule("make the last two dimensions large: transpose or merge them so that they are "
             "multiples of 8 and 128",
             Lever::kCheckSize));
    return opinion;
  }
  return Found(OomCause::kCapacity, FindingId::kCapacity,
               fmt::format("The compiled program needs {}, and the device has {}", S(*m.other),
                           S(*m.capacity)),
               {figures});
}

Opinion OfFigures(const Figures& f) {
  const OomMessage& m = f.message;
  const std::string_view who = NameOf(RunnerOf(m));
  if (m.other && m.capacity && *m.other > *m.capacity) return OfProgram(f);
  if (m.allowed && m.allocated && m.requested) return OfPool(f, who);
  if (m.requested && m.free && *m.free >= *m.requested) {
    return Found(OomCause::kFragmentation, FindingId::kFragmentation,
                 fmt::format("{} is free, but not in one piece of {}", S(*m.free), S(*m.requested)),
                 {"the device's allocator needs the request in one piece"});
  }
  return Found(OomCause::kCapacity, FindingId::kCapacity,
               m.requested
                   ? fmt::format("{} could not get {} from the device", who, S(*m.requested))
                   : fmt::format("{} could not get the memory from the device", who),
               {m.free ? fmt::format("{} was free", S(*m.free))
                       : "the text does not say how full the device or the pool was"});
}

/// "; its largest buffer is 4.89 GiB (dot_general, gemma.py:175)".
std::string LargestBuffer(const OomMessage& m) {
  if (m.buffers.empty() || !m.buffers.front().size) return {};
  const OomMessage::Buffer& first = m.buffers.front();
  return fmt::format("; its largest buffer is {} ({}{}{})", S(*first.size), first.what,
                     first.where.empty() ? "" : ", ", first.where);
}

void AddBuffers(const OomMessage& m, Finding& finding) {
  for (std::size_t i = 0; i < m.buffers.size() && i < 5; ++i) {
    const OomMessage::Buffer& buffer = m.buffers[i];
    std::string line = fmt::format("{} {}{}{}", buffer.size ? S(*buffer.size) : std::string("?"),
                                   buffer.what, buffer.where.empty() ? "" : " from ", buffer.where);
    if (buffer.padding) line += fmt::format(", {} of it padding", S(*buffer.padding));
    finding.evidence.push_back(std::move(line));
  }
}

}  // namespace

Remedy PoolSetting(const OomMessage& m) {
  if (m.source == MessageSource::kJax) {
    return Rule(
        "a larger share of the device for JAX, which takes 75 % of it at the start; or as "
        "it goes, where other programs share the device",
        Lever::kMemoryLimit,
        {"export XLA_PYTHON_CLIENT_MEM_FRACTION=.92",
         "export XLA_PYTHON_CLIENT_PREALLOCATE=false   # as it goes"});
  }
  return Rule("memory taken as it is needed, where other programs share the device",
              Lever::kMemoryLimit,
              {"tf.config.experimental.set_memory_growth(tf.config.list_physical_devices(\"GPU\")"
               "[0], True)"});
}

Opinion OfXla(const Figures& f) {
  const OomMessage& m = f.message;
  Opinion opinion = OfFigures(f);
  Finding& finding = *opinion.found;
  if (finding.id == FindingId::kCapacity) finding.title += LargestBuffer(m);
  if (m.other && !m.capacity) {
    finding.evidence.push_back(fmt::format("the program needs {} in all", S(*m.other)));
  }
  AddBuffers(m, finding);
  for (Remedy& remedy : NeedLess(m)) finding.remedies.push_back(std::move(remedy));
  if (VendorOf(m) != Vendor::kTpu && m.program != Program::kTorchXla)
    finding.remedies.push_back(PoolSetting(m));
  return opinion;
}

}  // namespace plimsoll
