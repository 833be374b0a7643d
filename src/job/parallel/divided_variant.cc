// As a record of DTensor's operators shows it (torch 2.11; docs/prediction.md, "Tensor
// parallelism"): a sum over ranks makes a new tensor; what is gathered or scattered along another
// dimension than the first is copied once more, before or after; parts of what is whole are cloned.
#include "job/parallel/divided_variant.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "job/parallel/collective.h"
#include "job/parallel/ring_attention.h"
#include "job/transforms/job_editor.h"
#include "job/transforms/tensors_of_call.h"

namespace plimsoll {
namespace {

using Spread = Placement::Kind;

/// A captured storage while the variant is written anew.
struct Held {
  Spread kind = Spread::kWhole;
  Axis axis = Axis::kFeatures;
  Cut cut = {};
  /// The storage that has it now, and what that has bytes.
  Storage now = kElsewhere;
  Number bytes;
  /// The other form of it: gathered, or this rank's part; kElsewhere where there is none.
  Storage other = kElsewhere;
  /// The other form is the same, in another order: all but attention's backward take it.
  bool reordered = false;
  bool is_gradient = false;
};

/// What the variant tells before it is written anew.
struct KnownBefore {
  /// Weights that are divided, and copies of them in another type, as autocast makes them: the
  /// weight.
  std::map<Storage, Storage> weight_of;
  std::set<Storage> gradients;
  std::set<Storage> inputs;
  /// Gradients of what a divided weight made are divided, too. Where a loss made one whole, each
  /// rank takes its part before anything else.
  std::map<Storage, Cut> part_first;
};

void FindCopies(const Variant& old, const Division& division, KnownBefore& known) {
  for (const auto& [weight, cut] : division.weights) known.weight_of[weight] = weight;
  for (const CallRecord& call : old.calls) {
    std::vector<Storage> given;
    ForEachArgument(call, [&](const TensorUse& use) { given.push_back(use.storage); });
    if (given.size() != 1 || call.fresh.size() != 1) continue;
    const auto weight = known.weight_of.find(given.front());
    if (weight != known.weight_of.end()) {
      known.weight_of[call.fresh.front().storage] = weight->second;
    }
  }
}

void FindDividedGradients(const Job& job, const Variant& old, const Division& division,
                          KnownBefore& known) {
  for (const CallRecord& call : old.calls) {
    if (BaseName(job.strings[call.op]) != "mm" || call.args.size() < 2) continue;
    const auto* first = std::get_if<TensorUse>(&call.args[0].is);
    const auto* second = std::get_if<TensorUse>(&call.args[1].is);
    if (first == nullptr || second == nullptr) continue;
    const auto weight = known.weight_of.find(second->storage);
    if (weight == known.weight_of.end()) continue;
    const auto at = DividedDimension(job.layouts[second->layout],
                                     division.weights.at(weight->second), division.ranks);
    if (at == 0) known.part_first.emplace(first->storage, CutOf(job.layouts[first->layout], 1));
  }
}

KnownBefore LookAhead(const Job& job, const Variant& old, const Division& division) {
  KnownBefore known;
  FindCopies(old, division, known);
  for (const JobEvent& event : old.events) {
    if (event.kind != JobEvent::Kind::kLabel) continue;
    if (event.category == Category::kGradients) known.gradients.insert(event.index);
    if (event.category == Category::kInputs) known.inputs.insert(event.index);
  }
  FindDividedGradients(job, old, division, known);
  return known;
}

/// Positions of several samples may lie in one dimension: the cut is that of one sample.
Cut CutOfFresh(const Division& division, const LayoutRecord& whole, const Placement& placement) {
  const Number& size = whole.sizes[placement.dimension];
  const std::int64_t positions = std::max(division.context, division.positions);
  if (placement.axis != Axis::kPositions || !size.depends()) {
    return CutOf(whole, placement.dimension);
  }
  return {Number::Each([&](std::int64_t stride) { return BoundedProduct(stride, positions); },
                       whole.strides[placement.dimension])};
}

/// A batch comes divided by positions.
Placement PlacementOfInput(const Division& division, const LayoutRecord& layout) {
  for (std::size_t d = layout.sizes.size(); d-- > 0;) {
    const bool is_it = !layout.sizes[d].depends() && layout.sizes[d].least() == division.context;
    if (is_it) return Placement::Divided(Axis::kPositions, d);
  }
  return Placement::Whole();
}

/// Of a tensor that has something for each position of each sample.
std::optional<Cut> CutByPositions(const Division& division, const LayoutRecord& layout) {
  if (division.positions == 0 || layout.sizes.size() < 2) return std::nullopt;
  return Cut{
      Number::Each([&](std::int64_t width) { return BoundedProduct(width, division.positions); },
                   layout.sizes.back())};
}

/// Attention over positions that are divided.
bool GoesAround(const Division& division, std::string_view op) {
  const std::string_view name = BaseName(op);
  return division.context > 0 && (name == "attention" || name == "attention_backward");
}

/// Four dimensions each, as every kernel has them.
bool IsWholeAttention(const Job& job, const CallRecord& call, bool backward) {
  const std::size_t first = backward ? 1 : 0;
  if (call.args.size() < first + 3 || call.results.size() < (backward ? 1u : 2u)) return false;
  const auto deep = [&](const TensorUse* use, std::size_t least) {
    return use != nullptr && job.layouts[use->layout].sizes.size() >= least;
  };
  for (std::size_t a = 0; a < first + 3; ++a) {
    if (!deep(std::get_if<TensorUse>(&call.args[a].is), 4)) return false;
  }
  return std::ranges::all_of(call.results, [&](const TensorUse& use) { return deep(&use, 3); });
}

/// A loss over parts of the vocabulary.
bool LosesOverParts(const OperatorCall& call) {
  const std::string_view name = BaseName(call.op);
  if (call.results.empty()) return false;
  if (!name.starts_with("nll_loss") && !name.starts_with("_log_softmax")) return false;
  return std::ranges::any_of(
      call.operands, [](const Operand& operand) { return operand.placement.On(Axis::kFeatures); });
}

Storage LargestArgument(const Job& job, const CallRecord& call) {
  Storage largest = kElsewhere;
  std::int64_t most = -1;
  ForEachArgument(call, [&](const TensorUse& use) {
    const std::int64_t bytes = BytesAtPoints(job.layouts[use.layout]).least();
    if (bytes > most) largest = use.storage;
    most = std::max(most, bytes);
  });
  return largest;
}

/// Writes what ranks exchange, and what is made for it.
class DividedExchange {
 public:
  DividedExchange(Job& job, JobEditor& edit, const Division& division)
      : job_(job), edit_(edit), division_(division) {}

