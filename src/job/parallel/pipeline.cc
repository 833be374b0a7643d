// A GPU keeps what its micro-batches saved from their forwards to their backwards, and adds up
// their gradients. As torch.distributed.pipelining does it, there are buffers for what is received
// in every micro-batch, made once (docs/prediction.md, "Pipelines").
#include "job/parallel/pipeline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "job/parallel/collective.h"
#include "job/parallel/pipeline_schedule.h"
#include "job/parallel/pipeline_stage.h"
#include "job/transforms/accumulate.h"
#include "job/transforms/job_editor.h"
#include "job/transforms/keep_parameters.h"
#include "job/transforms/tensors_of_call.h"

namespace plimsoll {
namespace {

constexpr int kMostStages = 1024;
constexpr int kMostMicroBatches = 1024;
constexpr int kMostCut = 1 << 20;
constexpr std::string_view kPipelinePlace = "pipeline: received";

/// Writes the variant of one GPU.
class StageWriter {
 public:
  StageWriter(Job& job, const Variant& old, const Pipeline& pipeline, int stage)
      : job_(job),
        old_(old),
        pipeline_(pipeline),
        schedule_(ScheduleOf(pipeline, stage)),
        parts_(TakeApart(job, old, pipeline, stage)),
        parameters_(job, old, parts_.model),
        edit_(job, old, "plimsoll.pipeline") {
    edit_.LeaveOutLater();
    // What is kept is added anew.
    edit_.variant().calls.clear();
    edit_.variant().model_tensors.clear();
    FindGradients();
  }

  Variant Run() {
    std::size_t pass = 0;
    for (std::size_t i = 0; i < old_.events.size(); ++i) {
      if (pass < parts_.passes.size() && i == parts_.passes[pass].begin) {
        RunPass(parts_.passes[pass]);
        i = parts_.passes[pass++].end;
        if (i == old_.events.size()) break;
      }
      RunOutside(old_.events[i]);
    }
    return edit_.Take();
  }

 private:
  using Renamed = std::map<Storage, Storage>;

  void FindGradients() {
    for (const JobEvent& event : old_.events) {
      if (event.kind == JobEvent::Kind::kLabel && event.category == Category::kGradients) {
        gradients_.insert(event.index);
      }
    }
    for (const StagePass& pass : parts_.passes) {
      for (const std::vector<StageItem>& turn : pass.backward) {
        for (const StageItem& item : turn) NoteTied(item);
        for (const StageItem& item : turn) NoteTouches(item);
      }
    }
  }
  /// A parameter that two GPUs have (an embedding that is the head as well) has a gradient on both:
  /// on one of them it is what the capture adds to the other's.
  void NoteTied(const StageItem& item) {
    if (item.kind != StageItem::Kind::kSend || item.bytes.depends()) return;
    for (const ModelTensor& tensor : old_.model_tensors) {
      const bool like = tensor.trainable && parts_.model.contains(tensor.storage) &&
                        BytesOf(job_, tensor) == item.bytes.least();
      if (!like) continue;
      tied_.insert(item.storage);
      gradients_.insert(item.storage);
    }
  }
  void NoteTouches(const StageItem& item) {
    const JobEvent& event = old_.events[item.event];
    if (item.kind != StageItem::Kind::kEvent || event.kind != JobEvent::Kind::kCall) return;
    CallRecord call = old_.calls[event.index];
    const auto touch = [&](Storage storage) {
      if (gradients_.contains(storage)) last_touch_[storage] = item.event;
    };
    ForEachArgument(call, [&](const TensorUse& tensor) { touch(tensor.storage); });
    for (const NewStorage& fresh : call.fresh) touch(fresh.storage);
  }

  // What is in no pass: the model, the optimizer.

