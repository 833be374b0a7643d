#include "job/lowering/lower.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "job/rules/rules.h"

namespace plimsoll {
namespace {

constexpr std::uint32_t kNone = Ledger::kNoAllocation;
/// All requests together end here, where addresses would: a job of a real size stays far below,
/// and what is beyond fits nowhere.
constexpr Bytes kMostBytes = Bytes{1} << 60;
/// Rules hold a handful for a storage; what a file makes them hold beyond this stays for good.
constexpr std::size_t kMostHeld = 100;

/// Where the captured steps begin and end in the events.
struct StepSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
};

std::vector<StepSpan> FindSteps(const Variant& variant) {
  std::vector<StepSpan> spans;
  for (std::size_t i = 0; i < variant.events.size(); ++i) {
    if (variant.events[i].kind != JobEvent::Kind::kStep) continue;
    if (!spans.empty()) spans.back().end = i;
    spans.push_back({.begin = i, .end = variant.events.size()});
  }
  return spans;
}

Category CategoryIn(Stage stage) {
  switch (stage) {
    case Stage::kBuild:
      return Category::kParameters;
    case Stage::kTransfer:
      return Category::kInputs;
    case Stage::kForward:
      return Category::kActivations;
    default:
      return Category::kTemporaries;
  }
}

class Lowerer final : public Emitter {
 public:
  Lowerer(const Job& job, const Variant& variant, const Gpu& gpu, const LowerOptions& options)
      : at_(job, options.batch),
        variant_(variant),
        gpu_(gpu),
        options_(options),
        held_(variant.storages) {
    block_of_.assign(variant.storages, kNone);
    lowered_.workload.captures = {false};
    std::size_t streams = 1;
    for (const CallRecord& call : variant.calls) {
      facts_.push_back(FactsOf(job.strings[call.op]));
      streams = std::max<std::size_t>(streams, call.stream + std::size_t{1});
    }
    lowered_.workload.streams.resize(streams);
    std::iota(lowered_.workload.streams.begin(), lowered_.workload.streams.end(), 0);
  }

  Lowered Run() {
    const std::vector<StepSpan> steps = FindSteps(variant_);
    RunEvents(0, steps.empty() ? variant_.events.size() : steps.front().begin);
    const auto captured = static_cast<int>(steps.size());
    for (int i = 0; i < options_.steps && captured > 0; ++i) {
      moment_.step = i;
      if (i < captured) {
        RunEvents(steps[static_cast<std::size_t>(i)].begin, steps[static_cast<std::size_t>(i)].end);
      } else if (captured >= 2) {
        Shift(steps[steps.size() - 2], steps.back());
        RunEvents(steps.back().begin, steps.back().end);
      }
    }
    lowered_.workload.allocations = lowered_.blocks.size();
    return std::move(lowered_);
  }

  // Emitter.
  const Gpu& gpu() const override { return gpu_; }
  const Calibration* calibration() const override { return options_.calibration; }
  TorchVersion torch() const override { return options_.torch; }

  Slot Take(Bytes bytes) override {
    if (bytes <= 0) return {};
    const std::uint32_t block = Allocate(bytes, Category::kTemporaries);
    lowered_.blocks[block].beside = true;
    return {block};
  }
  Slot Take(const Workspace& workspace) override { return Take(Estimated(workspace)); }
  void Borrow(const Workspace& workspace) override {
    Bytes bytes = Estimated(workspace);
    if (bytes <= 0) return;
    bytes = Count(bytes);
    const auto block = static_cast<std::uint32_t>(lowered_.blocks.size());
    lowered_.blocks.push_back({.requested = bytes, .call = moment_.call, .beside = true});
    users_.push_back(0);
    lowered_.borrows = true;
    Request(bytes, block, plimsoll::Request::Kind::kBorrow);
  }
  void Give(Slot slot) override {
    if (slot.valid()) Release(slot.value);
  }

