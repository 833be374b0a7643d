#include "job/transforms/chunked_loss.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "job/transforms/chunked_cross_entropy.h"
#include "job/transforms/chunked_log_probs.h"
#include "job/transforms/linear_loss.h"
#include "job/transforms/tensors_of_call.h"

namespace plimsoll {
namespace {

/// One loss, written anew in the way of its kind.
class LossWriter {
 public:
  LossWriter(const LinearLoss& loss, int chunks) : by_kind_(Make(loss, chunks)) {}

  void Forward(CallWriter write) {
    std::visit([&](auto& writer) { writer.Forward(write); }, by_kind_);
  }
  void Backward(CallWriter write) {
    std::visit([&](auto& writer) { writer.Backward(write); }, by_kind_);
  }

 private:
  using ByKind = std::variant<CrossEntropyWriter, LogProbsWriter>;
  static ByKind Make(const LinearLoss& loss, int chunks) {
    const auto* entropy = std::get_if<CrossEntropy>(&loss.kind);
    if (entropy != nullptr) return CrossEntropyWriter(loss, *entropy, chunks);
    return LogProbsWriter(loss, std::get<LogProbabilities>(loss.kind), chunks);
  }

  ByKind by_kind_;
};

/// Until which event what a loss reads is needed.
struct Needed {
  Storage storage = kElsewhere;
  std::size_t until = 0;
};

/// The logits, as the script can name them, in all types.
std::set<Storage> LogitsIn(const Job& job, const Variant& variant, const LinearLoss& loss) {
  std::set<Storage> logits;
  for (const std::size_t event : loss.events) {
    const CallRecord& call = variant.calls[variant.events[event].index];
    const std::string_view op = BaseName(job.strings[call.op]);
    if (event >= loss.forward || op == "_log_softmax") continue;
    for (const NewStorage& fresh : call.fresh) {
      if (loss.inner.contains(fresh.storage)) logits.insert(fresh.storage);
    }
  }
  return logits;
}

/// The last event that frees one of these; nothing where one is not freed.
std::optional<std::size_t> FreedAt(const Variant& variant, std::set<Storage> storages) {
  std::size_t last = 0;
  for (std::size_t i = 0; i < variant.events.size() && !storages.empty(); ++i) {
    if (variant.events[i].kind != JobEvent::Kind::kFree) continue;
    if (storages.erase(variant.events[i].index) > 0) last = i;
  }
  return storages.empty() ? std::optional(last) : std::nullopt;
}

/// A cross-entropy has its gradients when it is there; log-probabilities are computed anew in the
/// backward, of copies of the rows where positions were sliced off.
std::vector<Needed> NeededBy(const LinearLoss& loss) {
  const Storage hidden = loss.hidden.storage;
  const Storage labels = loss.labels.storage;
  const auto* own = std::get_if<LogProbabilities>(&loss.kind);
  if (own == nullptr || !loss.backward) return {{hidden, loss.forward}, {labels, loss.forward}};
  const std::size_t backward = *loss.backward;
  const std::size_t copied = own->rows == loss.rows ? backward : loss.forward;
  return {{hidden, copied},
          {labels, copied},
          {own->entropy.storage, backward},
          {own->of_own.storage, backward},
          {own->of_entropy.storage, backward}};
}

/// The step with its losses written anew.
class Chunker {
 public:
  Chunker(Job& job, const Variant& old, const std::vector<LinearLoss>& losses, int chunks)
      : job_(job), old_(old), edit_(job, old, "plimsoll.loss") {
    writers_.reserve(losses.size());
    for (const LinearLoss& loss : losses) {
      writers_.emplace_back(loss, chunks);
      for (const std::size_t event : loss.events) dropped_.insert(event);
      for (const Storage storage : loss.inner) inner_.insert(storage);
    }
    for (std::size_t i = 0; i < losses.size(); ++i) {
      forward_[losses[i].forward] = &writers_[i];
      if (losses[i].backward) backward_[*losses[i].backward] = &writers_[i];
      MoveFrees(losses[i]);
    }
  }

