#include "job/answer/predicted_snapshot.h"

#include <fmt/format.h>

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "allocator/replay/replay.h"
#include "files/pickle_writer.h"
#include "job/answer/place_parts.h"
#include "job/answer/predict.h"
#include "timeline/predicted_run.h"

namespace plimsoll {
namespace {

/// Frames of PyTorch's that say in which phase of a step something is made, as they stand in a
/// recorded stack.
struct PhaseFrame {
  const char* function;
  const char* file;
};
constexpr PhaseFrame kBuildFrame = {"_apply", "site-packages/torch/nn/modules/module.py"};
constexpr PhaseFrame kCallFrame = {"_call_impl", "site-packages/torch/nn/modules/module.py"};
constexpr PhaseFrame kEngineFrame = {"_engine_run_backward",
                                     "site-packages/torch/autograd/graph.py"};
constexpr PhaseFrame kOptimizerFrame = {"step", "site-packages/torch/optim/optimizer.py"};

/// The name under which PyTorch marks an optimizer's step.
constexpr std::string_view kOptimizerMark = "Optimizer.step#predicted.step";

using BlockId = CachingAllocator::BlockId;
using In = CachingAllocator::State;

class SnapshotWriter {
 public:
  SnapshotWriter(const Trial& trial, const PickleWriter::Sink& sink)
      : trial_(trial),
        lowered_(trial.lowered()),
        setting_(trial.setting()),
        strings_(setting_.job->strings),
        pickle_(sink),
        driver_(nothing_recorded_),
        replayer_(lowered_.workload, {.rules = setting_.rules, .limits = trial.shown().limits},
                  driver_, &log_) {}

  void Write() {
    pickle_.BeginDict();
    pickle_.Text(kPredictionKey);
    pickle_.Text(Description());
    Field(kPredictedTorchKey, setting_.torch.ToText());
    pickle_.Text("device_traces");
    pickle_.BeginList();
    pickle_.BeginList();
    WriteEvents();
    pickle_.EndList();
    pickle_.EndList();
    pickle_.Text("segments");
    WriteSegments();
    pickle_.Text("external_annotations");
    WriteAnnotations();
    pickle_.Text("allocator_settings");
    WriteSettings();
    pickle_.EndDict();
    pickle_.Finish();
  }

 private:
  struct Mark {
    std::string name;
    bool start = true;
    std::int64_t time = 0;
  };

  std::string Description() const {
    return fmt::format("{}, batch {} on {}", setting_.job->file, setting_.batch, setting_.gpu.name);
  }

  void WriteEvents() {
    for (std::size_t i = 0; i < lowered_.workload.requests.size(); ++i) {
      MarkStretches(i);
      replayer_.Run(i);
      for (const ReplayLog::Entry& entry : log_.entries) WriteEntry(entry, i);
      log_.entries.clear();
    }
    EndMark(optimizer_);
    EndMark(part_);
  }

  /// Where an optimizer's step, or a part behind the steps, begins and ends.
  void MarkStretches(std::size_t index) {
    const Moment& moment = lowered_.moments[index];
    const bool steps = moment.part == Moment::kSteps;
    const bool optimizer = moment.stage == Stage::kOptimizer && steps;
    SetMark(optimizer_, optimizer ? std::optional(moment.step) : std::nullopt, kOptimizerMark);
    const std::size_t part = PartPeaks::IndexOf(moment);
    SetMark(part_, steps ? std::nullopt : std::optional(static_cast<int>(part)),
            steps ? "" : StageName(StageOfPart(trial_, part)));
  }

  struct Open {
    std::optional<int> number;
    std::string name;
  };
  void SetMark(Open& open, std::optional<int> number, std::string_view name) {
    if (open.number == number) return;
    EndMark(open);
    open = {number, std::string(name)};
    if (number) marks_.push_back({open.name, true, time_ + 1});
  }
  void EndMark(Open& open) {
    if (open.number) marks_.push_back({open.name, false, time_});
    open.number.reset();
  }

