#include "train/saving/weights.h"

#include <torch/csrc/autograd/grad_mode.h>

#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "files/output.h"
#include "train/budget/host_memory.h"
#include "train/saving/state_tensors.h"
#include "train/state/safetensors.h"

namespace plimsoll::train {
namespace {

using Named = std::vector<std::pair<std::string, at::Tensor>>;

/// Each tensor once.
Named WeightsOf(const torch::nn::Module& model) {
  Named named;
  std::set<const void*> seen;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second) {
      named.emplace_back(name, tensor);
    }
  };
  for (const auto& item : model.named_parameters()) add(item.key(), item.value());
  for (const auto& item : model.named_buffers()) add(item.key(), item.value());
  return named;
}

/// The file's bytes need not be aligned, so they are copied.
at::Tensor TensorOf(const StateTensor& saved) {
  at::Tensor tensor = HostTensor(saved.sizes, ScalarTypeOf(saved.type), /*pinned=*/false);
  std::memcpy(tensor.data_ptr(), saved.bytes.data(), saved.bytes.size());
  return tensor;
}

}  // namespace

void SaveWeights(const std::filesystem::path& path, const torch::nn::Module& model) {
  std::vector<at::Tensor> plain;
  SafeTensors tensors;
  for (const auto& [name, tensor] : WeightsOf(model)) {
    const at::Tensor& here = plain.emplace_back(PlainOnHost(tensor));
    tensors[name] = {.type = ElementTypeOf(name, here),
                     .sizes = here.sizes().vec(),
                     .bytes = {static_cast<const char*>(here.data_ptr()), here.nbytes()}};
  }
  const Result<std::string> bytes = WriteSafetensors(tensors);
  TORCH_CHECK(bytes.ok(), bytes.error().ToLine());
  const std::optional<Error> error = WriteFile(path.string(), *bytes);
  TORCH_CHECK(!error.has_value(), Printable(error->ToLine()));
}

void LoadWeights(const std::filesystem::path& path, torch::nn::Module& model,
                 const std::function<std::string(const std::string&)>& rename) {
  const Result<Input> input = Input::Open(path.string());
  TORCH_CHECK(input.ok(), Printable(input.error().ToLine()));
  const Result<SafeTensors> file = ReadSafetensors(*input);
  TORCH_CHECK(file.ok(), Printable(file.error().ToLine()));
  const std::string where = Printable(path.string());
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  std::set<std::string> used;
  for (const auto& [name, tensor] : WeightsOf(model)) {
    const std::string saved_name = rename ? rename(name) : name;
    const auto found = file->find(saved_name);
    TORCH_CHECK(found != file->end(), where, ": there is no '", Printable(saved_name), "' in it");
    const at::Tensor saved = TensorOf(found->second);
    TORCH_CHECK(saved.sizes() == tensor.sizes(), where, ": '", Printable(saved_name), "' is ",
                saved.sizes(), " in it, and ", tensor.sizes(), " here");
    TORCH_CHECK(saved.is_floating_point() == tensor.is_floating_point(), where, ": '",
                Printable(saved_name), "' is ", saved.dtype(), " in it, and ", tensor.dtype(),
                " here");
    copies.emplace_back(tensor, saved);
    used.insert(saved_name);
  }
  for (const auto& [name, tensor] : *file) {
    TORCH_CHECK(used.contains(name), where, ": it holds '", Printable(name),
                "', which the model does not have");
  }
  const torch::NoGradGuard no_grad;
  for (auto& [to, from] : copies) to.copy_(from);
}

}  // namespace plimsoll::train