  /// The module of the call that it is for.
  void SetModule(StringId module) { module_ = module; }

  /// A storage that is made of another.
  Storage Make(std::string_view what, const TensorUse& use, const Number& bytes, Storage from) {
    CallRecord call{.op = job_.strings.Intern("plimsoll.divided"),
                    .where = job_.strings.Intern(fmt::format("{}: {}", Name(), what)),
                    .module = module_};
    return MakeBy(std::move(call), use, bytes, from);
  }
  Storage Exchange(Collective::Kind kind, const TensorUse& use, const Number& moved,
                   const Number& made, Storage from) {
    CallRecord call = CallOf(
        job_, {.kind = kind, .bytes = moved, .ranks = division_.ranks, .apart = division_.apart});
    call.where = job_.strings.Intern(Name());
    call.module = module_;
    const Storage storage = MakeBy(std::move(call), use, made, from);
    CallRecord wait = WaitCall(job_, storage);
    wait.module = module_;
    edit_.Call(std::move(wait));
    return storage;
  }
  /// Of parts with so many bytes each.
  Storage Gather(const TensorUse& use, const Number& part, Storage from) {
    const Number whole = Number::Each(
        [&](std::int64_t bytes) { return BoundedProduct(bytes, division_.ranks); }, part);
    const Storage gathered = Exchange(Collective::Kind::kAllGather, use, whole, whole, from);
    const Storage joined = Make("gathered", use, whole, gathered);
    edit_.Free(gathered);
    return joined;
  }