  void RunOutside(const JobEvent& event) {
    switch (event.kind) {
      case JobEvent::Kind::kModelTensor:
        return RunModelTensor(old_.model_tensors[event.index]);
      case JobEvent::Kind::kCall: {
        CallRecord call = old_.calls[event.index];
        if (!parameters_.Cut(call)) return;
        for (const NewStorage& fresh : call.fresh) alive_.insert(fresh.storage);
        return edit_.Call(std::move(call));
      }
      case JobEvent::Kind::kFree:
        return LetGo(event.index);
      case JobEvent::Kind::kLabel:
        if (alive_.contains(event.index)) edit_.Copy(event);
        return;
      default:
        // The schedule has returned.
        edit_.Copy(event);
        edit_.FreeNow(sent_);
        edit_.FreeNow(last_output_);
    }
  }
  void RunModelTensor(const ModelTensor& tensor) {
    if (!parts_.model.contains(tensor.storage)) return;
    std::vector<ModelTensor>& kept = edit_.variant().model_tensors;
    edit_.Copy(
        {.kind = JobEvent::Kind::kModelTensor, .index = static_cast<std::uint32_t>(kept.size())});
    kept.push_back(tensor);
  }
  void LetGo(Storage storage) {
    if (alive_.erase(storage) > 0) edit_.Free(storage);
  }

  // A pass: every micro-batch, in the order of the schedule.

  void RunPass(const StagePass& pass) {
    for (const Storage storage : pass.let_go) LetGo(storage);
    for (const Storage storage : tied_) LetGo(storage);
    if (buffers_.empty()) MakeBuffers(pass);
    std::vector<Renamed> own(static_cast<std::size_t>(pipeline_.micro_batches));
    std::vector<int> backwards(own.size(), 0);
    for (const PipelineTurn& turn : schedule_) {
      const auto n = static_cast<std::size_t>(turn.micro_batch);
      const auto chunk = static_cast<std::size_t>(turn.chunk);
      edit_.Copy({.kind = JobEvent::Kind::kStage,
                  .stage = turn.backward ? Stage::kBackward : Stage::kForward});
      for (const StageItem& item : turn.backward ? pass.backward[chunk] : pass.forward[chunk]) {
        RunItem(item, turn, own[n]);
      }
      AddUp(own[n]);
      if (!turn.backward || ++backwards[n] < pipeline_.chunks) continue;
      for (const auto& [storage, number] : std::exchange(own[n], {})) FreeOwn(number);
    }
  }

  void MakeBuffers(const StagePass& pass) {
    for (const PipelineTurn& turn : schedule_) {
      const auto chunk = static_cast<std::size_t>(turn.chunk);
      for (const StageItem& item : turn.backward ? pass.backward[chunk] : pass.forward[chunk]) {
        if (item.kind != StageItem::Kind::kReceive || !item.bytes.depends()) continue;
        const Storage storage = MakeReceived(item.bytes);
        buffers_[BufferOf(item, turn)] = storage;
        lasting_.insert(storage);
      }
    }
  }
  /// By direction, chunk, micro-batch, and the place among those that are received.
  using Buffer = std::tuple<bool, int, int, std::size_t>;
  static Buffer BufferOf(const StageItem& item, const PipelineTurn& turn) {
    return {turn.backward, turn.chunk, turn.micro_batch, item.event};
  }

  void FreeOwn(Storage number) {
    if (!lasting_.contains(number)) edit_.Free(number);
  }

