#include "job/file/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

namespace plimsoll {
namespace {

constexpr std::size_t kMostPlaces = 3;

struct Assumption {
  std::string_view text;
  /// "train.py:43 in main"; none if the note has no line.
  std::vector<std::string_view> places;
};

/// How long the place at the beginning of a note is: 0 if there is none.
std::size_t PlaceIn(std::string_view note) {
  const std::size_t in = note.find(" in ");
  const std::size_t end = note.find(": ");
  if (in == std::string_view::npos || end == std::string_view::npos || end < in) return 0;
  const std::size_t colon = note.substr(0, in).rfind(':');
  if (colon == std::string_view::npos || colon + 1 == in) return 0;
  const std::string_view line = note.substr(colon + 1, in - colon - 1);
  const bool is_line =
      std::ranges::all_of(line, [](unsigned char sign) { return std::isdigit(sign) != 0; });
  return is_line ? end : 0;
}

std::string TextOf(const Assumption& one) {
  if (one.places.empty()) return std::string(one.text);
  const std::size_t shown = std::min(one.places.size(), kMostPlaces);
  const std::vector<std::string_view> first(one.places.begin(), one.places.begin() + shown);
  std::string text = fmt::format("{}", fmt::join(first, ", "));
  if (const std::size_t more = one.places.size() - shown; more > 0) {
    text += fmt::format(" and {} more {}", more, more == 1 ? "line" : "lines");
  }
  return fmt::format("{}: {}", text, one.text);
}

}  // namespace

std::string_view BaseName(std::string_view op) {
  if (const auto dot = op.find('.'); dot != op.npos) op.remove_prefix(dot + 1);
  return op.substr(0, op.find('.'));
}

bool Trains(const Variant& variant) {
  return std::ranges::find(variant.events, JobEvent::Kind::kStep, &JobEvent::kind) !=
             variant.events.end() ||
         variant.later.empty();
}

Job CopyOf(const Job& job, std::size_t variant) {
  Job copy;
  static_cast<JobFacts&>(copy) = job;
  copy.layouts = job.layouts;
  copy.variants = {job.variants[variant]};
  // In their order, so that each keeps its number.
  for (std::size_t i = 0; i < job.strings.size(); ++i)
    copy.strings.Intern(job.strings[StringId(i)]);
  return copy;
}

std::vector<std::string> MergedNotes(const std::vector<std::string>& notes) {
  std::vector<Assumption> merged;
  // By text, and whether it has a place. Ordered, so that no file can choose its collisions.
  std::map<std::pair<std::string_view, bool>, std::size_t> index;
  std::set<std::string_view> seen;
  for (const std::string_view note : notes) {
    if (!seen.insert(note).second) continue;
    const std::size_t end = PlaceIn(note);
    const std::string_view text = end == 0 ? note : note.substr(end + 2);
    const auto [at, is_new] = index.try_emplace({text, end > 0}, merged.size());
    if (is_new) merged.push_back({.text = text, .places = {}});
    if (end > 0) merged[at->second].places.push_back(note.substr(0, end));
  }
  std::vector<std::string> texts;
  for (const Assumption& one : merged) texts.push_back(TextOf(one));
  return texts;
}

}  // namespace plimsoll
