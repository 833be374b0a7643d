#include "diagnose/findings/remedies.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>

#include "base/median.h"

namespace plimsoll {
namespace {

/// A category is worth a remedy from this share of what is allocated on.
constexpr double kWorthIt = 0.1;
/// Fewer repetitions of a block are not worth recomputing.
constexpr std::int64_t kLeastBlocks = 3;

/// The blocks that one line of the model calls again and again: the layers of a transformer, the
/// parts of a stage.
struct Blocks {
  std::string line;  // "modeling_gpt2.py:939 in forward"
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

class Study {
 public:
  explicit Study(const Evidence& e) : e_(e), p_(e.trace.phases) {
    for (AllocationIndex a = 0; a < p_.ledger.allocations.size(); ++a) {
      const Allocation& x = p_.at(a);
      if (x.made > e.instant) break;
      const std::uint16_t signs = p_.Signs(x);
      mixed_precision_ |= (signs & (kSignScalerStep | kSignAutocast)) != 0;
      checkpointed_ |= (signs & kSignCheckpoint) != 0;
      if (e.trace.attribution.category[a] == Category::kParameters) {
        halves_of_parameters_.emplace(x.requested / 2, false);
      } else if ((signs & kSignModuleCall) != 0) {
        const auto half = halves_of_parameters_.find(x.requested);
        if (half != halves_of_parameters_.end()) half->second = true;
      }
      if (!x.HeldAt(e.instant)) continue;
      if (e.trace.attribution.category[a] == Category::kActivations) activations_.push_back(a);
      const bool in_pass = (signs & kSignOptimizer) == 0;
      if (e.trace.attribution.reason[a] == Reason::kShortLived && in_pass) passing_ += x.block;
    }
    // Autocast makes a copy of half the size of each weight that it uses.
    const auto copied = std::count_if(halves_of_parameters_.begin(), halves_of_parameters_.end(),
                                      [](const auto& half) { return half.second; });
    mixed_precision_ |= copied * 2 >= static_cast<std::ptrdiff_t>(halves_of_parameters_.size());
  }

  std::vector<Remedy> Run() {
    std::vector<Remedy> remedies;
    if (Large(Category::kActivations)) {
      if (!checkpointed_) AddCheckpointing(remedies);
      if (!mixed_precision_) remedies.push_back(MixedPrecision());
      remedies.push_back(SmallerBatch());
    }
    if (Large(Category::kOptimizerState)) AddOptimizer(remedies);
    std::stable_sort(remedies.begin(), remedies.end(), [](const Remedy& a, const Remedy& b) {
      return a.saves.value_or(0) > b.saves.value_or(0);
    });
    return remedies;
  }

 private:
  Bytes Held(Category c) const { return e_.account.by_category[static_cast<std::size_t>(c)]; }
  bool Large(Category c) const {
    return double(Held(c)) >= kWorthIt * double(e_.account.allocated);
  }

  Level BestLevel() const;
  void AddCheckpointing(std::vector<Remedy>& remedies) const;
  Remedy MixedPrecision() const;
  Remedy SmallerBatch() const;
  void AddOptimizer(std::vector<Remedy>& remedies) const;

