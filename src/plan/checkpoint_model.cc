#include "plan/checkpoint_model.h"

#include <algorithm>
#include <functional>
#include <set>

#include "job/time/kernel_time.h"
#include "job/time/step_time.h"
#include "job/transforms/checkpoint.h"

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

class Modeller {
 public:
  Modeller(const Job& job, const Variant& variant, const Gpu& gpu, const LowerOptions& options)
      : job_(job),
        variant_(variant),
        gpu_(gpu),
        at_(job, options.batch),
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

  CheckpointModel Run(const std::vector<std::string>& apart) {
    FindPlain();
    CheckpointSegments segments;
    for (std::string& module : CheckpointModules(job_, variant_)) {
      const bool stays = std::any_of(apart.begin(), apart.end(), [&](const std::string& other) {
        return IsPartOf(other, module);
      });
      if (!stays) segments.push_back({std::move(module)});
    }
    std::vector<CheckpointBlock> blocks(segments.size());
    for (std::size_t i = 0; i < segments.size(); ++i) blocks[i].module = segments[i].front();
    for (const CheckpointedForward& one : FindCheckpointed(job_, variant_, segments)) {
      if (one.calls.front() > begin_) Add(one, blocks[one.segment]);
    }
    const Bytes peak = *std::max_element(model_.plain.begin(), model_.plain.end());
    for (CheckpointBlock& block : blocks) {
      if (SavedBy(block) > peak / kLeastShare) model_.blocks.push_back(std::move(block));
    }
    KeepThoseThatSaveMost();
    FindConflicts();
    return std::move(model_);
  }

 private:
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
    for (CheckpointBlock& block : model_.blocks) {
      for (std::size_t i = 0; i < model_.blocks.size(); ++i) {
        const std::string& other = model_.blocks[i].module;
        const bool nested = IsPartOf(other, block.module) || IsPartOf(block.module, other);
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
    const TimeContext context{
        .model = time_model_, .gpu = gpu_, .torch = {}, .matmul_tf32 = job_.matmul_tf32};
    KernelTime time;
    for (const std::size_t i : one.calls) {
      if (i > one.stop) break;
      const CallRecord& record = variant_.calls[variant_.events[i].index];
      time += TimeOf(Call(record, at_, Stage::kForward), context);
    }
    return time.us + HostModel{}.gap * time.kernels;
  }

  const Job& job_;
  const Variant& variant_;
  const Gpu& gpu_;
  AtBatch at_;
  TimeModel time_model_;
  std::vector<Bytes> bytes_;
  /// By call.
  std::vector<Bytes> beside_;
  /// Where the last step begins.
  std::size_t begin_ = 0;
  CheckpointModel model_;
};

}  // namespace

CheckpointModel ModelCheckpointing(const Job& job, const Variant& variant, const Gpu& gpu,
                                   const LowerOptions& options,
                                   const std::vector<std::string>& apart) {
  return Modeller(job, variant, gpu, options).Run(apart);
}

}  // namespace plimsoll
