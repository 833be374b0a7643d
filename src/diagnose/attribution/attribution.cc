#include "diagnose/attribution/attribution.h"

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

#include "diagnose/attribution/annotated.h"
#include "diagnose/attribution/attributor.h"

namespace plimsoll {
namespace {

/// Sizes that only cuBLAS and cuBLASLt ask for: 32 MiB on Hopper, 1 MiB for Lt, 8 MiB + 128 KiB and
/// 4 MiB elsewhere.
constexpr std::array<Bytes, 4> kCublasWorkspaces = {33554432, 1048576, 8519680, 4194304};

/// Frozen and shared parameters have no state of their own; most of the others do.
constexpr double kMostOfTheGradients = 0.8;

/// A predicted run says what it made each block for.
Attribution AsPredicted(const Phases& p) {
  Attribution out;
  out.category.assign(p.ledger.allocations.size(), Category::kUnattributed);
  out.reason.assign(p.ledger.allocations.size(), Reason::kNone);
  out.kept = FindKeptSites(p);
  const std::vector<EventNote>& purposes = p.timeline.purposes;
  for (const Allocation& x : p.Between(kBefore, kNotYet)) {
    const auto event = static_cast<EventIndex>(x.made);
    const auto row = std::ranges::lower_bound(purposes, event, {}, &EventNote::event);
    if (row == purposes.end() || row->event != event) continue;
    const std::string_view name = p.timeline.stacks.strings[row->text];
    const auto* category = std::ranges::find(kCategories, name, CategoryName);
    if (category == kCategories.end()) continue;
    out.category[p.IndexOf(x)] = *category;
    out.reason[p.IndexOf(x)] = Reason::kPredicted;
  }
  return out;
}

/// What the record or the program itself says counts more than what follows from behaviour.
void TakeGiven(const Phases& p, Attribution& out) {
  const Timeline& t = p.timeline;
  const auto set = [&](AllocationIndex a, std::optional<Category> category, Reason reason) {
    if (!category) return;
    out.category[a] = *category;
    out.reason[a] = reason;
  };
  for (const auto& [a, texts] : TextsOfBlocks(p)) {
    for (const StringId text : texts) {
      set(a, CategoryIn(t.stacks.strings[text]), Reason::kAnnotated);
    }
  }
  for (const EventNote& given : t.given_categories) {
    const std::uint32_t a = p.ledger.allocation_of_event[given.event];
    if (t.events[given.event].action != Action::kAlloc || a == Ledger::kNoAllocation) continue;
    set(a, CategoryNamed(t.stacks.strings[given.text]), Reason::kGiven);
  }
  if (t.given_of_blocks.empty()) return;
  std::unordered_map<Address, StringId> blocks;
  for (const BlockNote& given : t.given_of_blocks) blocks[given.address] = given.text;
  for (AllocationIndex a = 0; a < p.ledger.allocations.size(); ++a) {
    if (p.at(a).freed != kNotYet || out.reason[a] == Reason::kGiven) continue;
    const auto found = blocks.find(p.at(a).address);
    if (found == blocks.end()) continue;
    set(a, CategoryNamed(t.stacks.strings[found->second]), Reason::kGiven);
  }
}

}  // namespace

bool IsCublasSize(Bytes n) {
  return std::find(kCublasWorkspaces.begin(), kCublasWorkspaces.end(), n) !=
         kCublasWorkspaces.end();
}

void Attributor::FindKept() {
  kept_.assign(p_.ledger.allocations.size(), false);
  out_.kept = FindKeptSites(p_);
  for (const KeptSite& site : out_.kept) {
    for (AllocationIndex a : site.allocations) kept_[a] = true;
  }
}

/// Where nothing is trained, what the cache's own file makes is the cache.
void Attributor::AttributeCaches() {
  if (!p_.backwards.empty()) return;
  for (const Allocation& x : p_.Between(kBefore, p_.end)) {
    const AllocationIndex a = p_.IndexOf(x);
    if (!Done(a) && (p_.Signs(x) & kSignCache) != 0) Set(a, Category::kKept, Reason::kCache);
  }
}

/// The state of an optimizer that is not PyTorch's: made outside of every module, alive through a
/// whole backward, and together one or more for each gradient, by size.
void Attributor::AttributeOwnOptimizer() {
  std::unordered_map<Bytes, std::int64_t> gradients;
  Bytes all_gradients = 0;
  for (AllocationIndex g : p_.gradient_set) {
    ++gradients[p_.at(g).requested];
    all_gradients += p_.at(g).requested;
  }
  const auto is_open = [&](AllocationIndex a) {
    const Reason r = out_.reason[a];
    return r == Reason::kNone || r == Reason::kBatch || r == Reason::kConstant ||
           r == Reason::kWorkspace || r == Reason::kForwardResult;
  };
  std::map<std::size_t, std::vector<AllocationIndex>> rounds;
  for (const Allocation& x : p_.Between(kBefore, p_.end)) {
    const AllocationIndex a = p_.IndexOf(x);
    if (!is_open(a) || MadeInCall(x) || p_.ThreadOf(x) != Thread::kMain) continue;
    if (gradients.contains(x.requested) && p_.Outlived(x) >= 1) {
      rounds[p_.GapOf(x.made)].push_back(a);
    }
  }
  for (const auto& [gap, round] : rounds) {
    std::unordered_map<Bytes, std::int64_t> made;
    for (AllocationIndex a : round) ++made[p_.at(a).requested];
    Bytes covered = 0;
    for (const auto& [size, count] : gradients) {
      const auto found = made.find(size);
      if (found != made.end()) covered += size * std::min(count, found->second);
    }
    if (all_gradients == 0 || double(covered) < kMostOfTheGradients * double(all_gradients)) {
      continue;
    }
    for (AllocationIndex a : round) {
      Set(a, Category::kOptimizerState, Reason::kOptimizerBySize);
    }
  }
}

/// DDP's buckets by behaviour: few blocks, made together at one place, as large as the gradients.
void Attributor::AttributeBuckets() {
  Bytes gradient_bytes = 0;
  for (AllocationIndex g : p_.gradient_set) gradient_bytes += p_.at(g).requested;
  // Gradients that are views of the buckets have no memory of their own.
  const bool views = gradient_bytes == 0;
  for (AllocationIndex a = 0; views && a < p_.ledger.allocations.size(); ++a) {
    const bool model = out_.category[a] == Category::kParameters;
    if (model && p_.at(a).made != kBefore) gradient_bytes += p_.at(a).requested;
  }
  if (gradient_bytes == 0) return;
  constexpr Bytes kLeastBucket = 256 * kKiB;
  std::map<std::pair<std::uint32_t, std::size_t>, std::vector<AllocationIndex>> groups;
  for (const Allocation& x : p_.Between(kBefore, p_.end)) {
    const AllocationIndex a = p_.IndexOf(x);
    const Reason reason = out_.reason[a];
    const bool candidate = reason == Reason::kWorkspace || reason == Reason::kConstant ||
                           reason == Reason::kForwardResult || reason == Reason::kNone;
    if (!candidate || x.requested < kLeastBucket || p_.ThreadOf(x) != Thread::kMain) continue;
    if (p_.Outlived(x) < 1) continue;
    groups[{p_.stacks.of(x.stack).site, p_.GapOf(x.made)}].push_back(a);
  }
  for (const auto& [key, group] : groups) {
    Bytes total = 0;
    for (AllocationIndex a : group) total += p_.at(a).requested;
    const double ratio = double(total) / double(gradient_bytes);
    if (!views && group.size() * 2 >= p_.gradient_set.size()) continue;
    if (ratio < (views ? 0.9 : 0.98) || ratio > 1.02) continue;
    for (AllocationIndex a : group) Set(a, Category::kGradients, Reason::kGradientBucket);
  }
}

/// What is still open takes the verdict of its place, if that has one.
void Attributor::FollowSites() {
  if (!p_.framed) return;
  std::unordered_map<std::uint32_t, std::array<int, kCategoryCount>> votes;
  for (const Allocation& x : p_.Between(kBefore, kNotYet)) {
    const AllocationIndex a = p_.IndexOf(x);
    const std::uint32_t site = p_.stacks.of(x.stack).site;
    if (site != 0 && Done(a)) ++votes[site][static_cast<std::size_t>(out_.category[a])];
  }
  for (const Allocation& x : p_.Between(kBefore, kNotYet)) {
    const AllocationIndex a = p_.IndexOf(x);
    if (Done(a)) continue;
    const auto found = votes.find(p_.stacks.of(x.stack).site);
    const std::uint16_t signs = p_.Signs(x);
    if (found != votes.end()) {
      const auto best = std::max_element(found->second.begin(), found->second.end());
      Set(a, static_cast<Category>(best - found->second.begin()), Reason::kSameSite);
    } else if ((signs & kSignModuleCall) != 0) {
      const bool stays = p_.Released(x) == kNotYet;
      Set(a, Category::kTemporaries, stays ? Reason::kWorkspace : Reason::kShortLived);
    } else if ((signs & kSignOptimizer) != 0) {
      Set(a, Category::kOptimizerState, Reason::kOptimizerPhase);
    }
  }
}

Attribution Attribute(const Phases& phases) {
  if (!phases.timeline.prediction.empty()) return AsPredicted(phases);
  Attribution attribution = Attributor(phases).Run();
  TakeGiven(phases, attribution);
  return attribution;
}

}  // namespace plimsoll
