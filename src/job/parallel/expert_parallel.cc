// Tokens are followed from the first product with an expert's weight to what brings them back into
// their own order or weighs them by their scores. On that way a rank has the tokens of its own
// experts from all ranks, which are as many as its own are for all experts: the same bytes, of
// fewer experts with more tokens each. As a trace of all_to_all_single_autograd shows it (torch
// 2.11), each exchange makes one tensor, and one more where several experts of a rank want their
// tokens together, which come rank by rank; what was sent goes at once.
#include "job/parallel/expert_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "job/parallel/collective.h"
#include "job/parallel/cut.h"
#include "job/parallel/expert_roles.h"
#include "job/transforms/job_editor.h"
#include "job/transforms/tensors_of_call.h"

namespace plimsoll {
namespace {

bool IsStackedProduct(std::string_view name) {
  return name == "bmm" || name == "baddbmm" || name == "_grouped_mm";
}
bool IsExpertProduct(std::string_view name) {
  return IsStackedProduct(name) || name == "mm" || name == "addmm";
}

/// What puts rows elsewhere, or only asks for the sizes of those that are to be put elsewhere.
bool MovesRows(std::string_view name) {
  return name.starts_with("index") || name.starts_with("_index") || name.starts_with("scatter") ||
         name.starts_with("gather") || name.starts_with("new_") || name.starts_with("embedding");
}

bool IsFloating(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16 ||
         dtype == DType::kFloat64;
}

bool IsFixed(const LayoutRecord& layout) {
  return std::ranges::none_of(layout.sizes, [](const Number& size) { return size.depends(); });
}

std::vector<Number> Sorted(std::vector<Number> sizes) {
  std::ranges::sort(sizes);
  return sizes;
}

/// Shapes of the weights, which their gradients and state have, too.
class ExpertShapes {
 public:
  explicit ExpertShapes(const Job& job, const ExpertRoles& roles) : job_(job) {
    for (const auto& [storage, weight] : roles.weights) {
      const std::vector<Number>& sizes = job.layouts[weight.layout].sizes;
      (weight.stacked ? stacked_ : single_).insert(Sorted(sizes));
      if (weight.stacked) experts_.insert(weight.experts);
    }
  }
  bool IsStacked(std::uint32_t layout) const {
    const LayoutRecord& of = job_.layouts[layout];
    return of.sizes.size() > 1 && IsFixed(of) && HasExperts(of) &&
           stacked_.contains(Sorted(of.sizes));
  }
  /// Of one expert in a list.
  bool IsSingle(std::uint32_t layout) const {
    const LayoutRecord& of = job_.layouts[layout];
    return IsFixed(of) && single_.contains(Sorted(of.sizes));
  }
  /// In the first dimension.
  bool HasExperts(const LayoutRecord& layout) const {
    return !layout.sizes.empty() && !layout.sizes.front().depends() &&
           experts_.contains(layout.sizes.front().least());
  }

 private:
  const Job& job_;
  std::set<std::vector<Number>> stacked_;
  std::set<std::vector<Number>> single_;
  std::set<std::int64_t> experts_;
};

/// Layouts as a rank has them.
class ExpertLayouts {
 public:
  ExpertLayouts(Job& job, std::int64_t ranks) : job_(job), ranks_(ranks) {}

  /// A share of the experts.
  std::uint32_t ShareOf(std::uint32_t layout) {
    if (job_.layouts[layout].sizes.empty()) return layout;
    return Add(shares_, layout, [&] { return PartOf(job_.layouts[layout], 0, ranks_); });
  }
  /// A share of the experts with their tokens from all ranks: [16, 256, 512] is [2, 2048, 512].
  std::uint32_t TokensOf(std::uint32_t layout) {
    return Add(tokens_, layout, [&] {
      LayoutRecord tokens = job_.layouts[layout];
      const auto times = [&](std::int64_t n) { return BoundedProduct(n, ranks_); };
      for (std::size_t d = 1; d < tokens.sizes.size(); ++d) {
        if (!tokens.sizes[d].depends()) continue;
        tokens.sizes[d] = Number::Each(times, tokens.sizes[d]);
        tokens.sizes[0] = CeilShare(tokens.sizes[0], ranks_);
        tokens.strides[0] = Number::Each(times, tokens.strides[0]);
        break;
      }
      return tokens;
    });
  }

 private:
  using Known = std::map<std::uint32_t, std::uint32_t>;
  template <typename Make>
  std::uint32_t Add(Known& known, std::uint32_t layout, const Make& make) {
    const auto found = known.find(layout);
    if (found != known.end()) return found->second;
    LayoutRecord made = make();
    job_.layouts.push_back(std::move(made));
    return known[layout] = static_cast<std::uint32_t>(job_.layouts.size() - 1);
  }

