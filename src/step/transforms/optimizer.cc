#include "step/transforms/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>

#include "base/suggest.h"
#include "step/transforms/step_editor.h"

namespace plimsoll {
namespace {

/// How the step is computed.
enum class Form { kForeach, kLoop, kFused };

/// What an optimizer allocates for parameters in fp32, measured on an H200 with torch 2.11
/// (docs/prediction.md, "Optimizers"): 42 optimizers and forms, three steps each.
struct Facts {
  std::string_view name;
  /// Tensors of state for each parameter, each of the parameter's size.
  int states = 0;
  /// The foreach form: full lists that are held until its end.
  int lists = 0;
  bool can_fuse = false;
  /// Bytes of state for each element, where it is not the parameter's type; 0 where it is.
  int state_element = 0;
  /// The state comes in blocks of so many elements with a 4-byte scale each; 0 for none.
  int state_block = 0;
  /// For the time of a step: bytes read and written for each element of a parameter, in fp32, by
  /// the foreach form (in so many calls) and by the fused one. Of Adam and SGD as PyTorch calls
  /// them; of the others by their definitions.
  double foreach_bytes = 0;
  int foreach_calls = 1;
  double fused_bytes = 0;
};

constexpr Facts kFacts[] = {
    {.name = "sgd", .can_fuse = true, .foreach_bytes = 12, .fused_bytes = 12},
    {.name = "sgd_momentum",
     .states = 1,
     .can_fuse = true,
     .foreach_bytes = 32,
     .foreach_calls = 3,
     .fused_bytes = 20},
    {.name = "adam",
     .states = 2,
     .lists = 1,
     .can_fuse = true,
     .foreach_bytes = 72,
     .foreach_calls = 7,
     .fused_bytes = 28},
    {.name = "adamw",
     .states = 2,
     .lists = 1,
     .can_fuse = true,
     .foreach_bytes = 80,
     .foreach_calls = 8,
     .fused_bytes = 28},
    {.name = "adam_amsgrad", .states = 3, .lists = 1, .foreach_bytes = 92, .foreach_calls = 9},
    {.name = "nadam", .states = 2, .lists = 1, .foreach_bytes = 96, .foreach_calls = 9},
    {.name = "radam", .states = 2, .lists = 1, .foreach_bytes = 96, .foreach_calls = 9},
    {.name = "adamax", .states = 2, .lists = 1, .foreach_bytes = 72, .foreach_calls = 7},
    {.name = "rmsprop", .states = 1, .lists = 1, .foreach_bytes = 60, .foreach_calls = 6},
    {.name = "adagrad", .states = 1, .lists = 2, .foreach_bytes = 56, .foreach_calls = 5},
    {.name = "adadelta", .states = 2, .lists = 2, .foreach_bytes = 92, .foreach_calls = 9},
    // From its definition, not measured: two states of one byte, scales for blocks of 256.
    {.name = "adam8bit",
     .states = 2,
     .can_fuse = true,
     .state_element = 1,
     .state_block = 256,
     .fused_bytes = 16},
};

struct Chosen {
  Facts facts;
  Form form = Form::kForeach;
};

Result<Chosen> Choose(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const std::string_view form = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  for (const Facts& facts : kFacts) {
    if (facts.name != name) continue;
    Chosen chosen{.facts = facts};
    if (facts.state_element > 0) chosen.form = Form::kFused;
    if (form == "fused" && facts.can_fuse) {
      chosen.form = Form::kFused;
    } else if (form == "for") {
      chosen.form = Form::kLoop;
    } else if (!form.empty() && form != "foreach") {
      return Error{.message = fmt::format("{} has no form '{}'", name, form),
                   .hint = "foreach (the default), for, or fused (sgd, adam, adamw)"};
    }
    return chosen;
  }
  return Error{.message = fmt::format("optimizer '{}' is not known", name),
               .hint = SuggestOr(name, OptimizerNames(),
                                 fmt::format("known are {}", fmt::join(OptimizerNames(), ", ")))};
}

class Replacement {
 public:
  Replacement(Step& step, const Variant& old, const Chosen& chosen)
      : step_(step), old_(old), chosen_(chosen), edit_(step, old, "plimsoll.optimizer") {}

  Variant Run() {
    std::vector<char> dropped(old_.storages, 0);
    bool optimizer = false;
    for (const StepEvent& event : old_.events) {
      if (event.kind == StepEvent::Kind::kPhase) {
        optimizer = event.phase == Phase::kOptimizer;
        edit_.Copy(event);
        if (optimizer) AddStep();
        continue;
      }
      if (event.kind == StepEvent::Kind::kStep) optimizer = false;
      if (event.kind == StepEvent::Kind::kCall && optimizer) {
        for (const NewStorage& fresh : old_.calls[event.index].fresh) dropped[fresh.storage] = 1;
        continue;
      }
      const bool names_storage =
          event.kind == StepEvent::Kind::kFree || event.kind == StepEvent::Kind::kLabel;
      if (names_storage && dropped[event.index]) continue;
      edit_.Copy(event);
    }
    return edit_.Take();
  }

