#include "job/lowering/placed_job.h"

#include <algorithm>

#include "job/file/at_length.h"

namespace plimsoll {

void PlacedJob::PutAtAsked() {
  growing_ = nullptr;
  at_ = &asked_;
  calls_ = &variant_.calls;
}

void PlacedJob::PutAtBatch(std::int64_t batch) {
  PutAtAsked();
  if (batch != batch_) at_ = &other_.emplace(job_, batch);
}

void PlacedJob::PutAtStep(int step) {
  const std::size_t index = static_cast<std::size_t>(step) - kBeforeSequence;
  // A variant that is not the job's own has no numbers at other steps.
  const auto own = std::ranges::find(job_.variants, &variant_, [](const Variant& v) { return &v; });
  if (index >= job_.sequence.size() || own == job_.variants.end()) return;
  here_.emplace(AtStep(job_, job_.sequence[index]));
  at_ = &other_.emplace(*here_, batch_);
  calls_ = &here_->variants[static_cast<std::size_t>(own - job_.variants.begin())].calls;
}

Bytes PlacedJob::BytesOf(const ModelTensor& tensor) const {
  if (tensor.piece == 0) return at_->layout(tensor.layout).bytes();
  Bytes bytes = 0;
  for (const ModelTensor& other : variant_.model_tensors) {
    if (other.piece == tensor.piece) bytes += at_->layout(other.layout).bytes();
  }
  return bytes;
}

}  // namespace plimsoll