  void Make(std::size_t fresh) override { Make(fresh, call_->FreshBytes(fresh)); }
  void Make(std::size_t fresh, Bytes bytes) override {
    if (fresh >= made_.size() || made_[fresh]) return;
    made_[fresh] = true;
    const Storage storage = call_->FreshStorage(fresh);
    block_of_[storage] = bytes > 0 ? Allocate(bytes, CategoryIn(moment_.stage)) : kNone;
  }
  void Reuse(std::size_t fresh, Storage argument) override {
    if (fresh >= made_.size() || made_[fresh]) return;
    const std::uint32_t block = block_of_[argument];
    if (block == kNone) return;
    made_[fresh] = true;
    block_of_[call_->FreshStorage(fresh)] = block;
    ++users_[block];
  }

  void Hold(Storage storage, int name, Bytes bytes) override {
    if (bytes <= 0) return;
    const std::uint32_t block = Allocate(bytes, CategoryIn(moment_.stage));
    lowered_.blocks[block].beside = true;
    std::vector<Held>& held = held_[storage];
    if (held.size() >= kMostHeld) return;
    const auto after = std::upper_bound(held.begin(), held.end(), name,
                                        [](int n, const Held& h) { return n < h.name; });
    held.insert(after, {.name = name, .block = block});
  }
  void GiveHeld(Storage storage, int name) override {
    std::vector<Held>& held = held_[storage];
    const auto found =
        std::find_if(held.begin(), held.end(), [&](const Held& h) { return h.name == name; });
    if (found == held.end()) return;
    Release(found->block);
    held.erase(found);
  }

  void Keep(std::string_view name, int thread, Bytes bytes) override {
    if (!kept_.emplace(name, thread).second || bytes <= 0) return;
    lowered_.blocks[Allocate(bytes, Category::kWorkspaces)].beside = true;
  }

  bool DiesSoon(Storage storage) const override {
    int calls = 0;
    for (std::size_t i = event_ + 1; i < variant_.events.size() && calls < 2; ++i) {
      const JobEvent& event = variant_.events[i];
      if (event.kind == JobEvent::Kind::kFree && event.index == storage) return true;
      if (event.kind == JobEvent::Kind::kCall) ++calls;
    }
    return false;
  }

 private:
  struct Held {
    int name = 0;
    std::uint32_t block = 0;
  };

  Bytes Estimated(const Workspace& workspace) {
    lowered_.certain &= workspace.likely == workspace.upper;
    return options_.estimate == Estimate::kUpper ? workspace.upper : workspace.likely;
  }
  /// What is left of a request, once those before it are counted.
  Bytes Count(Bytes bytes) {
    bytes = std::min(bytes, std::max<Bytes>(1, kMostBytes - asked_));
    asked_ += bytes;
    return bytes;
  }
  std::uint32_t Allocate(Bytes bytes, Category category) {
    bytes = Count(bytes);
    const auto block = static_cast<std::uint32_t>(lowered_.blocks.size());
    lowered_.blocks.push_back({.requested = bytes, .category = category, .call = moment_.call});
    users_.push_back(1);
    Request(bytes, block, plimsoll::Request::Kind::kAllocate);
    return block;
  }
  void Release(std::uint32_t block) { Request(0, block, plimsoll::Request::Kind::kFree); }
  void Request(Bytes bytes, std::uint32_t block, plimsoll::Request::Kind kind) {
    std::vector<plimsoll::Request>& requests = lowered_.workload.requests;
    requests.push_back({.size = bytes,
                        .allocation = block,
                        .event = static_cast<EventIndex>(requests.size()),
                        .stream = stream_,
                        .kind = kind});
    lowered_.moments.push_back(moment_);
  }

  void RunEvents(std::size_t begin, std::size_t end) {
    for (event_ = begin; event_ < end; ++event_) RunEvent(variant_.events[event_]);
  }

  void RunEvent(const JobEvent& event) {
    switch (event.kind) {
      case JobEvent::Kind::kModelTensor:
        return RunModelTensor(event.index);
      case JobEvent::Kind::kStep:
        moment_.stage = Stage::kUnknown;
        moment_.call = LoweredBlock::kNoCall;
        return;
      case JobEvent::Kind::kStage:
        moment_.stage = event.stage;
        moment_.call = LoweredBlock::kNoCall;
        return;
      case JobEvent::Kind::kCall:
        return RunCall(event.index);
      case JobEvent::Kind::kFree:
        return RunFree(event.index);
      case JobEvent::Kind::kLabel:
        if (const std::uint32_t block = block_of_[event.index]; block != kNone) {
          lowered_.blocks[block].category = event.category;
        }
        return;
    }
  }