 private:
  std::vector<const ModelTensor*> Trainable() const {
    std::vector<const ModelTensor*> tensors;
    for (const ModelTensor& tensor : old_.model_tensors) {
      if (tensor.trainable) tensors.push_back(&tensor);
    }
    return tensors;
  }

  Storage Make(const ModelTensor& like) {
    return edit_.Make(chosen_.facts.name, BytesOf(step_, like));
  }
  void MakeState(Bytes bytes) { edit_.Make(chosen_.facts.name, bytes, Category::kOptimizerState); }

  void AddState(Bytes bytes, Bytes element) {
    const Facts& facts = chosen_.facts;
    if (chosen_.form == Form::kFused && facts.states >= 2) MakeState(4);  // the count of steps
    const Bytes elements = bytes / element;
    for (int i = 0; i < facts.states; ++i) {
      MakeState(facts.state_element > 0 ? elements * facts.state_element : bytes);
      if (facts.state_block > 0) {
        MakeState((elements + facts.state_block - 1) / facts.state_block * 4);
      }
    }
  }

  /// What the kernels do, for the time that it takes.
  void AddWork(const std::vector<const ModelTensor*>& tensors) {
    const Facts& facts = chosen_.facts;
    const bool fused = chosen_.form == Form::kFused;
    const int calls = fused ? 1 : facts.foreach_calls;
    Argument::List list;
    for (const ModelTensor* tensor : tensors) {
      list.push_back({TensorUse{.storage = tensor->storage, .layout = tensor->layout}});
    }
    for (int i = 0; i < calls; ++i) {
      CallRecord call{.op = step_.strings.Intern("plimsoll.optimizer_step_")};
      call.where = step_.strings.Intern(facts.name);
      call.args = {{list},
                   {(fused ? facts.fused_bytes : facts.foreach_bytes) / calls},
                   {chosen_.form == Form::kLoop}};
      edit_.Call(std::move(call));
    }
  }

  void AddStep() {
    const std::vector<const ModelTensor*> tensors = Trainable();
    if (first_) {
      for (const ModelTensor* tensor : tensors) {
        AddState(BytesOf(step_, *tensor), ElementSize(step_.layouts[tensor->layout].dtype));
      }
    }
    first_ = false;
    AddWork(tensors);
    if (chosen_.form == Form::kForeach) {
      std::vector<Storage> held;
      for (int list = 0; list < chosen_.facts.lists; ++list) {
        for (const ModelTensor* tensor : tensors) held.push_back(Make(*tensor));
      }
      for (auto s = held.rbegin(); s != held.rend(); ++s) edit_.Free(*s);
    } else if (chosen_.form == Form::kLoop && chosen_.facts.lists > 0) {
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

  Step& step_;
  const Variant& old_;
  const Chosen chosen_;
  StepEditor edit_;
  bool first_ = true;
};

}  // namespace

std::vector<std::string_view> OptimizerNames() {
  std::vector<std::string_view> names;
  for (const Facts& facts : kFacts) names.push_back(facts.name);
  return names;
}

CapturedOptimizer OptimizerOf(const Step& step, const Variant& variant) {
  // How often the last step calls each operator, by its name without the overload.
  std::map<std::string, int, std::less<>> calls;
  Phase phase = Phase::kOther;
  for (const StepEvent& event : variant.events) {
    if (event.kind == StepEvent::Kind::kStep) calls.clear();
    if (event.kind == StepEvent::Kind::kPhase) phase = event.phase;
    if (event.kind != StepEvent::Kind::kCall || phase != Phase::kOptimizer) continue;
    std::string_view op = step.strings[variant.calls[event.index].op];
    op.remove_prefix(std::min(op.size(), op.find('.') + 1));
    ++calls[std::string(op.substr(0, op.find('.')))];
  }
  const auto count = [&](std::string_view name) {
    const auto found = calls.find(name);
    return found == calls.end() ? 0 : found->second;
  };
  if (count("_fused_adamw_") > 0) return {.name = "adamw", .fused = true};
  if (count("_fused_adam_") > 0) return {.name = "adam", .fused = true};
  if (count("_fused_sgd_") > 0) return {.name = "sgd", .fused = true};
  // Adam's own: the mean drawn to the gradient, and one quotient at the end.
  if (count("_foreach_lerp_") > 0 && count("_foreach_addcdiv_") > 0) {
    return {.name = count("_foreach_mul_") > 1 ? "adamw" : "adam"};
  }
  const int adds = count("_foreach_add_");
  const bool nothing_else = std::all_of(calls.begin(), calls.end(), [](const auto& call) {
    return call.first == "_foreach_add_" || call.first == "_foreach_mul_";
  });
  if (!nothing_else || adds == 0) return {};
  return {.name = count("_foreach_mul_") > 0 ? "sgd_momentum" : "sgd"};
}

Result<Variant> ReplaceOptimizer(Step& step, const Variant& variant, std::string_view name) {
  const Result<Chosen> chosen = Choose(name);
  if (!chosen) return chosen.error();
  return Replacement(step, variant, *chosen).Run();
}

}  // namespace plimsoll
