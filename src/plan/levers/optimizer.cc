// The optimizer and its form: one kernel for all needs no lists of temporaries, 8-bit states take a
// quarter.
#include "job/transforms/optimizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "job/time/host_step.h"
#include "job/transforms/job_editor.h"
#include "plan/lever.h"

namespace plimsoll {
namespace {

constexpr std::string_view kInBackward = "in_backward";

struct Named {
  std::string_view name;
  std::string_view form;
};

Named Split(std::string_view value) {
  const std::size_t colon = value.find(':');
  if (colon == std::string_view::npos) return {.name = value, .form = {}};
  return {.name = value.substr(0, colon), .form = value.substr(colon + 1)};
}

std::string ClassOf(std::string_view name) {
  constexpr std::pair<std::string_view, std::string_view> kClasses[] = {
      {"sgd", "torch.optim.SGD"},
      {"sgd_momentum", "torch.optim.SGD"},
      {"adam", "torch.optim.Adam"},
      {"adamw", "torch.optim.AdamW"},
      {"adam_amsgrad", "torch.optim.Adam"},
      {"nadam", "torch.optim.NAdam"},
      {"radam", "torch.optim.RAdam"},
      {"adamax", "torch.optim.Adamax"},
      {"rmsprop", "torch.optim.RMSprop"},
      {"adagrad", "torch.optim.Adagrad"},
      {"adadelta", "torch.optim.Adadelta"},
      {"adafactor", "torch.optim.Adafactor"},
      {"adam8bit", "bitsandbytes.optim.Adam8bit"},
  };
  for (const auto& [known, python] : kClasses) {
    if (known == name) return std::string(python);
  }
  return std::string(name);
}

/// "fused:in_backward" is the form "fused", stepped in the backward.
LeverFields OptimizerFields(const Job&, const Choice& choice) {
  const Named is = Split(choice.Get(kOptimizerLever.name));
  std::string_view form = is.form;
  if (StepsInBackward(choice)) form.remove_suffix(std::min(form.size(), kInBackward.size()));
  if (form.ends_with(':')) form.remove_suffix(1);
  return {{"name", std::string(is.name)},
          {"form", std::string(form)},
          {"in_backward", StepsInBackward(choice)}};
}

CapturedOptimizer Captured(const Job& job) { return OptimizerOf(job, job.variants.front()); }

/// The same optimizer in another form only rounds otherwise.
Numerics NumericsOfOptimizer(const Job& job, std::string_view value) {
  return Split(value).name == Captured(job).name ? Numerics::kRounding : Numerics::kOther;
}

/// A step on the host is slow: worth it where the two moments take a tenth of the card.
bool StateIsMuch(const PlanRequest& request, const Variant& variant) {
  Bytes parameters = 0;
  for (const ModelTensor& tensor : variant.model_tensors) {
    if (tensor.trainable) parameters += BytesOf(request.job, tensor);
  }
  return 2 * parameters >= request.options.limit.value_or(request.gpu.memory) / 10;
}

std::vector<std::string> WorthTrying(const PlanRequest& request, const Variant& variant) {
  const CapturedOptimizer captured = OptimizerOf(request.job, variant);
  if (captured.name.empty()) return {};
  std::vector<std::string> values;
  if (!captured.fused) values.push_back(captured.name + ":fused");
  values.push_back(captured.name + ":fused:in_backward");
  if (captured.name.starts_with("adam")) {
    if (StateIsMuch(request, variant)) values.push_back(captured.name + ":host");
    values.push_back("adam8bit");
    values.push_back("adafactor");
  }
  return values;
}

std::string Describe(const Job& job, const Choice& choice) {
  const std::string_view value = choice.Get(kOptimizerLever.name);
  const Named is = Split(value);
  if (is.name == Captured(job).name && is.form == "fused") return "fused optimizer";
  if (is.form == "fused:in_backward") return "fused optimizer in the backward";
  if (is.form == "host") return "optimizer on the host";
  if (is.name == "adam8bit") return "8-bit Adam";
  return std::string(value);
}

std::vector<std::string> Code(const Job&, const Choice& choice) {
  const Named is = Split(choice.Get(kOptimizerLever.name));
  if (is.form.ends_with(kInBackward)) {
    return {fmt::format("optimizers = {{p: {}([p], ..., {}) for p in model.parameters()}}",
                        ClassOf(is.name),
                        is.form.starts_with("fused") ? "fused=True" : "foreach=False"),
            "def update(p):", "    optimizers[p].step(); p.grad = None",
            "for p in model.parameters(): p.register_post_accumulate_grad_hook(update)",
            "# and no optimizer.step() after the backward"};
  }
  std::string arguments = "model.parameters(), ...";
  if (is.name == "sgd_momentum") arguments += ", momentum=0.9";
  if (is.name == "adam_amsgrad") arguments += ", amsgrad=True";
  if (is.form == "fused") arguments += ", fused=True";
  if (is.form == "foreach") arguments += ", foreach=True";
  if (is.form == "for") arguments += ", foreach=False";
  const std::string made = fmt::format("{}({})", ClassOf(is.name), arguments);
  if (is.form != "host") return {"optimizer = " + made};
  return {"from plimsoll.host_optimizer import HostOptimizer",
          fmt::format("optimizer = HostOptimizer({})", made)};
}

}  // namespace

bool StepsInBackward(const Choice& choice) {
  return Split(choice.Get(kOptimizerLever.name)).form.ends_with(kInBackward);
}

const PlanLever kOptimizerLever = {
    .name = "optimizer",
    .values =
        "sgd, adamw, adamw:fused, adamw:fused:in_backward, adam:for, adamw:host, adam8bit, ...",
    .numerics = NumericsOfOptimizer,
    .worth_trying = WorthTrying,
    .describe = Describe,
    .fields = OptimizerFields,
    .code = Code,
    .rewrite = [](Job& job, Variant& variant, std::string_view value) -> std::optional<Error> {
      Result<Variant> replaced = ReplaceOptimizer(job, variant, value);
      if (!replaced) return replaced.error();
      if (Split(value).form == "host") {
        Note(job, fmt::format("the optimizer's step on the host is assumed to go through {:.0f} GB "
                              "of its memory a second",
                              kHostMemoryRate * 1e-3));
      }
      variant = std::move(*replaced);
      return std::nullopt;
    },
};

}  // namespace plimsoll
