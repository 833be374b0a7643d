#include "diagnose/findings/remedies.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "allocator/replay/workload.h"
#include "diagnose/findings/checkpointing.h"
#include "diagnose/ways/torch_ways.h"

namespace plimsoll {
namespace {

/// A category is worth a remedy from this share of what is allocated on.
constexpr double kWorthIt = 0.1;
/// What recomputing saves, of what is allocated, to be worth its time.
constexpr double kWorthRecomputing = 0.02;

class Study {
 public:
  explicit Study(const Evidence& e) : e_(e), p_(e.trace.phases) {
    const std::vector<std::uint8_t> pools = PoolsOfEvents(p_.timeline);
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
      if (e.trace.attribution.category[a] == Category::kActivations) {
        activations_.push_back(a);
        const std::uint8_t pool = x.made < 0 ? x.pool : pools[static_cast<std::size_t>(x.made)];
        (p_.timeline.pools[pool] == PoolId{} ? shared_ : captured_) += x.block;
      }
      const bool in_pass = (signs & kSignOptimizer) == 0;
      if (e.trace.attribution.reason[a] == Reason::kShortLived && in_pass) passing_ += x.block;
    }
    // Autocast makes a copy of half the size of each weight that it uses.
    const auto copied = std::count_if(halves_of_parameters_.begin(), halves_of_parameters_.end(),
                                      [](const auto& half) { return half.second; });
    mixed_precision_ |= copied * 2 >= static_cast<std::ptrdiff_t>(halves_of_parameters_.size());
    plan_ = PlanCheckpointing(p_, activations_);
    const double least = kWorthRecomputing * double(e.account.allocated);
    if (plan_ && double(plan_->saves) < least) plan_.reset();
    trains_ = p_.Trains() || (p_.fatal && plan_);
  }

