#include "launch/host_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <set>

#include "files/json.h"
#include "files/output.h"

namespace plimsoll {
namespace {

Json KillsJson(const OomKills& kills) {
  return {{"group", OrNull(kills.group)}, {"machine", OrNull(kills.machine)}};
}

/// To the millisecond: more digits would be no truer.
double RoundedTime(double time) { return std::round(time * 1000) / 1000; }

std::string LineOf(const Json& json) { return WriteJson(json) + "\n"; }

}  // namespace

std::string HeaderLine(const HostRecord& record) {
  Json group;
  if (record.group) {
    group = {{"path", record.group->path}, {"limit", OrNull(record.group->limit)}};
  }
  return LineOf({{"schema", "plimsoll.host/1"},
                 {"host", record.host},
                 {"began", RoundedTime(record.began)},
                 {"utc_offset", record.utc_offset},
                 {"memory", OrNull(record.memory)},
                 {"swap", OrNull(record.swap)},
                 {"shm", OrNull(record.shm)},
                 {"group", std::move(group)},
                 {"oom_kills", KillsJson(record.kills)}});
}

std::string ProcessLine(const HostProcess& process) {
  return LineOf({{"process", process.pid},
                 {"started", process.started},
                 {"parent", process.parent},
                 {"role", HostRoleName(process.role)},
                 {"number", OrNull(process.number)},
                 {"rank", OrNull(process.rank)},
                 {"command", process.command}});
}

std::string SampleLine(const HostSample& sample) {
  Json held = Json::array();
  for (const HostShare& share : sample.held) {
    Json row = Json::array();
    row.push_back(static_cast<std::int64_t>(share.process));
    row.push_back(share.resident);
    row.push_back(share.shared);
    if (share.proportional || share.pinned) row.push_back(OrNull(share.proportional));
    if (share.pinned) row.push_back(*share.pinned);
    held.push_back(std::move(row));
  }
  return LineOf({{"time", RoundedTime(sample.time)},
                 {"available", OrNull(sample.available)},
                 {"swap_free", OrNull(sample.swap_free)},
                 {"shm", OrNull(sample.shm)},
                 {"group", OrNull(sample.group)},
                 {"oom_kills", KillsJson(sample.kills)},
                 {"held", std::move(held)},
                 {"others", sample.others}});
}

std::string DeathLine(std::int64_t pid, const HostDeath& death) {
  return LineOf({{"gone", pid},
                 {"time", RoundedTime(death.time)},
                 {"signal", OrNull(death.signal)},
                 {"code", OrNull(death.code)}});
}

std::string EndLine(const HostEnd& end) {
  return LineOf({{"end", RoundedTime(end.time)},
                 {"code", end.code},
                 {"signal", OrNull(end.signal)},
                 {"kernel_log", end.named_by_kernel},
                 {"oom_kills", KillsJson(end.kills)}});
}

HostLog::HostLog(std::string path, std::size_t most_bytes)
    : path_(std::move(path)), most_bytes_(most_bytes) {
  file_ = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
}

HostLog::~HostLog() {
  Flush();
  if (file_ >= 0) ::close(file_);
}

void HostLog::Header(const HostRecord& record) { Add({.line = HeaderLine(record)}); }

void HostLog::Process(const HostProcess& process) {
  Add({.line = ProcessLine(process), .what = What::kProcess, .figure = process.pid});
}

void HostLog::Sample(const HostSample& sample) {
  Entry entry{.line = SampleLine(sample), .what = What::kSample, .figure = sample.others};
  for (const HostShare& share : sample.held) {
    entry.figure += share.resident;
    entry.pids.push_back(static_cast<std::int64_t>(share.process));
  }
  Add(std::move(entry));
}

void HostLog::Death(std::int64_t pid, const HostDeath& death) {
  // How a process ended well is of no use once its samples are gone.
  const bool matters = death.signal.has_value();
  Add({.line = DeathLine(pid, death),
       .what = matters ? What::kKept : What::kProcess,
       .figure = pid});
}

void HostLog::End(const HostEnd& end) { Add({.line = EndLine(end)}); }

void HostLog::Add(Entry entry) {
  if (file_ < 0) return;
  bytes_ += entry.line.size();
  unwritten_ += entry.line;
  entries_.push_back(std::move(entry));
}

void HostLog::Flush() {
  if (file_ < 0) return;
  if (bytes_ > most_bytes_) Thin();
  std::string_view rest = unwritten_;
  while (!rest.empty()) {
    const ssize_t part = ::write(file_, rest.data(), rest.size());
    if (part < 0 && errno == EINTR) continue;
    if (part <= 0) break;  // the disk is full: the job goes on
    rest.remove_prefix(static_cast<std::size_t>(part));
  }
  unwritten_.clear();
}

/// The newest quarter stays whole: what happened last is what is asked for.
void HostLog::Thin() {
  std::vector<std::size_t> samples;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].what == What::kSample) samples.push_back(i);
  }
  const std::size_t older = samples.size() / 4 * 3;
  for (std::size_t i = 0; i + 1 < older; i += 2) {
    const bool first_is_less = entries_[samples[i]].figure < entries_[samples[i + 1]].figure;
    entries_[samples[first_is_less ? i : i + 1]].line.clear();
  }
  DropForgotten();
  std::erase_if(entries_, [](const Entry& entry) { return entry.line.empty(); });
  std::string text;
  for (const Entry& entry : entries_) text += entry.line;
  bytes_ = text.size();
  unwritten_.clear();
  // Whole or not at all: a kill in between leaves the longer file.
  if (WriteFile(path_, text)) return;
  const int anew = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC);
  if (anew < 0) return;
  ::close(file_);
  file_ = anew;
}

/// Processes that are in no sample any more.
void HostLog::DropForgotten() {
  std::set<std::int64_t> seen;
  for (const Entry& entry : entries_) {
    if (!entry.line.empty()) seen.insert(entry.pids.begin(), entry.pids.end());
  }
  // Those whose lines came last may be in no sample yet.
  std::size_t last_sample = entries_.size();
  while (last_sample > 0 && entries_[last_sample - 1].what != What::kSample) --last_sample;
  for (std::size_t i = 0; i < last_sample; ++i) {
    Entry& entry = entries_[i];
    if (entry.what == What::kProcess && !seen.contains(entry.figure)) entry.line.clear();
  }
}

}  // namespace plimsoll
