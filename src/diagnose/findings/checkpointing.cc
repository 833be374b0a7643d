#include "diagnose/findings/checkpointing.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>

#include "base/median.h"

namespace plimsoll {
namespace {

/// Fewer repetitions of a block are not worth recomputing.
constexpr std::int64_t kLeastBlocks = 3;
constexpr double kNearlyAll = 0.9;

/// A place of the program, and what it holds at the instant.
struct Site {
  std::vector<CallLine> calls;
  std::int64_t count = 0;
  Bytes bytes = 0;
};
using Sites = std::vector<const Site*>;

/// The blocks that one line calls.
struct Blocks {
  CallLine caller;
  Bytes bytes = 0;
  std::int64_t count = 0;
  /// A typical tensor of theirs stands for the input that checkpointing keeps of each.
  Bytes tensor = 0;

  Bytes Saved() const { return std::max<Bytes>(0, bytes - count * tensor); }
};

/// All blocks at one depth of calls.
struct Level {
  std::vector<Blocks> blocks;
  Bytes saves = 0;
};

/// The largest number that divides how often nearly all of the bytes are there: a line inside a
/// block holds one tensor for each block, or two, or three.
std::int64_t BlockCount(const Sites& sites) {
  std::map<std::int64_t, Bytes> by_count;
  Bytes all = 0;
  for (const Site* site : sites) {
    by_count[site->count] += site->bytes;
    all += site->bytes;
  }
  for (auto candidate = by_count.rbegin(); candidate != by_count.rend(); ++candidate) {
    Bytes divided = 0;
    for (const auto& [count, bytes] : by_count) {
      divided += count % candidate->first == 0 ? bytes : 0;
    }
    if (double(divided) >= kNearlyAll * double(all)) return candidate->first;
  }
  return 0;
}

Blocks BlocksOf(const Sites& sites) {
  Blocks blocks{.count = BlockCount(sites)};
  if (blocks.count < kLeastBlocks) return blocks;
  std::vector<Bytes> tensors;
  for (const Site* site : sites) {
    if (site->count % blocks.count != 0) continue;
    blocks.bytes += site->bytes;
    tensors.push_back(site->bytes / site->count);
  }
  blocks.tensor = UpperMedian(tensors);
  return blocks;
}

/// A line that only calls on has one line behind it for nearly all that it holds (a wrapper's
/// forward, a model around a model): the sites behind the innermost such line, and how deep it is.
std::pair<Sites, std::size_t> PassWrappers(Sites sites, std::size_t depth) {
  for (;;) {
    Bytes all = 0;
    std::map<CallLine, std::pair<Bytes, Sites>> by_next;
    for (const Site* site : sites) {
      all += site->bytes;
      if (site->calls.size() <= depth) continue;
      auto& [bytes, behind] = by_next[site->calls[depth]];
      bytes += site->bytes;
      behind.push_back(site);
    }
    const auto most = std::max_element(
        by_next.begin(), by_next.end(),
        [](const auto& a, const auto& b) { return a.second.first < b.second.first; });
    const bool one =
        most != by_next.end() && double(most->second.first) >= kNearlyAll * double(all);
    if (!one) return {std::move(sites), depth};
    sites = Sites(most->second.second);
    ++depth;
  }
}

Level LevelAt(const std::vector<Site>& sites, std::size_t depth) {
  std::map<std::vector<CallLine>, Sites> by_caller;
  for (const Site& site : sites) {
    if (site.calls.size() < depth) continue;
    const std::span callers(site.calls.data(), depth);
    by_caller[{callers.begin(), callers.end()}].push_back(&site);
  }
  Level level;
  Bytes again = 0;  // one block at a time is computed again
  for (auto& [caller, all] : by_caller) {
    const auto [inside, at] = PassWrappers(std::move(all), depth);
    Blocks blocks = BlocksOf(inside);
    if (blocks.count < kLeastBlocks || blocks.Saved() == 0) continue;
    blocks.caller = inside.front()->calls[at - 1];
    level.saves += blocks.Saved();
    again = std::max(again, blocks.bytes / blocks.count);
    level.blocks.push_back(blocks);
  }
  level.saves = std::max<Bytes>(0, level.saves - again);
  return level;
}

std::vector<Site> SitesOf(const Phases& p, const std::vector<AllocationIndex>& activations) {
  std::map<std::uint32_t, Site> by_place;
  for (AllocationIndex a : activations) {
    const StackTraits& traits = p.stacks.of(p.at(a).stack);
    if ((traits.signs & kSignModuleCall) == 0) continue;
    Site& site = by_place[traits.site];
    if (site.count == 0) site.calls = p.stacks.CallLines(p.at(a).stack);
    ++site.count;
    site.bytes += p.at(a).block;
  }
  std::vector<Site> sites;
  for (auto& [place, site] : by_place) sites.push_back(std::move(site));
  return sites;
}

}  // namespace

std::optional<CheckpointPlan> PlanCheckpointing(const Phases& phases,
                                                const std::vector<AllocationIndex>& activations) {
  const std::vector<Site> sites = SitesOf(phases, activations);
  std::size_t deepest = 0;
  for (const Site& site : sites) deepest = std::max(deepest, site.calls.size());
  Level best;
  for (std::size_t depth = 1; depth <= deepest; ++depth) {
    Level level = LevelAt(sites, depth);
    if (level.saves > best.saves) best = std::move(level);
  }
  if (best.blocks.empty()) return std::nullopt;
  const auto most =
      std::max_element(best.blocks.begin(), best.blocks.end(),
                       [](const Blocks& a, const Blocks& b) { return a.Saved() < b.Saved(); });
  return CheckpointPlan{.line = phases.stacks.Where(most->caller.frame),
                        .own_line = phases.stacks.IsUser(most->caller.frame),
                        .inside_module = most->caller.through_torch,
                        .others = best.blocks.size() > 1,
                        .saves = best.saves};
}

Remedy CheckpointingRemedy(const CheckpointPlan& plan) {
  Remedy remedy{.change = fmt::format("activation checkpointing of the blocks {} {} calls{}",
                                      plan.inside_module ? "inside the module that" : "that",
                                      plan.line, plan.others ? " and of those like them" : ""),
                .saves = plan.saves,
                .costs = "about a third more time a step: each block's forward runs twice",
                .basis = Basis::kEstimated,
                .lever = Lever::kCheckpointing};
  if (plan.own_line && !plan.inside_module) {
    remedy.code = {"from torch.utils.checkpoint import checkpoint",
                   "x = checkpoint(block, x, use_reentrant=False)  # instead of x = block(x)"};
    return remedy;
  }
  // The line cannot be edited, or calls more than the blocks: they are wrapped from outside.
  if (!plan.own_line) {
    remedy.code = {
        "model.gradient_checkpointing_enable()  # if its library has such a switch; else:"};
  }
  remedy.code.insert(
      remedy.code.end(),
      {"import torch.distributed.algorithms._checkpoint.checkpoint_wrapper as wrapper",
       "# Block: the class of those blocks",
       "wrapper.apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, Block))"});
  return remedy;
}

}  // namespace plimsoll