  Job& job_;
  const std::int64_t ranks_;
  Known shares_;
  Known tokens_;
};

/// Sends tokens to the experts' ranks and back.
class TokenExchange {
 public:
  TokenExchange(Job& job, JobEditor& edit, std::int64_t ranks)
      : job_(job), edit_(edit), ranks_(ranks) {}

  void SetModule(StringId module) { module_ = module; }

  /// To the experts; `regroups`: from the order of ranks into that of experts. What was sent stays.
  Storage Send(const TensorUse& tokens, bool regroups) {
    const Storage received = Exchange(tokens);
    if (!regroups) return received;
    const Storage grouped = Copy({.storage = received, .layout = tokens.layout});
    edit_.Free(received);
    return grouped;
  }
  /// And back.
  Storage Return(TensorUse tokens, bool regroups) {
    if (regroups) {
      const Storage grouped = Copy(tokens);
      edit_.Free(std::exchange(tokens.storage, grouped));
    }
    const Storage returned = Exchange(tokens);
    edit_.Free(tokens.storage);
    return returned;
  }

 private:
  Storage Exchange(const TensorUse& tokens) {
    CallRecord call = CallOf(job_, {.kind = Collective::Kind::kAllToAll,
                                    .bytes = BytesAtPoints(job_.layouts[tokens.layout]),
                                    .ranks = ranks_});
    call.where = job_.strings.Intern("expert parallel");
    const Storage made = Make(std::move(call), tokens);
    CallRecord wait = WaitCall(job_, made);
    wait.module = module_;
    edit_.Call(std::move(wait));
    return made;
  }
  Storage Copy(const TensorUse& tokens) {
    return Make({.op = job_.strings.Intern("plimsoll.divided"),
                 .where = job_.strings.Intern("expert parallel: tokens in order")},
                tokens);
  }
  Storage Make(CallRecord call, const TensorUse& of) {
    const Storage storage = edit_.NewStorageNumber();
    call.module = module_;
    call.kwargs.push_back({job_.strings.Intern("of"), {of}});
    call.results = {{.storage = storage, .layout = of.layout}};
    call.fresh = {{.storage = storage, .bytes = BytesAtPoints(job_.layouts[of.layout])}};
    edit_.Call(std::move(call));
    return storage;
  }

  Job& job_;
  JobEditor& edit_;
  const std::int64_t ranks_;
  StringId module_;
};

class ExpertDivider {
 public:
  ExpertDivider(Job& job, const Variant& old, const ExpertRoles& roles, std::int64_t ranks)
      : job_(job),
        old_(old),
        roles_(roles),
        ranks_(ranks),
        shapes_(job, roles),
        layouts_(job, ranks),
        edit_(job, old, "plimsoll.divided"),
        exchange_(job, edit_, ranks) {
    edit_.LeaveOutLater();
    FindOtherUses();
  }

  ExpertVariant Run() {
    for (at_ = 0; at_ < old_.events.size(); ++at_) RunEvent(old_.events[at_]);
    ExpertVariant found{.variant = edit_.Take()};
    for (const auto& [storage, kind] : of_experts_) found.of_experts.insert(storage);
    return found;
  }

 private:
  /// A storage with weights, gradients or state of experts.
  enum class Of : std::uint8_t {
    kStack,  ///< all experts of one rank
    kOne,    ///< one of a list: a share of each stands for a share of them
    kSlice,  ///< of one expert in a stack, whole
  };

  // Events.

  void FindOtherUses() {
    for (std::size_t i = 0; i < old_.events.size(); ++i) {
      const JobEvent& event = old_.events[i];
      if (event.kind != JobEvent::Kind::kCall) continue;
      const CallRecord& call = old_.calls[event.index];
      if (IsExpertProduct(BaseName(job_.strings[call.op]))) continue;
      ForEachArgument(call, [&](const TensorUse& use) { last_other_use_[use.storage] = i; });
    }
  }