  void RunItem(const StageItem& item, const PipelineTurn& turn, Renamed& own) {
    if (item.kind == StageItem::Kind::kReceive) {
      const auto buffer = buffers_.find(BufferOf(item, turn));
      own[item.storage] = buffer == buffers_.end() ? MakeReceived(item.bytes) : buffer->second;
      return;
    }
    if (item.kind == StageItem::Kind::kSend) {
      if (tied_.contains(item.storage)) return;
      if (turn.backward && pipeline_.chunks == 1) {
        edit_.FreeNow(sent_);
        sending_ = own.at(item.storage);
      }
      return edit_.Call(CallOf(job_, {.kind = Collective::Kind::kSend,
                                      .bytes = item.bytes,
                                      .ranks = pipeline_.stages,
                                      .apart = pipeline_.apart}));
    }
    const JobEvent& event = old_.events[item.event];
    if (event.kind == JobEvent::Kind::kCall) {
      if (std::exchange(has_output_, false)) edit_.FreeNow(last_output_);
      return RunCall(item.event, own);
    }
    if (event.kind == JobEvent::Kind::kLabel) AddUp(own);
    const auto found = own.find(event.index);
    if (found == own.end()) return;
    if (event.kind == JobEvent::Kind::kLabel) return edit_.Label(found->second, event.category);
    // The schedule has the last gradient that it sent, and the last output, in variables.
    if (found->second == sending_) {
      sent_ = std::exchange(sending_, kElsewhere);
    } else if (found->second == new_output_) {
      last_output_ = std::exchange(new_output_, kElsewhere);
    } else {
      FreeOwn(found->second);
    }
    own.erase(found);
  }

  Storage MakeReceived(const Number& bytes) {
    const Storage storage = edit_.NewStorageNumber();
    CallRecord call{.op = job_.strings.Intern("plimsoll.pipeline"),
                    .where = job_.strings.Intern(kPipelinePlace)};
    call.fresh.push_back({.storage = storage, .bytes = bytes});
    edit_.Call(std::move(call));
    return storage;
  }

  void RunCall(std::size_t event, Renamed& own) {
    CallRecord call = old_.calls[old_.events[event].index];
    // Both products of a layer are made before its gradient is added.
    const bool same_layer = call.module == module_ && BaseName(job_.strings[call.op]) == "mm";
    if (!same_layer) AddUp(own);
    module_ = call.module;
    for (NewStorage& fresh : call.fresh) {
      if (gradients_.contains(fresh.storage) && alive_.insert(fresh.storage).second) {
        continue;  // The first micro-batch's: later ones are added to it.
      }
      own[fresh.storage] = edit_.NewStorageNumber();
      fresh.storage = own[fresh.storage];
    }
    const auto rename = [&](TensorUse& tensor) {
      const auto touched = last_touch_.find(tensor.storage);
      if (touched != last_touch_.end() && touched->second == event) {
        complete_.push_back(tensor);
      }
      const auto found = own.find(tensor.storage);
      if (found != own.end()) tensor.storage = found->second;
    };
    ForEachArgument(call, rename);
    for (TensorUse& tensor : call.results) rename(tensor);
    edit_.Call(std::move(call));
    NoteOutput(old_.calls[old_.events[event].index], own);
  }

  void AddUp(Renamed& own) {
    for (const TensorUse& gradient : std::exchange(complete_, {})) Complete(gradient, own);
  }

  void NoteOutput(const CallRecord& captured, const Renamed& own) {
    for (const NewStorage& fresh : captured.fresh) {
      if (!parts_.outputs.contains(fresh.storage)) continue;
      has_output_ = true;
      new_output_ = own.at(fresh.storage);
    }
  }

  void Complete(const TensorUse& gradient, Renamed& own) {
    const auto part = own.find(gradient.storage);
    if (part == own.end()) return edit_.Label(gradient.storage, Category::kGradients);
    TensorUse added = gradient;
    added.storage = part->second;
    CallRecord call{.op = job_.strings.Intern("aten.add_.Tensor"), .module = module_};
    call.args = {{gradient}, {added}};
    call.results = {gradient};
    edit_.Call(std::move(call));
    edit_.Free(part->second);
    own.erase(part);
  }

