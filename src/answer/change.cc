#include "answer/change.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

namespace plimsoll {
namespace {

using Key = std::pair<std::string, Category>;

/// "train.py:57 in forward" without its line: what stays when code above it is edited.
std::string WithoutLine(const std::string& where) {
  const std::size_t colon = where.find(':');
  const std::size_t in = where.find(" in ");
  if (colon == std::string::npos || in == std::string::npos || in < colon) return where;
  return where.substr(0, colon) + where.substr(in);
}

void LargestFirst(std::vector<Change>& changes) {
  std::erase_if(changes, [](const Change& c) { return c.growth() == 0; });
  std::stable_sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
    return std::abs(a.growth()) > std::abs(b.growth());
  });
}

}  // namespace

std::vector<Change> ChangesByCategory(const std::vector<AccountLine>& before,
                                      const std::vector<AccountLine>& after) {
  std::map<AccountItem, Change> changes;
  for (const AccountLine& line : before) changes[line.what].before += line.bytes;
  for (const AccountLine& line : after) changes[line.what].after += line.bytes;
  std::vector<Change> list;
  for (auto& [what, change] : changes) {
    if (what == AccountItem::kFree) continue;
    change.item = what;
    list.push_back(change);
  }
  LargestFirst(list);
  return list;
}

std::vector<Change> ChangesByLine(const std::vector<Holder>& before,
                                  const std::vector<Holder>& after) {
  std::map<Key, Change> changes;
  for (const Holder& h : before) {
    Change& c = changes[{h.where, h.category}];
    c.before += h.bytes;
    c.count_before += h.count;
  }
  for (const Holder& h : after) {
    Change& c = changes[{h.where, h.category}];
    c.after += h.bytes;
    c.count_after += h.count;
  }
  // A place that is only in one record may be one that moved by some lines in the other, if the
  // same function has just one on either side.
  std::map<Key, std::vector<Change>> orphans;
  std::vector<Change> list;
  for (auto& [key, change] : changes) {
    change.where = key.first;
    change.item = ItemOf(key.second);
    if (change.before != 0 && change.after != 0) {
      list.push_back(change);
    } else {
      orphans[{WithoutLine(key.first), key.second}].push_back(change);
    }
  }
  for (auto& [key, places] : orphans) {
    const bool moved = places.size() == 2 && (places[0].before == 0) != (places[1].before == 0) &&
                       !std::any_of(list.begin(), list.end(), [&](const Change& c) {
                         return WithoutLine(c.where) == key.first && c.item == ItemOf(key.second);
                       });
    if (!moved) {
      list.insert(list.end(), places.begin(), places.end());
      continue;
    }
    const Change& gone = places[0].before != 0 ? places[0] : places[1];
    Change merged = places[0].before != 0 ? places[1] : places[0];
    merged.before = gone.before;
    merged.count_before = gone.count_before;
    list.push_back(merged);
  }
  LargestFirst(list);
  return list;
}

}  // namespace plimsoll