  Variant Run() {
    for (std::size_t i = 0; i < old_.events.size(); ++i) {
      const JobEvent& event = old_.events[i];
      const auto forward = forward_.find(i);
      const auto backward = backward_.find(i);
      if (forward != forward_.end()) {
        forward->second->Forward({job_, edit_, old_.calls[event.index]});
      } else if (backward != backward_.end()) {
        backward->second->Backward({job_, edit_, old_.calls[event.index]});
      } else if (!dropped_.contains(i) && !OfInner(event)) {
        edit_.Copy(event);
      }
      const auto frees = frees_after_.find(i);
      if (frees == frees_after_.end()) continue;
      for (const Storage storage : frees->second) edit_.Free(storage);
    }
    FreeWithLogits();
    return edit_.Take();
  }

 private:
  /// What plimsoll.apply hands the script are logits that are not computed: as long as the script
  /// has them they have the hidden states.
  /// (Log-probabilities are made in a function, whose variables end with it.)
  void MoveFrees(const LinearLoss& loss) {
    const std::set<Storage> logits = LogitsIn(job_, old_, loss);
    const std::optional<std::size_t> freed = FreedAt(old_, logits);
    for (Needed needed : NeededBy(loss)) {
      const bool is_one_number = std::holds_alternative<CrossEntropy>(loss.kind);
      if (needed.storage != loss.hidden.storage || !is_one_number) {
        MoveFree(loss, needed);
      } else if (freed) {
        MoveFree(loss, {needed.storage, std::max(needed.until, *freed)});
      } else {
        KeepBehindSteps(needed.storage, logits);
      }
    }
  }

  /// What follows the steps may free them.
  void KeepBehindSteps(Storage hidden, const std::set<Storage>& logits) {
    for (std::size_t i = 0; i < old_.events.size(); ++i) {
      const JobEvent& event = old_.events[i];
      if (event.kind == JobEvent::Kind::kFree && event.index == hidden) dropped_.insert(i);
    }
    for (const Storage one : logits) hidden_of_[one] = hidden;
  }

  /// With the last of its logits each.
  void FreeWithLogits() {
    std::vector<Part>& later = edit_.variant().later;
    std::set<Storage> freed;
    for (auto part = later.rbegin(); part != later.rend(); ++part) {
      for (auto event = part->events.rbegin(); event != part->events.rend(); ++event) {
        if (event->kind != JobEvent::Kind::kFree) continue;
        const auto hidden = hidden_of_.find(event->index);
        if (hidden == hidden_of_.end() || !freed.insert(hidden->second).second) continue;
        event->index = hidden->second;
      }
    }
  }

  bool OfInner(const JobEvent& event) const {
    const bool names_storage =
        event.kind == JobEvent::Kind::kFree || event.kind == JobEvent::Kind::kLabel;
    return names_storage && inner_.contains(event.index);
  }

  /// It is there until the loss in chunks has read it and, where only calls that are left out would
  /// have read it, no longer.
  void MoveFree(const LinearLoss& loss, const Needed& needed) {
    std::size_t used = 0;
    std::size_t freed = 0;
    for (std::size_t i = 0; i < old_.events.size(); ++i) {
      const JobEvent& event = old_.events[i];
      if (event.kind == JobEvent::Kind::kFree && event.index == needed.storage) freed = i;
      if (event.kind != JobEvent::Kind::kCall || dropped_.contains(i)) continue;
      ForEachArgument(old_.calls[event.index], [&](const TensorUse& use) {
        if (use.storage == needed.storage) used = i;
      });
    }
    if (needed.storage == kElsewhere || freed == 0) return;
    const bool too_early = freed < needed.until;
    const bool too_late = used <= needed.until && loss.backward && freed > *loss.backward;
    if (!too_early && !too_late) return;
    dropped_.insert(freed);
    frees_after_[needed.until].push_back(needed.storage);
  }

