#include "readers/error_text/collect.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace plimsoll {
namespace {

constexpr const char* kRepeated = "messages that repeat another one";
constexpr const char* kOfOneEvent = "further lines about the same event";
constexpr const char* kTooMany = "messages beyond the first 20000 different ones";
constexpr std::size_t kComparedOfSameSize = 1024;
constexpr std::size_t kCompared = 64;

constexpr std::array kFigures = {&OomMessage::requested,     &OomMessage::capacity,
                                 &OomMessage::free,          &OomMessage::allocated,
                                 &OomMessage::active,        &OomMessage::reserved,
                                 &OomMessage::allowed,       &OomMessage::private_pools,
                                 &OomMessage::reserved_free, &OomMessage::other};

/// All that tells two messages apart, as one string.
std::string Key(const OomMessage& m) {
  std::string key =
      fmt::format("{}/{}/{}/{}/{}/{}", static_cast<int>(m.source), static_cast<int>(m.host),
                  m.survived, m.rank.value_or(-1), m.device.value_or(-1), m.subject);
  for (auto figure : kFigures) key += fmt::format("/{}", (m.*figure).value_or(-1));
  for (const ProcessUse& p : m.processes) {
    key += fmt::format("/{}:{}", p.pid.value_or(-1), p.bytes.value_or(-1));
  }
  return key;
}

template <typename T>
bool Agree(const std::optional<T>& a, const std::optional<T>& b) {
  return !a || !b || *a == *b;
}

bool ProcessesAgree(const OomMessage& a, const OomMessage& b) {
  const std::size_t common = std::min(a.processes.size(), b.processes.size());
  for (std::size_t i = 0; i < common; ++i) {
    if (a.processes[i].pid != b.processes[i].pid) return false;
    if (!Agree(a.processes[i].bytes, b.processes[i].bytes)) return false;
  }
  // A whole message that names fewer processes is about another moment.
  return a.processes.size() == b.processes.size() || a.cut_off || b.cut_off || common == 0;
}

bool HasFigures(const OomMessage& m) {
  return std::any_of(kFigures.begin(), kFigures.end(),
                     [&](auto figure) { return (m.*figure).has_value(); }) ||
         !m.processes.empty();
}

/// How much a report tells: a request that failed most, then who sets the limit, then the kernel,
/// then whoever merely saw the process die.
int Telling(HostEvent event) {
  switch (event) {
    case HostEvent::kSlurmKill:
    case HostEvent::kBatchKill:
    case HostEvent::kKubernetesKill:
      return 5;
    case HostEvent::kCgroupKill:
      return 4;
    case HostEvent::kKernelKill:
    case HostEvent::kNodePressure:
    case HostEvent::kSystemdKill:
    case HostEvent::kRayKill:
    case HostEvent::kEarlyOomKill:
    case HostEvent::kDaskKill:
      return 3;
    case HostEvent::kWorkerKilled:
      return 2;
    case HostEvent::kWorkerLost:
    case HostEvent::kKilled:
      return 1;
    case HostEvent::kNone:
      return 0;
    default:
      return 6;
  }
}

/// Whether the report only says that a process died.
bool IsWitness(const OomMessage& m) {
  return m.source == MessageSource::kHostMemory &&
         (m.host == HostEvent::kKilled || m.host == HostEvent::kWorkerKilled ||
          m.host == HostEvent::kWorkerLost);
}

/// Whether the report says who killed, and so that memory was the reason.
bool NamesKiller(const OomMessage& m) {
  const int telling = m.source == MessageSource::kHostMemory ? Telling(m.host) : 0;
  return telling > Telling(HostEvent::kWorkerKilled) && telling < Telling(HostEvent::kRequest);
}

/// Whether both name the same process.
bool SharePid(const OomMessage& a, const OomMessage& b) {
  return !a.processes.empty() && !b.processes.empty() &&
         a.processes.front().pid == b.processes.front().pid;
}

/// Whether the paste begins behind the request.
bool IsHeadless(const OomMessage& m) {
  return m.source == MessageSource::kTorchCuda && m.cut_off && !m.requested && m.capacity;
}

/// Whether both texts can be about the same event: the same author and no figure that differs.
bool SameEvent(const OomMessage& a, const OomMessage& b) {
  if (a.source != b.source || a.survived != b.survived) return false;
  if (!Agree(a.rank, b.rank) || !Agree(a.device, b.device)) return false;
  for (auto figure : kFigures) {
    if (!Agree(a.*figure, b.*figure)) return false;
  }
  // A process has another pid in its container than outside.
  const bool told = (IsWitness(a) && NamesKiller(b)) || (IsWitness(b) && NamesKiller(a));
  if (told && !SharePid(a, b)) return false;
  // On the host the same process is named by its program, its job or its role.
  const bool host = a.source == MessageSource::kHostMemory;
  if (!host && !a.subject.empty() && !b.subject.empty() && a.subject != b.subject) return false;
  if (!ProcessesAgree(a, b)) return false;
  // One without any figure repeats whatever it stands beside; otherwise they must share one.
  return !HasFigures(a) || !HasFigures(b) || (a.requested && b.requested) ||
         (!a.requested && !b.requested) || IsHeadless(a) || IsHeadless(b);
}

/// TensorFlow and XLA announce in the log what they raise a moment later: 1.97 GiB there, the exact
/// bytes here. The allocator may have been asked for a workspace besides, or for a rounded size.
bool Announces(const OomMessage& warning, const OomMessage& error) {
  const auto xla = [](const OomMessage& m) {
    return m.source == MessageSource::kTensorFlow || m.source == MessageSource::kJax;
  };
  if (!xla(warning) || !xla(error) || warning.survived || error.survived) return false;
  if (!warning.subject.empty() || !warning.buffers.empty()) return false;
  if (!warning.requested || !error.requested || !Agree(warning.rank, error.rank)) return false;
  if (!Agree(warning.allowed, error.allowed)) return false;
  const Bytes difference = *warning.requested - *error.requested;
  return std::abs(difference) <= *error.requested / 8 + kMiB;
}

void Merge(OomMessage& into, const OomMessage& from) {
  if (Telling(from.host) > Telling(into.host)) {
    into.host = from.host;
    if (!from.subject.empty()) into.subject = from.subject;
  }
  if (into.program == Program::kUnknown) into.program = from.program;
  if (into.stage == Stage::kUnknown) into.stage = from.stage;
  into.signs |= from.signs;
  for (auto figure : kFigures) {
    if (!(into.*figure)) into.*figure = from.*figure;
  }
  if (!into.tokens_that_fit) into.tokens_that_fit = from.tokens_that_fit;
  if (!into.zero_stage) into.zero_stage = from.zero_stage;
  into.expandable_on = into.expandable_on || from.expandable_on;
  if (!into.rank) into.rank = from.rank;
  if (!into.device) into.device = from.device;
  if (into.processes.size() < from.processes.size()) into.processes = from.processes;
  for (std::size_t i = 0; i < std::min(into.processes.size(), from.processes.size()); ++i) {
    if (!into.processes[i].bytes) into.processes[i].bytes = from.processes[i].bytes;
  }
  if (into.buffers.size() < from.buffers.size()) into.buffers = from.buffers;
  if (into.subject.empty()) into.subject = from.subject;
  if (into.cgroup.empty()) into.cgroup = from.cgroup;
  if (into.where.empty()) into.where = from.where;
  if (!into.torch || (into.cut_off && !from.cut_off)) into.torch = from.torch;
  into.cut_off = into.cut_off && from.cut_off;
}

}  // namespace