 private:
  std::string_view Name() const {
    return division_.context > 0 ? "context parallel" : "tensor parallel";
  }
  Storage MakeBy(CallRecord call, const TensorUse& use, const Number& bytes, Storage from) {
    const Storage storage = edit_.NewStorageNumber();
    call.kwargs.push_back(
        {job_.strings.Intern("of"), {TensorUse{.storage = from, .layout = use.layout}}});
    call.results = {{.storage = storage, .layout = use.layout}};
    call.fresh = {{.storage = storage, .bytes = bytes}};
    edit_.Call(std::move(call));
    return storage;
  }

  Job& job_;
  JobEditor& edit_;
  const Division& division_;
  StringId module_;
};

/// Two forms of one tensor: each goes after its last use. A forward's own part is held by the
/// module that it is an argument of, to the end of that.
class TensorForms {
 public:
  explicit TensorForms(JobEditor& edit) : edit_(edit) {}

  void Add(Storage own, Storage other, bool in_forward) {
    forms_.push_back({.storage = other});
    forms_.push_back({.storage = own, .held = in_forward});
    Touch(other);
    Touch(own);
  }
  /// By the call that comes next.
  void Touch(Storage storage) { last_use_[storage] = edit_.variant().events.size() + 1; }
  /// A module has ended.
  void EndRegion() {
    for (Form& form : forms_) {
      if (std::exchange(form.held, false)) last_use_[form.storage] = edit_.variant().events.size();
    }
  }
  /// When all is written.
  void Free() {
    std::multimap<std::size_t, Storage> frees;
    for (const Form& form : forms_) frees.emplace(last_use_[form.storage], form.storage);
    std::vector<JobEvent> events;
    events.reserve(edit_.variant().events.size() + frees.size());
    auto next = frees.begin();
    for (std::size_t i = 0; i < edit_.variant().events.size(); ++i) {
      events.push_back(edit_.variant().events[i]);
      for (; next != frees.end() && next->first <= i + 1; ++next) {
        events.push_back({.kind = JobEvent::Kind::kFree, .index = next->second});
      }
    }
    edit_.variant().events = std::move(events);
  }

 private:
  struct Form {
    Storage storage = kElsewhere;
    bool held = false;
  };

  JobEditor& edit_;
  std::vector<Form> forms_;
  /// One past the event, of the variant as it is written.
  std::map<Storage, std::size_t> last_use_;
};

class Divider {
 public:
  Divider(Job& job, const Variant& old, const Division& division)
      : job_(job),
        old_(old),
        division_(division),
        known_(LookAhead(job, old, division)),
        edit_(job, old, "plimsoll.divided"),
        exchange_(job, edit_, division),
        forms_(edit_) {
    edit_.LeaveOutLater();
  }

  Result<Variant> Run() {
    for (const JobEvent& event : old_.events) {
      if (std::optional<Error> error = RunEvent(event)) return *error;
    }
    forms_.Free();
    return edit_.Take();
  }

 private:
  // Events.

  std::optional<Error> RunEvent(const JobEvent& event) {
    switch (event.kind) {
      case JobEvent::Kind::kModelTensor:
        RunModelTensor(event);
        return std::nullopt;
      case JobEvent::Kind::kCall:
        return RunCall(old_.calls[event.index], event.index);
      case JobEvent::Kind::kFree:
        Free(event.index);
        return std::nullopt;
      case JobEvent::Kind::kLabel:
        edit_.Label(NowOf(event.index), event.category);
        return std::nullopt;
      case JobEvent::Kind::kStage:
        stage_ = event.stage;
        edit_.Copy(event);
        return std::nullopt;
      case JobEvent::Kind::kStep:
      case JobEvent::Kind::kRound:
        edit_.Copy(event);
        return std::nullopt;
    }
    return std::nullopt;
  }

  void RunModelTensor(const JobEvent& event) {
    ModelTensor& tensor = edit_.variant().model_tensors[event.index];
    const auto weight = division_.weights.find(tensor.storage);
    Held held{.now = tensor.storage, .bytes = BytesAtPoints(job_.layouts[tensor.layout])};
    if (weight != division_.weights.end()) {
      held.kind = Spread::kDivided;
      held.cut = weight->second;
      tensor.layout = LayoutOf(tensor.layout, PlacementOf(tensor.layout, held));
    }
    held_[tensor.storage] = held;
    edit_.Copy(event);
  }

