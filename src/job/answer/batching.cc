#include "job/answer/batching.h"

#include <algorithm>
#include <optional>

#include "job/calls/arithmetic.h"

namespace plimsoll {
namespace {

constexpr std::int64_t kLengthBucket = 64;

/// The rows and the length of a batch: of its first tensor with two dimensions.
struct RowsOfLength {
  std::int64_t rows = 0;
  std::int64_t length = 0;
};
std::optional<RowsOfLength> RowsOf(const EpochFacts::Shapes& shapes) {
  for (const Extent& shape : shapes) {
    if (shape.size() >= 2) return RowsOfLength{shape[0], shape[1]};
  }
  return std::nullopt;
}

/// Batches of samples from the longest to the shortest, each ended where `is_full` says so of its
/// rows and the length of its first.
template <typename IsFull, typename Padded>
Batching Grouped(const EpochFacts& epoch, Batching::Kind kind, const IsFull& is_full,
                 const Padded& padded) {
  Batching way{.kind = kind};
  std::int64_t rows = 0;
  std::int64_t length = 0;
  const auto end = [&] {
    if (rows == 0) return;
    ++way.steps;
    way.tokens += Product(rows, length);
    if (Product(rows, length) > way.Heaviest()) {
      way.rows = rows;
      way.length = length;
    }
    rows = 0;
  };
  for (auto of = epoch.lengths.rbegin(); of != epoch.lengths.rend(); ++of) {
    std::int64_t left = of->samples;
    while (left > 0) {
      if (rows == 0) length = padded(of->length);
      const std::int64_t most = std::max<std::int64_t>(1, is_full(length));
      const std::int64_t taken = std::min(left, std::max<std::int64_t>(1, most - rows));
      rows += taken;
      left -= taken;
      if (rows >= most) end();
    }
  }
  end();
  return way;
}

Batching AsTheyCome(const EpochFacts& epoch) {
  Batching way{.steps = epoch.batches};
  for (const EpochFacts::Kind& kind : epoch.kinds) {
    const auto batch = RowsOf(kind.shapes);
    if (!batch) continue;
    way.tokens += Product(kind.count, batch->rows, batch->length);
    if (Product(batch->rows, batch->length) > way.Heaviest()) {
      way.rows = batch->rows;
      way.length = batch->length;
    }
  }
  return way;
}

}  // namespace

Batchings FindBatchings(const EpochFacts& epoch) {
  Batchings found;
  const Batching own = AsTheyCome(epoch);
  if (epoch.lengths.empty() || own.rows < 1 || own.steps < 1) return found;
  for (const EpochFacts::Length& of : epoch.lengths) found.tokens += Product(of.length, of.samples);
  const std::int64_t longest = epoch.lengths.back().length;
  const std::int64_t budget = std::max(longest, CeilDiv(own.tokens, own.steps));
  const auto same = [](std::int64_t length) { return length; };
  const auto bucket = [](std::int64_t length) { return RoundUp(length, kLengthBucket); };
  const auto rows = [&](std::int64_t) { return own.rows; };
  const auto fit = [&](std::int64_t length) { return budget / std::max<std::int64_t>(length, 1); };
  const std::int64_t packed_rows = std::max<std::int64_t>(1, budget / longest);
  const std::int64_t all_rows = CeilDiv(found.tokens, longest);
  found.ways = {own,
                Grouped(epoch, Batching::Kind::kSorted, rows, same),
                Grouped(epoch, Batching::Kind::kBuckets, rows, bucket),
                Grouped(epoch, Batching::Kind::kTokens, fit, same),
                {.kind = Batching::Kind::kPacked,
                 .steps = CeilDiv(all_rows, packed_rows),
                 .tokens = Product(all_rows, longest),
                 .rows = packed_rows,
                 .length = longest}};
  return found;
}

}  // namespace plimsoll