/// Whether the message tells nothing new beside a kept one, which takes over what it adds.
bool MessageCollector::Repeats(OomMessage& message, std::size_t index) {
  OomMessage& kept = kept_[index];
  if (SameEvent(kept, message)) {
    Merge(kept, message);
    return true;
  }
  const bool announced = Announces(kept, message);
  if (!announced && !Announces(message, kept)) return false;
  if (announced) std::swap(kept, message);
  if (!kept.rank) kept.rank = message.rank;
  if (!kept.device) kept.device = message.device;
  if (!kept.allowed) kept.allowed = message.allowed;
  if (!kept.allocated) kept.allocated = message.allocated;
  return true;
}

/// TensorFlow's allocator prints its totals below a refusal, as a paragraph of its own, and may do
/// so above the error that is raised. They are no message.
bool MessageCollector::Continues(OomMessage& message) {
  const bool totals = message.source == MessageSource::kTensorFlow && !message.requested &&
                      message.allowed && message.subject.empty();
  if (!totals) {
    const bool xla =
        message.source == MessageSource::kTensorFlow || message.source == MessageSource::kJax;
    if (totals_ && xla && !message.survived && !message.allowed) {
      message.allowed = totals_->allowed;
      message.allocated = totals_->allocated;
      totals_.reset();
    }
    return false;
  }
  for (std::size_t i = kept_.size(); i > 0 && kept_.size() - i < kCompared; --i) {
    OomMessage& kept = kept_[i - 1];
    const bool xla =
        kept.source == MessageSource::kTensorFlow || kept.source == MessageSource::kJax;
    if (!xla || kept.survived || kept.allowed || !Agree(kept.rank, message.rank)) continue;
    kept.allowed = message.allowed;
    kept.allocated = message.allocated;
    return true;
  }
  totals_ = std::move(message);
  return true;
}

