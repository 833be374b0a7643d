#include "job/transforms/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <set>
#include <string>

#include "job/transforms/gradient_uses.h"
#include "job/transforms/job_editor.h"
#include "job/transforms/tensors_of_call.h"

namespace plimsoll {
namespace {

/// When each gradient is complete: by event, the gradient and its parameter.
struct Completed {
  Storage gradient = kElsewhere;
  const ModelTensor* parameter = nullptr;
};
using Completions = std::multimap<std::size_t, Completed>;

/// Gradients are labelled at the end of each backward. Which parameter each belongs to is not told,
/// and does not matter among those of one size.
class GradientFinder {
 public:
  GradientFinder(const Job& job, const Variant& variant) : job_(job), variant_(variant) {}

  Result<Completions> Run() {
    Stage stage = Stage::kUnknown;
    for (std::size_t i = 0; i < variant_.events.size(); ++i) {
      const JobEvent& event = variant_.events[i];
      if (event.kind == JobEvent::Kind::kStep) gradients_.clear();
      if (event.kind == JobEvent::Kind::kStage) {
        stage = event.stage;
        if (stage == Stage::kOptimizer && gradients_.empty()) return Kept();
        if (stage == Stage::kBackward) updated_.clear();
      }
      if (event.kind == JobEvent::Kind::kLabel && event.category == Category::kGradients) {
        if (!Add(event.index)) return Kept();
      }
      if (event.kind == JobEvent::Kind::kCall && stage != Stage::kOptimizer) {
        CallRecord call = variant_.calls[event.index];
        for (const NewStorage& fresh : call.fresh) Use(fresh.storage, i);
        ForEachArgument(call, [&](const TensorUse& tensor) { Use(tensor.storage, i); });
        if (used_after_) {
          return Error{.message =
                           "the optimizer cannot step inside the backward: gradients are used "
                           "between the two",
                       .hint = "updates in the backward do not go with clipping or a scaler"};
        }
      }
    }
    return std::move(completions_);
  }

 private:
  static Error Kept() {
    return {.message = "gradients are not made anew in each step",
            .hint = "updates in the backward need one pass and zero_grad(set_to_none=True)"};
  }

  void Use(Storage storage, std::size_t event) {
    last_use_[storage] = event;
    used_after_ |= gradients_.contains(storage);
  }

  bool Add(Storage gradient) {
    const auto made = last_use_.find(gradient);
    if (made == last_use_.end()) return false;
    const auto bytes_of = [&](Storage storage) {
      for (const NewStorage& fresh : variant_.calls[variant_.events[made->second].index].fresh) {
        if (fresh.storage == storage) return fresh.bytes.least();
      }
      return Bytes{0};
    };
    const Bytes bytes = bytes_of(gradient);
    for (const ModelTensor& tensor : variant_.model_tensors) {
      // A gradient that something was added to is not made by the last call that has to do with it.
      if (!tensor.trainable || (bytes > 0 && bytes != BytesOf(job_, tensor))) continue;
      if (!updated_.insert(&tensor).second) continue;
      gradients_.insert(gradient);
      completions_.insert({made->second, {gradient, &tensor}});
      return true;
    }
    return false;
  }

  const Job& job_;
  const Variant& variant_;
  std::map<Storage, std::size_t> last_use_;
  std::set<Storage> gradients_;
  std::set<const ModelTensor*> updated_;
  bool used_after_ = false;
  Completions completions_;
};

class Replacement {
 public:
  Replacement(Job& job, const Variant& old, const ChosenOptimizer& chosen, Completions completions)
      : job_(job),
        old_(old),
        chosen_(chosen),
        completions_(std::move(completions)),
        edit_(job, old, "plimsoll.optimizer") {}

