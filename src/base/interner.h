// Each distinct string once, named by a small id.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>

#include "base/hash.h"
#include "base/ids.h"

namespace plimsoll {

using StringId = Id<struct StringTag>;

class StringTable {
 public:
  StringTable() = default;
  // The index refers to the stored strings, so a copy would refer to the wrong ones.
  StringTable(const StringTable&) = delete;
  StringTable& operator=(const StringTable&) = delete;
  StringTable(StringTable&&) = default;
  StringTable& operator=(StringTable&&) = default;

  StringId Intern(std::string_view text) {
    if (auto found = index_.find(text); found != index_.end()) return found->second;
    strings_.emplace_back(text);
    const StringId id(strings_.size() - 1);
    index_.emplace(strings_.back(), id);
    return id;
  }
  std::string_view operator[](StringId id) const {
    return id.valid() ? std::string_view(strings_[id.index()]) : std::string_view();
  }
  std::size_t size() const { return strings_.size(); }

 private:
  std::deque<std::string> strings_;  // a deque never moves what it holds
  HashMap<std::string_view, StringId> index_;
};

}  // namespace plimsoll
