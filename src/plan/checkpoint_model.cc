#include "plan/checkpoint_model.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "job/rules/attention.h"
#include "job/time/kernel_time.h"
#include "job/time/step_time.h"
#include "job/transforms/block_offload.h"
#include "job/transforms/checkpoint.h"
#include "plan/kept_results.h"

namespace plimsoll {
namespace {

/// Event i is moment 2i + 1; what is computed again before it, moment 2i.
constexpr std::size_t Before(std::size_t event) { return 2 * event; }
constexpr std::size_t After(std::size_t event) { return 2 * event + 2; }

/// What saves less than this part of the peak is not worth a checkpoint.
constexpr Bytes kLeastShare = 1000;
/// Of more modules than this, those that save the most: the search for sets takes longer than their
/// number grows.
constexpr std::size_t kMostModules = 400;
/// Blocks of which something is kept, likewise; few ways for each where there are many.
constexpr std::size_t kMostSelective = 400;
constexpr std::size_t kMostPolicies = 6, kFewestPolicies = 2;
/// The part of the forward that a block of which something is kept may be.
constexpr double kLargestBlock = 0.2;
/// What a copy beside the kernels takes of their time, as part of its own: little, by which fewer
/// are chosen.
constexpr double kPriceOfCopy = 0.02;
/// A way to keep something has to be so much faster than the block computed again as a whole.
constexpr double kWorthKeeping = 0.9;

class Modeller {
 public:
  Modeller(const Job& job, const Variant& variant, const Gpu& gpu, const LowerOptions& options)
      : job_(job),
        variant_(variant),
        gpu_(gpu),
        at_(job, options.batch),
        torch_(options.torch),
        time_model_(TimeModelOf(gpu)),
        bytes_(variant.storages) {
    LowerOptions as_captured = options;
    as_captured.steps = 0;
    for (std::size_t i = 0; i < variant.events.size(); ++i) {
      if (variant.events[i].kind != JobEvent::Kind::kStep) continue;
      begin_ = i;
      ++as_captured.steps;
    }
    FindBeside(Lower(job, variant, gpu, as_captured));
  }

  CheckpointModel Run(const CheckpointScope& scope) {
    FindPlain();
    CheckpointSegments segments;
    for (std::string& module : CheckpointModules(job_, variant_)) {
      const bool stays =
          std::any_of(scope.apart.begin(), scope.apart.end(),
                      [&](const std::string& other) { return IsPartOf(other, module); });
      if (!stays) segments.push_back({.modules = {std::move(module)}});
    }
    const std::vector<CheckpointedForward> found = Add(segments);
    KeepThoseThatSaveMost();
    if (scope.selective) {
      const std::vector<const CheckpointedForward*> blocks = BlocksOf(segments, found);
      Add(Selective(segments, blocks));
      AddWaiting(segments, blocks);
    }
    FindConflicts();
    return std::move(model_);
  }

 private:
  /// What each segment changes, if it is worth it; and where they are in the last step.
  std::vector<CheckpointedForward> Add(const CheckpointSegments& segments) {
    std::vector<CheckpointBlock> blocks(segments.size());
    for (std::size_t i = 0; i < segments.size(); ++i) blocks[i].module = segments[i].Text();
    std::vector<CheckpointedForward> found = FindCheckpointed(job_, variant_, segments);
    std::erase_if(found, [&](const auto& one) { return one.calls.front() <= begin_; });
    for (const CheckpointedForward& one : found) Add(one, blocks[one.segment]);
    const Bytes peak = *std::max_element(model_.plain.begin(), model_.plain.end());
    for (std::size_t i = 0; i < segments.size(); ++i) {
      if (SavedBy(blocks[i]) <= peak / kLeastShare) continue;
      whole_us_.try_emplace(segments[i].modules.front(), blocks[i].us);
      if (!segments[i].kept.empty() &&
          blocks[i].us > kWorthKeeping * whole_us_.at(segments[i].modules.front())) {
        continue;
      }
      model_.blocks.push_back(std::move(blocks[i]));
    }
    return found;
  }