  Storage NowOf(Storage storage) const {
    const auto found = held_.find(storage);
    return found == held_.end() ? storage : found->second.now;
  }

  void Free(Storage storage) {
    if (aliased_.erase(storage) > 0) return;
    const auto found = held_.find(storage);
    if (found == held_.end()) return edit_.Free(storage);
    if (found->second.other != kElsewhere) return;  // Its forms go by themselves.
    edit_.Free(found->second.now);
  }

  // Layouts.

  Placement PlacementOf(std::uint32_t layout, const Held& held) const {
    if (held.kind == Spread::kPartial) return Placement::Partial();
    if (held.kind == Spread::kWhole) return Placement::Whole();
    const auto at = DividedDimension(job_.layouts[layout], held.cut, division_.ranks);
    return at ? Placement::Divided(held.axis, *at) : Placement::Whole();
  }
  std::uint32_t LayoutOf(std::uint32_t layout, const Placement& placement) {
    if (!placement.divided()) return layout;
    const auto key = std::pair(layout, placement.dimension);
    if (const auto known = parts_.find(key); known != parts_.end()) return known->second;
    job_.layouts.push_back(PartOf(job_.layouts[layout], placement.dimension, division_.ranks));
    return parts_[key] = static_cast<std::uint32_t>(job_.layouts.size() - 1);
  }
  Held& HeldOf(Storage storage) {
    const auto [found, added] = held_.emplace(storage, Held{});
    if (added) found->second.now = storage;
    return found->second;
  }

  // Calls.

  struct Operands {
    std::vector<TensorUse> uses;
    OperatorCall call;
  };

  Operands OperandsOf(const CallRecord& record) {
    Operands operands;
    operands.call = {.op = job_.strings[record.op], .record = &record, .parts = division_.ranks};
    const auto add = [&](const Argument& argument, std::size_t place, std::size_t member) {
      const auto* use = std::get_if<TensorUse>(&argument.is);
      if (use == nullptr) return;
      operands.uses.push_back(*use);
      const Placement placement = use->storage == kElsewhere
                                      ? Placement::Whole()
                                      : PlacementOf(use->layout, HeldOf(use->storage));
      operands.call.operands.push_back({&job_.layouts[use->layout], placement, place, member});
    };
    const auto add_all = [&](const Argument& argument, std::size_t place) {
      add(argument, place, 0);
      const auto* list = std::get_if<Argument::List>(&argument.is);
      for (std::size_t m = 0; list != nullptr && m < list->size(); ++m) add((*list)[m], place, m);
    };
    for (std::size_t i = 0; i < record.args.size(); ++i) add_all(record.args[i], i);
    for (const auto& [name, argument] : record.kwargs) add_all(argument, record.args.size());
    for (const TensorUse& use : record.results) {
      operands.call.results.push_back(&job_.layouts[use.layout]);
    }
    return operands;
  }

  std::optional<Error> RunCall(const CallRecord& record, std::uint32_t index) {
    exchange_.SetModule(record.module);
    PrepareParts(record);
    ResolveSums(record);
    Operands operands = OperandsOf(record);
    if (GoesAround(division_, operands.call.op)) return RunRing(record);
    Result<Outcome> outcome = OutcomeOf(operands.call);
    if (!outcome) {
      Error error = outcome.error();
      if (!job_.strings[record.module].empty()) {
        error.message += fmt::format(" (in {})", job_.strings[record.module]);
      }
      error.file = job_.file;
      return error;
    }
    if (LosesOverParts(operands.call)) return RunDividedLoss(record, operands, *outcome);
    CallRecord call = record;
    std::vector<Storage> passing;
    std::size_t at = 0;
    ForEachArgument(call, [&](TensorUse& use) {
      Bring(use, outcome->wishes[at], passing);
      ++at;
    });
    PlaceResults(record, *outcome, call);
    if (CollectiveOf(job_, record) && !outcome->results.empty() && outcome->results[0].divided()) {
      call.args[0] = {CeilShare(std::get<Number>(call.args[0].is), division_.ranks)};
    }
    edit_.variant().calls[index] = std::move(call);
    edit_.Copy({.kind = JobEvent::Kind::kCall, .index = index});
    for (const Storage storage : passing) edit_.Free(storage);
    FinishResults(record);
    return std::nullopt;
  }

