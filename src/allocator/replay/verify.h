// Does the model decide what PyTorch decided? Runs the allocator beside the record: the record
// gives the requests, the driver's addresses, when waiting frees completed and when the cache was
// emptied; the model decides everything else, and each decision is compared.
//
// What falls out is the workload: the job's requests alone, which can be put to the allocator under
// other settings.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "allocator/model/caching_allocator.h"
#include "allocator/record/ledger.h"
#include "allocator/replay/workload.h"
#include "timeline/timeline.h"

namespace plimsoll {

struct VerifyOptions {
  /// What is not given is inferred from the record.
  std::optional<Bytes> limit = {};
  std::optional<Bytes> capacity = {};
  std::optional<TorchVersion> torch = {};
};

struct Mismatch {
  EventIndex event = 0;
  /// "the model puts 4.00 MiB at 0x7f…, the record has it at 0x7f…"
  std::string what;
};

struct Verification {
  std::int64_t allocations = 0;
  std::int64_t address_mismatches = 0;
  std::int64_t segment_events = 0;
  std::int64_t segment_mismatches = 0;
  /// Refusals of the one that the other did not have; counted in neither of the above.
  std::int64_t refusal_mismatches = 0;
  /// Blocks at the end that the model has and the record has not, or the other way round.
  std::int64_t final_block_differences = 0;
  std::optional<Mismatch> first;
  AllocatorCounters counters;

  /// What the record does not hold and was inferred, in words.
  std::vector<std::string> inferred;
  AllocatorRules rules;
  TorchVersion torch;
  DeviceLimits limits;
  Workload workload;

  bool Exact() const {
    return address_mismatches == 0 && segment_mismatches == 0 && refusal_mismatches == 0;
  }
};

Verification Verify(const Timeline& timeline, const Ledger& ledger, const VerifyOptions& options);

}  // namespace plimsoll