  /// The outermost modules that take a small part of the forward, so that not much is made again at
  /// once; in the order of the forward.
  std::vector<const CheckpointedForward*> BlocksOf(
      const CheckpointSegments& whole, const std::vector<CheckpointedForward>& found) const {
    const double most_us = kLargestBlock * ForwardTime();
    std::vector<const CheckpointedForward*> blocks;
    for (const CheckpointedForward& one : found) {
      const std::string& module = whole[one.segment].modules.front();
      const auto us = whole_us_.find(module);
      if (us == whole_us_.end() || us->second > most_us) continue;
      const bool outermost = std::none_of(blocks.begin(), blocks.end(), [&](const auto* other) {
        return IsPartOf(module, whole[other->segment].modules.front());
      });
      if (outermost) blocks.push_back(&one);
    }
    std::ranges::stable_sort(blocks, {}, [](const auto* one) { return one->calls.front(); });
    return blocks;
  }

  CheckpointSegments Selective(const CheckpointSegments& whole,
                               const std::vector<const CheckpointedForward*>& blocks) const {
    if (blocks.empty()) return {};
    const std::size_t ways =
        std::clamp(kMostSelective / blocks.size(), kFewestPolicies, kMostPolicies);
    CheckpointSegments segments;
    for (const CheckpointedForward* one : blocks) {
      for (std::vector<KeptCall>& kept : WaysToKeep(ResultsOf(*one), ways)) {
        segments.push_back({.modules = whole[one->segment].modules, .kept = std::move(kept)});
      }
    }
    return segments;
  }

  /// Blocks whose results wait on the host: so far apart that each is copied while those between
  /// them are computed, and the copies cost nothing.
  void AddWaiting(const CheckpointSegments& whole,
                  const std::vector<const CheckpointedForward*>& blocks) {
    const TimeContext context{
        .model = time_model_, .gpu = gpu_, .torch = {}, .matmul_tf32 = job_.matmul_tf32};
    if (gpu_.interconnect.host <= 0) return;
    const CheckpointedForward* before = nullptr;
    double copying_us = 0;
    Bytes leaving = 0;
    double since_us = 0;
    for (const CheckpointedForward* one : blocks) {
      if (before != nullptr) {
        since_us += whole_us_.at(whole[one->segment].modules.front());
        if (since_us < copying_us) continue;
        const CheckpointSegment segment{.modules = whole[before->segment].modules,
                                        .waits_for = whole[one->segment].modules.front()};
        CheckpointBlock block{.module = segment.Text(), .us = kPriceOfCopy * copying_us};
        Change(block, After(one->calls.back()), Before(one->first_need), -leaving);
        model_.blocks.push_back(std::move(block));
      }
      const std::vector<Storage> storages = LeavingOf(variant_, *one);
      leaving = 0;
      for (const Storage storage : storages) leaving += bytes_[storage];
      if (leaving == 0) {
        before = nullptr;
        continue;
      }
      copying_us = HostCopyTime(double(leaving), double(storages.size()), context);
      since_us = 0;
      before = one;
    }
  }

  /// Of the last step.
  double ForwardTime() const {
    double us = 0;
    Stage stage = Stage::kUnknown;
    for (std::size_t i = begin_; i < variant_.events.size(); ++i) {
      const JobEvent& event = variant_.events[i];
      if (event.kind == JobEvent::Kind::kStage) stage = event.stage;
      if (event.kind == JobEvent::Kind::kCall && stage == Stage::kForward) {
        us += TimeToCompute(variant_.calls[event.index]);
      }
    }
    return us;
  }

  /// What each call of a module made, up to where a checkpoint stops to repeat it.
  std::vector<MadeResult> ResultsOf(const CheckpointedForward& one) const {
    const std::set<std::size_t> keepable = FindKeepable(job_, variant_, one.calls);
    std::map<StringId, std::size_t> seen;
    std::vector<MadeResult> results;
    for (const std::size_t i : one.calls) {
      const CallRecord& record = variant_.calls[variant_.events[i].index];
      const Call call(record, at_, Stage::kForward);
      MadeResult result{.op = job_.strings[record.op],
                        .nth = seen[record.op]++,
                        .us = TimeToCompute(record),
                        .random = IsRandom(job_, record),
                        .repeated = i <= one.stop,
                        .keepable = keepable.contains(i) && IsOneOperator(call)};
      for (const NewStorage& fresh : record.fresh) {
        const bool lives_anyway =
            std::any_of(one.copied.begin(), one.copied.end(),
                        [&](const auto& copy) { return copy.storage == fresh.storage; });
        if (!lives_anyway) result.bytes += bytes_[fresh.storage];
      }
      results.push_back(result);
    }
    return results;
  }