  void RunEvent(const JobEvent& event) {
    if (event.kind == JobEvent::Kind::kStage) stage_ = event.stage;
    switch (event.kind) {
      case JobEvent::Kind::kModelTensor:
        RunModelTensor(event.index);
        return edit_.Copy(event);
      case JobEvent::Kind::kCall:
        return RunCall(old_.calls[event.index], event.index);
      case JobEvent::Kind::kFree:
        return Free(event.index);
      case JobEvent::Kind::kLabel:
        return edit_.Label(NowOf(event.index), event.category);
      case JobEvent::Kind::kStage:
      case JobEvent::Kind::kStep:
      case JobEvent::Kind::kRound:
        return edit_.Copy(event);
    }
  }
  void RunModelTensor(std::uint32_t index) {
    ModelTensor& tensor = edit_.variant().model_tensors[index];
    const auto weight = roles_.weights.find(tensor.storage);
    if (weight == roles_.weights.end()) return;
    tensor.layout = layouts_.ShareOf(tensor.layout);
    of_experts_[tensor.storage] = weight->second.stacked ? Of::kStack : Of::kOne;
  }
  Storage NowOf(Storage storage) const {
    const auto found = now_.find(storage);
    return found == now_.end() ? storage : found->second;
  }
  void Free(Storage storage) {
    if (const auto sent = sent_.find(storage); sent != sent_.end()) {
      edit_.Free(sent->second);
      sent_.erase(sent);
    }
    tokens_.erase(storage);
    if (gone_.erase(storage) == 0) edit_.Free(NowOf(storage));
  }

  // Calls.

  void RunCall(const CallRecord& record, std::uint32_t index) {
    exchange_.SetModule(record.module);
    const std::string_view name = BaseName(job_.strings[record.op]);
    const bool computes = stage_ == Stage::kForward || stage_ == Stage::kBackward;
    const bool inside = computes && IsInside(record, name);
    if (inside && IsExpertProduct(name)) SendOthers(record, name);
    if (computes && !inside) ReturnAll(record);
    CallRecord call = record;
    ForEachArgument(call, [&](TensorUse& use) { SetUse(use, inside, name); });
    for (std::size_t r = 0; r < record.results.size(); ++r) PlaceResult(record, r, inside, call);
    edit_.variant().calls[index] = std::move(call);
    edit_.Copy({.kind = JobEvent::Kind::kCall, .index = index});
  }

  bool IsToken(const TensorUse& use) const {
    const LayoutRecord& layout = job_.layouts[use.layout];
    return use.storage != kElsewhere && IsFloating(layout.dtype) && !layout.sizes.empty() &&
           !of_experts_.contains(use.storage);
  }
  /// Whether it works on the tokens of a rank's experts.
  bool IsInside(const CallRecord& call, std::string_view name) const {
    bool weight = false;
    bool token = false;
    bool other = false;
    ForEachArgument(call, [&](const TensorUse& use) {
      weight = weight || of_experts_.contains(use.storage);
      token = token || tokens_.contains(use.storage);
      other = other || (IsToken(use) && !tokens_.contains(use.storage));
    });
    if (IsExpertProduct(name)) return token || (weight && other);
    return token && !other && !MovesRows(name);
  }

  void SendOthers(const CallRecord& record, std::string_view name) {
    ForEachArgument(record, [&](const TensorUse& use) {
      if (!IsToken(use) || tokens_.contains(use.storage)) return;
      const bool regroups = IsStackedProduct(name) && ExpertsOfRank() > 1;
      const TensorUse now{.storage = NowOf(use.storage), .layout = use.layout};
      sent_[use.storage] = exchange_.Send(now, regroups);
      tokens_[use.storage] = regroups;
      const auto other = last_other_use_.find(use.storage);
      if (other != last_other_use_.end() && other->second > at_) return;
      edit_.Free(now.storage);
      gone_.insert(use.storage);
    });
  }
  void ReturnAll(const CallRecord& record) {
    ForEachArgument(record, [&](const TensorUse& use) {
      const auto token = tokens_.find(use.storage);
      // What was sent and did not go is still there as it was.
      if (token == tokens_.end() || sent_.contains(use.storage)) return;
      now_[use.storage] =
          exchange_.Return({.storage = use.storage, .layout = use.layout}, token->second);
      tokens_.erase(token);
    });
  }
  std::int64_t ExpertsOfRank() const { return roles_.weights.begin()->second.experts / ranks_; }

  /// What a call gets, as the rank has it.
  void SetUse(TensorUse& use, bool inside, std::string_view name) {
    const auto weight = of_experts_.find(use.storage);
    if (weight != of_experts_.end()) {
      const bool shares = weight->second == Of::kStack
                              ? shapes_.IsStacked(use.layout)
                              : weight->second == Of::kOne && !IsExpertProduct(name);
      if (shares) use.layout = layouts_.ShareOf(use.layout);
      return;
    }
    if (inside && IsStackedProduct(name) && shapes_.HasExperts(job_.layouts[use.layout])) {
      use.layout = layouts_.TokensOf(use.layout);
    }
    const auto sent = sent_.find(use.storage);
    use.storage = inside && sent != sent_.end() ? sent->second : NowOf(use.storage);
  }

