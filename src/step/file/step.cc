#include "step/file/step.h"

namespace plimsoll {

std::string_view PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kModel:
      return "model";
    case Phase::kInputs:
      return "inputs";
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kOptimizer:
      return "optimizer";
    case Phase::kOther:
      return "other";
  }
  return "other";
}

Step CopyOf(const Step& step, std::size_t variant) {
  Step copy{.file = step.file,
            .torch = step.torch,
            .gpu = step.gpu,
            .model = step.model,
            .batches = {step.batches[0], step.batches[1]},
            .matmul_tf32 = step.matmul_tf32,
            .backend = step.backend,
            .sharded = step.sharded,
            .data_parallel = step.data_parallel,
            .names_root = step.names_root,
            .sizes_change = step.sizes_change,
            .strings = {},
            .layouts = step.layouts,
            .variants = {step.variants[variant]},
            .notes = step.notes};
  // In their order, so that each keeps its number.
  for (std::size_t i = 0; i < step.strings.size(); ++i)
    copy.strings.Intern(step.strings[StringId(i)]);
  return copy;
}

}  // namespace plimsoll