  void PrepareParts(const CallRecord& record) {
    if (stage_ != Stage::kBackward || BaseName(job_.strings[record.op]) != "mm") return;
    std::vector<TensorUse> uses;
    ForEachArgument(record, [&](const TensorUse& use) { uses.push_back(use); });
    for (const TensorUse& use : uses) {
      const auto part = known_.part_first.find(use.storage);
      if (part == known_.part_first.end()) continue;
      Held& held = HeldOf(use.storage);
      if (held.kind != Spread::kWhole) continue;
      TakePart(use, held, part->second, Axis::kFeatures);
    }
  }

  /// A sum stays one only where all that is added to it is one, too.
  void ResolveSums(const CallRecord& record) {
    bool all = BaseName(job_.strings[record.op]) == "add";
    std::vector<TensorUse> sums;
    ForEachArgument(record, [&](const TensorUse& use) {
      const auto held = held_.find(use.storage);
      const bool partial = held != held_.end() && held->second.kind == Spread::kPartial;
      if (partial) sums.push_back(use);
      all = all && partial;
    });
    if (all && !sums.empty()) {
      keeps_sum_ = true;
      return;
    }
    keeps_sum_ = false;
    for (const TensorUse& use : sums) {
      Held& held = held_[use.storage];
      if (held.kind == Spread::kPartial) SumUp(use, held);
    }
  }

  void PlaceResults(const CallRecord& record, const Outcome& outcome, CallRecord& call) {
    for (std::size_t r = 0; r < record.results.size(); ++r) {
      const Storage storage = record.results[r].storage;
      const bool fresh = std::ranges::any_of(
          record.fresh, [&](const NewStorage& one) { return one.storage == storage; });
      if (fresh) {
        PlaceFresh(record, r, keeps_sum_ ? Placement::Partial() : outcome.results[r], call);
      } else if (storage != kElsewhere) {
        TensorUse& use = call.results[r];
        const Held& held = HeldOf(storage);
        use.layout = LayoutOf(use.layout, PlacementOf(use.layout, held));
        use.storage = held.now;
      }
    }
  }
  void PlaceFresh(const CallRecord& record, std::size_t r, Placement placement, CallRecord& call) {
    TensorUse& use = call.results[r];
    const bool input = division_.context > 0 && known_.inputs.contains(record.results[r].storage);
    if (input) placement = PlacementOfInput(division_, job_.layouts[use.layout]);
    const LayoutRecord whole = job_.layouts[use.layout];
    Held held{.kind = placement.kind, .axis = placement.axis, .now = use.storage};
    if (placement.divided()) held.cut = CutOfFresh(division_, whole, placement);
    use.layout = LayoutOf(use.layout, placement);
    for (NewStorage& fresh : call.fresh) {
      if (fresh.storage != use.storage) continue;
      const bool dense = fresh.bytes == BytesAtPoints(whole);
      if (placement.divided()) {
        fresh.bytes = dense ? BytesAtPoints(job_.layouts[use.layout])
                            : CeilShare(fresh.bytes, division_.ranks);
      }
      held.bytes = fresh.bytes;
    }
    held.is_gradient = known_.gradients.contains(record.results[r].storage);
    held_[record.results[r].storage] = held;
  }

