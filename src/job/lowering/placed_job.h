// A job at what runs of it: at the batch that is asked about, at the other batch of a part, or at a
// step of a sequence, where every number is another.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "job/calls/call.h"
#include "job/file/job.h"
#include "job/lowering/growing_part.h"

namespace plimsoll {

class PlacedJob {
 public:
  PlacedJob(const Job& job, const Variant& variant, std::int64_t batch)
      : job_(job), variant_(variant), batch_(batch), asked_(job, batch) {}
  PlacedJob(const PlacedJob&) = delete;
  PlacedJob& operator=(const PlacedJob&) = delete;

  const AtBatch& at() const { return growing_ ? growing_->at() : *at_; }
  const CallRecord& call(std::uint32_t index) const {
    return growing_ ? growing_->call(index) : (*calls_)[index];
  }

  void PutAtAsked();
  void PutAtBatch(std::int64_t batch);
  /// The step of the sequence, if there is one for it; from 0.
  void PutAtStep(int step);
  /// What is called is of this part, at its round; until it is put elsewhere.
  void PutAtRound(const GrowingPart& part) { growing_ = &part; }
  /// Of all tensors of the model that lie in one piece of memory with this one.
  Bytes BytesOf(const ModelTensor& tensor) const;

 private:
  const Job& job_;
  const Variant& variant_;
  std::int64_t batch_;
  const AtBatch asked_;
  const AtBatch* at_ = &asked_;
  const std::vector<CallRecord>* calls_ = &variant_.calls;
  /// The job at a step.
  std::optional<Job> here_;
  std::optional<AtBatch> other_;
  const GrowingPart* growing_ = nullptr;
};

}  // namespace plimsoll