  void WriteEntry(const ReplayLog::Entry& entry, std::size_t index) {
    const Request& request = lowered_.workload.requests[index];
    const bool expandable = setting_.rules.settings.expandable_segments;
    switch (entry.what) {
      case ReplayLog::What::kMemory:
        return WriteEvent(expandable ? "segment_map" : "segment_alloc", entry, entry.size, request);
      case ReplayLog::What::kMemoryGone:
        return WriteEvent(expandable ? "segment_unmap" : "segment_free", entry, entry.size,
                          request);
      case ReplayLog::What::kBlock:
        return WriteEvent("alloc", entry, RequestedOf(request), request, index);
      case ReplayLog::What::kBlockGone:
        WriteEvent("free_requested", entry, RequestedOf(request), request);
        return WriteEvent("free_completed", entry, RequestedOf(request), request);
    }
  }

  Bytes RequestedOf(const Request& request) const {
    return lowered_.blocks[request.allocation].requested;
  }

  void WriteEvent(std::string_view action, const ReplayLog::Entry& entry, Bytes size,
                  const Request& request, std::optional<std::size_t> made = std::nullopt) {
    pickle_.BeginDict();
    Field("action", action);
    Field("addr", static_cast<std::int64_t>(entry.address));
    Field("size", size);
    Field("stream", static_cast<std::int64_t>(lowered_.workload.streams[request.stream]));
    Field("time_us", ++time_);
    if (made) {
      const LoweredBlock& block = lowered_.blocks[request.allocation];
      Field(kPredictedCategoryKey, CategoryName(block.category));
      const std::string_view module = ModuleOf(block);
      Field("user_metadata", module.empty() ? "" : fmt::format("{}{}", kModuleNote, module));
      pickle_.Text("frames");
      WriteFrames(block, lowered_.moments[*made]);
    } else {
      pickle_.Text("frames");
      WriteNoFrames();
    }
    pickle_.EndDict();
    pickle_.Split();
  }

  void Field(std::string_view key, std::string_view text) {
    pickle_.Text(key);
    pickle_.Text(text);
  }
  void Field(std::string_view key, std::int64_t number) {
    pickle_.Text(key);
    pickle_.Number(number);
  }

  std::string_view ModuleOf(const LoweredBlock& block) const {
    if (block.call == LoweredBlock::kNoCall) return {};
    return strings_[setting_.variant().calls[block.call].module];
  }
  std::string_view PlaceOf(const LoweredBlock& block) const {
    if (block.call != LoweredBlock::kNoCall) {
      const CallRecord& call = setting_.variant().calls[block.call];
      const std::string_view where = strings_[call.where];
      return where.empty() ? strings_[call.op] : where;
    }
    return block.model_tensor != LoweredBlock::kNoCall ? "the model" : "";
  }

  void WriteNoFrames() {
    if (no_frames_) return pickle_.Again(*no_frames_);
    pickle_.BeginList();
    pickle_.EndList();
    no_frames_ = pickle_.Keep();
  }

  /// The line that answers for it, then what phase of a step that is, then whoever calls that.
  void WriteFrames(const LoweredBlock& block, const Moment& moment) {
    const std::string_view place = PlaceOf(block);
    const Stage stage = moment.stage;
    const bool called = stage == Stage::kForward && !ModuleOf(block).empty();
    const auto [found, is_new] = stacks_.try_emplace({place, stage, called}, 0);
    if (!is_new) return pickle_.Again(found->second);
    pickle_.BeginList();
    if (!place.empty()) {
      const PlaceParts parts = PartsOf(place);
      WriteFrame(parts.function, parts.file.empty() ? kPredictedFile : parts.file, parts.line);
    }
    if (stage == Stage::kBuild) WriteFrame(kBuildFrame);
    if (called) WriteFrame(kCallFrame);
    if (stage == Stage::kOptimizer) WriteFrame(kOptimizerFrame);
    // Autograd's thread has nobody outside of PyTorch.
    if (stage == Stage::kBackward) {
      WriteFrame(kEngineFrame);
    } else {
      WriteFrame("the predicted run", kPredictedFile, 0);
    }
    pickle_.EndList();
    found->second = pickle_.Keep();
  }
  void WriteFrame(const PhaseFrame& frame) { WriteFrame(frame.function, frame.file, 0); }
  void WriteFrame(std::string_view function, std::string_view file, std::int32_t line) {
    pickle_.BeginDict();
    Field("name", function);
    Field("filename", file);
    Field("line", line);
    pickle_.EndDict();
  }