  /// Sums over ranks that nothing is added to before, and what a head's loss wants whole.
  void FinishResults(const CallRecord& record) {
    for (const TensorUse& use : record.results) {
      const auto found = held_.find(use.storage);
      if (found == held_.end()) continue;
      Held& held = found->second;
      const bool at_once = division_.positions == 0 || stage_ != Stage::kBackward;
      if (held.kind == Spread::kPartial && (at_once || held.is_gradient)) SumUp(use, held);
    }
    if (stage_ == Stage::kForward && IsHead(record)) {
      const TensorUse& use = record.results[0];
      Held& held = held_[use.storage];
      if (held.kind != Spread::kDivided) return;
      const Storage part = held.now;
      held.now = exchange_.Gather(use, held.bytes, held.now);
      held.kind = Spread::kWhole;
      held.bytes = BytesAtPoints(job_.layouts[use.layout]);
      edit_.Free(part);
      forms_.EndRegion();
    }
  }
  bool IsHead(const CallRecord& record) const {
    bool head = false;
    ForEachArgument(record, [&](const TensorUse& use) {
      const auto weight = known_.weight_of.find(use.storage);
      head |= weight != known_.weight_of.end() && division_.gathered.contains(weight->second);
    });
    return head && !record.results.empty() && !record.fresh.empty() &&
           BaseName(job_.strings[record.op]).find("mm") != std::string_view::npos;
  }

  // What an operator is given.

  void Bring(TensorUse& use, const Wish& wish, std::vector<Storage>& passing) {
    if (use.storage == kElsewhere) return;
    Held& held = HeldOf(use.storage);
    const Placement placement = PlacementOf(use.layout, held);
    if (wish.kind == Wish::Kind::kWhole && placement.divided()) {
      if (held.other == kElsewhere) AddForm(held, exchange_.Gather(use, held.bytes, held.now));
      use.storage = held.other;
      return forms_.Touch(use.storage);
    }
    if (wish.kind == Wish::Kind::kPart && !placement.divided()) {
      if (held.is_gradient) return BringPartOfGradient(use, wish, held, passing);
      TakePart(use, held, CutOf(job_.layouts[use.layout], wish.dimension), wish.axis);
    }
    use.storage = held.reordered && !in_ring_ ? held.other : held.now;
    forms_.Touch(use.storage);
    const Placement now = wish.kind == Wish::Kind::kSlice
                              ? Placement::Divided(wish.axis, wish.dimension)
                              : PlacementOf(use.layout, held);
    use.layout = LayoutOf(use.layout, now);
  }
  void BringPartOfGradient(TensorUse& use, const Wish& wish, const Held& held,
                           std::vector<Storage>& passing) {
    use.storage = held.now;
    use.layout = LayoutOf(use.layout, Placement::Divided(wish.axis, wish.dimension));
    if (division_.shards_follow) return;
    const Number bytes = BytesAtPoints(job_.layouts[use.layout]);
    const Storage part = exchange_.Make("its part of a gradient", use, bytes, held.now);
    passing.push_back(part);
    use.storage = part;
  }

  /// From now on this rank's part is all that there is of it; the whole goes.
  void TakePart(const TensorUse& use, Held& held, const Cut& cut, Axis axis) {
    Held part = held;
    part.kind = Spread::kDivided;
    part.axis = axis;
    part.cut = cut;
    TensorUse of = use;
    of.layout = LayoutOf(use.layout, PlacementOf(use.layout, part));
    part.bytes = BytesAtPoints(job_.layouts[of.layout]);
    part.now = exchange_.Make("its part", of, part.bytes, held.now);
    edit_.Free(held.now);
    held = part;
  }

  // Sums.

  /// All-reduced; or reduced and scattered over the positions.
  void SumUp(const TensorUse& use, Held& held) {
    const Storage sum = held.now;
    const std::optional<Cut> cut =
        held.is_gradient ? std::nullopt : CutByPositions(division_, job_.layouts[use.layout]);
    if (!cut) {
      held.now = exchange_.Exchange(Collective::Kind::kAllReduce, use, held.bytes, held.bytes, sum);
      held.kind = Spread::kWhole;
    } else {
      const Storage apart = exchange_.Make("by positions", use, held.bytes, sum);
      const Number part = CeilShare(held.bytes, division_.ranks);
      held.now = exchange_.Exchange(Collective::Kind::kReduceScatter, use, held.bytes, part, apart);
      edit_.Free(apart);
      held.kind = Spread::kDivided;
      held.axis = Axis::kPositions;
      held.cut = *cut;
      held.bytes = part;
    }
    edit_.Free(sum);
    forms_.EndRegion();
  }

