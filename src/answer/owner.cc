#include "answer/owner.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

namespace plimsoll {
namespace {

/// "losses[" "]" and "3" of "losses[3]": what stands between indices, and the indices.
struct Spelling {
  std::vector<std::string> between;
  std::vector<std::string> indices;
};

Spelling Spelled(std::string_view name) {
  Spelling spelling;
  std::string text;
  while (!name.empty()) {
    text += name.front();
    const bool opens = name.front() == '[';
    name.remove_prefix(1);
    if (!opens) continue;
    const std::size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
    if (digits == 0 || digits == name.size() || name[digits] != ']') continue;
    spelling.between.push_back(std::exchange(text, ""));
    spelling.indices.emplace_back(name.substr(0, digits));
    name.remove_prefix(digits);
  }
  spelling.between.push_back(std::move(text));
  return spelling;
}

struct Alike {
  std::vector<std::string> indices;
  Bytes bytes = 0;
  std::int64_t count = 0;
};

std::string Joined(const std::vector<std::string>& between, const Alike& alike) {
  std::string name = between.front();
  for (std::size_t i = 0; i < alike.indices.size(); ++i) {
    name += alike.indices[i] + between[i + 1];
  }
  return name;
}

}  // namespace

std::vector<Owner> FoldedOwners(const std::vector<Owner>& owners) {
  std::map<std::vector<std::string>, Alike> groups;
  for (const Owner& owner : owners) {
    Spelling spelling = Spelled(owner.name);
    Alike& alike = groups[std::move(spelling.between)];
    if (alike.count == 0) alike.indices = spelling.indices;
    for (std::size_t i = 0; i < alike.indices.size(); ++i) {
      if (alike.indices[i] != spelling.indices[i]) alike.indices[i] = "*";
    }
    alike.bytes += owner.bytes;
    alike.count += owner.count;
  }
  std::vector<Owner> folded;
  for (const auto& [between, alike] : groups) {
    folded.push_back({.name = Joined(between, alike), .bytes = alike.bytes, .count = alike.count});
  }
  std::ranges::stable_sort(folded, std::greater(), &Owner::bytes);
  return folded;
}

std::string OwnerText(const Owner& owner, Bytes whole) {
  return owner.bytes < whole ? fmt::format("{} held by {}", FormatBytes(owner.bytes), owner.name)
                             : fmt::format("held by {}", owner.name);
}

}  // namespace plimsoll
