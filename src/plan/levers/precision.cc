// The precision: any that the capture recorded beside the job as written.
#include <fmt/format.h>

#include "plan/lever.h"

namespace plimsoll {
namespace {

struct Known {
  std::string_view name;
  std::string_view words;
  Numerics numerics;
};

constexpr Known kKnown[] = {
    {"fp32", "fp32", Numerics::kRounding},
    {"amp_bf16", "bf16 autocast", Numerics::kRounding},
    {"amp_fp16", "fp16 autocast", Numerics::kRounding},
    // Weights in bf16 forget small updates: that trains otherwise.
    {"bf16", "weights in bf16", Numerics::kOther},
};

constexpr std::string_view kChannelsLast = "channels_last";

/// "amp_bf16+channels_last" is "amp_bf16" in another memory format.
struct Parts {
  std::string_view type;
  bool channels_last = false;
};

Parts PartsOf(std::string_view name) {
  if (!name.ends_with(kChannelsLast)) return {.type = name};
  name.remove_suffix(kChannelsLast.size());
  if (name.ends_with('+')) name.remove_suffix(1);
  return {.type = name, .channels_last = true};
}

Numerics NumericsOfPrecision(const Job&, std::string_view value) {
  const std::string_view type = PartsOf(value).type;
  for (const Known& known : kKnown) {
    if (known.name == type) return known.numerics;
  }
  return Numerics::kRounding;
}

std::string Words(std::string_view value) {
  const Parts parts = PartsOf(value);
  std::string words(parts.type);
  for (const Known& known : kKnown) {
    if (known.name == parts.type) words = known.words;
  }
  if (!parts.channels_last) return words;
  return words.empty() ? "channels last" : words + ", channels last";
}

std::vector<std::string> Code(std::string_view value) {
  const Parts parts = PartsOf(value);
  std::vector<std::string> lines;
  if (parts.channels_last) {
    lines = {"model = model.to(memory_format=torch.channels_last)",
             "x = x.to(memory_format=torch.channels_last)"};
  }
  const auto add = [&](std::initializer_list<const char*> more) {
    lines.insert(lines.end(), more.begin(), more.end());
  };
  if (parts.type == "amp_bf16") {
    add({"with torch.autocast(\"cuda\", dtype=torch.bfloat16):",
         "    loss = criterion(model(x), y)"});
  } else if (parts.type == "amp_fp16") {
    add({"scaler = torch.amp.GradScaler(\"cuda\")",
         "with torch.autocast(\"cuda\", dtype=torch.float16):", "    loss = criterion(model(x), y)",
         "scaler.scale(loss).backward()", "scaler.step(optimizer); scaler.update()"});
  } else if (parts.type == "bf16") {
    add({"model = model.bfloat16()  # before the optimizer is made",
         "x = x.bfloat16()          # inputs that are no indices"});
  } else if (parts.type == "fp32") {
    add({"model = model.float()  # before the optimizer is made, and no autocast"});
  }
  return lines;
}

}  // namespace

const PlanLever kPrecisionLever = {
    .name = "precision",
    .values = "one that was captured: amp_bf16, amp_fp16, bf16, amp_bf16+channels_last",
    .numerics = NumericsOfPrecision,
    .worth_trying = [](const PlanRequest& request, const Variant&) -> std::vector<std::string> {
      std::vector<std::string> names;
      for (std::size_t i = 1; i < request.job.variants.size(); ++i) {
        names.push_back(request.job.variants[i].precision);
      }
      return names;
    },
    .describe = [](const Job&,
                   const Choice& choice) { return Words(choice.Get(kPrecisionLever.name)); },
    .fields = [](const Job&, const Choice& choice) -> LeverFields {
      const Parts parts = PartsOf(choice.Get(kPrecisionLever.name));
      return {{"name", std::string(choice.Get(kPrecisionLever.name))},
              {"type", std::string(parts.type)},
              {"channels_last", parts.channels_last}};
    },
    .code = [](const Job&, const Choice& choice) { return Code(choice.Get(kPrecisionLever.name)); },
    .configure = [](PredictOptions& options, std::string_view value) -> std::optional<Error> {
      options.precision = value;
      return std::nullopt;
    },
};

}  // namespace plimsoll