  /// What a policy is asked about under that name: attention in its mathematical form is many.
  bool IsOneOperator(const Call& call) const {
    const std::optional<Attention> attention = ReadAttention(call);
    if (!attention) {
      // Casts of weights are autocast's, which keeps them itself; which operator normalizes a batch
      // is PyTorch's choice on the GPU.
      const std::string_view name = BaseName(call.op());
      return call.op().starts_with("aten.") && name != "_to_copy" &&
             name.find("batch_norm") == std::string_view::npos;
    }
    return ChooseAttention(*attention, gpu_, torch_) != AttentionKernel::kMath;
  }

  void KeepThoseThatSaveMost() {
    std::vector<CheckpointBlock>& blocks = model_.blocks;
    if (blocks.size() <= kMostModules) return;
    std::vector<Bytes> saved;
    for (const CheckpointBlock& block : blocks) saved.push_back(SavedBy(block));
    std::vector<Bytes> sorted = saved;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    const Bytes least = sorted[kMostModules - 1];
    std::vector<CheckpointBlock> kept;
    for (std::size_t i = 0; i < blocks.size() && kept.size() < kMostModules; ++i) {
      if (saved[i] >= least) kept.push_back(std::move(blocks[i]));
    }
    blocks = std::move(kept);
  }

  void FindConflicts() {
    const auto module_of = [](const CheckpointBlock& block) {
      const std::string_view name = block.module;
      return name.substr(0, name.find('['));
    };
    for (CheckpointBlock& block : model_.blocks) {
      const std::string_view module = module_of(block);
      for (std::size_t i = 0; i < model_.blocks.size(); ++i) {
        const std::string_view other = module_of(model_.blocks[i]);
        const bool nested = IsPartOf(other, module) || IsPartOf(module, other);
        if (nested && &model_.blocks[i] != &block) block.conflicts.push_back(i);
      }
    }
  }

  /// What each call takes besides its results, for as long as it runs.
  void FindBeside(const Lowered& lowered) {
    beside_.assign(variant_.calls.size(), 0);
    std::vector<Bytes> now(variant_.calls.size(), 0);
    for (std::size_t i = 0; i < lowered.workload.requests.size(); ++i) {
      const Request& request = lowered.workload.requests[i];
      const std::uint32_t call = lowered.moments[i].call;
      if (call == LoweredBlock::kNoCall) continue;
      const bool borrows = request.kind == Request::Kind::kBorrow;
      const LoweredBlock* block = request.allocation < lowered.blocks.size()
                                      ? &lowered.blocks[request.allocation]
                                      : nullptr;
      const bool own = block != nullptr && block->beside && block->call == call;
      if (request.kind == Request::Kind::kAllocate && own) now[call] += request.size;
      beside_[call] = std::max(beside_[call], now[call] + (borrows ? request.size : 0));
      if (request.kind == Request::Kind::kFree && own) now[call] -= block->requested;
    }
  }

  void FindPlain() {
    Bytes alive = 0;
    for (const ModelTensor& tensor : variant_.model_tensors) {
      bytes_[tensor.storage] = at_.layout(tensor.layout).bytes();
    }
    std::vector<Bytes> held(variant_.storages, 0);
    for (std::size_t i = 0; i < variant_.events.size(); ++i) {
      const JobEvent& event = variant_.events[i];
      if (i > begin_) model_.plain.push_back(alive);
      if (event.kind == JobEvent::Kind::kModelTensor) {
        const Storage storage = variant_.model_tensors[event.index].storage;
        if (held[storage] == 0) alive += held[storage] = bytes_[storage];
      } else if (event.kind == JobEvent::Kind::kCall) {
        const CallRecord& call = variant_.calls[event.index];
        for (const NewStorage& fresh : call.fresh) {
          alive += held[fresh.storage] = bytes_[fresh.storage] = at_.BytesOf(call, fresh);
        }
      }
      const bool calls = event.kind == JobEvent::Kind::kCall;
      if (i > begin_) model_.plain.push_back(alive + (calls ? beside_[event.index] : 0));
      if (event.kind == JobEvent::Kind::kFree) {
        alive -= held[event.index];
        held[event.index] = 0;
      }
    }
  }

