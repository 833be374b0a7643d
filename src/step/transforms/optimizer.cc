#include "step/transforms/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
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
};

constexpr Facts kFacts[] = {
    {.name = "sgd", .can_fuse = true},
    {.name = "sgd_momentum", .states = 1, .can_fuse = true},
    {.name = "adam", .states = 2, .lists = 1, .can_fuse = true},
    {.name = "adamw", .states = 2, .lists = 1, .can_fuse = true},
    {.name = "adam_amsgrad", .states = 3, .lists = 1},
    {.name = "nadam", .states = 2, .lists = 1},
    {.name = "radam", .states = 2, .lists = 1},
    {.name = "adamax", .states = 2, .lists = 1},
    {.name = "rmsprop", .states = 1, .lists = 1},
    {.name = "adagrad", .states = 1, .lists = 2},
    {.name = "adadelta", .states = 2, .lists = 2},
    // From its definition, not measured: two states of one byte, scales for blocks of 256.
    {.name = "adam8bit", .states = 2, .can_fuse = true, .state_element = 1, .state_block = 256},
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

  void AddStep() {
    const std::vector<const ModelTensor*> tensors = Trainable();
    if (first_) {
      for (const ModelTensor* tensor : tensors) {
        AddState(BytesOf(step_, *tensor), ElementSize(step_.layouts[tensor->layout].dtype));
      }
    }
    first_ = false;
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

Result<Variant> ReplaceOptimizer(Step& step, const Variant& variant, std::string_view name) {
  const Result<Chosen> chosen = Choose(name);
  if (!chosen) return chosen.error();
  return Replacement(step, variant, *chosen).Run();
}

}  // namespace plimsoll
