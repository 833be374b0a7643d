#include "timeline/history.h"

namespace plimsoll {

std::uint32_t HistoryNames::Name(std::string_view text) {
  if (text.empty()) return 0;
  const std::size_t known = strings_.size();
  const StringId id = strings_.Intern(text);
  if (strings_.size() > known) history_.names.emplace_back(text);
  return static_cast<std::uint32_t>(id.index()) + 1;
}

std::uint32_t HistoryNames::Node(const HistoryNode& node) {
  const auto next = static_cast<std::uint32_t>(history_.nodes.size());
  const auto [found, added] =
      nodes_.try_emplace({node.parent, node.function, node.file, node.line}, next);
  if (added) history_.nodes.push_back(node);
  return found->second;
}

}  // namespace plimsoll
