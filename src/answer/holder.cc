#include "answer/holder.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

namespace plimsoll {

std::string FoldedLayers(std::string_view module) {
  std::string folded;
  bool layer_known = false;
  while (!module.empty()) {
    const std::string_view part = module.substr(0, module.find('.'));
    module.remove_prefix(std::min(module.size(), part.size() + 1));
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == part.npos;
    // A number alone is a part of a container that has no layers, and so is one inside a layer.
    const bool layer = number && !(module.empty() && (layer_known || folded.empty()));
    layer_known |= layer;
    folded += fmt::format("{}{}", folded.empty() ? "" : ".", layer ? "*" : part);
  }
  return folded;
}

void AddLabels(const std::vector<std::string>& from, std::vector<std::string>& to) {
  constexpr std::size_t kMostLabels = 4;
  for (const std::string& label : from) {
    const bool known = std::find(to.begin(), to.end(), label) != to.end();
    if (!known && to.size() < kMostLabels) to.push_back(label);
  }
}

std::vector<Holder> ByLine(std::vector<Holder> rows) {
  const auto larger = [](const auto& a, const auto& b) { return a.bytes > b.bytes; };
  std::stable_sort(rows.begin(), rows.end(), larger);
  std::map<std::pair<std::string, Category>, std::size_t> places;
  std::vector<Holder> holders;
  for (Holder& row : rows) {
    const auto [place, fresh] = places.try_emplace({row.where, row.category}, holders.size());
    const HolderPart part{.module = row.module, .bytes = row.bytes, .count = row.count};
    if (fresh) {
      holders.push_back(std::move(row));
    } else {
      AddLabels(row.labels, holders[place->second].labels);
      holders[place->second].bytes += part.bytes;
      holders[place->second].count += part.count;
      std::ranges::move(row.owners, std::back_inserter(holders[place->second].owners));
    }
    holders[place->second].parts.push_back(part);
  }
  for (Holder& holder : holders) {
    if (holder.parts.size() == 1) holder.parts.clear();
    holder.owners = FoldedOwners(holder.owners);
  }
  std::stable_sort(holders.begin(), holders.end(), larger);
  return holders;
}

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