  void RunModelTensor(std::uint32_t index) {
    const ModelTensor& tensor = variant_.model_tensors[index];
    const Bytes bytes = at_.layout(tensor.layout).bytes();
    if (bytes <= 0 || block_of_[tensor.storage] != kNone) return;
    moment_.call = LoweredBlock::kNoCall;
    const std::uint32_t block = Allocate(bytes, Category::kParameters);
    lowered_.blocks[block].model_tensor = index;
    block_of_[tensor.storage] = block;
  }

  void RunCall(std::uint32_t index) {
    const CallRecord& record = variant_.calls[index];
    const Call call(record, at_, moment_.stage);
    call_ = &call;
    stream_ = record.stream;
    moment_.call = index;
    made_.assign(record.fresh.size(), false);
    if (facts_[index].rule != nullptr) facts_[index].rule(call, *this);
    for (std::size_t i = 0; i < record.fresh.size(); ++i) Make(i);
    if (!facts_[index].known && moment_.step <= 0) {
      ++lowered_.unknown[std::string(call.op())];
    }
    call_ = nullptr;
    stream_ = 0;
  }

  /// What is held under a negative name goes first, then the storage itself, then the rest.
  void RunFree(Storage storage) {
    std::vector<Held> held = std::move(held_[storage]);
    held_[storage].clear();
    const auto own =
        std::find_if(held.begin(), held.end(), [](const Held& h) { return h.name >= 0; });
    for (auto h = held.begin(); h != own; ++h) Release(h->block);
    const std::uint32_t block = block_of_[storage];
    block_of_[storage] = kNone;
    if (block != kNone && --users_[block] == 0) Release(block);
    for (auto h = own; h != held.end(); ++h) Release(h->block);
  }

  /// A storage, and by what it can be known again in another step.
  struct Made {
    Storage storage = 0;
    StringId op;
    std::int64_t bytes = 0;

    bool Like(const Made& other) const { return op == other.op && bytes == other.bytes; }
  };

  /// Before the last captured step runs once more: what it calls a storage of the step before is
  /// now that storage's counterpart in itself. The step before may have made more (DDP lays out its
  /// buckets there): those have none.
  void Shift(const StepSpan& before, const StepSpan& last) {
    const std::vector<Made> older = MadeIn(before);
    std::size_t next = 0;
    for (const Made& newer : MadeIn(last)) {
      std::size_t found = next;
      while (found < older.size() && !older[found].Like(newer)) ++found;
      if (found == older.size()) continue;
      const Storage storage = older[found].storage;
      block_of_[storage] = std::exchange(block_of_[newer.storage], kNone);
      held_[storage] = std::exchange(held_[newer.storage], {});
      next = found + 1;
    }
  }
  std::vector<Made> MadeIn(const StepSpan& span) const {
    std::vector<Made> made;
    for (std::size_t i = span.begin; i < span.end; ++i) {
      if (variant_.events[i].kind != JobEvent::Kind::kCall) continue;
      const CallRecord& call = variant_.calls[variant_.events[i].index];
      for (const NewStorage& fresh : call.fresh) {
        made.push_back({.storage = fresh.storage, .op = call.op, .bytes = fresh.bytes.first});
      }
    }
    return made;
  }

  const AtBatch at_;
  const Variant& variant_;
  const Gpu& gpu_;
  const LowerOptions options_;
  /// By call.
  std::vector<OperatorFacts> facts_;
  /// By storage: its block, and what is held for it.
  std::vector<std::uint32_t> block_of_;
  std::vector<std::vector<Held>> held_;
  /// By block: how many storages lie in it.
  std::vector<int> users_;
  std::set<std::pair<std::string, int>, std::less<>> kept_;
  Moment moment_;
  std::size_t event_ = 0;
  const Call* call_ = nullptr;
  std::uint16_t stream_ = 0;
  std::vector<char> made_;
  /// By all requests so far.
  Bytes asked_ = 0;
  Lowered lowered_;
};

}  // namespace

Lowered Lower(const Job& job, const Variant& variant, const Gpu& gpu, const LowerOptions& options) {
  return Lowerer(job, variant, gpu, options).Run();
}

}  // namespace plimsoll
