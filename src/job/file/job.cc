#include "job/file/job.h"

#include <algorithm>

namespace plimsoll {

std::string_view BaseName(std::string_view op) {
  if (const auto dot = op.find('.'); dot != op.npos) op.remove_prefix(dot + 1);
  return op.substr(0, op.find('.'));
}

bool Trains(const Variant& variant) {
  return std::ranges::find(variant.events, JobEvent::Kind::kStep, &JobEvent::kind) !=
             variant.events.end() ||
         variant.later.empty();
}

Job CopyOf(const Job& job, std::size_t variant) {
  Job copy;
  static_cast<JobFacts&>(copy) = job;
  copy.layouts = job.layouts;
  copy.variants = {job.variants[variant]};
  // In their order, so that each keeps its number.
  for (std::size_t i = 0; i < job.strings.size(); ++i)
    copy.strings.Intern(job.strings[StringId(i)]);
  return copy;
}

}  // namespace plimsoll
