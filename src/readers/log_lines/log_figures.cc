#include "readers/log_lines/log_figures.h"

#include <algorithm>

#include "base/text.h"

namespace plimsoll {
namespace {

/// A longer line is looked at in pieces, no part of it twice: a hostile text of nothing but phrases
/// in one line must not take minutes.
constexpr std::size_t kMostOfLine = 16 << 10;

std::size_t RowCount() { return LogWordings().size(); }

bool EndsLine(char c) { return c == '\n' || c == '\r'; }

std::size_t SegmentBegin(std::string_view text, std::size_t at) {
  const std::size_t floor = at > kMostOfLine ? at - kMostOfLine : 0;
  return BehindLast(text, BehindLast(text, floor, at, '\n'), at, '\r');
}

std::size_t SegmentEnd(std::string_view text, std::size_t at) {
  const std::string_view rest = text.substr(at, kMostOfLine);
  const std::string_view line = rest.substr(0, rest.find('\n'));
  return at + std::min(line.size(), line.find('\r'));
}

/// The line above, for prefixes that only count where two lines have them.
std::string_view RawAbove(std::string_view text, std::size_t begin) {
  if (begin == 0) return {};
  std::size_t end = begin - 1;
  const std::size_t from = SegmentBegin(text, end);
  return text.substr(from, end - from);
}

}  // namespace

std::vector<std::string_view> LogFigures::Phrases() {
  std::vector<std::string_view> phrases;
  for (const LogWording& wording : LogWordings()) phrases.push_back(wording.phrase);
  for (std::string_view heading : TableHeadings()) phrases.push_back(heading);
  for (std::string_view word : OwnWords()) phrases.push_back(word);
  return phrases;
}

void LogFigures::SetLine(const FigurePart& part, std::size_t begin, std::size_t end,
                         std::size_t place) {
  const std::string_view raw = part.text.substr(begin, end - begin);
  line_ = {};
  line_.complete = end < part.text.size() && EndsLine(part.text[end]);
  CleanLine(MessageInJson(raw, place - begin, line_.complete), text_);
  line_.text = text_;
  line_.raw = raw;
  line_.begin = begin;
  line_.part = part.text;
  line_.rewritten = begin > 0 && part.text[begin - 1] == '\r';
  TakePrefix(RawAbove(part.text, begin), line_);
}

/// Reads the line around [begin, end), unless it is the one that was seen last; false where the
/// phrase goes over a line's end.
bool LogFigures::EnterLine(const FigurePart& part, std::size_t begin, std::size_t end) {
  const std::size_t place = part.offset + begin;
  if (line_begin_ != kNowhere && place >= line_begin_ && place < line_end_) {
    return part.offset + end <= line_end_;
  }
  LeaveLine();
  std::size_t from = SegmentBegin(part.text, begin);
  if (line_end_ > part.offset) from = std::max(from, std::min(begin, line_end_ - part.offset));
  const std::size_t to = SegmentEnd(part.text, begin);
  if (to < end) return false;
  SetLine(part, from, to, begin);
  line_begin_ = part.offset + from;
  line_end_ = part.offset + to;
  number_ = part.line_of(line_begin_);
  figures_before_ = sink_.figures();
  return true;
}

/// A line in which no row has found a figure may be one of the user's own program.
void LogFigures::LeaveLine() {
  // One that was cut may have been of any program.
  if (may_be_own_ && line_.complete && sink_.figures() == figures_before_) {
    sink_.Begin(kOwnProgram, line_, number_);
    ReadOwnLine(line_, sink_);
  }
  may_be_own_ = false;
  heading_tried_ = false;
  read_.clear();
  line_begin_ = kNowhere;
}

void LogFigures::See(std::size_t phrase, const FigurePart& part, std::size_t begin,
                     std::size_t end) {
  if (table_.open() && part.offset + begin >= table_end_) ReadTable(part, begin);
  if (!EnterLine(part, begin, end)) return;
  const std::size_t headings = RowCount();
  const std::size_t own = headings + TableHeadings().size();
  if (phrase >= own) {
    may_be_own_ = true;
    return;
  }
  if (phrase >= headings) {
    // A heading has its words more than once.
    if (heading_tried_) return;
    heading_tried_ = true;
    if (table_.Open(line_)) table_end_ = line_begin_ + line_.raw.size();
    return;
  }
  const LogWording& wording = LogWordings()[phrase];
  if (std::ranges::find(read_, wording.read) != read_.end()) return;
  read_.push_back(wording.read);
  sink_.Begin(wording.program, line_, number_);
  wording.read(line_, sink_);
}

/// Rows have no words of their own: every line up to `end` is looked at.
void LogFigures::ReadTable(const FigurePart& part, std::size_t end) {
  LeaveLine();
  std::size_t at = table_end_ > part.offset ? table_end_ - part.offset : 0;
  while (at < end && table_.open()) {
    if (EndsLine(part.text[at])) {
      ++at;
      continue;
    }
    const std::size_t to = SegmentEnd(part.text, at);
    // The line in which something was found is left to that.
    if (to > end && end < part.text.size()) break;
    SetLine(part, at, to, at);
    table_.Read(line_, part.line_of(part.offset + at), sink_);
    at = std::max(to, at + 1);
  }
  table_end_ = part.offset + at;
}

void LogFigures::EndPart(const FigurePart& part, std::size_t end) {
  if (table_.open()) ReadTable(part, end);
  LeaveLine();
}

}  // namespace plimsoll
