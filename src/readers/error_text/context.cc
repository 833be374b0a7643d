#include "readers/error_text/context.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "readers/error_text/aftermath.h"
#include "readers/error_text/signs.h"
#include "readers/error_text/traceback_stage.h"
#include "readers/wordings/line_prefix.h"

namespace plimsoll {
namespace {

constexpr std::size_t kReachBack = 32 * 1024;
constexpr std::size_t kReachAhead = 4 * 1024;
constexpr std::size_t kRestOfLine = 400;
/// A traceback below its message, and how near it begins.
constexpr std::size_t kLongestBelow = 16 * 1024;
constexpr std::size_t kDirectlyBelow = 600;
constexpr int kLinesAboveTraceback = 12;
constexpr auto kNoMatch = std::string_view::npos;

std::string Describe(const TextFrame& frame) {
  const std::size_t slash = frame.file.find_last_of("/\\");
  std::string out = slash == std::string::npos ? frame.file : frame.file.substr(slash + 1);
  out.append(":").append(frame.line);
  if (!frame.function.empty()) out.append(" in ").append(frame.function);
  return out;
}

/// Walks up through lines: what they tell of a message below them.
class WalkUp {
 public:
  explicit WalkUp(std::optional<int> own_rank) : rank_(own_rank) {}

  /// False where nothing above the line can be about the message.
  bool See(const LogLine& line) {
    signs |= line.signs;
    if (rank_ && line.rank && *rank_ != *line.rank) return true;
    if (above_ >= 0 && ++above_ > kLinesAboveTraceback) return false;
    if (!rank) rank = line.rank ? line.rank : line.told_rank;
    if (!device) device = line.device;
    if (above_ >= 0) return true;
    if (line.title) above_ = 0;
    SeeFrame(line);
    return true;
  }

  std::optional<int> rank;
  std::optional<int> device;
  std::string where;
  std::vector<TracedFrame> frames;  // the innermost first
  SignSet signs;
  ServerFigures server;

 private:
  void SeeFrame(const LogLine& line) {
    constexpr std::size_t kMostFrames = 150;
    constexpr std::size_t kMostContext = 4096;
    std::optional<TextFrame> frame = line.frame;
    if (!frame) frame = ReadOlderFrame(line, marked_);
    if (!line.marked.empty()) {
      marked_ = line.marked;
      source_ = line.text;
      context_.clear();
    } else if (!marked_.empty() && !frame && context_.size() < kMostContext) {
      context_ += line.text + "\n";
    } else if (!frame && marked_.empty()) {
      source_ = line.text;
    }
    if (!frame || frames.size() >= kMostFrames) return;
    marked_.clear();
    if (where.empty() && IsUserCode(frame->file)) where = Describe(*frame);
    frames.push_back({std::move(*frame), std::exchange(source_, {}), std::exchange(context_, {})});
  }

