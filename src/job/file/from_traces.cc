#include "job/file/from_traces.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "base/hash.h"

namespace plimsoll {
namespace {

/// How far ahead a counterpart is looked for, and how many in a row must agree there.
constexpr std::size_t kWindow = 200;
constexpr std::size_t kAgree = 3;
/// More unmatched allocations than this share, and the runs are not the same job.
constexpr double kMostUnmatched = 0.2;

/// An allocation in the order of the record, and a hash of the stack that made it.
struct Made {
  std::uint32_t allocation = 0;
  std::size_t stack = 0;
};

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

std::vector<Made> InOrder(const RecordedRun& run) {
  std::vector<Made> made;
  const std::vector<std::size_t> hashes = StackHashes(run.timeline->stacks);
  for (std::size_t i = 0; i < run.timeline->events.size(); ++i) {
    if (run.timeline->events[i].action != Action::kAlloc) continue;
    const std::uint32_t allocation = run.ledger->allocation_of_event[i];
    if (allocation == Ledger::kNoAllocation) continue;
    const StackId stack = run.timeline->events[i].stack;
    made.push_back({allocation, stack.valid() ? hashes[stack.index()] : 0});
  }
  return made;
}

/// For each of `large` its counterpart in `small`, as far as there is one.
std::vector<std::optional<std::uint32_t>> Match(const std::vector<Made>& small,
                                                const std::vector<Made>& large) {
  std::vector<std::optional<std::uint32_t>> counterpart(large.size());
  const auto agree = [&](std::size_t i, std::size_t j) {
    for (std::size_t k = 0; k < kAgree; ++k) {
      if (i + k >= small.size() || j + k >= large.size()) return k > 0;
      if (small[i + k].stack != large[j + k].stack) return false;
    }
    return true;
  };
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < small.size() && j < large.size()) {
    if (small[i].stack == large[j].stack) {
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

class Builder {
 public:
  Builder(const RecordedRun& small, const RecordedRun& large) : small_(small), large_(large) {
    op_ = job_.strings.Intern("recorded");
    variant_.precision = "as_recorded";
    storage_.assign(large.ledger->allocations.size(), 0);
  }

  Result<Job> Run() {
    const std::vector<Made> made = InOrder(large_);
    const auto counterpart = Match(InOrder(small_), made);
    const auto unmatched = std::count(counterpart.begin(), counterpart.end(), std::nullopt);
    if (made.empty() || double(unmatched) > kMostUnmatched * double(made.size())) {
      return Error{.message = fmt::format("it does not do the same as {}: {} of {} allocations "
                                          "have no counterpart there",
                                          small_.file, unmatched, made.size()),
                   .file = large_.file,
                   .hint = "record the same job twice, with stacks, at two batch sizes"};
    }
    AddEarlier();
    std::size_t next = 0;
    for (std::size_t i = 0; i < large_.timeline->events.size(); ++i) {
      const Event& event = large_.timeline->events[i];
      const std::uint32_t allocation = large_.ledger->allocation_of_event[i];
      if (allocation == Ledger::kNoAllocation) continue;
      if (event.action == Action::kAlloc) {
        const auto other = counterpart[next++];
        const Bytes size = large_.ledger->allocations[allocation].requested;
        Add(allocation, {other ? small_.ledger->allocations[*other].requested : size, size});
      } else if (event.action == Action::kFreeCompleted) {
        variant_.events.push_back({.kind = JobEvent::Kind::kFree, .index = storage_[allocation]});
      }
    }
    return Finish(unmatched);
  }

 private:
  /// What was there before the records began: taken as independent of the batch.
  void AddEarlier() {
    for (std::uint32_t a = 0; a < large_.ledger->allocations.size(); ++a) {
      const Allocation& allocation = large_.ledger->allocations[a];
      if (allocation.made == kBefore) Add(a, {allocation.requested, allocation.requested});
    }
  }

  void Add(std::uint32_t allocation, const Number& bytes) {
    const Storage storage = variant_.storages++;
    storage_[allocation] = storage;
    CallRecord call{.op = op_};
    if (allocation < large_.where.size()) {
      call.where = job_.strings.Intern(large_.where[allocation]);
    }
    call.fresh.push_back({.storage = storage, .bytes = bytes});
    variant_.calls.push_back(std::move(call));
    variant_.events.push_back({.kind = JobEvent::Kind::kCall,
                               .index = static_cast<std::uint32_t>(variant_.calls.size() - 1)});
    if (allocation < large_.category.size()) {
      variant_.events.push_back({.kind = JobEvent::Kind::kLabel,
                                 .category = large_.category[allocation],
                                 .index = storage});
    }
  }

  Job Finish(std::int64_t unmatched) {
    job_.file = large_.file;
    job_.model = "recorded run";
    job_.batches[0] = small_.batch;
    job_.batches[1] = large_.batch;
    job_.variants.push_back(std::move(variant_));
    if (unmatched > 0) {
      job_.notes.push_back(fmt::format(
          "{} allocations are in {} alone (a library chose otherwise there); their size is taken "
          "as independent of the batch",
          unmatched, large_.file));
    }
    return std::move(job_);
  }

  const RecordedRun& small_;
  const RecordedRun& large_;
  Job job_;
  Variant variant_;
  StringId op_;
  /// By allocation of `large`.
  std::vector<Storage> storage_;
};

}  // namespace

Result<Job> JobFromTraces(const RecordedRun& small, const RecordedRun& large) {
  if (small.batch < 1 || large.batch <= small.batch) {
    return Error{.message = "the second record needs the larger batch", .file = large.file};
  }
  return Builder(small, large).Run();
}

}  // namespace plimsoll
