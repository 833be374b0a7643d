#include "train/trainer/does_not_fit.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cctype>
#include <utility>
#include <vector>

namespace plimsoll::train {
namespace {

std::string Sentence(const DoesNotFit::Figures& figures) {
  const std::string where =
      figures.budget ? "the budget of " + FormatBytes(*figures.budget) : std::string("the device");
  const std::string need =
      figures.need > figures.budget.value_or(figures.need)
          ? (figures.need_is_least ? "at least " : "about ") + FormatBytes(figures.need)
          : std::string("more than that");
  return c10::str("training does not fit into ", where, ": it takes ", need, ". ", figures.cause,
                  ". ", figures.lever, ". Nothing was changed");
}

std::string CauseOf(const Shortage& shortage, Bytes fixed) {
  const std::string rows =
      shortage.rows == 1 ? std::string("one sample") : c10::str("the ", shortage.rows, " samples");
  std::vector<std::string> parts;
  const auto add = [&](const char* what, Bytes bytes) {
    if (bytes > 0) parts.push_back(c10::str(what, " (", FormatBytes(bytes), ")"));
  };
  add("parameters", shortage.fixed.parameters);
  add("gradients", shortage.fixed.gradients);
  add("the optimizer's state", shortage.fixed.optimizer_state);
  if (parts.empty()) return c10::str("It is what ", rows, " and the program's other tensors take");
  std::string all = parts.front();
  for (std::size_t i = 1; i < parts.size(); ++i) {
    all += (i + 1 < parts.size() ? ", " : " and ") + parts[i];
  }
  all.front() = static_cast<char>(std::toupper(all.front()));
  return c10::str(all, " are ", FormatBytes(fixed), ", the rest is what ", rows,
                  " and the program's other tensors take");
}

std::string LeverOf(const Shortage& shortage, Bytes fixed) {
  const bool fixed_decides = 2 * fixed > shortage.need;
  const bool state_helps =
      shortage.state_could_shrink && 4 * shortage.fixed.optimizer_state > shortage.need;
  if (fixed_decides && state_helps) {
    return c10::str("AdamW8bit takes a quarter of that state, HostAdamW keeps all of it (",
                    FormatBytes(shortage.fixed.optimizer_state), ") off the device");
  }
  if (shortage.levers_set) {
    return "Micro-batch, checkpoint or offload are set by the options: left open, they are chosen "
           "so "
           "that it fits if it can";
  }
  if (shortage.whole_batch) {
    return "The loss is over the whole batch, which is therefore not split: a smaller batch takes "
           "less";
  }
  if (!shortage.may_split) {
    return "Batch normalization keeps the batch in one piece: a smaller batch takes less, and so "
           "does TrainerOptions::split_batch_norm, which trains a slightly different model";
  }
  if (shortage.blocks == 0) {
    return "Nothing of the model can be checkpointed: let it derive from Checkpointable "
           "(train/checkpointing/checkpoint_policy.h)";
  }
  if (fixed_decides) return "A model with fewer parameters would take less";
  return "Smaller samples (image side, context), or a loss that never has its largest tensor whole "
         "(LinearCrossEntropy), would take less";
}

}  // namespace

DoesNotFit::DoesNotFit(Figures figures)
    : c10::OutOfMemoryError({__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)},
                            Sentence(figures)),
      figures_(std::move(figures)) {}

DoesNotFit Explain(const Shortage& shortage) {
  const Bytes fixed =
      shortage.fixed.parameters + shortage.fixed.gradients + shortage.fixed.optimizer_state;
  return DoesNotFit({.need = shortage.need,
                     .need_is_least = shortage.need_is_least,
                     .budget = shortage.budget,
                     .fixed = shortage.fixed,
                     .cause = CauseOf(shortage, fixed),
                     .lever = LeverOf(shortage, fixed)});
}

}  // namespace plimsoll::train