  // Attention over positions that are divided.

  std::optional<Error> RunRing(const CallRecord& record) {
    const bool backward = BaseName(job_.strings[record.op]) == "attention_backward";
    const std::size_t mask = backward ? 4 : 3;
    if (!IsWholeAttention(job_, record, backward)) {
      return Error{.message = "attention of another form than context_parallel takes",
                   .file = job_.file,
                   .hint = "leave context= out"};
    }
    if (record.args.size() > mask && std::holds_alternative<TensorUse>(record.args[mask].is)) {
      return Error{.message = "attention with a mask cannot go around ranks",
                   .file = job_.file,
                   .hint = "context_parallel takes causal attention without a mask"};
    }
    CallRecord call = record;
    std::vector<Storage> passing;
    in_ring_ = true;
    ForEachArgument(call, [&](TensorUse& use) { Bring(use, {}, passing); });
    in_ring_ = false;
    Outcome outcome;
    outcome.results.assign(record.results.size(), Placement::Divided(Axis::kPositions, 2));
    PlaceResults(record, outcome, call);
    RingAttention ring(
        job_, edit_,
        {.ranks = division_.ranks, .apart = division_.apart, .hands_on = division_.hands_on});
    if (backward) {
      ring.Backward(call);
      return std::nullopt;
    }
    ring.Forward(call);
    // What comes out is by heads, and what goes on by positions: a copy.
    const TensorUse& use = record.results[0];
    Held& held = held_[use.storage];
    AddForm(held, exchange_.Make("by positions", call.results[0], held.bytes, held.now));
    held.reordered = true;
    return std::nullopt;
  }

  void AddForm(Held& held, Storage other) {
    held.other = other;
    forms_.Add(held.now, other, stage_ == Stage::kForward);
  }

  // A loss over parts of the vocabulary (loss_parallel).

  std::optional<Error> RunDividedLoss(const CallRecord& record, const Operands& operands,
                                      const Outcome& outcome) {
    const std::string name(BaseName(operands.call.op));
    CallRecord call = record;
    std::vector<Storage> passing;
    ForEachArgument(call, [&](TensorUse& use) { Bring(use, {}, passing); });
    if (name == "_log_softmax_backward_data") {
      // What the loss made is the gradient already.
      const Storage from = operands.uses.front().storage;
      held_[record.results[0].storage] = held_[from];
      aliased_.insert(from);
      return std::nullopt;
    }
    // Of what the loss is given, which a further dimension of the mesh knows before its result.
    const Storage given = LargestArgument(job_, call);
    PlaceResults(record, outcome, call);
    const auto beside = [&](std::string_view what) {
      const TensorUse& like = call.results[0];
      return exchange_.Make(what, like, BytesAtPoints(job_.layouts[like.layout]), given);
    };
    std::vector<Storage> temporaries;
    if (name == "_log_softmax") {
      temporaries = {beside("logits less their maximum")};
      edit_.Free(beside("exponentials"));
    }
    if (name == "nll_loss_backward") {
      temporaries = {beside("zeros")};
      const Storage exponentials = beside("exponentials");
      temporaries.push_back(beside("their difference"));
      edit_.Free(exponentials);
      std::ranges::reverse(temporaries);
    }
    edit_.Call(std::move(call));
    for (const Storage storage : temporaries) edit_.Free(storage);
    return std::nullopt;
  }

  Job& job_;
  const Variant& old_;
  const Division& division_;
  const KnownBefore known_;
  JobEditor edit_;
  DividedExchange exchange_;
  TensorForms forms_;
  Stage stage_ = Stage::kBuild;
  std::map<Storage, Held> held_;
  /// Captured storages that another one has taken over.
  std::set<Storage> aliased_;
  std::map<std::pair<std::uint32_t, std::size_t>, std::uint32_t> parts_;
  bool keeps_sum_ = false;
  bool in_ring_ = false;
};

}  // namespace

Result<Variant> Divide(Job& job, const Variant& variant, const Division& division) {
  return Divider(job, variant, division).Run();
}

}  // namespace plimsoll