  /// What is held at the end: pieces that lie beside each other are a segment.
  void WriteSegments() {
    const CachingAllocator& allocator = replayer_.allocator();
    const std::vector<std::uint32_t> owners = replayer_.Owners();
    const auto held = [&](BlockId id) {
      return id != CachingAllocator::kNone && allocator.block(id).state != In::kUnused &&
             allocator.block(id).state != In::kUnmapped;
    };
    pickle_.BeginList();
    for (BlockId id = 0; id < allocator.blocks().size(); ++id) {
      const CachingAllocator::Block& first = allocator.block(id);
      if (!held(id) || held(first.prev)) continue;
      Bytes total = 0;
      for (BlockId b = id; held(b); b = allocator.block(b).next) total += allocator.block(b).size;
      pickle_.BeginDict();
      Field("device", 0);
      Field("address", static_cast<std::int64_t>(first.address));
      Field("total_size", total);
      Field("stream", static_cast<std::int64_t>(lowered_.workload.streams[first.stream]));
      Field("segment_type", allocator.IsSmall(first.pool) ? "small" : "large");
      pickle_.Text("segment_pool_id");
      pickle_.Number(0);
      pickle_.Number(0);
      pickle_.Pair();
      pickle_.Text("is_expandable");
      pickle_.Truth(setting_.rules.settings.expandable_segments);
      pickle_.Text("frames");
      WriteNoFrames();
      pickle_.Text("blocks");
      pickle_.BeginList();
      for (BlockId b = id; held(b); b = allocator.block(b).next) {
        WriteBlock(allocator.block(b), owners[b]);
      }
      pickle_.EndList();
      pickle_.EndDict();
    }
    pickle_.EndList();
  }

  void WriteBlock(const CachingAllocator::Block& block, std::uint32_t owner) {
    const bool used = owner != Ledger::kNoAllocation;
    pickle_.BeginDict();
    Field("address", static_cast<std::int64_t>(block.address));
    Field("size", block.size);
    Field("requested_size", used ? lowered_.blocks[owner].requested : 0);
    Field("state", used ? "active_allocated" : "inactive");
    pickle_.Text("frames");
    WriteNoFrames();
    pickle_.EndDict();
  }

  void WriteAnnotations() {
    pickle_.BeginList();
    for (const Mark& mark : marks_) {
      pickle_.BeginDict();
      Field("name", mark.name);
      Field("stage", mark.start ? "START" : "END");
      Field("device", 0);
      Field("time_us", mark.time);
      pickle_.EndDict();
    }
    pickle_.EndList();
  }

  void WriteSettings() {
    const AllocatorSettings& settings = setting_.rules.settings;
    pickle_.BeginDict();
    Field("PYTORCH_CUDA_ALLOC_CONF", FormatSettings(settings));
    pickle_.Text("expandable_segments");
    pickle_.Truth(settings.expandable_segments);
    pickle_.Text("roundup_power2_divisions");
    pickle_.BeginDict();
    for (std::size_t i = 0; i < settings.roundup_power2_divisions.size(); ++i) {
      Field(std::to_string(1 << i), settings.roundup_power2_divisions[i]);
    }
    pickle_.EndDict();
    pickle_.EndDict();
  }

  const Trial& trial_;
  const Lowered& lowered_;
  const Setting& setting_;
  const StringTable& strings_;
  PickleWriter pickle_;
  const Timeline nothing_recorded_;
  AssumedDriver driver_;
  ReplayLog log_;
  Replayer replayer_;
  std::map<std::tuple<std::string_view, Stage, bool>, PickleWriter::Kept> stacks_;
  std::optional<PickleWriter::Kept> no_frames_;
  std::vector<Mark> marks_;
  Open optimizer_;
  Open part_;
  std::int64_t time_ = 0;
};

}  // namespace

void WritePredictedSnapshot(const Trial& trial, const std::function<void(std::string_view)>& sink) {
  SnapshotWriter(trial, sink).Write();
}

}  // namespace plimsoll
