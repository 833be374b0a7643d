#include "readers/error_text/log_reader.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "readers/error_text/context.h"
#include "readers/error_text/prose.h"
#include "readers/memory_summary/memory_summary.h"

namespace plimsoll {
namespace {

constexpr std::size_t kReadBefore = 200;
// A hostile text of nothing but openings must not take minutes; no real log comes near these, for
// each megabyte of it.
constexpr std::size_t kMostOpenings = 2'000'000;
constexpr std::size_t kMostJudged = 100'000;
constexpr std::size_t kBytesForOpening = 32;
constexpr std::size_t kBytesForJudged = 1024;
constexpr int kMostMessages = 200'000;
constexpr int kMostContexts = 20'000;
constexpr std::size_t kMostTables = 10'000;
/// An opening that begins in a part may end this far behind it, prefixes of lines included.
constexpr std::size_t kLongestOpening = 4096;

/// All wordings with the automaton that finds their openings: those that tell whose memory it is
/// first, then those that do not, then the title of a table, then what tells of the job.
struct Dictionary {
  Dictionary() : precise(Wordings()), vague(LastResorts()), finder(Phrases()) {
    for (const Wording& wording : precise) vague_within.push_back(VagueWithin(wording.opening));
  }

  std::vector<std::string_view> Phrases() const {
    std::vector<std::string_view> phrases;
    for (const Wording& wording : precise) phrases.push_back(wording.opening);
    for (const Wording& wording : vague) phrases.push_back(wording.opening);
    phrases.push_back(kSummaryTitle);
    for (std::string_view phrase : JobFacts::Phrases()) phrases.push_back(phrase);
    return phrases;
  }

  std::size_t FirstFact() const { return precise.size() + vague.size() + 1; }

  /// The vague words with which an opening ends: where it is refused, they may still mean what they
  /// say.
  std::optional<std::size_t> VagueWithin(std::string_view opening) const {
    for (std::size_t i = 0; i < vague.size(); ++i) {
      if (opening.ends_with(vague[i].opening)) return i;
    }
    return {};
  }

