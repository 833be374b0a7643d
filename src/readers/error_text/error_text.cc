#include "readers/error_text/error_text.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "readers/error_text/collect.h"
#include "readers/error_text/context.h"
#include "readers/error_text/phrase_finder.h"
#include "readers/error_text/prose.h"
#include "readers/error_text/wordings.h"
#include "readers/memory_summary/memory_summary.h"

namespace plimsoll {
namespace {

constexpr std::size_t kShownBefore = 200;
// A hostile text of nothing but openings must not take minutes; no real log comes near these.
constexpr int kMostOpenings = 2'000'000;
constexpr int kMostMessages = 200'000;
constexpr int kMostContexts = 20'000;
constexpr int kMostJudged = 100'000;

/// Wordings with the automaton that finds their openings.
struct Dictionary {
  explicit Dictionary(std::span<const Wording> w) : wordings(w), finder(OpeningsOf(w)) {}

  static std::vector<std::string_view> OpeningsOf(std::span<const Wording> wordings) {
    std::vector<std::string_view> openings;
    for (const Wording& wording : wordings) openings.push_back(wording.opening);
    return openings;
  }

  std::span<const Wording> wordings;
  PhraseFinder finder;
};

const Dictionary& Precise() {
  static const auto* const dictionary = new Dictionary(Wordings());
  return *dictionary;
}
const Dictionary& LastResort() {
  static const auto* const dictionary = new Dictionary(LastResorts());
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

/// One message at a place where an opening was found; `end` is set to where it ends. `judged`
/// counts the places whose words had to be looked at; beyond the most, only figures make a message.
std::optional<OomMessage> ReadAt(std::string_view text, const Wording& wording,
                                 const PhraseFinder::Hit& hit, std::optional<int> rank,
                                 std::size_t& end, int& judged) {
  OomMessage message;
  message.source = wording.source;
  message.offset = hit.begin;
  message.rank = rank;
  const std::size_t reach = std::min(kShownBefore, hit.begin);
  Scanner scanner(text, hit.end, rank);
  if (!wording.read(scanner, text.substr(hit.begin - reach, reach), message)) return {};
  if (IsBare(message) && (++judged > kMostJudged || OnlySpeaksOfIt(text, hit.begin, hit.end))) {
    return {};
  }
  end = std::max(hit.end, scanner.position());
  return message;
}

/// Gives each message its line number, in one pass.
void NumberLines(std::string_view text, std::vector<OomMessage>& messages) {
  std::size_t line = 1;
  std::size_t at = 0;
  for (OomMessage& message : messages) {
    const std::size_t stop = std::max(at, std::min(message.offset, text.size()));
    line += static_cast<std::size_t>(std::count(text.begin() + static_cast<std::ptrdiff_t>(at),
                                                text.begin() + static_cast<std::ptrdiff_t>(stop),
                                                '\n'));
    at = stop;
    message.line = line;
  }
}

void CollectMessages(std::string_view text, const Dictionary& dictionary, Recording& recording) {
  MessageCollector collector;
  PhraseFinder::Walk walk(dictionary.finder, text);
  std::size_t last_end = 0;
  std::optional<int> last_rank;
  int openings = 0;
  int messages = 0;
  int judged = 0;
  while (std::optional<PhraseFinder::Hit> hit = walk.Next()) {
    if (++openings > kMostOpenings || messages > kMostMessages) {
      ++recording.skipped["texts that are nothing but beginnings of messages: the rest of one"];
      break;
    }
    // Most openings are ordinary words: whose line it is is asked of the others only.
    const Wording& wording = dictionary.wordings[hit->phrase];
    std::size_t end = 0;
    if (!ReadAt(text, wording, *hit, {}, end, judged)) continue;
    const std::optional<int> rank = RankOfLine(text, hit->begin);
    // Inside the message before, unless the lines of two ranks are mixed.
    if (hit->begin < last_end && rank == last_rank) continue;
    std::optional<OomMessage> message = ReadAt(text, wording, *hit, rank, end, judged);
    if (!message) continue;
    // Where the lines of ranks are mixed, ours may stand above the end of another's message.
    const std::size_t floor = rank == last_rank ? last_end : 0;
    if (++messages <= kMostContexts) ReadContext(text, floor, hit->begin, end, *message);
    last_end = std::max(last_end, end);
    last_rank = rank;
    collector.Add(std::move(*message));
  }
  recording.messages = collector.Take();
  std::sort(recording.messages.begin(), recording.messages.end(),
            [](const OomMessage& a, const OomMessage& b) { return a.offset < b.offset; });
  NumberLines(text, recording.messages);
  recording.skipped.merge(collector.skipped);
}

bool Holds(std::string_view text, const Dictionary& dictionary) {
  PhraseFinder::Walk walk(dictionary.finder, text);
  int judged = 0;
  for (int openings = 0; openings < kMostOpenings; ++openings) {
    const std::optional<PhraseFinder::Hit> hit = walk.Next();
    if (!hit) return false;
    std::size_t end = 0;
    if (ReadAt(text, dictionary.wordings[hit->phrase], *hit, {}, end, judged)) return true;
  }
  return false;
}

void AppendUtf8(std::string& out, unsigned unit) {
  if (unit < 0x80) {
    out += static_cast<char>(unit);
  } else if (unit < 0x800) {
    out += static_cast<char>(0xc0 | (unit >> 6));
    out += static_cast<char>(0x80 | (unit & 0x3f));
  } else {
    out += static_cast<char>(0xe0 | (unit >> 12));
    out += static_cast<char>(0x80 | ((unit >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (unit & 0x3f));
  }
}

}  // namespace

bool LooksLikeText(std::string_view bytes) {
  if (bytes.starts_with("\xff\xfe")) return true;
  return bytes.substr(0, 4096).find('\0') == std::string_view::npos;
}

std::string_view AsUtf8(std::string_view bytes, std::string& storage) {
  if (!bytes.starts_with("\xff\xfe")) return bytes;
  storage.reserve(bytes.size() / 2);
  for (std::size_t i = 2; i + 1 < bytes.size(); i += 2) {
    AppendUtf8(storage, static_cast<unsigned char>(bytes[i]) |
                            static_cast<unsigned>(static_cast<unsigned char>(bytes[i + 1])) << 8);
  }
  return storage;
}

bool RecogniseErrorText(std::string_view bytes) {
  if (!LooksLikeText(bytes)) return false;
  std::string storage;
  const std::string_view text = AsUtf8(bytes, storage);
  return Holds(text, Precise()) || Holds(text, LastResort());
}

Result<Recording> ReadErrorText(const Input& input) {
  Recording recording;
  recording.file = input.name();
  std::string storage;
  const std::string_view text = AsUtf8(input.bytes(), storage);
  CollectMessages(text, Precise(), recording);
  if (recording.messages.empty()) CollectMessages(text, LastResort(), recording);
  recording.summaries = ReadSummaries(text);
  if (recording.messages.empty() && recording.summaries.empty()) {
    return Error{.message = "no out-of-memory message in it", .file = input.name(), .offset = 0};
  }
  recording.format = recording.summaries.empty()  ? "error text"
                     : recording.messages.empty() ? "torch.cuda.memory_summary() text"
                                                  : "error text with torch.cuda.memory_summary()";
  return recording;
}

}  // namespace plimsoll