  Variant Run() {
    std::vector<char> dropped(old_.storages, 0);
    for (const auto& [event, done] : completions_) dropped[done.gradient] = 1;
    bool optimizer = false;
    for (std::size_t i = 0; i < old_.events.size(); ++i) {
      const JobEvent& event = old_.events[i];
      if (event.kind == JobEvent::Kind::kStage) optimizer = event.stage == Stage::kOptimizer;
      if (event.kind == JobEvent::Kind::kStep) optimizer = false;
      if (event.kind == JobEvent::Kind::kCall && optimizer) {
        for (const NewStorage& fresh : old_.calls[event.index].fresh) dropped[fresh.storage] = 1;
        continue;
      }
      const bool names_storage =
          event.kind == JobEvent::Kind::kFree || event.kind == JobEvent::Kind::kLabel;
      if (names_storage && dropped[event.index]) continue;
      edit_.Copy(event);
      if (event.kind == JobEvent::Kind::kStage && optimizer && !chosen_.in_backward && Steps(i)) {
        Update(Trainable());
      }
      for (auto [at, end] = completions_.equal_range(i); at != end; ++at) {
        edit_.Label(at->second.gradient, Category::kGradients);
        Update({at->second.parameter});
        edit_.Free(at->second.gradient);
      }
    }
    return edit_.Take();
  }

 private:
  using Tensors = std::vector<const ModelTensor*>;

  /// Whether the optimizer's phase that begins here has a step, or none of the job has: between the
  /// passes of an accumulation it has nothing to do.
  bool Steps(std::size_t stage) const {
    const auto has_calls = [&](std::size_t i) {
      for (++i; i < old_.events.size(); ++i) {
        const JobEvent::Kind kind = old_.events[i].kind;
        if (kind == JobEvent::Kind::kCall) return true;
        if (kind == JobEvent::Kind::kStage || kind == JobEvent::Kind::kStep) return false;
      }
      return false;
    };
    if (has_calls(stage)) return true;
    for (std::size_t i = 0; i < old_.events.size(); ++i) {
      const JobEvent& event = old_.events[i];
      const bool begins = event.kind == JobEvent::Kind::kStage && event.stage == Stage::kOptimizer;
      if (begins && has_calls(i)) return false;
    }
    return true;
  }

  Tensors Trainable() const {
    Tensors tensors;
    for (const ModelTensor& tensor : old_.model_tensors) {
      if (tensor.trainable) tensors.push_back(&tensor);
    }
    return tensors;
  }

  Storage Make(const ModelTensor& like) {
    return edit_.Make(chosen_.facts.name, BytesOf(job_, like));
  }
  void MakeState(Bytes bytes) { edit_.Make(chosen_.facts.name, bytes, Category::kOptimizerState); }

  /// A row for all columns and a column for all rows of the last two dimensions.
  void AddFactored(Bytes bytes, const LayoutRecord& layout) {
    const std::size_t dimensions = layout.sizes.size();
    if (dimensions < 2) return MakeState(bytes);
    for (std::size_t i = dimensions - 2; i < dimensions; ++i) {
      MakeState(bytes / std::max<Bytes>(1, layout.sizes[2 * dimensions - 3 - i].least()));
    }
  }

  void AddState(const ModelTensor& tensor) {
    const OptimizerFacts& facts = chosen_.facts;
    const LayoutRecord& layout = job_.layouts[tensor.layout];
    const Bytes bytes = BytesOf(job_, tensor);
    if (chosen_.form == OptimizerForm::kFused && facts.states >= 2)
      MakeState(4);  // the count of steps
    if (facts.factored) return AddFactored(bytes, layout);
    const Bytes elements = bytes / ElementSize(layout.dtype);
    for (int i = 0; i < facts.states; ++i) {
      MakeState(facts.state_element > 0 ? elements * facts.state_element : bytes);
      if (facts.state_block > 0) {
        MakeState((elements + facts.state_block - 1) / facts.state_block * 4);
      }
    }
  }

  /// What the kernels do, for the time that it takes.
  void AddWork(const Tensors& tensors) {
    const OptimizerFacts& facts = chosen_.facts;
    const bool fused = chosen_.form == OptimizerForm::kFused;
    const int calls = fused ? 1 : facts.foreach_calls;
    Argument::List list;
    for (const ModelTensor* tensor : tensors) {
      list.push_back({TensorUse{.storage = tensor->storage, .layout = tensor->layout}});
    }
    for (int i = 0; i < calls; ++i) {
      CallRecord call{.op = job_.strings.Intern("plimsoll.optimizer_step_")};
      call.where = job_.strings.Intern(facts.name);
      call.args = {{list},
                   {(fused ? facts.fused_bytes : facts.foreach_bytes) / calls},
                   {chosen_.form == OptimizerForm::kLoop},
                   {facts.waits}};
      edit_.Call(std::move(call));
    }
  }