/// Where the text says who killed, those that only saw a process die add nothing but its rank.
void MessageCollector::DropWitnesses() {
  const auto killer = std::find_if(kept_.begin(), kept_.end(), NamesKiller);
  if (killer == kept_.end()) return;
  for (const OomMessage& m : kept_) {
    if (!IsWitness(m)) continue;
    if (!killer->rank) killer->rank = m.rank;
    if (killer->where.empty()) killer->where = m.where;
  }
  std::erase_if(kept_, IsWitness);
}

/// Looks among the latest that asked for as much, and among the latest of any size.
std::optional<std::size_t> MessageCollector::FindRepeated(OomMessage& message) {
  const std::vector<std::size_t>& same = by_request_[message.requested.value_or(-1)];
  for (std::size_t i = same.size(); i > 0 && same.size() - i < kComparedOfSameSize; --i) {
    if (Repeats(message, same[i - 1])) return same[i - 1];
  }
  for (std::size_t i = kept_.size(); i > 0 && kept_.size() - i < kCompared; --i) {
    if (Repeats(message, i - 1)) return i - 1;
  }
  return {};
}

void MessageCollector::Add(OomMessage message) {
  if (full()) {
    ++skipped[kTooMany];
    return;
  }
  if (Continues(message)) return;
  const std::string key = Key(message);
  std::optional<std::size_t> repeated;
  const char* why = kRepeated;
  if (const auto known = seen_.find(key); known != seen_.end()) {
    repeated = known->second;
    Merge(kept_[*repeated], message);
  } else {
    // The kernel writes several lines about one kill, each of which tells something else.
    if (message.source == MessageSource::kHostMemory) why = kOfOneEvent;
    repeated = FindRepeated(message);
    seen_.emplace(key, repeated.value_or(kept_.size()));
  }
  if (repeated) {
    ++skipped[why];
    return;
  }
  by_request_[message.requested.value_or(-1)].push_back(kept_.size());
  kept_.push_back(std::move(message));
}

std::vector<OomMessage> MessageCollector::Take() {
  if (kept_.empty() && totals_) kept_.push_back(std::move(*totals_));
  DropWitnesses();
  return std::move(kept_);
}

}  // namespace plimsoll
