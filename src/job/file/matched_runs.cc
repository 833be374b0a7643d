#include "job/file/matched_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/hash.h"

namespace plimsoll {
namespace {

/// How far ahead a counterpart is looked for, and how many in a row must agree there.
constexpr std::size_t kWindow = 200;
constexpr std::size_t kAgree = 3;
/// More unmatched allocations than this share, and the runs are not the same job.
constexpr double kMostUnmatched = 0.2;
/// The precision that a recorded job has.
constexpr std::string_view kAsRecorded = "as_recorded";

/// Of every stack of a timeline; the same stack has the same one in another file.
std::vector<std::size_t> StackHashes(const StackTable& stacks) {
  std::vector<std::size_t> frames;
  frames.reserve(stacks.frame_count());
  for (std::size_t f = 0; f < stacks.frame_count(); ++f) {
    const Frame& frame = stacks.frame(FrameId(f));
    const std::uint64_t name = HashBytes(stacks.strings[frame.function]);
    frames.push_back(MixHash(MixHash(name, HashBytes(stacks.strings[frame.file])),
                             static_cast<std::uint64_t>(frame.line)));
  }
  std::vector<std::size_t> hashes;
  hashes.reserve(stacks.stack_count());
  for (std::size_t s = 0; s < stacks.stack_count(); ++s) {
    std::size_t hash = 0;
    for (const FrameId id : stacks.stack(StackId(s))) hash = MixHash(hash, frames[id.index()]);
    hashes.push_back(hash);
  }
  return hashes;
}

/// For each of `large` its counterpart in `small`, as far as there is one.
Counterparts Match(const std::vector<Made>& small, const std::vector<Made>& large,
                   const std::optional<SizeRatio>& ratio) {
  Counterparts counterpart(large.size());
  const auto alike = [&](std::size_t i, std::size_t j) {
    return small[i].stack == large[j].stack &&
           (!ratio || ratio->Allows(small[i].size, large[j].size));
  };
  const auto agree = [&](std::size_t i, std::size_t j) {
    for (std::size_t k = 0; k < kAgree; ++k) {
      if (i + k >= small.size() || j + k >= large.size()) return k > 0;
      if (!alike(i + k, j + k)) return false;
    }
    return true;
  };
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < small.size() && j < large.size()) {
    if (alike(i, j)) {
      counterpart[j++] = small[i++].allocation;
      continue;
    }
    // The nearest place where both go on alike.
    bool found = false;
    for (std::size_t skip = 1; skip <= kWindow && !found; ++skip) {
      for (std::size_t a = 0; a <= skip && !found; ++a) {
        if (!agree(i + a, j + skip - a)) continue;
        i += a;
        j += skip - a;
        found = true;
      }
    }
    if (!found) break;
  }
  return counterpart;
}

/// What a run did, with sizes that are given.
class Builder {
 public:
  explicit Builder(const RecordedRun& run) : run_(run) {
    op_ = job_.strings.Intern("recorded");
    variant_.precision = kAsRecorded;
    storage_.assign(run.ledger->allocations.size(), 0);
  }

  /// `bytes`: of each allocation in the order of the record.
  Job Run(const std::vector<Number>& bytes) {
    AddEarlier();
    std::size_t next = 0;
    for (std::size_t i = 0; i < run_.timeline->events.size(); ++i) {
      const Event& event = run_.timeline->events[i];
      const std::uint32_t allocation = run_.ledger->allocation_of_event[i];
      if (allocation == Ledger::kNoAllocation) continue;
      if (event.action == Action::kAlloc) {
        Add(allocation, bytes[next++]);
      } else if (event.action == Action::kFreeCompleted) {
        variant_.events.push_back({.kind = JobEvent::Kind::kFree, .index = storage_[allocation]});
      }
    }
    job_.file = run_.file;
    job_.model = "recorded run";
    job_.variants.push_back(std::move(variant_));
    return std::move(job_);
  }

 private:
  /// What was there before the records began: taken as independent of batch and length.
  void AddEarlier() {
    for (std::uint32_t a = 0; a < run_.ledger->allocations.size(); ++a) {
      const Allocation& allocation = run_.ledger->allocations[a];
      if (allocation.made == kBefore) Add(a, Number::Always(allocation.requested));
    }
  }

  void Add(std::uint32_t allocation, const Number& bytes) {
    const Storage storage = variant_.storages++;
    storage_[allocation] = storage;
    CallRecord call{.op = op_};
    if (allocation < run_.where.size()) {
      call.where = job_.strings.Intern(run_.where[allocation]);
    }
    call.fresh.push_back({.storage = storage, .bytes = bytes});
    variant_.calls.push_back(std::move(call));
    variant_.events.push_back({.kind = JobEvent::Kind::kCall,
                               .index = static_cast<std::uint32_t>(variant_.calls.size() - 1)});
    if (allocation < run_.category.size()) {
      variant_.events.push_back({.kind = JobEvent::Kind::kLabel,
                                 .category = run_.category[allocation],
                                 .index = storage});
    }
  }

  const RecordedRun& run_;
  Job job_;
  Variant variant_;
  StringId op_;
  /// By allocation of the run.
  std::vector<Storage> storage_;
};

}  // namespace

bool SizeRatio::Allows(Bytes small, Bytes large) const {
  // What is rounded up to pieces is a little more.
  constexpr double kShare = 0.01;
  constexpr double kPieces = 4096;
  const auto from = static_cast<double>(small);
  const auto to = static_cast<double>(large);
  return to >= from * least * (1 - kShare) - kPieces && to <= from * most * (1 + kShare) + kPieces;
}

std::vector<Made> InOrder(const RecordedRun& run) {
  std::vector<Made> made;
  const std::vector<std::size_t> hashes = StackHashes(run.timeline->stacks);
  for (std::size_t i = 0; i < run.timeline->events.size(); ++i) {
    if (run.timeline->events[i].action != Action::kAlloc) continue;
    const std::uint32_t allocation = run.ledger->allocation_of_event[i];
    if (allocation == Ledger::kNoAllocation) continue;
    const StackId stack = run.timeline->events[i].stack;
    made.push_back({allocation, stack.valid() ? hashes[stack.index()] : 0,
                    run.ledger->allocations[allocation].requested});
  }
  return made;
}

std::ptrdiff_t Missing(const Counterparts& counterparts) {
  return std::count(counterparts.begin(), counterparts.end(), std::nullopt);
}

Result<Counterparts> Compare(const RecordedRun& other, const RecordedRun& large,
                             const std::vector<Made>& made, const std::optional<SizeRatio>& ratio,
                             std::string_view hint) {
  Counterparts counterparts = Match(InOrder(other), made, ratio);
  const std::ptrdiff_t unmatched = Missing(counterparts);
  if (made.empty() || double(unmatched) > kMostUnmatched * double(made.size())) {
    return Error{.message = fmt::format("it does not do the same as {}: {} of {} allocations "
                                        "have no counterpart there",
                                        other.file, unmatched, made.size()),
                 .file = large.file,
                 .hint = std::string(hint)};
  }
  return counterparts;
}

Job FollowRun(const RecordedRun& run, const std::vector<Number>& bytes) {
  return Builder(run).Run(bytes);
}

bool IsRecorded(const Job& job) {
  return !job.variants.empty() && job.variants.front().precision == kAsRecorded;
}

}  // namespace plimsoll