  void PlaceResult(const CallRecord& record, std::size_t r, bool inside, CallRecord& call) {
    TensorUse& use = call.results[r];
    const auto fresh = std::ranges::find_if(
        call.fresh, [&](const NewStorage& one) { return one.storage == use.storage; });
    const std::string_view name = BaseName(job_.strings[record.op]);
    if (fresh == call.fresh.end()) return SetUse(use, inside, name);
    const std::optional<Of> of = OfResult(record, r, inside);
    if (of) {
      of_experts_[use.storage] = *of;
      if (*of == Of::kSlice) return;
      use.layout = layouts_.ShareOf(use.layout);
      const bool dense = fresh->bytes == BytesAtPoints(job_.layouts[record.results[r].layout]);
      fresh->bytes =
          dense ? BytesAtPoints(job_.layouts[use.layout]) : CeilShare(fresh->bytes, ranks_);
      return;
    }
    if (!inside) return;
    tokens_[use.storage] = IsStackedProduct(name) ? ExpertsOfRank() > 1 : Regroups(record);
    if (IsStackedProduct(name) && shapes_.HasExperts(job_.layouts[use.layout])) {
      use.layout = layouts_.TokensOf(use.layout);
    }
  }
  bool Regroups(const CallRecord& record) const {
    bool regroups = false;
    ForEachArgument(record, [&](const TensorUse& use) {
      const auto token = tokens_.find(use.storage);
      regroups = regroups || (token != tokens_.end() && token->second);
    });
    return regroups;
  }

  /// Copies, gradients and state of weights.
  std::optional<Of> OfResult(const CallRecord& record, std::size_t r, bool inside) const {
    const std::uint32_t layout = record.results[r].layout;
    if (shapes_.IsStacked(layout)) return Of::kStack;
    if (!IsFixed(job_.layouts[layout]) || job_.layouts[layout].sizes.empty()) return std::nullopt;
    if (inside) return shapes_.IsSingle(layout) ? Of::kOne : Of::kSlice;
    return MadeOf(record, r);
  }
  /// Of a list's members the one at the same place decides.
  std::optional<Of> MadeOf(const CallRecord& record, std::size_t r) const {
    std::optional<Of> of;
    const auto look = [&](const Argument& argument) {
      const auto* use = std::get_if<TensorUse>(&argument.is);
      const auto weight = use == nullptr ? of_experts_.end() : of_experts_.find(use->storage);
      if (weight == of_experts_.end()) return;
      const bool same = Sorted(job_.layouts[use->layout].sizes) ==
                        Sorted(job_.layouts[record.results[r].layout].sizes);
      if (weight->second == Of::kStack) of = Of::kSlice;
      if (weight->second != Of::kStack && same) of = weight->second;
    };
    for (const Argument& argument : record.args) {
      look(argument);
      const auto* list = std::get_if<Argument::List>(&argument.is);
      if (list != nullptr && r < list->size()) look((*list)[r]);
    }
    return of;
  }

  Job& job_;
  const Variant& old_;
  const ExpertRoles& roles_;
  const std::int64_t ranks_;
  const ExpertShapes shapes_;
  ExpertLayouts layouts_;
  JobEditor edit_;
  TokenExchange exchange_;
  Stage stage_ = Stage::kBuild;
  std::size_t at_ = 0;
  /// The event at which something else than a product uses a storage last.
  std::map<Storage, std::size_t> last_other_use_;
  std::map<Storage, Of> of_experts_;
  /// Tokens that are with their experts, and whether those of one expert lie together there.
  std::map<Storage, bool> tokens_;
  /// Of those that came from outside: the storage that has them there.
  std::map<Storage, Storage> sent_;
  /// Of those that are back: the storage that has them now.
  std::map<Storage, Storage> now_;
  /// Went when they had been sent.
  std::set<Storage> gone_;
};

}  // namespace

Result<ExpertVariant> AddExpertParallel(Job& job, const Variant& variant,
                                        const ExpertParallel& expert) {
  const Result<ExpertRoles> roles = FindExpertRoles(job, variant, expert.ranks);
  if (!roles) return roles.error();
  return ExpertDivider(job, variant, *roles, expert.ranks).Run();
}

std::string DescribeExpertParallel(const Job& job, const Variant& variant,
                                   const ExpertParallel& expert) {
  const Result<ExpertRoles> roles = FindExpertRoles(job, variant, expert.ranks);
  if (!roles) return {};
  const std::int64_t experts = roles->weights.begin()->second.experts;
  return fmt::format(
      "expert parallelism: {} of {} experts on each rank, in {} weights, which FSDP leaves out; "
      "each "
      "rank gets as many tokens as it sends, by all-to-all, whatever routing was captured; {}",
      experts / expert.ranks, experts, roles->weights.size(),
      expert.meta ? "built on the meta device"
                  : "all experts are on the GPU before they are divided (if not: :meta)");
}

}  // namespace plimsoll
