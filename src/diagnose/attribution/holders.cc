#include "diagnose/attribution/holders.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <tuple>

#include "base/hash.h"
#include "diagnose/attribution/annotated.h"
#include "timeline/predicted_run.h"

namespace plimsoll {
namespace {

/// Of the stacks of all holders, in bytes.
constexpr std::size_t kMostStackText = std::size_t{32} << 20;

/// The row of an allocation's event in a table that is in their order.
template <typename Row>
const Row* RowOf(const std::vector<Row>& rows, const Allocation& a) {
  if (a.made < 0) return nullptr;
  const auto event = static_cast<EventIndex>(a.made);
  const auto found = std::ranges::lower_bound(rows, event, {}, &Row::event);
  return found != rows.end() && found->event == event ? &*found : nullptr;
}

/// The forward's stack of an event of the backward thread, where PyTorch recorded it.
StackId ForwardStackOf(const Phases& p, const Allocation& a) {
  const ForwardStack* const row = RowOf(p.timeline.forward_stacks, a);
  return row != nullptr ? row->stack : StackId();
}

/// The note that names the module whose forward made it; not valid where there is none.
StringId ModuleNoteOf(const Phases& p, const Allocation& a) {
  const EventNote* const row = RowOf(p.timeline.notes, a);
  const bool named =
      row != nullptr && p.timeline.stacks.strings[row->text].starts_with(kModuleNote);
  return named ? row->text : StringId();
}

/// "blocks.*.mlp.2" of "plimsoll.module:blocks.11.mlp.2".
std::string ModuleNamed(std::string_view note) {
  return FoldedLayers(note.substr(kModuleNote.size()));
}

/// The node of a compiled graph that the innermost frame with one was written for.
std::string NodeOf(const Phases& p, StackId stack) {
  for (const FrameId id : p.timeline.stacks.stack(stack)) {
    const StringId node = p.timeline.stacks.frame(id).node;
    if (node.valid()) return std::string(p.timeline.stacks.strings[node]);
  }
  return "";
}

/// "encoder:12 > relu: aten.relu": the modules, and the node of a compiled graph inside them.
std::string InsideOf(const Phases& p, StackId stack) {
  const std::string modules = p.stacks.ModuleChain(stack);
  const std::string node = NodeOf(p, stack);
  return modules + (modules.empty() || node.empty() ? "" : " > ") + node;
}

}  // namespace

OwnerNames OwnersOf(const Timeline& timeline) {
  OwnerNames names;
  for (const Block& block : timeline.blocks) {
    if (block.owner.valid() && block.state == BlockState::kActive) {
      names.emplace(block.address, block.owner);
    }
  }
  return names;
}

StringId OwnerOf(const OwnerNames& names, const Allocation& a) {
  const auto found = a.released == kNotYet ? names.find(a.address) : names.end();
  return found != names.end() ? found->second : StringId();
}

StackId NamingStack(const Phases& p, const Allocation& a) {
  if (p.stacks.of(a.stack).user_frame.valid()) return a.stack;
  const StackId forward = ForwardStackOf(p, a);
  return forward.valid() ? forward : a.stack;
}

std::string PlaceOf(const Phases& p, const Attribution& attribution, AllocationIndex a) {
  const Allocation& x = p.at(a);
  const std::string where = p.stacks.WhereOf(NamingStack(p, x));
  if (!where.empty()) return where;
  if (x.made == kBefore) {
    return p.timeline.settings.trace_overflowed ? "by an event that the record has lost (no stack)"
                                                : "before the record began (no stack)";
  }
  if (attribution.category[a] == Category::kGradients || p.framed) return "backward (no stack)";
  return "no stack recorded";
}

std::string OwnLine(const Phases& p, const Attribution& attribution, StackId stack) {
  const std::vector<std::string> chain = p.stacks.UserFrames(stack);
  if (chain.empty()) return "";
  std::set<std::string> ordinary;
  std::set<StackId> seen;
  for (AllocationIndex a = 0; a < p.ledger.allocations.size(); ++a) {
    if (attribution.category[a] != Category::kActivations) continue;
    if (!seen.insert(p.at(a).stack).second) continue;
    for (std::string& frame : p.stacks.UserFrames(p.at(a).stack)) ordinary.insert(std::move(frame));
  }
  for (auto frame = chain.rbegin(); frame != chain.rend(); ++frame) {
    if (!ordinary.contains(*frame)) return *frame;
  }
  return chain.front();
}

std::vector<Holder> HoldersAt(const Phases& p, const Attribution& attribution, Position at) {
  struct Group {
    Holder holder;
    std::map<StackId, Bytes> stacks;
    std::map<StringId, Owner> owners;
  };
  const OwnerNames owners = OwnersOf(p.timeline);
  // A model calls most of itself from one line of the user's: its modules tell more.
  std::map<std::tuple<std::string, Category, std::string>, Group> groups;
  // Naming a stack costs more than adding a number: once for each stack and category,
  // apart from those before the record, which may have a name of their own.
  std::map<std::tuple<StackId, StringId, Category, bool>, Group*> by_stack;
  const BlockTexts said = TextsOfBlocks(p);
  for (AllocationIndex a = 0; a < p.ledger.allocations.size(); ++a) {
    const Allocation& x = p.at(a);
    if (x.made > at) break;
    if (!x.HeldAt(at)) continue;
    const Category category = attribution.category[a];
    const StackId stack = NamingStack(p, x);
    const StringId note = ModuleNoteOf(p, x);
    Group*& group = by_stack[{stack, note, category, x.made == kBefore}];
    if (group == nullptr || !stack.valid()) {
      group = &groups[{
          PlaceOf(p, attribution, a), category,
          note.valid() ? ModuleNamed(p.timeline.stacks.strings[note]) : InsideOf(p, stack)}];
    }
    // A prediction tells its holders by what they ask for.
    const bool predicted = !p.timeline.prediction.empty();
    const Bytes bytes = predicted ? std::min(x.requested, x.block) : x.block;
    group->holder.bytes += bytes;
    ++group->holder.count;
    group->stacks[stack] += bytes;
    if (const auto texts = said.find(a); texts != said.end()) {
      for (const StringId text : texts->second) {
        AddLabels({std::string(p.timeline.stacks.strings[text])}, group->holder.labels);
      }
    }
    const StringId owner = OwnerOf(owners, x);
    if (!owner.valid()) continue;
    Owner& owned = group->owners[owner];
    owned.bytes += bytes;
    ++owned.count;
  }
  std::vector<const decltype(groups)::value_type*> largest_first;
  for (const auto& group : groups) largest_first.push_back(&group);
  std::sort(largest_first.begin(), largest_first.end(), [](const auto* a, const auto* b) {
    const Bytes x = a->second.holder.bytes;
    const Bytes y = b->second.holder.bytes;
    return x != y ? x > y : a->first < b->first;
  });
  std::vector<Holder> holders;
  std::size_t text = 0;
  for (const auto* group : largest_first) {
    Holder& holder = holders.emplace_back(group->second.holder);
    std::tie(holder.where, holder.category, holder.module) = group->first;
    // A made-up file can have a million holders with stacks of a megabyte each.
    if (text > kMostStackText) continue;
    for (const auto& [name, owned] : group->second.owners) {
      holder.owners.push_back(owned);
      holder.owners.back().name = p.timeline.stacks.strings[name];
      text += holder.owners.back().name.size();
    }
    const auto& stacks = group->second.stacks;
    const auto largest =
        std::max_element(stacks.begin(), stacks.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    holder.stack = p.stacks.UserFrames(largest->first);
    for (const std::string& frame : holder.stack) text += frame.size();
  }
  return ByLine(std::move(holders));
}

}  // namespace plimsoll
