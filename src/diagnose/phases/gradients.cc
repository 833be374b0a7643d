// Which allocations are gradients: made in a backward pass, alive after it, of a parameter's size.
#include <algorithm>
#include <map>

#include "base/hash.h"
#include "diagnose/phases/phases.h"

namespace plimsoll {
namespace {

using SizeCounts = HashMap<Bytes, std::int64_t>;

Bytes SumOf(const Phases& phases, const std::vector<AllocationIndex>& list) {
  Bytes sum = 0;
  for (AllocationIndex a : list) sum += phases.at(a).block;
  return sum;
}

/// What a backward made and left behind.
std::vector<AllocationIndex> Survivors(const Phases& phases, const Backward& b) {
  std::vector<AllocationIndex> survivors;
  for (const Allocation& a : phases.Between(b.start - 1, b.end + 1)) {
    if (phases.framed && phases.ThreadOf(a) != Thread::kBackward) continue;
    if (phases.Released(a) > b.end) survivors.push_back(phases.IndexOf(a));
  }
  return survivors;
}

/// Where the main thread allocates again.
Position FirstMainAfter(const Phases& phases, Position position) {
  for (const Allocation& a : phases.Between(position, phases.end)) {
    if (!phases.framed || phases.ThreadOf(a) == Thread::kMain) return a.made;
  }
  return phases.end;
}

/// The last frees of a backward come after its last allocation. What goes before the main thread
/// allocates again is that tail, unless most of the parameter-sized survivors go there too (an
/// optimizer that allocates nothing, then zero_grad).
void DropTail(const Phases& phases, Position next_main, const SizeCounts& parameters,
              std::vector<AllocationIndex>& survivors) {
  Bytes tail = 0;
  Bytes beyond = 0;
  const auto in_tail = [&](AllocationIndex a) { return phases.Released(phases.at(a)) < next_main; };
  for (AllocationIndex a : survivors) {
    if (!in_tail(a)) {
      beyond += phases.at(a).block;
    } else if (parameters.contains(phases.at(a).requested)) {
      tail += phases.at(a).block;
    }
  }
  if (beyond > tail) std::erase_if(survivors, in_tail);
}

/// Matches survivors to parameters by size, the latest released first: temporaries of the tail are
/// released before the gradients.
std::vector<AllocationIndex> MatchBySize(const Phases& phases, const SizeCounts& need,
                                         std::vector<AllocationIndex> survivors) {
  std::stable_sort(survivors.begin(), survivors.end(), [&](AllocationIndex a, AllocationIndex b) {
    return phases.Released(phases.at(a)) > phases.Released(phases.at(b));
  });
  std::vector<AllocationIndex> gradients;
  SizeCounts taken;
  for (AllocationIndex a : survivors) {
    const Bytes size = phases.at(a).requested;
    const auto found = need.find(size);
    if (found == need.end() || taken[size] >= found->second) continue;
    ++taken[size];
    gradients.push_back(a);
  }
  return gradients;
}

/// Whether a backward left a gradient behind for nearly each that was there already: then it did
/// not add to those, and the program has a new set (torch.autograd.grad, whose result replaces the
/// last).
bool MadeAnew(const Phases& phases, const std::vector<AllocationIndex>& alive,
              const std::vector<AllocationIndex>& survivors) {
  constexpr double kMostOfThem = 0.9;
  SizeCounts made;
  for (AllocationIndex a : survivors) ++made[phases.at(a).requested];
  Bytes all = 0;
  Bytes again = 0;
  for (AllocationIndex g : alive) {
    const Bytes size = phases.at(g).requested;
    all += size;
    if (made[size]-- > 0) again += size;
  }
  return double(again) >= kMostOfThem * double(all);
}

/// A workspace of the backward thread may share a size with a parameter: it is made once and never
/// released, while the gradients around it are.
void DropWorkspace(const Phases& phases, std::vector<AllocationIndex>& gradients) {
  const auto stays = [&](AllocationIndex a) { return phases.Released(phases.at(a)) == kNotYet; };
  Bytes stays_size = -1;
  for (AllocationIndex a : gradients) {
    if (!stays(a)) continue;
    if (stays_size >= 0 && stays_size != phases.at(a).requested) return;  // gradients do stay
    stays_size = phases.at(a).requested;
  }
  const bool all_stay = std::all_of(gradients.begin(), gradients.end(), stays);
  if (!all_stay) std::erase_if(gradients, stays);
}

/// FSDP's gradients are flat shards: no parameter has their size. They carry its frames or lie on
/// another stream, and add up to the parameters; what goes first beyond that sum is a
/// communication buffer.
void AddFlat(const Phases& phases, const std::vector<AllocationIndex>& survivors,
             Bytes parameter_bytes, std::vector<AllocationIndex>& gradients) {
  std::map<std::uint16_t, int> streams;
  for (AllocationIndex a : survivors) ++streams[phases.at(a).stream];
  std::uint16_t common = 0;
  int most = 0;
  for (const auto& [stream, count] : streams) {
    if (count > most) {
      most = count;
      common = stream;
    }
  }
  constexpr Bytes kLeastFlat = 4096;
  std::vector<AllocationIndex> flat;
  for (AllocationIndex a : survivors) {
    const Allocation& x = phases.at(a);
    const bool fits = (phases.Signs(x) & kSignFsdp) != 0 || x.stream != common;
    if (fits && !phases.is_gradient[a] && phases.Released(x) != kNotYet &&
        x.requested >= kLeastFlat) {
      flat.push_back(a);
    }
  }
  if (flat.empty()) return;
  std::sort(flat.begin(), flat.end(), [&](AllocationIndex a, AllocationIndex b) {
    return phases.Released(phases.at(a)) > phases.Released(phases.at(b));
  });
  const Bytes matched = SumOf(phases, gradients);
  Bytes sum = SumOf(phases, flat);
  while (!flat.empty() && double(sum + matched) > 1.05 * double(parameter_bytes)) {
    sum -= phases.at(flat.back()).block;
    flat.pop_back();
  }
  if (double(sum) > 0.2 * double(matched)) {
    gradients.insert(gradients.end(), flat.begin(), flat.end());
  }
}

}  // namespace

void Phases::FindGradients() {
  if (backwards.empty()) return;
  const Backward& first = backwards.front();
  // Parameters are made before the first forward: a workspace made in it must not count as one.
  Position forward = first.start;
  for (const Allocation& a : Between(kBefore, first.start)) {
    const Position released = Released(a);
    if ((!framed || ThreadOf(a) == Thread::kMain) && released >= first.start &&
        released <= first.end) {
      forward = a.made;
      break;
    }
  }
  SizeCounts parameters;
  Bytes parameter_bytes = 0;
  for (const Allocation& a : ledger.allocations) {
    if (a.made >= forward) break;
    const Position released = Released(a);
    const bool stays =
        released == kNotYet || (a.made != kBefore && released > backwards.back().end);
    if (!stays || a.requested <= 0) continue;
    ++parameters[a.requested];
    parameter_bytes += a.block;
  }
  std::vector<AllocationIndex> alive;
  SizeCounts need = parameters;  // less what is alive
  for (std::size_t k = 0; k < backwards.size(); ++k) {
    Backward& b = backwards[k];
    std::vector<AllocationIndex> survivors = Survivors(*this, b);
    DropTail(*this, FirstMainAfter(*this, b.end), parameters, survivors);
    // A gradient lives until the optimizer has seen it; the last buffers of the backward may
    // outlive its end a little.
    const Position next = k + 1 < backwards.size() ? backwards[k + 1].start : end;
    if (const Position step = OptimizerStart(b.end, next); step != kNotYet) {
      std::erase_if(survivors, [&](AllocationIndex a) { return Released(at(a)) < step; });
    }
    // A gradient that is there already is added to, not made again.
    const bool anew = MadeAnew(*this, alive, survivors);
    std::erase_if(alive, [&](AllocationIndex g) {
      const bool gone = anew || Released(at(g)) <= b.end;
      if (gone) ++need[at(g).requested];
      return gone;
    });
    b.gradients = MatchBySize(*this, need, survivors);
    if (k + 1 < backwards.size()) DropWorkspace(*this, b.gradients);
    for (AllocationIndex g : b.gradients) is_gradient[g] = true;
    AddFlat(*this, survivors, parameter_bytes, b.gradients);
    for (AllocationIndex g : b.gradients) is_gradient[g] = true;
    for (AllocationIndex g : b.gradients) --need[at(g).requested];
    alive.insert(alive.end(), b.gradients.begin(), b.gradients.end());
    if (SumOf(*this, b.gradients) > SumOf(*this, gradient_set)) gradient_set = b.gradients;
  }
}

}  // namespace plimsoll