  Job& job_;
  const Variant& old_;
  JobEditor edit_;
  std::vector<LossWriter> writers_;
  std::set<std::size_t> dropped_;
  std::set<Storage> inner_;
  std::map<std::size_t, LossWriter*> forward_;
  std::map<std::size_t, LossWriter*> backward_;
  std::map<std::size_t, std::vector<Storage>> frees_after_;
  /// Of logits that no step frees.
  std::map<Storage, Storage> hidden_of_;
};

std::optional<Error> TooFewRows(const std::vector<LinearLoss>& losses, int chunks) {
  for (const LinearLoss& loss : losses) {
    const auto* own = std::get_if<LogProbabilities>(&loss.kind);
    const Number& rows = own == nullptr ? loss.rows : own->rows;
    if (rows.rise() >= chunks) continue;
    return Error{
        .message = fmt::format("the loss has fewer rows for each sample than {} chunks", chunks),
        .hint = "leave out loss=chunked"};
  }
  return std::nullopt;
}

/// The layer is replaced by one whose logits are computed in chunks: a checkpoint around it would
/// compute nothing again.
std::optional<Error> IsCheckpointed(const Job& job, const Variant& variant,
                                    const std::vector<LinearLoss>& losses) {
  for (const LinearLoss& loss : losses) {
    const std::string_view layer = job.strings[loss.layer];
    if (layer.empty()) continue;
    for (const CallRecord& call : variant.calls) {
      if (!call.recomputed || call.module != loss.layer) continue;
      return Error{.message = fmt::format("{} makes the logits: it cannot be checkpointed where "
                                          "the loss goes in chunks",
                                          layer),
                   .hint = "leave it, and the modules around it, out of checkpointing"};
    }
  }
  return std::nullopt;
}

Result<std::vector<LinearLoss>> LossesFor(const Job& job, const Variant& variant, int chunks) {
  Result<std::vector<LinearLoss>> losses = FindLinearLosses(job, variant);
  if (!losses) return losses;
  if (std::optional<Error> error = TooFewRows(*losses, chunks)) return *error;
  if (std::optional<Error> error = IsCheckpointed(job, variant, *losses)) return *error;
  return losses;
}

}  // namespace

Result<Variant> ChunkLoss(Job& job, const Variant& variant, int chunks) {
  const Result<std::vector<LinearLoss>> losses = LossesFor(job, variant, chunks);
  if (!losses) return losses.error();
  return Chunker(job, variant, *losses, chunks).Run();
}

std::vector<LossInChunks> LossesInChunks(const Job& job, const Variant& variant, int chunks) {
  std::vector<LossInChunks> each;
  const Result<std::vector<LinearLoss>> losses = LossesFor(job, variant, chunks);
  if (!losses) return each;
  for (const LinearLoss& loss : *losses) {
    LossInChunks one{.layer = std::string(job.strings[loss.layer]),
                     .has_bias = loss.bias.storage != kElsewhere};
    if (const auto* own = std::get_if<LogProbabilities>(&loss.kind)) {
      one.log_probs = true;
      one.scaled = own->scaled;
      one.entropy = own->entropy.storage != kElsewhere;
      one.has_gradient = loss.backward.has_value();
      one.applies = own->applies;
    }
    if (std::find(each.begin(), each.end(), one) == each.end()) each.push_back(std::move(one));
  }
  return each;
}

std::vector<std::string> LogitLayers(const Job& job, const Variant& variant, int chunks) {
  std::vector<std::string> layers;
  for (const LossInChunks& loss : LossesInChunks(job, variant, chunks)) {
    const bool known = std::find(layers.begin(), layers.end(), loss.layer) != layers.end();
    if (!loss.layer.empty() && !known) layers.push_back(loss.layer);
  }
  return layers;
}

std::optional<std::string> WhyNotChunked(const Job& job, const Variant& variant, int chunks,
                                         Bytes least) {
  const LinearLosses losses = LookForLinearLosses(job, variant);
  const auto large = [&](const LinearLoss& loss) { return LogitsOf(loss) >= least; };
  if (std::any_of(losses.found.begin(), losses.found.end(), large)) {
    const std::optional<Error> error = TooFewRows(losses.found, chunks);
    return error ? std::optional(error->message) : std::nullopt;
  }
  for (const LinearLosses::Refused& refused : losses.refused) {
    if (refused.logits >= least) return refused.why.message;
  }
  return std::nullopt;
}

Bytes LogitsOf(const Job& job, const Variant& variant, int chunks) {
  const Result<std::vector<LinearLoss>> losses = LossesFor(job, variant, chunks);
  if (!losses) return 0;
  Bytes most = 0;
  for (const LinearLoss& loss : *losses) most = std::max(most, LogitsOf(loss));
  return most;
}

}  // namespace plimsoll
