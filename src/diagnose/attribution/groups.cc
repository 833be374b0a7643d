#include "diagnose/attribution/groups.h"

#include <re2/re2.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "diagnose/attribution/annotated.h"
#include "diagnose/attribution/holders.h"
#include "diagnose/phases/marks.h"

namespace plimsoll {
namespace {

/// RE2's automaton for one expression, which it throws away and builds anew where it grows larger.
constexpr std::int64_t kMostMemory = 8 << 20;

class Grouping {
 public:
  Grouping(const Phases& p, const GroupPattern& pattern)
      : p_(p), pattern_(pattern), texts_(TextsOfBlocks(p)) {}

  std::string NameOf(AllocationIndex a) {
    const Allocation& x = p_.at(a);
    const std::optional<std::string>& by_stack = OfStack(NamingStack(p_, x));
    if (by_stack) return *by_stack;
    if (const auto texts = texts_.find(a); texts != texts_.end()) {
      // What was said last counts most.
      for (auto text = texts->second.rbegin(); text != texts->second.rend(); ++text) {
        if (const std::optional<std::string>& found = OfText(*text)) return *found;
      }
    }
    if (x.made < 0) return "";
    const auto event = static_cast<EventIndex>(x.made);
    for (const auto* const notes : {&p_.timeline.notes, &p_.timeline.compile_contexts}) {
      const auto note = std::ranges::lower_bound(*notes, event, {}, &EventNote::event);
      if (note == notes->end() || note->event != event) continue;
      if (const std::optional<std::string>& found = OfText(note->text)) return *found;
    }
    return OfMarks(p_.timeline.events[event].time_us);
  }

 private:
  const std::optional<std::string>& OfText(StringId text) {
    const auto [at, fresh] = by_text_.try_emplace(text);
    if (fresh) at->second = pattern_.FirstIn(p_.timeline.stacks.strings[text]);
    return at->second;
  }
  const std::optional<std::string>& OfStack(StackId stack) {
    const auto [at, fresh] = by_stack_.try_emplace(stack);
    if (!fresh) return at->second;
    for (const FrameId id : p_.timeline.stacks.stack(stack)) {
      const Frame& frame = p_.timeline.stacks.frame(id);
      at->second = OfText(frame.file);
      if (!at->second) at->second = OfText(frame.function);
      if (!at->second && frame.node.valid()) at->second = OfText(frame.node);
      if (at->second) break;
    }
    return at->second;
  }
  /// Of the innermost mark at a time in which something was found.
  std::string OfMarks(TimeUs time) {
    if (!marked_) marked_ = FindMarked();
    const auto after = marked_->upper_bound(time);
    return after == marked_->begin() ? "" : std::prev(after)->second;
  }
  /// The same from each time on at which it changes.
  std::map<TimeUs, std::string> FindMarked() {
    const std::vector<MarkRange> marks = MarkRanges(p_.timeline);
    std::vector<std::pair<TimeUs, std::size_t>> changes;
    for (std::size_t i = 0; i < marks.size(); ++i) {
      if (!OfText(marks[i].name)) continue;
      changes.emplace_back(marks[i].begin, i);
      changes.emplace_back(marks[i].end, i);
    }
    std::ranges::sort(changes);
    std::set<std::pair<int, std::size_t>> open;  // the innermost last
    std::map<TimeUs, std::string> marked;
    for (const auto& [time, i] : changes) {
      const std::pair key(marks[i].depth, i);
      if (open.erase(key) == 0 && marks[i].end > time) open.insert(key);
      marked[time] = open.empty() ? "" : OfText(marks[open.rbegin()->second].name).value_or("");
    }
    return marked;
  }

  const Phases& p_;
  const GroupPattern& pattern_;
  const BlockTexts texts_;
  std::optional<std::map<TimeUs, std::string>> marked_;
  std::map<StackId, std::optional<std::string>> by_stack_;
  std::map<StringId, std::optional<std::string>> by_text_;
};

}  // namespace

Result<GroupPattern> GroupPattern::Parse(const std::string& text) {
  if (text.empty()) return Error{.message = "the regular expression is empty"};
  re2::RE2::Options options(re2::RE2::Quiet);
  options.set_max_mem(kMostMemory);
  auto matcher = std::make_shared<const re2::RE2>(text, options);
  if (matcher->ok()) return GroupPattern(text, std::move(matcher));
  return Error{.message =
                   "'" + text + "' is no regular expression of RE2's syntax: " + matcher->error()};
}

std::optional<std::string> GroupPattern::FirstIn(std::string_view text) const {
  std::array<re2::StringPiece, 2> match;  // all of it, and its first group
  const int wanted = std::min(matcher_->NumberOfCapturingGroups(), 1) + 1;
  const re2::StringPiece in(text.data(), text.size());
  if (!matcher_->Match(in, 0, in.size(), re2::RE2::UNANCHORED, match.data(), wanted)) return {};
  const re2::StringPiece& found = match[1].empty() ? match[0] : match[1];
  if (found.empty()) return {};
  return std::string(found.data(), found.size());
}

std::vector<HolderGroup> GroupsAt(const Phases& p, Position at, const GroupPattern& pattern) {
  Grouping grouping(p, pattern);
  std::map<std::string, HolderGroup> by_name;
  for (AllocationIndex a = 0; a < p.ledger.allocations.size(); ++a) {
    if (p.at(a).made > at) break;
    if (!p.at(a).HeldAt(at)) continue;
    HolderGroup& group = by_name[grouping.NameOf(a)];
    group.bytes += p.at(a).block;
    ++group.count;
  }
  std::vector<HolderGroup> groups;
  for (auto& [name, group] : by_name) {
    group.name = name;
    groups.push_back(std::move(group));
  }
  std::ranges::stable_sort(groups, std::ranges::greater(), &HolderGroup::bytes);
  return groups;
}

}  // namespace plimsoll
