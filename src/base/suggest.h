// Which word may have been meant where an unknown one was written: commands, flags, settings,
// cards.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace plimsoll {

/// How many letters have to be changed, added, left out or swapped with the next; whether they are
/// capitals does not count.
std::size_t EditDistance(std::string_view a, std::string_view b);

/// "did you mean explain or export?": at most three, the nearest first; empty where nothing is
/// near.
std::string DidYouMean(std::string_view written, const std::vector<std::string_view>& known);

/// `hint` after "did you mean …?", or alone where nothing is near.
std::string SuggestOr(std::string_view written, const std::vector<std::string_view>& known,
                      std::string_view hint);

/// A word that is known, and how far it is from what was written.
struct Candidate {
  std::string_view name;
  std::size_t distance = 0;
};
/// DidYouMean for who measures distances otherwise.
std::string NameNearest(std::string_view written, std::vector<Candidate> candidates);

}  // namespace plimsoll
