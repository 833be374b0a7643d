#include "job/parallel/tensor_parallel.h"

#include <fmt/format.h>

#include "job/parallel/divided_variant.h"
#include "job/parallel/tensor_roles.h"

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

std::string DescribeTensorParallel(const Job& job, const Variant& variant,
                                   const TensorParallel& tensor) {
  const Result<TensorRoles> roles = FindTensorRoles(job, variant, tensor.ranks);
  if (!roles) return {};
  return fmt::format(
      "tensor parallelism: {} weights divided by their outputs, {} by their inputs, {} by words, as "
      "parallelize_module would with ColwiseParallel and RowwiseParallel{}{}",
      roles->by_outputs, roles->by_inputs, roles->by_words,
      tensor.sequence ? "; what is between them by positions (SequenceParallel)" : "",
      tensor.loss ? "; the loss over parts of the vocabulary (loss_parallel)"
                  : "; logits are gathered for the loss");
}

}  // namespace plimsoll
