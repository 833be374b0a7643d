#include "base/suggest.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace plimsoll {
namespace {

/// Longer words are no slips of the keyboard, and the work grows with the square.
constexpr std::size_t kLongest = 64;
constexpr std::size_t kMostNamed = 3;

char Lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

/// A third of the letters may be wrong, but never more than three.
std::size_t MostWrong(std::size_t length) { return std::min<std::size_t>(length / 3, 3); }

}  // namespace

std::size_t EditDistance(std::string_view a, std::string_view b) {
  a = a.substr(0, kLongest);
  b = b.substr(0, kLongest);
  using Row = std::vector<std::size_t>;
  Row before(b.size() + 1);
  Row above(b.size() + 1);
  Row row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = Lower(a[i - 1]) == Lower(b[j - 1]);
      row[j] = std::min({above[j - 1] + (same ? 0 : 1), above[j] + 1, row[j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && Lower(a[i - 1]) == Lower(b[j - 2]) &&
                           Lower(a[i - 2]) == Lower(b[j - 1]);
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

std::string NameNearest(std::string_view written, std::vector<Candidate> candidates) {
  std::erase_if(candidates,
                [&](const Candidate& c) { return c.distance > MostWrong(written.size()); });
  std::ranges::stable_sort(candidates, {}, &Candidate::distance);
  if (candidates.empty()) return "";
  candidates.resize(std::min(candidates.size(), kMostNamed));
  std::string text = "did you mean ";
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const bool last = i + 1 == candidates.size();
    if (i > 0) text += last ? " or " : ", ";
    text += candidates[i].name;
  }
  return text + "?";
}

std::string DidYouMean(std::string_view written, const std::vector<std::string_view>& known) {
  std::vector<Candidate> candidates;
  for (const std::string_view name : known) {
    const std::size_t distance = EditDistance(written, name);
    // Who stops in the middle of a word is near to it.
    const bool begun = written.size() > 2 && name.starts_with(written);
    candidates.push_back({name, begun ? std::min<std::size_t>(distance, 1) : distance});
  }
  return NameNearest(written, std::move(candidates));
}

std::string SuggestOr(std::string_view written, const std::vector<std::string_view>& known,
                      std::string_view hint) {
  const std::string near = DidYouMean(written, known);
  if (near.empty()) return std::string(hint);
  return hint.empty() ? near : near + " " + std::string(hint);
}

}  // namespace plimsoll