  std::span<const Wording> precise;
  std::span<const Wording> vague;
  std::vector<std::optional<std::size_t>> vague_within;
  PhraseFinder finder;
};

const Dictionary& Openings() {
  static const auto* const dictionary = new Dictionary();
  return *dictionary;
}

bool HasFigure(const OomMessage& m) {
  return m.requested || m.capacity || m.free || m.allocated || m.reserved || m.allowed || m.other ||
         m.device || m.survived || !m.processes.empty();
}

/// Whether the words must be looked at: nothing but them says that memory ran out.
bool IsBare(const OomMessage& m) {
  if (HasFigure(m)) return false;
  using enum HostEvent;
  // Other reports of the host have words that nobody but their writer uses.
  return m.source != MessageSource::kHostMemory || m.host == kKubernetesKill || m.host == kKilled ||
         m.host == kRayKill || m.host == kRequest;
}

}  // namespace

/// One message at a place where an opening was found; `end` is set to where it ends. Beyond the
/// most places whose words may be looked at, only figures make a message.
std::optional<OomMessage> LogReader::ReadAt(const LogPart& part, const Wording& wording,
                                            const PhraseFinder::Hit& hit, std::optional<int> rank,
                                            std::size_t& end) {
  OomMessage message;
  message.source = wording.source;
  message.offset = part.offset + hit.begin;
  message.rank = rank;
  const std::size_t reach = std::min(kReadBefore, hit.begin);
  Scanner scanner(part.text, hit.end, rank);
  if (!wording.read(scanner, part.text.substr(hit.begin - reach, reach), message)) return {};
  if (IsBare(message)) {
    const std::size_t most = kMostJudged + message.offset / kBytesForJudged;
    if (++judged_ > most || OnlySpeaksOfIt(part.text, hit.begin, hit.end)) return {};
  }
  end = std::max(hit.end, scanner.position());
  return message;
}

std::size_t LogReader::LineOf(const LogPart& part, std::size_t place) {
  if (place > counted_) {
    const std::size_t from = std::max(counted_, part.offset) - part.offset;
    const std::string_view between = part.text.substr(from, place - part.offset - from);
    lines_ += static_cast<std::size_t>(std::count(between.begin(), between.end(), '\n'));
    counted_ = place;
  }
  return lines_;
}

/// True where there is a message of this wording, a new one or the one before.
bool LogReader::ReadOpening(const LogPart& part, const PhraseFinder::Hit& hit,
                            const Wording& wording, Search& search) {
  // Most openings are ordinary words: whose line it is is asked of the others only.
  std::size_t end = 0;
  if (!ReadAt(part, wording, hit, {}, end)) return false;
  const std::optional<int> rank = RankOfLine(part.text, hit.begin);
  // Inside the message before, unless the lines of two ranks are mixed.
  if (part.offset + hit.begin < search.last_end && rank == search.last_rank) return true;
  std::optional<OomMessage> message = ReadAt(part, wording, hit, rank, end);
  if (!message) return false;
  message->line = LineOf(part, message->offset);
  // Where the lines of ranks are mixed, ours may stand above the end of another's message.
  const std::size_t floor = rank == search.last_rank ? search.last_end : 0;
  if (++search.messages <= kMostContexts) {
    const MessagePlace place{
        .floor = floor > part.offset ? floor - part.offset : 0, .begin = hit.begin, .end = end};
    ReadContext(part, place, surroundings_, *message);
  }
  search.last_end = std::max(search.last_end, part.offset + end);
  search.last_rank = rank;
  search.collector.Add(std::move(*message));
  return true;
}

void LogReader::ReadTable(const LogPart& part, const PhraseFinder::Hit& hit) {
  if (summaries_.size() >= kMostTables || part.offset + hit.begin < table_end_) return;
  Scanner scanner(part.text, hit.end);
  std::optional<MemorySummary> summary = ReadSummary(scanner);
  if (!summary) return;
  summaries_.push_back(std::move(*summary));
  table_end_ = part.offset + scanner.position();
}

void LogReader::Read(const LogPart& part, std::size_t begin, std::size_t end) {
  const Dictionary& dictionary = Openings();
  const std::size_t stop = std::min(part.text.size(), end + kLongestOpening);
  PhraseFinder::Walk walk(dictionary.finder, part.text.substr(0, stop), begin);
  while (std::optional<PhraseFinder::Hit> hit = walk.Next()) {
    if (gave_up_ || hit->begin >= end) break;
    if (hit->begin < begin) continue;
    if (hit->phrase >= dictionary.FirstFact()) {
      facts_.See(hit->phrase - dictionary.FirstFact(), part.text, hit->begin, hit->end,
                 part.offset);
      continue;
    }
    const std::size_t most = kMostOpenings + (part.offset + hit->begin) / kBytesForOpening;
    if (++openings_ > most || precise_.messages > kMostMessages) {
      gave_up_ = true;
      break;
    }
    const std::size_t phrase = hit->phrase;
    std::optional<std::size_t> vague;
    if (phrase < dictionary.precise.size()) {
      const bool read = ReadOpening(part, *hit, dictionary.precise[phrase], precise_);
      if (!read) vague = dictionary.vague_within[phrase];
    } else if (phrase < dictionary.precise.size() + dictionary.vague.size()) {
      vague = phrase - dictionary.precise.size();
    } else {
      ReadTable(part, *hit);
    }
    if (!vague || precise_.messages > 0) continue;
    hit->begin = walk.BeginOf(dictionary.precise.size() + *vague);
    ReadOpening(part, *hit, dictionary.vague[*vague], vague_);
  }
  LineOf(part, part.offset + end);
}

Recording LogReader::Finish() && {
  Search& search = precise_.messages > 0 ? precise_ : vague_;
  Recording recording;
  recording.messages = search.collector.Take();
  std::sort(recording.messages.begin(), recording.messages.end(),
            [](const OomMessage& a, const OomMessage& b) { return a.offset < b.offset; });
  for (OomMessage& message : recording.messages) facts_.AddTo(message);
  recording.summaries = std::move(summaries_);
  recording.skipped = std::move(search.collector.skipped);
  if (gave_up_) {
    ++recording.skipped["texts that are nothing but beginnings of messages: the rest of one"];
  }
  return recording;
}

}  // namespace plimsoll
