#include "job/file/job.h"

namespace plimsoll {

std::string_view BaseName(std::string_view op) {
  if (const auto dot = op.find('.'); dot != op.npos) op.remove_prefix(dot + 1);
  return op.substr(0, op.find('.'));
}

Job CopyOf(const Job& job, std::size_t variant) {
  Job copy{.file = job.file,
           .torch = job.torch,
           .gpu = job.gpu,
           .model = job.model,
           .batches = {job.batches[0], job.batches[1]},
           .own_batch = job.own_batch,
           .matmul_tf32 = job.matmul_tf32,
           .backend = job.backend,
           .sharded = job.sharded,
           .data_parallel = job.data_parallel,
           .names_root = job.names_root,
           .sizes_change = job.sizes_change,
           .keeper = job.keeper,
           .host = job.host,
           .strings = {},
           .layouts = job.layouts,
           .variants = {job.variants[variant]},
           .notes = job.notes};
  // In their order, so that each keeps its number.
  for (std::size_t i = 0; i < job.strings.size(); ++i)
    copy.strings.Intern(job.strings[StringId(i)]);
  return copy;
}

}  // namespace plimsoll