  std::vector<Remedy> Run() const {
    std::vector<Remedy> remedies;
    if (Large(Category::kActivations)) {
      if (plan_ && trains_ && !checkpointed_) remedies.push_back(CheckpointingRemedy(*plan_));
      if (plan_ && !p_.Trains()) remedies.push_back(NoGradient());
      if (!mixed_precision_) remedies.push_back(MixedPrecision());
      remedies.push_back(trains_ ? Accumulation() : SmallerBatch());
      if (captured_ > shared_) ForCapture(remedies);
    }
    if (trains_ && Large(Category::kOptimizerState)) AddOptimizer(remedies);
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

  /// What grows with the batch.
  Bytes OfTheBatch() const {
    return Held(Category::kActivations) + Held(Category::kInputs) + passing_;
  }
  Remedy NoGradient() const;
  Remedy MixedPrecision() const;
  Remedy Accumulation() const;
  Remedy SmallerBatch() const;
  static void ForCapture(std::vector<Remedy>& remedies);
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
  /// A job that dies in its first forward and holds what its blocks made, as if for a backward, is
  /// taken to be one that trains; that it may not be is said beside.
  bool trains_ = false;
  /// Activations in the pools that every request is served from, and in pools of their own: those
  /// of CUDA graphs, whose captured work cannot be changed by editing the loop.
  Bytes shared_ = 0;
  Bytes captured_ = 0;
  std::optional<CheckpointPlan> plan_;
};

/// Where no backward is recorded, but results of earlier blocks are held as if for one.
Remedy Study::NoGradient() const {
  return {.change = "torch.no_grad() around the forward, if nothing is trained here",
          .saves = plan_->saves,
          .remark = "the record holds no backward, yet what earlier blocks made is still there",
          .basis = Basis::kEstimated,
          .lever = Lever::kEvaluation,
          .code = {"with torch.no_grad():", "    outputs = model(x)"},
          .at_most = true};
}

Remedy Study::MixedPrecision() const {
  const bool trains = trains_;
  return {.change =
              trains ? "bf16 autocast around forward and loss" : "bf16 autocast around the forward",
          .saves = Held(Category::kActivations) / 2,
          .costs = "other rounding",
          .remark = "what is in 16 bits already, or is an index or a mask, does not shrink",
          .basis = Basis::kEstimated,
          .lever = Lever::kMixedPrecision,
          .code = {"with torch.autocast(\"cuda\", dtype=torch.bfloat16):",
                   trains ? "    loss = criterion(model(x), y)" : "    outputs = model(x)"},
          .at_most = true};
}

Remedy Study::Accumulation() const {
  return {.change = "half the batch, twice the accumulation steps",
          .saves = OfTheBatch() / 2,
          .remark = "the same gradients, except that batch norm sees smaller batches",
          .basis = Basis::kEstimated,
          .lever = Lever::kSmallerBatch,
          .code = {"for i, (x, y) in enumerate(loader):  # loader with batch_size // 2",
                   "    (criterion(model(x), y) / 2).backward()",
                   "    if i % 2 == 1: optimizer.step(); optimizer.zero_grad()"}};
}

Remedy Study::SmallerBatch() const {
  return {.change = "half the batch",
          .saves = OfTheBatch() / 2,
          .costs = "more batches for the same work",
          .basis = Basis::kEstimated,
          .lever = Lever::kSmallerBatch};
}

void Study::ForCapture(std::vector<Remedy>& remedies) {
  for (Remedy& remedy : remedies) {
    remedy.remark += remedy.remark.empty() ? "" : "; ";
    remedy.remark += "it has to be in place before the CUDA graph is captured";
    remedy.code.clear();
  }
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
  remedies.push_back(ShardedOver(2, shared));
  remedies.back().change = "shard parameters, gradients and optimizer state over two GPUs (FSDP2)";
  remedies.back().costs = "a second GPU, and communication in every step";
}

/// What runs the loop, by the files of the record's stacks.
FrameworkSet FrameworksIn(const Timeline& timeline) {
  FrameworkSet found;
  std::set<StringId> seen;
  for (std::size_t i = 0; i < timeline.stacks.frame_count(); ++i) {
    const StringId file = timeline.stacks.frame(FrameId(i)).file;
    if (seen.insert(file).second) found |= FrameworksOfFile(timeline.stacks.strings[file]);
  }
  return found;
}

std::optional<TorchWay> WayOf(Lever lever) {
  switch (lever) {
    case Lever::kSmallerBatch:
      return TorchWay::kAccumulate;
    case Lever::kCheckpointing:
      return TorchWay::kCheckpoint;
    case Lever::kMixedPrecision:
      return TorchWay::kAutocast;
    case Lever::kOptimizer:
      return TorchWay::kSmallOptimizer;
    case Lever::kSharding:
      return TorchWay::kShard;
    default:
      return {};
  }
}

/// The lines to type as the framework that runs the loop has them; what they save is the same.
void TypeAsSwitches(std::span<const Framework> frameworks, std::vector<Remedy>& remedies) {
  for (Remedy& remedy : remedies) {
    const std::optional<TorchWay> way = WayOf(remedy.lever);
    if (!way || remedy.code.empty() || !HasSwitch(*way, frameworks)) continue;
    remedy.code = RemedyOf(*way, frameworks)->code;
    for (std::string& line : remedy.code) {
      for (const auto& [place, words] :
           {std::pair("{batch}", "HALF"), std::pair("{steps}", "TWICE")}) {
        const std::size_t at = line.find(place);
        if (at != std::string::npos) line.replace(at, std::string_view(place).size(), words);
      }
    }
  }
}

}  // namespace

Remedy ShardedOver(std::size_t ranks, Bytes held) {
  const auto n = static_cast<Bytes>(ranks);
  return {
      .change = fmt::format(
          "shard parameters, gradients and optimizer state over the {} GPUs of the job (FSDP2), "
          "if they are not sharded yet",
          ranks),
      .saves = held / n * (n - 1),
      .costs = "communication in every step",
      .basis = Basis::kEstimated,
      .lever = Lever::kSharding,
      .code = {"from torch.distributed.fsdp import fully_shard",
               "for block in model.blocks: fully_shard(block)", "fully_shard(model)"}};
}

std::vector<Remedy> MemoryRemedies(const Evidence& evidence) {
  std::vector<Remedy> remedies = Study(evidence).Run();
  TypeAsSwitches(SpokenBy(FrameworksIn(evidence.trace.timeline)), remedies);
  return remedies;
}

}  // namespace plimsoll
