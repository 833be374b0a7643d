#include "job/parallel/tensor_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "job/parallel/divided_variant.h"
#include "job/parallel/tensor_roles.h"
#include "job/transforms/job_editor.h"

namespace plimsoll {

Result<Variant> AddTensorParallel(Job& job, const Variant& variant, const TensorParallel& tensor,
                                  bool shards_follow) {
  const Result<TensorRoles> roles = FindTensorRoles(job, variant, tensor.ranks);
  if (!roles) return roles.error();
  Division division{.ranks = tensor.ranks, .weights = roles->weights};
  division.shards_follow = shards_follow;
  if (!tensor.loss) division.gathered = roles->heads;
  if (tensor.loss && roles->heads.empty()) {
    return Error{.message = "the model has no head whose logits go into a cross-entropy",
                 .file = job.file,
                 .hint = "leave :loss out"};
  }
  if (tensor.sequence) {
    if (roles->positions == 0 || roles->positions % tensor.ranks != 0) {
      return Error{.message = roles->positions == 0
                                  ? std::string("the model embeds no tokens whose positions could "
                                                "be divided")
                                  : fmt::format("sequences of {} cannot be divided by {}",
                                                roles->positions, tensor.ranks),
                   .file = job.file,
                   .hint = "leave :sequence out"};
    }
    division.positions = roles->positions;
  }
  return Divide(job, variant, division);
}

namespace {

/// More parts than this are made as one.
constexpr std::int64_t kMostParts = 64;

/// Weights that are divided otherwise than by rows are copied part by part first.
void MakeParts(JobEditor& edit, const LayoutRecord& whole, const LayoutRecord& part,
               std::int64_t ranks) {
  if (whole.sizes.empty() || whole.sizes.front() != part.sizes.front()) return;
  const std::int64_t parts = std::min(ranks, kMostParts);
  std::vector<Storage> made;
  for (std::int64_t i = 0; i < parts; ++i) {
    made.push_back(edit.Make("tensor parallel: parts of a weight", BytesOf(whole) / parts,
                             Category::kTemporaries));
  }
  for (const Storage storage : made) edit.Free(storage);
}

}  // namespace

Variant BuildWhole(Job& job, const Variant& variant, const Variant& undivided, std::int64_t ranks) {
  std::map<Storage, std::uint32_t> whole_layouts;
  for (const ModelTensor& one : undivided.model_tensors) whole_layouts[one.storage] = one.layout;
  JobEditor edit(job, variant, "plimsoll.divided");
  std::vector<std::pair<std::uint32_t, Storage>> to_divide;
  for (const JobEvent& event : variant.events) {
    if (event.kind == JobEvent::Kind::kStep) {
      for (const auto& [index, whole] : std::exchange(to_divide, {})) {
        const ModelTensor& own = variant.model_tensors[index];
        edit.Copy({.kind = JobEvent::Kind::kModelTensor, .index = index});
        MakeParts(edit, job.layouts[whole_layouts.at(own.storage)], job.layouts[own.layout], ranks);
        edit.Free(whole);
      }
    }
    if (event.kind != JobEvent::Kind::kModelTensor) {
      edit.Copy(event);
      continue;
    }
    const ModelTensor& own = variant.model_tensors[event.index];
    const auto whole = whole_layouts.find(own.storage);
    if (whole == whole_layouts.end() || whole->second == own.layout) {
      edit.Copy(event);
      continue;
    }
    to_divide.emplace_back(event.index,
                           edit.Make("the whole model, before it is divided",
                                     BytesOf(job.layouts[whole->second]), Category::kParameters));
  }
  return edit.Take();
}

std::string DescribeTensorParallel(const Job& job, const Variant& variant,
                                   const TensorParallel& tensor) {
  const Result<TensorRoles> roles = FindTensorRoles(job, variant, tensor.ranks);
  if (!roles) return {};
  return fmt::format(
      "tensor parallelism: {} weights divided by their outputs, {} by their inputs, {} by words, "
      "as "
      "parallelize_module would with ColwiseParallel and RowwiseParallel{}{}; {}",
      roles->by_outputs, roles->by_inputs, roles->by_words,
      tensor.sequence ? "; what is between them by positions (SequenceParallel)" : "",
      tensor.loss ? "; the loss over parts of the vocabulary (loss_parallel)"
                  : "; logits are gathered for the loss",
      tensor.meta ? "built on the meta device"
                  : "the model is on the GPU before it is divided (if not: :meta)");
}

}  // namespace plimsoll
