#include "launch/process_tree.h"

#include <dirent.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>

namespace plimsoll {
namespace {

constexpr std::int64_t kForgetStrangersAfter = 60;
/// Asking for the proportional size walks all pages of a process and holds up whoever maps memory
/// in it meanwhile (some 20 ms for 10 GiB): at most one part in this many of the time goes into it.
constexpr double kShareOfAsking = 400;
constexpr double kAskNoSooner = 5;
/// Below this nobody needs to know it exactly.
constexpr Bytes kWorthAsking = 64 * kMiB;

bool RunsPython(std::string_view words) {
  const std::string_view program = words.substr(0, words.find('\0'));
  return program.find("python") != std::string_view::npos;
}

bool IsSpawned(std::string_view words) {
  return words.find("multiprocessing.spawn") != std::string_view::npos ||
         words.find("--multiprocessing-fork") != std::string_view::npos;
}

/// What multiprocessing starts besides workers.
bool IsHelper(std::string_view words) {
  return words.find("multiprocessing.resource_tracker") != std::string_view::npos ||
         words.find("multiprocessing.forkserver") != std::string_view::npos;
}

double SecondsNow() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

std::string ProcessTree::FileOf(std::int64_t pid, const char* name) const {
  return fmt::format("{}/{}/{}", places_.proc, pid, name);
}

std::vector<std::int64_t> ProcessTree::Listed() const {
  std::vector<std::int64_t> pids;
  DIR* const folder = ::opendir(places_.proc.c_str());
  if (folder == nullptr) return pids;
  while (const dirent* const entry = ::readdir(folder)) {
    std::int64_t pid = 0;
    const char* const end = entry->d_name + std::strlen(entry->d_name);
    const auto read = std::from_chars(entry->d_name, end, pid);
    if (read.ec == std::errc() && read.ptr == end) pids.push_back(pid);
  }
  ::closedir(folder);
  std::ranges::sort(pids);
  return pids;
}

/// Children may have lower numbers than their parents, once numbers have come round: so until
/// nothing new is found.
void ProcessTree::Find(const std::vector<std::int64_t>& listed) {
  if (looks_++ % kForgetStrangersAfter == 0) strangers_.clear();
  std::erase_if(strangers_,
                [&](std::int64_t pid) { return !std::ranges::binary_search(listed, pid); });
  std::map<std::int64_t, ProcStat> fresh;
  for (const std::int64_t pid : listed) {
    if (processes_.contains(pid) || strangers_.contains(pid)) continue;
    const auto text = ReadKernelFile(FileOf(pid, "stat"), 1024);
    if (const auto stat = text ? ParseStat(*text) : std::nullopt) fresh.emplace(pid, *stat);
  }
  for (bool found = true; found;) {
    found = false;
    for (auto at = fresh.begin(); at != fresh.end();) {
      const auto& [pid, stat] = *at;
      const bool ours = pid == root_ || processes_.contains(stat.parent);
      if (!ours || stat.state == 'Z') {
        ++at;
        continue;
      }
      TreeProcess known{.process = {.pid = pid, .started = stat.started, .parent = stat.parent}};
      processes_.emplace(pid, std::move(known));
      at = fresh.erase(at);
      found = true;
    }
  }
  for (const auto& [pid, stat] : fresh) strangers_.insert(pid);
}

/// False where it is gone, or another process has its number by now.
bool ProcessTree::Refresh(std::int64_t pid, TreeProcess& known) {
  const auto stat_text = ReadKernelFile(FileOf(pid, "stat"), 1024);
  const auto stat = stat_text ? ParseStat(*stat_text) : std::nullopt;
  if (!stat || stat->started != known.process.started || stat->state == 'Z') return false;
  const auto text = ReadKernelFile(FileOf(pid, "status"), 8 * 1024);
  if (!text) return false;
  const ProcStatus status = ParseStatus(*text);
  known.share.resident = status.resident;
  known.share.shared = std::min(status.shared, status.resident);
  known.share.proportional.reset();
  known.share.pinned.reset();
  // A new name: it runs another program by now, or has said what it is.
  const bool changed = status.name != known.name;
  known.name = status.name;
  const auto rank = reported_ranks_.find(pid);
  const bool ranked = rank != reported_ranks_.end() && known.process.rank != rank->second;
  if (changed || ranked) Recognise(known);
  return true;
}

int ProcessTree::LowestFree(std::int64_t parent, std::int64_t besides) const {
  std::set<int> taken;
  for (const auto& [pid, known] : processes_) {
    if (known.process.parent == parent && pid != besides && known.process.number) {
      taken.insert(*known.process.number);
    }
  }
  int number = 0;
  while (taken.contains(number)) ++number;
  return number;
}

void ProcessTree::Recognise(TreeProcess& known) {
  HostProcess& process = known.process;
  const HostProcess before = process;
  known.words = ReadKernelFile(FileOf(process.pid, "cmdline"), 4096).value_or("");
  process.command = ProgramIn(known.words);
  const auto parent = processes_.find(process.parent);
  const TreeProcess* const from = parent == processes_.end() ? nullptr : &parent->second;
  const std::optional<int> inherited = from != nullptr ? from->process.rank : std::nullopt;
  const auto reported = reported_ranks_.find(process.pid);
  const bool reports = reported != reported_ranks_.end();
  const auto environment = ReadKernelFile(FileOf(process.pid, "environ"), 256 * 1024);
  known.told_rank = environment ? RankInEnvironment(*environment) : std::nullopt;
  // What it has from its parent says nothing of its own.
  const bool told = known.told_rank && (from == nullptr || from->told_rank != known.told_rank);
  process.rank = reports ? std::optional(reported->second) : told ? known.told_rank : inherited;
  const bool forked = from != nullptr && from->words == known.words && RunsPython(known.words);
  if (process.pid == root_) {
    process.role = HostRole::kMain;
  } else if (known.name.starts_with("pt_data_worker")) {
    process.role = HostRole::kLoaderWorker;
  } else if (told || (reports && process.rank != inherited)) {
    process.role = HostRole::kRank;
  } else if (IsHelper(known.words)) {
    process.role = HostRole::kOther;
  } else if (forked || IsSpawned(known.words)) {
    process.role = HostRole::kWorker;
  } else {
    process.role = HostRole::kOther;
  }
  const bool worker = process.role == HostRole::kLoaderWorker || process.role == HostRole::kWorker;
  if (!worker) process.number.reset();
  if (worker && !process.number) process.number = LowestFree(process.parent, process.pid);
  known.news |= before.role != process.role || before.rank != process.rank ||
                before.number != process.number || before.command != process.command;
}

void ProcessTree::AskProportional(TreeProcess& known, double now) {
  if (known.share.resident < kWorthAsking || now < known.ask_again) return;
  const double begun = SecondsNow();
  const auto text = ReadKernelFile(FileOf(known.process.pid, "smaps_rollup"), 4096);
  if (text) known.share.proportional = KilobytesAfter(*text, "Pss:");
  known.ask_again = now + std::max(kAskNoSooner, kShareOfAsking * (SecondsNow() - begun));
}

void ProcessTree::Look(const std::vector<LiveProcess>& reports, std::optional<double> now) {
  reported_ranks_.clear();
  for (const LiveProcess& report : reports) {
    if (report.rank) reported_ranks_[report.pid] = *report.rank;
  }
  Find(Listed());
  for (auto at = processes_.begin(); at != processes_.end();) {
    at = Refresh(at->first, at->second) ? std::next(at) : processes_.erase(at);
  }
  for (auto& [pid, known] : processes_) {
    if (now) AskProportional(known, *now);
  }
  for (const LiveProcess& report : reports) {
    const auto known = processes_.find(report.pid);
    if (known != processes_.end()) known->second.share.pinned = report.pinned;
  }
}

}  // namespace plimsoll
