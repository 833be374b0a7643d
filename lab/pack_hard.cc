// pack_hard [SECONDS [THREADS]]
//
// Packs eleven instances that are hard on purpose and prints how that went, beside the best of
// eight greedy packings. Each instance is a rectangle, time by capacity, cut into buffers: straight
// through, or in pinwheels of five that no straight cut makes. So a packing without any waste is
// known to exist, and the search has to find it again from lifetimes and sizes alone.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "packing/bound.h"
#include "packing/greedy.h"
#include "packing/solve.h"
#include "packing/validate.h"

namespace {

using plimsoll::Buffer;
using plimsoll::Bytes;
using plimsoll::Problem;
using plimsoll::Tick;

constexpr Bytes kUnit = 1024;
constexpr Bytes kCapacity = 1024 * kUnit;

struct Recipe {
  const char* name;
  std::uint64_t seed;
  std::size_t buffers;
  /// Cuts in time are at multiples of span / grid: the fewer, the more buffers begin together.
  Tick grid;
  int pinwheel_percent;
  /// Buffers that are taken out again, so that there is room to go wrong in.
  int removed_percent;
  /// The capacity in percent of what the cut rectangle needs.
  int capacity_percent;
};

constexpr Recipe kRecipes[] = {
    {"hard-1", 1, 154, 256, 30, 0, 100},   {"hard-2", 2, 170, 256, 10, 0, 100},
    {"hard-3", 3, 203, 256, 30, 2, 101},   {"hard-4", 4, 213, 256, 50, 4, 106},
    {"hard-5", 5, 215, 256, 0, 0, 100},    {"hard-6", 6, 296, 384, 30, 0, 100},
    {"hard-7", 7, 308, 384, 60, 0, 100},   {"hard-8", 8, 316, 1024, 20, 2, 100},
    {"hard-9", 9, 374, 768, 30, 0, 100},   {"hard-10", 10, 409, 1024, 20, 1, 106},
    {"hard-11", 11, 454, 640, 40, 0, 100},
};

struct Rectangle {
  Tick left, right;
  Bytes bottom, top;
};

class Cutter {
 public:
  explicit Cutter(const Recipe& recipe) : recipe_(recipe), random_(recipe.seed) {}

  Problem Cut() {
    pieces_ = {{0, recipe_.grid, 0, kCapacity / kUnit}};
    while (pieces_.size() < recipe_.buffers) CutOne();
    std::vector<Buffer> buffers;
    for (const Rectangle& r : pieces_) {
      if (Below(100) < recipe_.removed_percent) continue;
      buffers.push_back({r.left, r.right, (r.top - r.bottom) * kUnit});
    }
    // Not std::shuffle, which differs between libraries.
    for (std::size_t i = buffers.size(); i > 1; --i) {
      std::swap(buffers[i - 1], buffers[static_cast<std::size_t>(Below(std::int64_t(i)))]);
    }
    return {buffers};
  }

 private:
  std::int64_t Below(std::int64_t n) { return static_cast<std::int64_t>(random_() % n); }
  std::int64_t Between(std::int64_t low, std::int64_t high) { return low + Below(high - low + 1); }

  /// A piece by chance, the larger the likelier.
  std::size_t Choose() {
    std::int64_t at = Below(recipe_.grid * (kCapacity / kUnit));
    for (std::size_t i = 0;; ++i) {
      at -= (pieces_[i].right - pieces_[i].left) * (pieces_[i].top - pieces_[i].bottom);
      if (at < 0) return i;
    }
  }

  void CutOne() {
    const std::size_t index = Choose();
    const Rectangle r = pieces_[index];
    const bool wide = r.right - r.left >= 2;
    const bool tall = r.top - r.bottom >= 2;
    if (!wide && !tall) return;
    pieces_.erase(pieces_.begin() + static_cast<std::ptrdiff_t>(index));
    if (r.right - r.left >= 3 && r.top - r.bottom >= 3 && Below(100) < recipe_.pinwheel_percent) {
      CutPinwheel(r);
    } else if (wide && (!tall || Below(2) == 0)) {
      const Tick at = Between(r.left + 1, r.right - 1);
      pieces_.push_back({r.left, at, r.bottom, r.top});
      pieces_.push_back({at, r.right, r.bottom, r.top});
    } else {
      const Bytes at = Between(r.bottom + 1, r.top - 1);
      pieces_.push_back({r.left, r.right, r.bottom, at});
      pieces_.push_back({r.left, r.right, at, r.top});
    }
  }

  void CutPinwheel(const Rectangle& r) {
    const Tick x1 = Between(r.left + 1, r.right - 2);
    const Tick x2 = Between(x1 + 1, r.right - 1);
    const Bytes y1 = Between(r.bottom + 1, r.top - 2);
    const Bytes y2 = Between(y1 + 1, r.top - 1);
    pieces_.push_back({x1, x2, y1, y2});
    pieces_.push_back({r.left, x2, r.bottom, y1});
    pieces_.push_back({x2, r.right, r.bottom, y2});
    pieces_.push_back({x1, r.right, y2, r.top});
    pieces_.push_back({r.left, x1, y1, r.top});
  }

  const Recipe& recipe_;
  std::mt19937_64 random_;
  std::vector<Rectangle> pieces_;
};

double FillPercent(const Problem& problem, const Recipe& recipe) {
  double area = 0;
  for (const Buffer& b : problem.buffers) area += double(b.upper - b.lower) * double(b.size);
  return 100 * area / (double(recipe.grid) * double(kCapacity)) * 100 / recipe.capacity_percent;
}

double Over(Bytes height, Bytes bound) { return 100 * double(height - bound) / double(bound); }

bool RunOne(const Recipe& recipe, double seconds, unsigned threads) {
  const Problem problem = Cutter(recipe).Cut();
  const Bytes capacity = kCapacity / 100 * recipe.capacity_percent;
  const Bytes bound = plimsoll::MostAlive(problem);
  const auto begin = std::chrono::steady_clock::now();
  const plimsoll::Packing greedy = plimsoll::PackGreedily(problem);
  const double greedy_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const auto packed =
      plimsoll::Pack(problem, {.capacity = recipe.capacity_percent == 100 ? kCapacity : capacity,
                               .seconds = seconds,
                               .threads = threads});
  const bool good = packed.ok() && packed->fits == plimsoll::Fits::kYes &&
                    !plimsoll::FindFault(problem, packed->packing);
  fmt::print("{:<8} {:>7} {:>6.1f} % {:>8.3f} s {:>+8.1f} % {:>8.3f} s {:>+8.1f} %  {}\n",
             recipe.name, problem.buffers.size(), FillPercent(problem, recipe), packed->seconds,
             Over(packed->packing.height, bound), greedy_seconds, Over(greedy.height, bound),
             good ? "fits" : "not solved");
  std::fflush(stdout);
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 60;
  const unsigned threads = argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 1;
  fmt::print("{:<8} {:>7} {:>8} {:>10} {:>10} {:>10} {:>10}\n", "", "buffers", "fill", "search",
             "over bound", "greedy", "over bound");
  bool all = true;
  for (const Recipe& recipe : kRecipes) all &= RunOne(recipe, seconds, threads);
  return all ? 0 : 1;
}
