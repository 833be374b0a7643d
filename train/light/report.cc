#include "train/light/report.h"

#include <set>
#include <sstream>

namespace plimsoll::train {
namespace {

Bytes SizeOf(const at::Tensor& tensor) {
  return static_cast<Bytes>(tensor.numel()) * static_cast<Bytes>(tensor.element_size());
}

void Saving(std::ostream& out, const char* what, Bytes before, Bytes after) {
  if (before == after) return;
  out << ", " << what << ' ' << FormatBytes(before) << " to " << FormatBytes(after);
}

void Difference(std::ostream& out, const Footprint& before, const Footprint& after) {
  out << before.parameters << " to " << after.parameters << " parameters";
  if (before.trained != before.parameters || after.trained != after.parameters) {
    out << " (" << before.trained << " to " << after.trained << " trained)";
  }
  Saving(out, "weights", before.weights, after.weights);
  Saving(out, "gradients", before.gradients, after.gradients);
  Saving(out, "optimizer state", before.optimizer_state, after.optimizer_state);
}

}  // namespace

Footprint FootprintOf(const torch::nn::Module& module, int states_per_parameter) {
  TORCH_CHECK(states_per_parameter >= 0, "an optimizer cannot keep ", states_per_parameter,
              " tensors for each parameter");
  Footprint footprint;
  std::set<const void*> seen;
  const auto is_new = [&](const at::Tensor& tensor) {
    return tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second;
  };
  for (const at::Tensor& parameter : module.parameters()) {
    if (!is_new(parameter)) continue;
    footprint.parameters += parameter.numel();
    footprint.weights += SizeOf(parameter);
    if (!parameter.requires_grad()) continue;
    footprint.trained += parameter.numel();
    footprint.gradients += SizeOf(parameter);
  }
  for (const at::Tensor& buffer : module.buffers()) {
    if (is_new(buffer)) footprint.weights += SizeOf(buffer);
  }
  footprint.optimizer_state = states_per_parameter * footprint.gradients;
  return footprint;
}

std::string LightReport::ToString() const {
  std::ostringstream out;
  for (const Change& change : changed) {
    out << change.layer << ": " << change.to << ", ";
    Difference(out, change.before, change.after);
    out << '\n';
  }
  for (const Skip& skip : skipped)
    out << skip.layer << ": as it was, since it " << skip.reason << '\n';
  out << "model: ";
  Difference(out, before, after);
  out << '\n';
  return out.str();
}

}  // namespace plimsoll::train