  std::optional<int> rank_;
  int above_ = -1;       // lines above the traceback's title; -1: not yet there
  std::string marked_;   // the line that IPython's arrow names, seen before its frame
  std::string source_;   // the line below the one that is looked at
  std::string context_;  // of a notebook's cell, the lines above the marked one; the lowest first
};

/// What stands in front of the message in its own line.
std::optional<LogLine> OwnLine(const LogPart& part, std::size_t line_begin, std::size_t begin) {
  constexpr std::size_t kMost = 1024;
  if (begin <= line_begin) return {};
  const std::size_t from = std::max(line_begin, begin > kMost ? begin - kMost : 0);
  const std::string_view raw = part.text.substr(from - part.offset, begin - from);
  return ReadLogLine(raw, from, IsEscapedText(raw));
}

WalkUp LookAbove(const LogPart& part, const MessagePlace& place, Surroundings& surroundings,
                 std::optional<int> rank) {
  const std::size_t begin = part.offset + place.begin;
  const std::size_t floor = part.offset + std::min(place.floor, place.begin);
  const std::size_t lowest = begin > kReachBack ? begin - kReachBack : 0;
  const Surroundings::Range lines = surroundings.Lines(part, lowest, begin);
  WalkUp walk(rank);
  auto at = std::make_reverse_iterator(lines.end());
  const auto top = std::make_reverse_iterator(lines.begin());
  if (at != top && at->end > begin) {
    if (auto own = OwnLine(part, std::max(at->begin, floor), begin); own && !walk.See(*own)) {
      return walk;
    }
    ++at;
  }
  for (; at != top && at->begin >= floor; ++at) {
    walk.server.Add(at->server);
    if (!walk.See(*at)) break;
  }
  // The log of a server's start may stand far above the traceback.
  for (; at != top && at->begin >= floor; ++at) walk.server.Add(at->server);
  return walk;
}

/// Loggers may print the error first and its traceback below it.
WalkUp LookBelow(const LogPart& part, const MessagePlace& place, Surroundings& surroundings,
                 std::optional<int> rank) {
  const std::size_t end = part.offset + place.end;
  const Surroundings::Range near = surroundings.Lines(part, end, end + kDirectlyBelow);
  const auto title = std::find_if(near.begin(), near.end(),
                                  [](const LogLine& line) { return line.title || line.frame; });
  WalkUp walk(rank);
  if (title == near.end()) return walk;
  const std::size_t from = title->begin;
  std::vector<const LogLine*> traceback;
  for (const LogLine& line : surroundings.Lines(part, from, end + kLongestBelow)) {
    const bool another = line.title && !traceback.empty();
    if (another || line.text.find("out of memory") != kNoMatch) break;
    traceback.push_back(&line);
  }
  for (std::size_t i = traceback.size(); i > 0; --i) {
    if (!walk.See(*traceback[i - 1])) break;
  }
  return walk;
}

/// The rank that the report gives the process: torchrun names a process by its local rank first,
/// and below by "rank : 9 (local_rank: 1)" with "exitcode : -9 (pid: 991)".
std::optional<int> RankOfProcess(Surroundings::Iterator at, Surroundings::Iterator end, int pid) {
  std::optional<int> rank;
  for (; at != end; ++at) {
    const std::string_view text = at->text;
    if (text.starts_with("rank")) {
      rank = NumberBehindKey(text.substr(0, 24), "rank");
    } else if (rank && text.starts_with("exitcode") && NumberBehindKey(text, "(pid") == pid) {
      return rank;
    }
  }
  return {};
}

/// The first rank that a launcher's report names: behind the message in its line, or below.
std::optional<int> RankBelow(std::string_view rest_of_line, const Surroundings::Range& lines) {
  const LogLine rest = ReadLogLine(rest_of_line, 0, false);
  if (rest.told_rank) {
    const std::optional<int> pid = NumberBehindKey(rest.text, "(pid");
    const std::optional<int> global =
        pid ? RankOfProcess(lines.begin(), lines.end(), *pid) : std::nullopt;
    return global ? global : rest.told_rank;
  }
  for (auto at = lines.begin(); at != lines.end(); ++at) {
    if (at->title) return {};
    if (!at->told_rank) continue;
    const std::optional<int> pid = NumberBehindKey(at->text, "(pid");
    const std::optional<int> global = pid ? RankOfProcess(at, lines.end(), *pid) : std::nullopt;
    return global ? global : at->told_rank;
  }
  return {};
}

/// vLLM logs what it may use before it says that this is too little.
void TakeServerFigures(const ServerFigures& figures, OomMessage& message) {
  const auto gib = [](double value) { return static_cast<Bytes>(value * double(kGiB)); };
  const auto sane = [](double value) { return value > -1e6 && value < 1e6; };
  if (!message.capacity && figures.total && sane(*figures.total)) {
    message.capacity = gib(*figures.total);
  }
  if (!message.share) message.share = figures.share;
  if (message.free || message.subject != "the KV cache") return;
  if (!figures.cache || !sane(*figures.cache)) return;
  message.free = gib(std::max(0.0, *figures.cache));
  // By so much the weights alone exceed what the server may use.
  if (*figures.cache < 0) message.other = gib(-*figures.cache);
}

}  // namespace

std::optional<int> RankOfLine(std::string_view text, std::size_t offset) {
  constexpr std::size_t kLongestPrefix = 256;
  const std::size_t begin = LineBegin(text, offset);
  const std::size_t before = begin > 0 ? LineBegin(text, begin - 1) : 0;
  const std::string_view raw = text.substr(begin, kLongestPrefix);
  const std::optional<int> rank =
      ReadLinePrefix(WithoutColours(raw), text.substr(before, begin - before)).rank;
  if (rank) return rank;
  // "ERROR train failed: [rank5]: torch.OutOfMemoryError: …": the nearest in front of the message.
  constexpr std::size_t kNear = 512;
  const std::size_t near = std::max(begin, offset > kNear ? offset - kNear : 0);
  const std::string_view front = text.substr(near, offset - near);
  const std::size_t mark = front.rfind("[rank");
  if (mark == kNoMatch) return {};
  const std::string_view behind = front.substr(mark + 5);
  int value = 0;
  const auto [p, error] = std::from_chars(behind.data(), behind.data() + behind.size(), value);
  const bool closed = p != behind.data() + behind.size() && *p == ']';
  return error == std::errc() && closed && value >= 0 ? std::optional(value) : std::nullopt;
}

void ReadContext(const LogPart& part, const MessagePlace& place, Surroundings& surroundings,
                 OomMessage& message) {
  WalkUp found = LookAbove(part, place, surroundings, message.rank);
  const SignSet above = found.signs;
  const std::optional<int> rank_above = found.rank;
  if (found.where.empty()) {
    WalkUp below = LookBelow(part, place, surroundings, message.rank);
    if (!below.where.empty() || found.frames.empty()) {
      found.where = below.where;
      found.frames = std::move(below.frames);
      if (!found.device) found.device = below.device;
    }
  }
  message.where = found.where;
  ReadStage(found.frames, message);
  const FrameworkSet of_traceback = message.signs.frameworks;
  const std::size_t begin = part.offset + LineBegin(part.text, place.begin);
  const std::size_t end = part.offset + place.end;
  const Surroundings::Range behind = surroundings.Lines(part, end, end + kReachAhead);
  std::string_view rest = part.text.substr(place.end, kRestOfLine);
  rest = rest.substr(0, rest.find('\n'));
  if (!message.rank) message.rank = rank_above ? rank_above : RankBelow(rest, behind);
  if (!message.device) message.device = found.device;
  ApplySigns(above, message);
  SignSet around;
  for (const LogLine& line : surroundings.Lines(part, begin, end + kReachAhead)) {
    around |= line.signs;
  }
  ApplySigns(around, message);
  // An engine that generates for a trainer writes into the same log: the traceback tells whose the
  // error is.
  const bool of_trainer = !of_traceback.Empty() && !of_traceback.Has(Framework::kVllm);
  if (message.program == Program::kVllm && of_trainer) message.program = Program::kUnknown;
  if (message.source == MessageSource::kServer && message.program == Program::kVllm) {
    TakeServerFigures(found.server, message);
  }
  if (WentOn(part.text, place.begin, place.end, message)) {
    message.survived = true;
    message.signs.went_on = true;
  }
}

}  // namespace plimsoll