  /// Gradients go to the host, are stepped there, and the parameters come back; nothing is made on
  /// the device.
  void UpdateOnHost(const Tensors& tensors) {
    const OptimizerFacts& facts = chosen_.facts;
    Argument::List list;
    for (const ModelTensor* tensor : tensors) {
      list.push_back({TensorUse{.storage = tensor->storage, .layout = tensor->layout}});
    }
    const double bytes = facts.can_fuse ? facts.fused_bytes : facts.foreach_bytes;
    for (const std::string_view op :
         {"plimsoll.to_host_", "plimsoll.host_step_", "plimsoll.to_device_"}) {
      CallRecord call{.op = job_.strings.Intern(op), .where = job_.strings.Intern(facts.name)};
      call.args = {{list}, {bytes}};
      edit_.Call(std::move(call));
    }
  }

  void Update(const Tensors& tensors) {
    if (chosen_.form == OptimizerForm::kHost) return UpdateOnHost(tensors);
    for (const ModelTensor* tensor : tensors) {
      if (has_state_.insert(tensor->storage).second) AddState(*tensor);
    }
    AddWork(tensors);
    if (chosen_.form == OptimizerForm::kForeach) {
      std::vector<Storage> held;
      for (int list = 0; list < chosen_.facts.lists; ++list) {
        for (const ModelTensor* tensor : tensors) held.push_back(Make(*tensor));
      }
      for (auto s = held.rbegin(); s != held.rend(); ++s) edit_.Free(*s);
    } else if (chosen_.form == OptimizerForm::kLoop && chosen_.facts.lists > 0) {
      // One tensor at a time; the last one is let go when the next parameter has its own.
      Storage before = kElsewhere;
      for (const ModelTensor* tensor : tensors) {
        const Storage kept = Make(*tensor);
        edit_.Free(Make(*tensor));
        edit_.Free(before);
        before = kept;
      }
      edit_.Free(before);
    }
  }

  Job& job_;
  const Variant& old_;
  const ChosenOptimizer chosen_;
  /// Empty unless parameters are updated in the backward.
  const Completions completions_;
  JobEditor edit_;
  std::set<Storage> has_state_;
};

/// What the last step of an optimizer calls, and what optimizers call behind the steps: a script
/// may change its optimizer later.
class OptimizerCalls {
 public:
  OptimizerCalls(const Job& job, const Variant& variant) : variant_(variant) {
    Read(job, variant.events);
    const auto of_steps = written_;
    for (const Part& part : variant.later) Read(job, part.events);
    others_later_ = std::ranges::any_of(variant.model_tensors, [&](const ModelTensor& tensor) {
      return std::ranges::any_of(written_, [&](const auto& of_operator) {
        const auto before = of_steps.find(of_operator.first);
        return of_operator.second.contains(tensor.storage) &&
               (before == of_steps.end() || !before->second.contains(tensor.storage));
      });
    });
  }

  /// Whether what comes behind the steps updates more, or otherwise.
  bool others_later() const { return others_later_; }

  int Count(std::string_view name) const {
    const auto found = count_.find(name);
    return found == count_.end() ? 0 : found->second;
  }

  bool AreAllOf(std::initializer_list<std::string_view> names) const {
    return std::ranges::all_of(count_, [&](const auto& call) {
      return std::ranges::find(names, call.first) != names.end();
    });
  }

  /// Whether each parameter that is updated is updated by this operator, too: else a part of them
  /// has another optimizer.
  bool UpdatesAll(std::string_view name) const {
    const auto by_this = written_.find(name);
    if (by_this == written_.end()) return false;
    return std::ranges::all_of(variant_.model_tensors, [&](const ModelTensor& tensor) {
      const bool is_updated =
          tensor.trainable && std::ranges::any_of(written_, [&](const auto& of_operator) {
            return of_operator.second.contains(tensor.storage);
          });
      return !is_updated || by_this->second.contains(tensor.storage);
    });
  }