  static Bytes SavedBy(const CheckpointBlock& block) {
    Bytes saved = 0;
    for (const MemoryChange& change : block.changes) saved -= std::min(change.bytes, Bytes{0});
    return saved;
  }

  void Change(CheckpointBlock& block, std::size_t begin, std::size_t end, Bytes bytes) const {
    const std::size_t first = Before(begin_ + 1);
    if (begin < end && bytes != 0) {
      block.changes.push_back({.begin = begin - first, .end = end - first, .bytes = bytes});
    }
  }

  void Add(const CheckpointedForward& one, CheckpointBlock& block) const {
    const std::size_t again = Before(one.first_need);
    Bytes dropped = 0;
    for (const auto& [storage, last] : one.dropped) {
      Change(block, After(last), again, -bytes_[storage]);
      dropped += bytes_[storage];
    }
    Change(block, again, again + 1, MostWhileComputing(one) - dropped);
    for (const CheckpointedForward::Copy& copy : one.copied) {
      Change(block, After(copy.released), Before(copy.freed), -bytes_[copy.storage]);
      Change(block, again + 1, After(copy.own_uses.back()), bytes_[copy.storage]);
    }
    for (const auto& [storage, freed] : one.kept_passing) {
      Change(block, Before(freed), again + 1, bytes_[storage]);
    }
    for (const CheckpointedForward::Input& input : one.inputs) {
      Change(block, Before(input.freed), After(one.last_need), bytes_[input.storage]);
    }
    block.us += TimeToCompute(one);
  }

  Bytes MostWhileComputing(const CheckpointedForward& one) const {
    const std::set<std::size_t> own(one.calls.begin(), one.calls.end());
    std::set<Storage> passing;
    Bytes alive = 0;
    Bytes most = 0;
    for (std::size_t i = one.calls.front(); i <= one.stop; ++i) {
      const JobEvent& event = variant_.events[i];
      if (one.kept.contains(i)) continue;
      if (own.contains(i)) {
        for (const NewStorage& fresh : variant_.calls[event.index].fresh) {
          alive += bytes_[fresh.storage];
          if (!one.Needs(fresh.storage)) passing.insert(fresh.storage);
        }
        most = std::max(most, alive + beside_[event.index]);
      } else if (event.kind == JobEvent::Kind::kFree && passing.erase(event.index) > 0) {
        alive -= bytes_[event.index];
      }
    }
    return most;
  }

  double TimeToCompute(const CheckpointedForward& one) const {
    double us = 0;
    for (const std::size_t i : one.calls) {
      if (i > one.stop) break;
      if (!one.kept.contains(i)) us += TimeToCompute(variant_.calls[variant_.events[i].index]);
    }
    return us;
  }

  double TimeToCompute(const CallRecord& record) const {
    const TimeContext context{
        .model = time_model_, .gpu = gpu_, .torch = {}, .matmul_tf32 = job_.matmul_tf32};
    const KernelTime time = TimeOf(Call(record, at_, Stage::kForward), context);
    return time.us + HostModel{}.gap * time.kernels;
  }

  const Job& job_;
  const Variant& variant_;
  const Gpu& gpu_;
  AtBatch at_;
  TorchVersion torch_;
  TimeModel time_model_;
  std::vector<Bytes> bytes_;
  /// By call.
  std::vector<Bytes> beside_;
  /// Where the last step begins.
  std::size_t begin_ = 0;
  CheckpointModel model_;
  /// Of the modules that are worth a checkpoint, computed again as a whole.
  std::map<std::string, double> whole_us_;
};

}  // namespace

CheckpointModel ModelCheckpointing(const Job& job, const Variant& variant, const Gpu& gpu,
                                   const LowerOptions& options, const CheckpointScope& scope) {
  return Modeller(job, variant, gpu, options).Run(scope);
}

}  // namespace plimsoll
