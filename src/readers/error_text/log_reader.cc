#include "readers/error_text/log_reader.h"

#include <algorithm>
#include <future>
#include <set>
#include <span>
#include <string_view>

#include "base/text.h"
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
/// A piece is searched for phrases while what was found in the one before is read.
constexpr std::size_t kPiece = 512 << 10;

/// A phrase as the finder sees it: without blanks, in small letters.
std::string AsFound(std::string_view phrase) {
  std::string found;
  for (char c : Lower(phrase)) {
    if (!Flow::IsNoise(c)) found += c;
  }
  return found;
}

std::vector<std::string> AllAsFound(const std::vector<std::string_view>& phrases) {
  std::vector<std::string> all;
  for (std::string_view phrase : phrases) all.push_back(AsFound(phrase));
  return all;
}

/// All wordings with the automaton that finds their openings: those that tell whose memory it is
/// first, then those that do not, then the title of a table, then what tells of the job, then what
/// only lines that tell memory have.
struct Dictionary {
  Dictionary() : precise(Wordings()), vague(LastResorts()), phrases(Phrases()), finder(phrases) {
    for (const Wording& wording : precise) vague_within.push_back(VagueWithin(wording.opening));
    LinkFigures();
  }

  std::vector<std::string_view> Phrases() {
    std::vector<std::string_view> all;
    for (const Wording& wording : precise) all.push_back(wording.opening);
    for (const Wording& wording : vague) all.push_back(wording.opening);
    all.push_back(kSummaryTitle);
    for (std::string_view phrase : JobFactReader::Phrases()) all.push_back(phrase);
    others = all.size();
    std::set<std::string> known;
    for (std::string_view phrase : all) known.insert(AsFound(phrase));
    for (std::string_view phrase : LogFigures::Phrases()) {
      if (known.insert(AsFound(phrase)).second) all.push_back(phrase);
    }
    return all;
  }

