#include "job/parallel/context_parallel.h"

#include <fmt/format.h>

#include "job/parallel/divided_variant.h"

namespace plimsoll {

Result<Variant> AddContextParallel(Job& job, const Variant& variant, const ContextParallel& context,
                                   std::int64_t positions, std::int64_t apart) {
  if (positions == 0) {
    return Error{.message = "the model embeds no tokens whose positions could be divided",
                 .file = job.file,
                 .hint = "leave context= out"};
  }
  // Two pieces each, so that causal attention is as much work on every rank.
  if (positions % (2 * context.ranks) != 0) {
    return Error{
        .message = fmt::format("sequences of {} cannot be divided into two pieces for each "
                               "of {} ranks",
                               positions, context.ranks),
        .file = job.file,
        .hint = "take a number of context-parallel ranks that divides half of them"};
  }
  return Divide(
      job, variant,
      {.ranks = context.ranks, .apart = apart, .context = positions, .hands_on = context.ring});
}

}  // namespace plimsoll