  Job& job_;
  const Variant& old_;
  const Pipeline& pipeline_;
  const std::vector<PipelineTurn> schedule_;
  const PipelineStage parts_;
  const KeepParameters parameters_;
  JobEditor edit_;
  std::set<Storage> gradients_;
  std::set<Storage> tied_;
  /// Of gradients: the event of their backward that has to do with them last.
  std::map<Storage, std::size_t> last_touch_;
  /// Gradients that the layer of the last call has made.
  std::vector<TensorUse> complete_;
  StringId module_;
  std::map<Buffer, Storage> buffers_;
  /// The gradient of its input that a stage sent last; and the one of this turn.
  Storage sent_ = kElsewhere;
  Storage sending_ = kElsewhere;
  /// The output of the last forward, and that of one whose backward is done.
  Storage new_output_ = kElsewhere;
  bool has_output_ = false;
  Storage last_output_ = kElsewhere;
  std::set<Storage> lasting_;
  /// By their captured numbers: gradients, and what the optimizer has made.
  std::set<Storage> alive_;
};

/// The most that is alive at once, at the first captured batch.
Bytes PeakOf(const Job& job, const Variant& variant) {
  std::vector<Bytes> bytes(variant.storages, 0);
  Bytes alive = 0;
  Bytes most = 0;
  for (const JobEvent& event : variant.events) {
    if (event.kind == JobEvent::Kind::kModelTensor) {
      const ModelTensor& tensor = variant.model_tensors[event.index];
      alive += bytes[tensor.storage] == 0 ? BytesOf(job, tensor) : 0;
      bytes[tensor.storage] = BytesOf(job, tensor);
    }
    if (event.kind == JobEvent::Kind::kCall) {
      for (const NewStorage& fresh : variant.calls[event.index].fresh) {
        alive += bytes[fresh.storage] = std::min<Bytes>(fresh.bytes.least(), kLargestTensor);
      }
    }
    if (event.kind == JobEvent::Kind::kFree) alive -= std::exchange(bytes[event.index], 0);
    most = std::max(most, alive);
  }
  return most;
}

std::optional<Error> CannotPipeline(const Job& job, const Variant& variant,
                                    const Pipeline& pipeline) {
  const std::size_t blocks = ShardGroups(job, variant).all().size() - 1;
  const auto pieces = static_cast<std::size_t>(pipeline.stages * pipeline.chunks);
  if (!pipeline.cuts.empty() && static_cast<std::size_t>(pipeline.cuts.back()) >= blocks) {
    return Error{.message = fmt::format("a piece of the pipeline would begin with block {}; the "
                                        "model has {}, counted from 0",
                                        pipeline.cuts.back(), blocks),
                 .file = job.file,
                 .hint = "cut sooner"};
  }
  if (blocks < pieces) {
    return Error{.message = fmt::format("a pipeline of {} pieces needs as many blocks; the model "
                                        "has {} in numbered lists",
                                        pieces, blocks),
                 .file = job.file,
                 .hint = "take fewer stages"};
  }
  if (PassesOf(variant) == 1) return std::nullopt;
  return Error{.message =
                   "a pipeline divides one forward and backward; the captured step has "
                   "another number of them",
               .file = job.file,
               .hint = "capture a training step with accumulate=1"};
}

/// The GPU with the largest peak. A few micro-batches show it.
int FullestStage(const Job& job, const Variant& variant, Pipeline pipeline) {
  pipeline.micro_batches = std::min(pipeline.micro_batches, 2 * pipeline.stages);
  int fullest = 0;
  Bytes most = 0;
  for (int stage = 0; stage < pipeline.stages; ++stage) {
    Job scratch = CopyOf(job, 0);
    const Bytes peak = PeakOf(job, StageWriter(scratch, variant, pipeline, stage).Run());
    if (peak > most) fullest = stage;
    most = std::max(most, peak);
  }
  return fullest;
}

/// A number at the beginning of the text, which it takes away.
std::optional<int> TakeNumber(std::string_view& text, int least, int most) {
  int number = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number);
  text = std::string_view(at, static_cast<std::size_t>(end - at));
  if (error != std::errc() || number < least || number > most) return std::nullopt;
  return number;
}

bool TakeWord(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

}  // namespace

Result<Pipeline> ParsePipeline(std::string_view text) {
  std::string_view rest = text;
  const std::optional<int> stages = TakeNumber(rest, 2, kMostStages);
  const bool has_second = TakeWord(rest, ":");
  const std::optional<int> micro_batches = TakeNumber(rest, 1, kMostMicroBatches);
  std::optional<int> chunks = 1;
  if (TakeWord(rest, ":interleaved")) chunks = TakeNumber(rest, 2, kMostStages);
  std::vector<int> cuts;
  bool good_cuts = true;
  if (TakeWord(rest, ":cuts")) {
    do {
      const std::optional<int> cut = TakeNumber(rest, cuts.empty() ? 1 : cuts.back() + 1, kMostCut);
      good_cuts = good_cuts && cut.has_value();
      cuts.push_back(cut.value_or(kMostCut));
    } while (good_cuts && TakeWord(rest, "-"));
    good_cuts = good_cuts && stages && chunks &&
                cuts.size() + 1 == static_cast<std::size_t>(*stages * *chunks);
  }
  std::optional<int> stage;
  if (TakeWord(rest, ":stage")) {
    stage = TakeNumber(rest, 0, stages.value_or(1) - 1);
    good_cuts = good_cuts && stage.has_value();
  }
  if (!good_cuts || !stages || !has_second || !micro_batches || !chunks || !rest.empty()) {
    return Error{
        .message = fmt::format("'{}' is no pipeline", text),
        .hint =
            "give stages and micro-batches, 4:16, then :interleaved2 where each GPU has "
            "two pieces, :cuts1-3-6 where four pieces begin with these blocks, :stage0 for "
            "the first GPU instead of the fullest"};
  }
  if (*chunks > 1 && *micro_batches % *stages != 0) {
    return Error{.message =
                     "an interleaved pipeline goes in rounds of as many micro-batches as "
                     "there are stages",
                 .hint = fmt::format("take a multiple of {}", *stages)};
  }
  return Pipeline{.stages = *stages,
                  .micro_batches = *micro_batches,
                  .chunks = *chunks,
                  .cuts = std::move(cuts),
                  .stage = stage};
}

std::string PipelineText(const Pipeline& pipeline) {
  std::string text = fmt::format("{}:{}", pipeline.stages, pipeline.micro_batches);
  if (pipeline.chunks > 1) text += fmt::format(":interleaved{}", pipeline.chunks);
  if (!pipeline.cuts.empty()) text += fmt::format(":cuts{}", fmt::join(pipeline.cuts, "-"));
  if (pipeline.stage) text += fmt::format(":stage{}", *pipeline.stage);
  return text;
}

Result<int> ShownStage(const Job& job, const Variant& variant, const Pipeline& pipeline) {
  if (const std::optional<Error> error = CannotPipeline(job, variant, pipeline)) return *error;
  return pipeline.stage ? *pipeline.stage : FullestStage(job, variant, pipeline);
}

Result<Variant> AddPipeline(Job& job, const Variant& variant, const Pipeline& pipeline) {
  const Result<int> stage = ShownStage(job, variant, pipeline);
  if (!stage) return stage.error();
  return StageWriter(job, variant, pipeline, *stage).Run();
}

std::string DescribePipeline(const Job& job, const Variant& variant, const Pipeline& pipeline,
                             int stage) {
  const ShardGroups groups(job, variant);
  return fmt::format(
      "pipeline: {} blocks on {} GPUs, stage {} (of 0 to {}) is shown; {} micro-batches of the "
      "given size{}; the last one's outputs are not kept (return_outputs=False); stages wait for "
      "each other, which makes a step {:.0f} % longer and is counted",
      groups.all().size() - 1, pipeline.stages, stage, pipeline.stages - 1, pipeline.micro_batches,
      pipeline.chunks > 1 ? fmt::format(", interleaved over {} pieces on each", pipeline.chunks)
                          : std::string(),
      100.0 * (pipeline.stages - 1) / (pipeline.micro_batches * pipeline.chunks));
}

}  // namespace plimsoll