  const Evidence& e_;
  const Phases& p_;
  std::vector<AllocationIndex> activations_;
  /// Temporaries of forward and backward, which are as large as the batch makes them.
  Bytes passing_ = 0;
  /// Half of the size of each parameter, and whether a module made a tensor of that size.
  std::map<Bytes, bool> halves_of_parameters_;
  bool mixed_precision_ = false;
  bool checkpointed_ = false;
};

/// A place of the program, and what it holds at the instant.
struct Site {
  std::vector<FrameId> modules;
  std::int64_t count = 0;
  Bytes bytes = 0;
};

/// The largest number that divides how often nearly all of the bytes are there: a line inside a
/// block holds one tensor for each block, or two, or three.
std::int64_t BlockCount(const std::vector<const Site*>& sites) {
  constexpr double kNearlyAll = 0.9;
  std::map<std::int64_t, Bytes> by_count;
  Bytes all = 0;
  for (const Site* site : sites) {
    by_count[site->count] += site->bytes;
    all += site->bytes;
  }
  for (auto candidate = by_count.rbegin(); candidate != by_count.rend(); ++candidate) {
    Bytes divided = 0;
    for (const auto& [count, bytes] : by_count)
      divided += count % candidate->first == 0 ? bytes : 0;
    if (double(divided) >= kNearlyAll * double(all)) return candidate->first;
  }
  return 0;
}

Blocks BlocksOf(const std::vector<const Site*>& sites) {
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

Level LevelAt(const Phases& p, const std::map<std::uint32_t, Site>& sites, std::size_t depth) {
  std::map<std::vector<FrameId>, std::vector<const Site*>> by_caller;
  for (const auto& [place, site] : sites) {
    if (site.modules.size() <= depth) continue;
    by_caller[{site.modules.begin(), site.modules.begin() + static_cast<std::ptrdiff_t>(depth)}]
        .push_back(&site);
  }
  Level level;
  Bytes again = 0;  // one block at a time is computed again
  for (const auto& [caller, inside] : by_caller) {
    Blocks blocks = BlocksOf(inside);
    if (blocks.count < kLeastBlocks || blocks.Saved() == 0) continue;
    blocks.line = p.stacks.Where(caller.back());
    level.saves += blocks.Saved();
    again = std::max(again, blocks.bytes / blocks.count);
    level.blocks.push_back(std::move(blocks));
  }
  level.saves = std::max<Bytes>(0, level.saves - again);
  return level;
}

Level Study::BestLevel() const {
  std::map<std::uint32_t, Site> sites;
  std::size_t deepest = 0;
  for (AllocationIndex a : activations_) {
    const StackTraits& traits = p_.stacks.of(p_.at(a).stack);
    if ((traits.signs & kSignModuleCall) == 0) continue;
    Site& site = sites[traits.site];
    if (site.count == 0) site.modules = p_.stacks.ModuleFrames(p_.at(a).stack);
    ++site.count;
    site.bytes += p_.at(a).block;
    deepest = std::max(deepest, site.modules.size());
  }
  Level best;
  for (std::size_t depth = 1; depth < deepest; ++depth) {
    Level level = LevelAt(p_, sites, depth);
    if (level.saves > best.saves) best = std::move(level);
  }
  return best;
}

void Study::AddCheckpointing(std::vector<Remedy>& remedies) const {
  Level level = BestLevel();
  if (level.blocks.empty() || double(level.saves) < 0.02 * double(e_.account.allocated)) return;
  const auto most =
      std::max_element(level.blocks.begin(), level.blocks.end(),
                       [](const Blocks& a, const Blocks& b) { return a.Saved() < b.Saved(); });
  Remedy remedy{
      .change = fmt::format("activation checkpointing of the blocks that {} calls{}", most->line,
                            level.blocks.size() > 1 ? " and of those like them" : ""),
      .saves = level.saves,
      .costs = "about a third more time a step: each block's forward runs twice",
      .basis = Basis::kEstimated,
      .lever = Lever::kCheckpointing};
  if (most->line.starts_with("modeling_")) {
    remedy.code = {"model.gradient_checkpointing_enable()  # Hugging Face models"};
  } else {
    remedy.code = {"from torch.utils.checkpoint import checkpoint",
                   "x = checkpoint(block, x, use_reentrant=False)  # instead of x = block(x)"};
  }
  remedies.push_back(std::move(remedy));
}

Remedy Study::MixedPrecision() const {
  return {.change = "bf16 autocast around forward and loss",
          .saves = Held(Category::kActivations) / 2,
          .costs =
              "other rounding; what is in 16 bits already, or is an index or a mask, does not "
              "shrink",
          .basis = Basis::kEstimated,
          .lever = Lever::kMixedPrecision,
          .code = {"with torch.autocast(\"cuda\", dtype=torch.bfloat16):",
                   "    loss = criterion(model(x), y)"},
          .at_most = true};
}

Remedy Study::SmallerBatch() const {
  return {.change = "half the batch, twice the accumulation steps",
          .saves = (Held(Category::kActivations) + Held(Category::kInputs) + passing_) / 2,
          .costs = "the same gradients, except that batch norm sees smaller batches",
          .basis = Basis::kEstimated,
          .lever = Lever::kSmallerBatch,
          .code = {"for i, (x, y) in enumerate(loader):  # loader with batch_size // 2",
                   "    (criterion(model(x), y) / 2).backward()",
                   "    if i % 2 == 1: optimizer.step(); optimizer.zero_grad()"}};
}

void Study::AddOptimizer(std::vector<Remedy>& remedies) const {
  const Bytes state = Held(Category::kOptimizerState);
  // Adam's is twice the weights; others have another form, or none that fits into 8 bits.
  const double ratio = double(state) / double(std::max<Bytes>(1, Held(Category::kParameters)));
  if (ratio > 1.5 && ratio < 2.5) {
    remedies.push_back({.change = "keep the optimizer's state in 8 bits, if it is Adam's",
                        .saves = state / 4 * 3,
                        .costs = "slightly different updates",
                        .basis = Basis::kEstimated,
                        .lever = Lever::kOptimizer,
                        .code = {"import bitsandbytes as bnb",
                                 "optimizer = bnb.optim.AdamW8bit(model.parameters(), lr=lr)"}});
  }
  const Bytes shared = state + Held(Category::kGradients) + Held(Category::kParameters);
  remedies.push_back(
      {.change = "shard parameters, gradients and optimizer state over two GPUs (FSDP2)",
       .saves = shared / 2,
       .costs = "a second GPU, and communication in every step",
       .basis = Basis::kEstimated,
       .lever = Lever::kSharding,
       .code = {"from torch.distributed.fsdp import fully_shard",
                "for block in model.blocks: fully_shard(block)", "fully_shard(model)"}});
}

}  // namespace

std::vector<Remedy> MemoryRemedies(const Evidence& evidence) { return Study(evidence).Run(); }

}  // namespace plimsoll
