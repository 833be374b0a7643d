#include "job/transforms/optimizer_kind.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/suggest.h"
#include "base/text.h"

namespace plimsoll {
namespace {

constexpr OptimizerFacts kFacts[] = {
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
    {.name = "adafactor",
     .states = 1,
     .lists = 1,
     .factored = true,
     .foreach_bytes = 64,
     .foreach_calls = 55,
     .waits = true},
    // From its definition, not measured: two states of one byte, scales for blocks of 256.
    {.name = "adam8bit",
     .states = 2,
     .can_fuse = true,
     .state_element = 1,
     .state_block = 256,
     .fused_bytes = 16},
};

/// Up to the next colon, which is taken off as well.
std::string_view TakeWord(std::string_view& text) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  const std::string_view word = text.substr(0, colon);
  text.remove_prefix(std::min(text.size(), colon + 1));
  return word;
}

Result<OptimizerFacts> FindFacts(std::string_view name) {
  for (const OptimizerFacts& known : kFacts) {
    if (known.name == name) return known;
  }
  return Error{
      .message = fmt::format("optimizer '{}' is not known", name),
      .hint = SuggestOr(name, OptimizerNames(), "known are " + Joined(OptimizerNames(), ", "))};
}

std::optional<OptimizerForm> FormNamed(std::string_view name) {
  for (const OptimizerForm form : {OptimizerForm::kForeach, OptimizerForm::kLoop,
                                   OptimizerForm::kFused, OptimizerForm::kHost}) {
    if (OptimizerFormName(form) == name) return form;
  }
  return std::nullopt;
}

bool HasForm(const OptimizerFacts& facts, OptimizerForm form) {
  if (form == OptimizerForm::kFused) return facts.can_fuse;
  return form != OptimizerForm::kHost || facts.state_element == 0;
}

Error NoForm(std::string_view name, std::string_view form) {
  return {.message = fmt::format("{} has no form '{}'", name, form),
          .hint = "foreach (the default), for, fused (sgd, adam, adamw), host; in_backward"};
}

}  // namespace

std::vector<std::string_view> OptimizerNames() {
  std::vector<std::string_view> names;
  for (const OptimizerFacts& facts : kFacts) names.push_back(facts.name);
  return names;
}

Result<ChosenOptimizer> ChooseOptimizer(const OtherOptimizer& asked) {
  const Result<OptimizerFacts> facts = FindFacts(asked.name);
  if (!facts) return facts.error();
  if (asked.form && !HasForm(*facts, *asked.form)) {
    return NoForm(asked.name, OptimizerFormName(*asked.form));
  }
  if (asked.form == OptimizerForm::kHost && asked.in_backward) {
    return Error{.message = "an optimizer on the host steps after the backward",
                 .hint = "leave out host or in_backward"};
  }
  ChosenOptimizer chosen{.facts = *facts,
                         .form = asked.form.value_or(OptimizerForm::kForeach),
                         .in_backward = asked.in_backward};
  // With states of 8 bits there are kernels of its own alone, whatever it is told.
  if (facts->state_element > 0 && chosen.form == OptimizerForm::kForeach) {
    chosen.form = OptimizerForm::kFused;
  }
  return chosen;
}

std::string_view OptimizerFormName(OptimizerForm form) {
  switch (form) {
    case OptimizerForm::kForeach:
      return "foreach";
    case OptimizerForm::kLoop:
      return "for";
    case OptimizerForm::kFused:
      return "fused";
    case OptimizerForm::kHost:
      return "host";
  }
  return "";
}

Result<OtherOptimizer> ParseOptimizer(std::string_view text) {
  OtherOptimizer asked{.name = std::string(TakeWord(text))};
  const Result<OptimizerFacts> facts = FindFacts(asked.name);
  if (!facts) return facts.error();
  while (!text.empty()) {
    const std::string_view word = TakeWord(text);
    if (word == "in_backward") {
      asked.in_backward = true;
      continue;
    }
    asked.form = FormNamed(word);
    if (!asked.form || !HasForm(*facts, *asked.form)) return NoForm(asked.name, word);
  }
  if (const Result<ChosenOptimizer> chosen = ChooseOptimizer(asked); !chosen) return chosen.error();
  return asked;
}

std::string OptimizerText(const OtherOptimizer& optimizer) {
  std::string text = optimizer.name;
  if (optimizer.form) text += fmt::format(":{}", OptimizerFormName(*optimizer.form));
  return optimizer.in_backward ? text + ":in_backward" : text;
}

}  // namespace plimsoll