  /// The finder tells the longest phrase that ends at a place: what is the end of it stands there
  /// too.
  void LinkFigures() {
    const std::vector<std::string> all = AllAsFound(phrases);
    const std::vector<std::string> of_figures = AllAsFound(LogFigures::Phrases());
    figures.resize(phrases.size());
    other.resize(phrases.size());
    for (std::size_t i = 0; i < phrases.size(); ++i) {
      for (std::size_t f = 0; f < of_figures.size(); ++f) {
        if (all[i].ends_with(of_figures[f])) figures[i].push_back(f);
      }
      std::size_t longest = 0;
      for (std::size_t o = 0; o < others; ++o) {
        if (all[o].size() <= longest || !all[i].ends_with(all[o])) continue;
        longest = all[o].size();
        other[i] = o;
      }
      if (i < others) other[i] = i;
    }
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

  /// Of a phrase that is vague itself, or ends with words that are.
  std::optional<std::size_t> VagueOf(std::size_t phrase) const {
    if (phrase < precise.size()) return vague_within[phrase];
    const std::size_t i = phrase - precise.size();
    return i < vague.size() ? std::optional(i) : std::nullopt;
  }

  std::span<const Wording> precise;
  std::span<const Wording> vague;
  std::vector<std::optional<std::size_t>> vague_within;
  /// How many phrases are not of figures alone.
  std::size_t others = 0;
  std::vector<std::string_view> phrases;
  PhraseFinder finder;
  /// By phrase: those of LogFigures that end where it does, and the one of the others.
  std::vector<std::vector<std::size_t>> figures;
  std::vector<std::optional<std::size_t>> other;
};

const Dictionary& Openings() {
  static const auto* const dictionary = new Dictionary();
  return *dictionary;
}

/// At a line's end where one is near.
std::size_t EndOfPiece(std::string_view text, std::size_t begin, std::size_t end) {
  if (end - begin <= kPiece) return end;
  const std::size_t at = begin + kPiece;
  const std::size_t line = text.substr(0, std::min(end, at + kLongestOpening)).find('\n', at);
  return line == kNowhere ? at : line + 1;
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
  if (place < counted_ && place >= part.offset) {
    const std::string_view between = part.text.substr(place - part.offset, counted_ - place);
    return lines_ - static_cast<std::size_t>(std::count(between.begin(), between.end(), '\n'));
  }
  if (place > counted_) {
    const std::size_t from = std::max(counted_, part.offset) - part.offset;
    const std::string_view between = part.text.substr(from, place - part.offset - from);
    // Lines are long: from one end to the next is faster than byte by byte.
    for (std::size_t at = between.find('\n'); at != kNowhere; at = between.find('\n', at + 1)) {
      ++lines_;
    }
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

/// The phrases that begin in [begin, end) of a text.
std::vector<LogReader::Finding> LogReader::FindIn(std::string_view text, std::size_t begin,
                                                  std::size_t end) {
  const Dictionary& dictionary = Openings();
  std::vector<Finding> found;
  const std::size_t stop = std::min(text.size(), end + kLongestOpening);
  PhraseFinder::Walk walk(dictionary.finder, text.substr(0, stop), begin);
  while (const std::optional<PhraseFinder::Hit> hit = walk.Next()) {
    // One that begins behind the end may lie within one that begins in front of it.
    if (hit->begin < begin || hit->begin >= end) continue;
    Finding finding{.hit = *hit};
    if (const std::optional<std::size_t> other = dictionary.other[hit->phrase]) {
      finding.other_begin = walk.BeginOf(*other);
      finding.vague = dictionary.VagueOf(*other);
      if (finding.vague)
        finding.vague_begin = walk.BeginOf(dictionary.precise.size() + *finding.vague);
    }
    found.push_back(finding);
  }
  return found;
}

void LogReader::ReadHit(const LogPart& part, PhraseFinder::Hit hit, const Finding& finding) {
  const Dictionary& dictionary = Openings();
  if (hit.phrase >= dictionary.FirstFact()) {
    facts_.See(hit.phrase - dictionary.FirstFact(), part.text, hit.begin, hit.end, part.offset);
    return;
  }
  const std::size_t most = kMostOpenings + (part.offset + hit.begin) / kBytesForOpening;
  if (++openings_ > most || precise_.messages > kMostMessages) {
    gave_up_ = true;
    return;
  }
  bool only_vague = true;
  if (hit.phrase < dictionary.precise.size()) {
    only_vague = !ReadOpening(part, hit, dictionary.precise[hit.phrase], precise_);
  } else if (!finding.vague) {
    ReadTable(part, hit);
  }
  if (!finding.vague || !only_vague || precise_.messages > 0) return;
  hit.begin = finding.vague_begin;
  ReadOpening(part, hit, dictionary.vague[*finding.vague], vague_);
}

void LogReader::ReadFinding(const LogPart& part, const FigurePart& figures,
                            const Finding& finding) {
  const Dictionary& dictionary = Openings();
  PhraseFinder::Hit hit = finding.hit;
  for (std::size_t figure : dictionary.figures[hit.phrase]) {
    figures_.See(figure, figures, hit.begin, hit.end);
  }
  const std::optional<std::size_t> other = dictionary.other[hit.phrase];
  if (!other) return;
  hit.begin = finding.other_begin;
  hit.phrase = *other;
  ReadHit(part, hit, finding);
}

void LogReader::Read(const LogPart& part, std::size_t begin, std::size_t end) {
  const FigurePart figures{.text = part.text,
                           .offset = part.offset,
                           .line_of = [&](std::size_t at) { return LineOf(part, at); }};
  std::size_t to = EndOfPiece(part.text, begin, end);
  std::vector<Finding> found = FindIn(part.text, begin, to);
  while (!gave_up_) {
    std::future<std::vector<Finding>> next;
    const std::size_t from = to;
    if (from < end) {
      to = EndOfPiece(part.text, from, end);
      next = std::async(FindIn, part.text, from, to);
    }
    for (const Finding& finding : found) {
      if (!gave_up_) ReadFinding(part, figures, finding);
    }
    if (!next.valid()) break;
    found = next.get();
  }
  if (!gave_up_) figures_.EndPart(figures, end);
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
  const std::int64_t left_out = figures_.left_out();
  recording.logged = std::move(figures_).Take();
  if (!recording.messages.empty()) {
    // Words of a message that no wording has are no curve.
    constexpr std::int64_t kLeastOwn = 3;
    std::erase_if(recording.logged, [](const LoggedSeries& series) {
      return series.source.program == kOwnProgram && series.count < kLeastOwn;
    });
  }
  recording.skipped = std::move(search.collector.skipped);
  const bool of_device = std::ranges::any_of(recording.messages, [](const OomMessage& m) {
    return m.source != MessageSource::kHostMemory && m.source != MessageSource::kNccl;
  });
  if (of_device && facts_.nccl_errors() > 0) {
    recording.skipped["errors of NCCL, which follow when another rank has died"] +=
        facts_.nccl_errors();
  }
  if (left_out > 0) recording.skipped["figures of more sources than any job has"] += left_out;
  if (gave_up_) {
    ++recording.skipped["texts that are nothing but beginnings of messages: the rest of one"];
  }
  return recording;
}

}  // namespace plimsoll
