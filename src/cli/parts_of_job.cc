#include "cli/parts_of_job.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>

#include "base/parallel.h"
#include "diagnose/explain.h"
#include "diagnose/neighbours/same_card.h"
#include "launch/processes.h"
#include "readers/registry.h"
#include "timeline/redact.h"

namespace plimsoll {
namespace {

/// The hosts of the records that `plimsoll run` left, by path.
std::map<std::string, std::string> HostsOf(const std::vector<NamedPath>& files) {
  std::set<std::string> folders;
  for (const auto& [name, path] : files) {
    folders.insert(std::filesystem::path(path).parent_path().string());
  }
  std::map<std::string, std::string> hosts;
  for (const std::string& folder : folders) {
    for (const RecordedProcess& process : ReadProcesses({.path = folder})) {
      for (const SnapshotFile& snapshot : process.snapshots) {
        hosts.emplace(snapshot.path, process.host);
      }
    }
  }
  return hosts;
}

/// By the names that answers have. Where names are replaced, a path tells its host no longer, and
/// the host goes by a number.
std::vector<std::pair<std::string, std::string>> NamedHosts(const CardOptions& options) {
  std::vector<std::pair<std::string, std::string>> named;
  const std::map<std::string, std::string> hosts = HostsOf(options.paths);
  std::map<std::string, std::size_t> numbers;
  for (const auto& [name, path] : options.paths) {
    const auto known = hosts.find(path);
    if (!options.salt) {
      if (known != hosts.end()) named.emplace_back(name, known->second);
      continue;
    }
    const std::string host = known != hosts.end() ? known->second : HostFromPath(path);
    const std::size_t number = numbers.try_emplace(host, numbers.size() + 1).first->second;
    named.emplace_back(name, host.empty() ? "" : std::to_string(number));
  }
  return named;
}

/// A record that was read for a second time: its processes are looked at together.
struct ReadAgain {
  Recording recording;
  std::optional<AnalysedRecording> analysed = {};
};

std::unique_ptr<ReadAgain> ReadOnceMore(const std::string& name, const CardOptions& options) {
  const auto file = std::ranges::find(options.paths, name, &NamedPath::first);
  if (file == options.paths.end()) return nullptr;
  Result<Recording> recording = ReadFile(file->second);
  if (!recording) return nullptr;
  if (options.salt) RedactFileNames(*recording, *options.salt);
  auto read = std::make_unique<ReadAgain>(ReadAgain{.recording = std::move(*recording)});
  read->analysed.emplace(AnalyseRecording(read->recording));
  return read;
}

/// Nothing where a file has changed meanwhile.
std::optional<CardStudy> StudyAgain(const SharedCard& card, const std::vector<Explanation>& all,
                                    const CardOptions& options) {
  std::vector<std::unique_ptr<ReadAgain>> read(card.members.size());
  ParallelFor(card.members.size(), [&](std::size_t i) {
    read[i] = ReadOnceMore(card.members[i].process.file, options);
  });
  std::vector<CardTrace> traces;
  for (std::size_t i = 0; i < read.size(); ++i) {
    if (!read[i]) return std::nullopt;
    for (const auto& trace : read[i]->analysed->traces) {
      if (trace->timeline.device != card.device || trace->timeline.events.empty()) continue;
      traces.push_back({card.members[i].process, *trace});
      break;
    }
  }
  if (traces.size() != card.members.size()) return std::nullopt;
  const std::optional<Bytes> told = CapacityBeside(all, card.device);
  return StudyCard(traces, {.device = card.device,
                            .known_by = card.known_by,
                            .capacity = told ? told : options.capacity,
                            .others = OthersBeside(all, card.device)});
}

/// With the cards that they share: those records are read once more, since only together they say
/// who kept what from whom.
PartsOfJob WithCards(std::vector<Explanation> all, const CardOptions& options) {
  PartsOfJob parts{.explanations = std::move(all)};
  // Two snapshots at least.
  if (parts.explanations.size() < 2) return parts;
  SharedCards shared = FindSharedCards(parts.explanations, NamedHosts(options));
  for (const SharedCard& card : shared.cards) {
    std::optional<CardStudy> study = StudyAgain(card, parts.explanations, options);
    if (!study) continue;
    if (!study->contradiction.empty()) {
      shared.apart.push_back(study->contradiction);
    } else {
      parts.cards.push_back(std::move(*study));
    }
  }
  parts.apart = std::move(shared.apart);
  return parts;
}

/// Whether a text stays a process of its own when all is joined.
bool AnyIsAlone(const PartsOfJob& parts, const std::set<std::string>& texts) {
  const Explanation joined = Join(parts.explanations, parts.cards, parts.apart);
  return std::ranges::any_of(joined.ranks,
                             [&](const RankReport& rank) { return texts.contains(rank.file); });
}

}  // namespace

std::vector<NamedPath> PathsThemselves(const std::vector<std::string>& paths) {
  std::vector<NamedPath> named;
  for (const std::string& path : paths) named.emplace_back(path, path);
  return named;
}

PartsOfJob BelongingTogether(std::vector<Explanation> snapshots, std::vector<Explanation> texts,
                             const CardOptions& options) {
  std::set<std::string> names;
  for (const Explanation& text : texts) {
    for (const RankReport& rank : text.ranks) names.insert(rank.file);
  }
  std::vector<Explanation> all = snapshots;
  all.insert(all.end(), texts.begin(), texts.end());
  PartsOfJob parts = WithCards(std::move(all), options);
  parts.has_texts = !texts.empty();
  if (texts.empty() || snapshots.empty() || !AnyIsAlone(parts, names)) return parts;
  return WithCards(std::move(snapshots), options);
}

}  // namespace plimsoll
