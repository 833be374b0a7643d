#include "plan/kept_results.h"

#include <algorithm>
#include <map>

namespace plimsoll {
namespace {

/// Results whose time for a byte differs by less are kept together.
constexpr double kAlike = 1.25;

/// Results that are kept together.
struct Unit {
  std::vector<std::size_t> results;
  double us = 0;
  Bytes bytes = 0;

  double Worth() const { return us / double(std::max<Bytes>(bytes, 1)); }
  void Add(std::size_t index, const MadeResult& result) {
    results.push_back(index);
    us += result.us;
    bytes += result.bytes;
  }
};

std::vector<Unit> UnitsOf(const std::vector<MadeResult>& results) {
  std::vector<Unit> units;
  Unit random;
  bool random_is_keepable = true;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const MadeResult& result = results[i];
    if (!result.repeated) continue;
    if (result.random) {
      random.Add(i, result);
      random_is_keepable &= result.keepable;
    } else if (result.keepable && result.us > 0) {
      units.emplace_back().Add(i, result);
    }
  }
  if (!random.results.empty() && random_is_keepable) units.push_back(std::move(random));
  std::stable_sort(units.begin(), units.end(),
                   [](const Unit& a, const Unit& b) { return a.Worth() > b.Worth(); });
  return units;
}

/// The operator alone where all its calls are kept, also those that are never repeated.
std::vector<KeptCall> Named(const std::vector<MadeResult>& results,
                            const std::vector<bool>& is_kept) {
  std::map<std::string_view, bool> whole;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const auto found = whole.try_emplace(results[i].op, true).first;
    found->second = found->second && is_kept[i];
  }
  std::vector<KeptCall> kept;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!is_kept[i]) continue;
    KeptCall call{.op = std::string(results[i].op)};
    if (!whole.at(results[i].op)) call.nth = results[i].nth;
    if (kept.empty() || std::find(kept.begin(), kept.end(), call) == kept.end()) {
      kept.push_back(std::move(call));
    }
  }
  return kept;
}

}  // namespace

std::vector<std::vector<KeptCall>> WaysToKeep(const std::vector<MadeResult>& results,
                                              std::size_t most) {
  const std::vector<Unit> units = UnitsOf(results);
  std::vector<std::vector<KeptCall>> all;
  std::vector<bool> is_kept(results.size(), false);
  for (std::size_t i = 0; i < units.size();) {
    const double worth = units[i].Worth();
    for (; i < units.size() && units[i].Worth() * kAlike >= worth; ++i) {
      for (const std::size_t result : units[i].results) is_kept[result] = true;
    }
    if (i < units.size()) all.push_back(Named(results, is_kept));
  }
  if (all.size() <= most) return all;
  std::vector<std::vector<KeptCall>> some;
  for (std::size_t i = 0; i < most; ++i) some.push_back(all[(2 * i + 1) * all.size() / (2 * most)]);
  return some;
}

}  // namespace plimsoll