 private:
  void Read(const Job& job, const std::vector<JobEvent>& events) {
    Stage stage = Stage::kUnknown;
    for (const JobEvent& event : events) {
      if (event.kind == JobEvent::Kind::kStep) {
        count_.clear();
        written_.clear();
      }
      if (event.kind == JobEvent::Kind::kStage) stage = event.stage;
      if (event.kind != JobEvent::Kind::kCall || stage != Stage::kOptimizer) continue;
      Add(job, variant_.calls[event.index]);
    }
  }

  void Add(const Job& job, const CallRecord& call) {
    std::string_view op = job.strings[call.op];
    op.remove_prefix(std::min(op.size(), op.find('.') + 1));
    const std::string name(op.substr(0, op.find('.')));
    ++count_[name];
    if (!name.ends_with('_') || call.args.empty()) return;
    std::set<Storage>& written = written_[name];
    const Argument& first = call.args.front();
    if (const auto* tensor = std::get_if<TensorUse>(&first.is)) written.insert(tensor->storage);
    const auto* list = std::get_if<Argument::List>(&first.is);
    if (list == nullptr) return;
    for (const Argument& each : *list) {
      if (const auto* tensor = std::get_if<TensorUse>(&each.is)) written.insert(tensor->storage);
    }
  }

  const Variant& variant_;
  bool others_later_ = false;
  /// By an operator's name without the overload.
  std::map<std::string, int, std::less<>> count_;
  std::map<std::string, std::set<Storage>, std::less<>> written_;
};

}  // namespace

CapturedOptimizer OptimizerOf(const Job& job, const Variant& variant) {
  const OptimizerCalls calls(job, variant);
  if (calls.UpdatesAll("_fused_adamw_")) return {.name = "adamw", .fused = true};
  if (calls.UpdatesAll("_fused_adam_")) return {.name = "adam", .fused = true};
  if (calls.UpdatesAll("_fused_sgd_")) return {.name = "sgd", .fused = true};
  // Adam's own: the mean drawn to the gradient, and one quotient at the end.
  if (calls.Count("_foreach_lerp_") > 0 && calls.UpdatesAll("_foreach_addcdiv_")) {
    // AdamW's further product shrinks the weights. There may be groups, and steps that follow.
    const bool decays = calls.Count("_foreach_mul_") > calls.Count("_foreach_lerp_");
    return {.name = decays ? "adamw" : "adam"};
  }
  if (!calls.AreAllOf({"_foreach_add_", "_foreach_mul_"})) return {};
  if (!calls.UpdatesAll("_foreach_add_")) return {};
  return {.name = calls.Count("_foreach_mul_") > 0 ? "sgd_momentum" : "sgd"};
}

bool TrainsOtherwiseLater(const Job& job, const Variant& variant) {
  return OptimizerCalls(job, variant).others_later();
}

std::string WhyNotInBackward(const Job& job, const Variant& variant) {
  const std::string line = GradientsUsedAt(job, variant);
  if (line.empty()) return {};
  return fmt::format(
      "the optimizer cannot step inside the backward: {} uses the gradients before "
      "optimizer.step()",
      line);
}

Result<Variant> ReplaceOptimizer(Job& job, const Variant& variant,
                                 const OtherOptimizer& optimizer) {
  const Result<ChosenOptimizer> chosen = ChooseOptimizer(optimizer);
  if (!chosen) return chosen.error();
  Completions completions;
  if (chosen->in_backward) {
    if (std::string why = WhyNotInBackward(job, variant); !why.empty()) {
      return Error{.message = std::move(why),
                   .hint = "clipping, a gradient scaler and norms need all gradients at once"};
    }
    Result<Completions> found = GradientFinder(job, variant).Run();
    if (!found) return found.error();
    completions = std::move(*found);
  }
  return Replacement(job, variant, *chosen, std::move(completions)).Run();
}

}  // namespace plimsoll
