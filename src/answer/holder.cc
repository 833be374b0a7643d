#include "answer/holder.h"

#include <fmt/format.h>

namespace plimsoll {

void KeepLargest(std::vector<Holder>& holders, std::size_t most) {
  // One more row is no longer than the row that would say that one is missing.
  if (holders.empty() || holders.size() - 1 <= most) return;
  Holder rest{.where = fmt::format("{} smaller holders", holders.size() - most),
              .others = static_cast<std::int64_t>(holders.size() - most)};
  for (std::size_t i = most; i < holders.size(); ++i) {
    rest.bytes += holders[i].bytes;
    rest.count += holders[i].count;
  }
  holders.resize(most);
  holders.push_back(std::move(rest));
}

}  // namespace plimsoll
