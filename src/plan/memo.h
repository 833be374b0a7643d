// Values that are made once, however many ask for them at the same time.
#pragma once

#include <map>
#include <mutex>
#include <optional>

namespace plimsoll {

/// From any thread: who asks for what another is making waits for it.
template <typename Key, typename Value>
class Memo {
 public:
  template <typename Make>
  const Value& Get(const Key& key, const Make& make) {
    Entry& entry = EntryOf(key);
    std::call_once(entry.once, [&] { entry.value.emplace(make()); });
    return *entry.value;
  }
  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return entries_.size();
  }

 private:
  struct Entry {
    std::once_flag once;
    std::optional<Value> value;
  };

  Entry& EntryOf(const Key& key) {
    const std::lock_guard lock(mutex_);
    return entries_[key];  // a map never moves what it holds
  }

  mutable std::mutex mutex_;
  std::map<Key, Entry> entries_;
};

}  // namespace plimsoll
