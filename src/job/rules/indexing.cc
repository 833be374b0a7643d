// Embeddings, gathers by index or mask, and sorts.
#include <algorithm>
#include <array>

#include "job/calls/arithmetic.h"
#include "job/rules/common.h"
#include "job/rules/rules.h"

namespace plimsoll {
namespace {

/// What a radix sort takes: counters for each pass and block, and from two passes on a second copy
/// of keys and values. `tile`: how many keys a block sorts.
Bytes RadixSort(std::int64_t n, Bytes key, Bytes value, int bits, std::int64_t tile) {
  const std::int64_t passes = CeilDiv(std::max(bits, 1), 8);
  const Bytes copies = passes > 1 ? RoundUp(key * n, 256) + RoundUp(value * n, 256) : 0;
  return 511 + 2048 * passes + 1024 * CeilDiv(n, tile) + copies;
}

/// Of indices with their places, 8 bytes each. Few are sorted by one block. (60 rows, 1,000 to
/// 131,072 of them)
Bytes SortIndices(std::int64_t n, int bits) {
  return n <= 2304 ? 1 : RadixSort(n, 8, 8, bits, 4608);
}

/// Its workspace.
Bytes RunningSum(std::int64_t n, std::int64_t tile) {
  return 511 + RoundUp(16 * (32 + CeilDiv(n, tile)), 256);
}

/// Indices that are a view, expanded for instance, are copied first.
void Embedding(const Call& call, Emitter& emit) {
  const Slot copy = CopyUnlessContiguous(call, 1, emit);
  MakeAll(call, emit);
  emit.Give(copy);
}

/// Above 3,072 indices: they are sorted, equal ones are counted, and each run of them is cut into
/// pieces of ten whose sums are kept in fp32. (28 rows)
void SortedEmbeddingBackward(std::int64_t n, std::int64_t vocabulary, std::int64_t width,
                             const Call& call, Emitter& emit) {
  const Bytes list = 8 * n;
  const std::int64_t distinct = std::min(n, vocabulary);
  const std::int64_t pieces = n / 10 + distinct;

  const Slot sorted = emit.Take(list);
  const Slot origins = emit.Take(list);
  const Slot range = emit.Take(list);
  emit.Give(emit.Take(SortIndices(n, 64)));
  emit.Give(range);
  MakeAll(call, emit);
  const Slot offsets = emit.Take(list);
  const Slot count = emit.Take(8);
  const Slot ones = emit.Take(list);
  emit.Give(emit.Take(RunningSum(n, 4608)));
  emit.Give(ones);
  const Slot of_piece = emit.Take(8 * distinct);
  const Slot starts = emit.Take(8 * distinct);
  emit.Give(emit.Take(RunningSum(distinct, 768)));
  const Slot piece_count = emit.Take(8);
  const Slot piece_offsets = emit.Take(8 * pieces);
  const Slot sums = emit.Take(Product(4, pieces, RoundUp(width, 32)));
  for (const Slot slot :
       {sums, piece_offsets, piece_count, starts, of_piece, count, offsets, origins, sorted}) {
    emit.Give(slot);
  }
}

// embedding_dense_backward(grad_output, indices, num_weights, padding_idx, scale_grad_by_freq)
void DenseEmbeddingBackward(const Call& call, Emitter& emit) {
  const auto gradient = call.TensorArg(0);
  const auto indices = call.TensorArg(1);
  if (!gradient || !indices || (*gradient)->dims() == 0) return MakeAll(call, emit);
  const Slot gradient_copy = CopyUnlessContiguous(call, 0, emit);
  const Slot indices_copy = CopyUnlessContiguous(call, 1, emit);
  const std::int64_t n = (*indices)->Numel();
  if (n <= 3072) {
    MakeAll(call, emit);
  } else {
    SortedEmbeddingBackward(n, call.IntArg(2).value_or(n), (*gradient)->sizes.back(), call, emit);
  }
  emit.Give(indices_copy);
  emit.Give(gradient_copy);
}

// _embedding_bag(weight, indices, offsets, …) -> output, offset2bag, bag_size, max_indices: the
// output is made last. (8 rows)
void EmbeddingBag(const Call& call, Emitter& emit) {
  for (const std::size_t result : {2u, 1u, 0u}) MakeResult(call, result, emit);
}

// _embedding_bag_dense_backward and _embedding_bag_backward(grad, indices, offsets, offset2bag,
// bag_size, maximum_indices, num_weights, …): sorted, however few. (8 rows, above 3,072 indices)
void EmbeddingBagBackward(const Call& call, Emitter& emit) {
  const auto gradient = call.TensorArg(0);
  const auto indices = call.TensorArg(1);
  if (!gradient || !indices || (*gradient)->dims() == 0) return MakeAll(call, emit);
  const std::int64_t n = (*indices)->Numel();
  std::int64_t vocabulary = n;
  for (std::size_t i = 4; i < call.args(); ++i) {
    if (const auto given = call.IntArg(i)) {
      vocabulary = *given;
      break;
    }
  }
  SortedEmbeddingBackward(n, vocabulary, (*gradient)->sizes.back(), call, emit);
}

// cumsum(self, dim): what is not of the result's type is copied to it (masks, in the traces of
// language models). One long row goes by blocks that wait for one another. (8 rows)
void RunningSum(const Call& call, Emitter& emit) {
  MakeAll(call, emit);
  const auto self = call.TensorArg(0);
  if (!self || (*self)->dims() == 0) return;
  if (call.results() > 0 && call.Result(0)->dtype != (*self)->dtype) {
    emit.Give(emit.Take(call.Result(0)->bytes()));
  }
  const auto rank = static_cast<std::int64_t>((*self)->dims());
  std::int64_t dim = call.IntArg(1).value_or(-1);
  if (dim < 0) dim += rank;
  const std::int64_t n = (*self)->Numel();
  if (dim < 0 || dim >= rank || (*self)->sizes[static_cast<std::size_t>(dim)] != n) return;
  const std::int64_t tile = ElementSize((*self)->dtype) >= 4 ? 1920 : 3584;
  emit.Give(emit.Take(511 + RoundUp(8 * (32 + CeilDiv(n, tile)), 256)));
}

/// Counting, then the places: 8 bytes for each dimension of each element found. (16 rows)
template <typename MakePlaces>
void FindNonzero(std::int64_t elements, Emitter& emit, MakePlaces make_places) {
  const Slot count = emit.Take(4);
  emit.Give(emit.Take(elements <= 4096 ? 1 : 21503));
  make_places();
  emit.Give(emit.Take(1023));
  emit.Give(count);
}

void Nonzero(const Call& call, Emitter& emit) {
  const auto input = call.TensorArg(0);
  if (!input) return MakeAll(call, emit);
  const Slot copy = CopyUnlessContiguous(call, 0, emit);
  FindNonzero((*input)->Numel(), emit, [&] { MakeAll(call, emit); });
  emit.Give(copy);
}

/// The indices of self[…], as the kernels see them.
struct Indices {
  /// Of each that is given.
  std::vector<Tensor> tensors;
  /// Elements that each of them names once they are broadcast; `places` of a mask are not known
  /// before it runs, and come from the result.
  std::int64_t count = 0;
  /// Positions that they choose from.
  std::int64_t positions = 1;
  const Layout* mask = nullptr;
};

Indices ReadIndices(const Call& call, const Layout& self, const Layout& values) {
  Indices indices;
  const auto* list = std::get_if<Argument::List>(&call.record().args[1].is);
  if (list == nullptr) return indices;
  std::size_t dim = 0;
  std::int64_t elsewhere = std::max<std::int64_t>(self.Numel(), 1);
  for (const Argument& element : *list) {
    const auto tensor = call.TensorOf(element);
    std::size_t covers = 1;
    if (tensor) {
      indices.tensors.push_back(*tensor);
      const Layout& layout = **tensor;
      if (layout.dtype == DType::kBool || layout.dtype == DType::kUInt8) {
        indices.mask = tensor->layout;
        covers = layout.dims();
      }
      indices.count = std::max(indices.count, layout.Numel());
      for (std::size_t d = dim; d < dim + covers && d < self.dims(); ++d) {
        indices.positions *= self.sizes[d];
      }
    }
    dim += covers;
  }
  elsewhere /= std::max<std::int64_t>(indices.positions, 1);
  if (indices.mask != nullptr && elsewhere > 0) indices.count = values.Numel() / elsewhere;
  return indices;
}

/// Of a mask: what Nonzero gives, for as long as the call runs.
Slot PlacesOfMask(const Indices& indices, Emitter& emit) {
  Slot places;
  if (indices.mask == nullptr) return places;
  FindNonzero(indices.mask->Numel(), emit, [&] {
    places = emit.Take(8 * indices.count * static_cast<std::int64_t>(indices.mask->dims()));
  });
  return places;
}

void Index(const Call& call, Emitter& emit) {
  const auto self = call.TensorArg(0);
  if (!self || call.args() < 2 || call.results() == 0) return MakeAll(call, emit);
  const Tensor result = call.Result(0);
  const Slot places = PlacesOfMask(ReadIndices(call, **self, *result), emit);
  MakeAll(call, emit);
  emit.Give(places);
}

/// Works in place where the capture could not: the zeros that a backward scatters into.
bool InPlaceInBackward(const Call& call, Emitter& emit) {
  const auto self = call.TensorArg(0);
  if (!self || call.stage() != Stage::kBackward || call.fresh() != 1 || self->needs_grad) {
    return false;
  }
  if (!emit.DiesSoon(self->storage)) return false;
  emit.Reuse(0, self->storage);
  return true;
}

/// With accumulation the indices are made linear, sorted, and the values added run by run.
/// (24 rows)
void AccumulateSorted(const Indices& indices, Slot places, Emitter& emit) {
  const Bytes list = 8 * indices.count;
  const std::size_t n = indices.mask != nullptr ? indices.mask->dims() : indices.tensors.size();
  Slot linear;
  for (std::size_t i = 0; i < n; ++i) {
    const Slot wrapped = emit.Take(list);
    const Slot scaled = emit.Take(list);
    emit.Give(wrapped);
    if (i > 0) emit.Give(linear);
    linear = scaled;
  }
  emit.Give(places);
  const Slot sorted = emit.Take(list);
  const Slot origins = emit.Take(list);
  const Slot range = emit.Take(list);
  emit.Give(emit.Take(SortIndices(indices.count, BitLength(indices.positions - 1))));
  for (const Slot slot : {range, origins, sorted, linear}) emit.Give(slot);
}

// index_put(self, indices, values, accumulate)
void IndexPut(const Call& call, Emitter& emit) {
  const auto self = call.TensorArg(0);
  const auto values = call.TensorArg(2);
  if (!InPlaceInBackward(call, emit)) MakeAll(call, emit);
  if (!self || !values) return;
  const Indices indices = ReadIndices(call, **self, **values);
  const Slot places = PlacesOfMask(indices, emit);
  if (call.BoolArg(3, false)) {
    AccumulateSorted(indices, places, emit);
  } else {
    emit.Give(places);
  }
}

// scatter, scatter_add, index_add, …: into zeros that were made for it. (48 rows)
void ScatterAlong(const Call& call, Emitter& emit) {
  if (!InPlaceInBackward(call, emit)) MakeAll(call, emit);
}

/// Several blocks for a row: where rows are few and long.
bool ManyBlocksARow(std::int64_t rows, std::int64_t length) {
  if (rows <= 20) return length >= 20000;
  if (rows <= 40) return length >= 10000;
  if (rows <= 80) return length >= 8000;
  if (rows < 200) return length >= 5000;
  if (rows < 800) return length >= 3000;
  if (rows <= 4000) return length >= 800;
  return length >= 400;
}

// topk(self, k, dim, …) (8 rows, all on the last dimension)
/// multinomial(self, num_samples, replacement): a random number for each chance, of which the
/// largest are taken, as 100 recorded draws of one token have it (their checks of a few bytes
/// aside); several draws with replacement have the chances and their running sums, by PyTorch's
/// source.
void Multinomial(const Call& call, Emitter& emit) {
  MakeAll(call, emit);
  const auto self = call.TensorArg(0);
  if (!self) return;
  const bool sums = call.IntArg(1).value_or(1) > 1 && call.BoolArg(2, false);
  const Slot numbers = emit.Take((*self)->bytes());
  emit.Give(emit.Take(sums ? (*self)->bytes() : 0));
  emit.Give(numbers);
}

void TopK(const Call& call, Emitter& emit) {
  MakeAll(call, emit);
  const auto self = call.TensorArg(0);
  if (!self || (*self)->dims() == 0) return;
  const auto rank = static_cast<std::int64_t>((*self)->dims());
  std::int64_t dim = call.IntArg(2).value_or(-1);
  if (dim < 0) dim += rank;
  if (dim < 0 || dim >= rank) return;
  const std::int64_t length = (*self)->sizes[static_cast<std::size_t>(dim)];
  const std::int64_t rows = length > 0 ? (*self)->Numel() / length : 0;
  if (rows == 0 || !ManyBlocksARow(rows, length)) return;
  const std::int64_t each =
      std::clamp<std::int64_t>(CeilDiv(rows * length, emit.gpu().multiprocessors * 6 * 256), 4, 64);
  const std::int64_t blocks = rows * CeilDiv(length, each * 256);
  const std::array<Bytes, 7> sizes = {rows * ElementSize((*self)->dtype),
                                      8 * rows,
                                      8 * rows,
                                      512 * blocks,
                                      1024 * rows,
                                      4 * blocks,
                                      4 * blocks};
  std::array<Slot, 7> slots;
  for (std::size_t i = 0; i < sizes.size(); ++i) slots[i] = emit.Take(sizes[i]);
  emit.Give(emit.Take(1279));
  emit.Give(emit.Take(1279));
  for (std::size_t i = slots.size(); i-- > 0;) emit.Give(slots[i]);
}

/// Rows that are too long for one block: few of them are sorted all together and then by row, many
/// each by itself. (20 rows)
void SortLongRows(std::int64_t rows, std::int64_t n, Bytes el, Emitter& emit) {
  const Bytes list = 8 * n;
  const int bits = static_cast<int>(8 * el);
  const std::int64_t tile = el == 4 ? 5376 : 5632;
  const Slot places = emit.Take(list);
  if (rows == 1) {
    emit.Give(emit.Take(RadixSort(n, el, 8, bits, tile)));
  } else if (rows >= 128) {
    emit.Give(emit.Take(n * (el + 8) + 255));
  } else {
    const Slot sorted_places = emit.Take(list);
    const Slot keys = emit.Take(n * el);
    emit.Give(emit.Take(RadixSort(n, el, 8, bits, tile)));
    emit.Give(keys);
    emit.Give(emit.Take(RadixSort(n, 8, 8, BitLength(rows), 5760)));
    emit.Give(sorted_places);
  }
  emit.Give(places);
}

// sort(self, dim, descending): up to 4,096 a row the places within a row. (8 rows)
void Sort(const Call& call, Emitter& emit) {
  MakeAll(call, emit);
  const auto self = call.TensorArg(0);
  if (!self || (*self)->dims() == 0) return;
  const auto rank = static_cast<std::int64_t>((*self)->dims());
  std::int64_t dim = -1;
  for (std::size_t i = 1; i < call.args(); ++i) {
    if (const auto given = call.IntArg(i)) dim = *given;
  }
  if (dim < 0) dim += rank;
  if (dim < 0 || dim >= rank) return;
  const std::int64_t length = (*self)->sizes[static_cast<std::size_t>(dim)];
  if (length <= 4096) return emit.Give(emit.Take(8 * length));
  const std::int64_t n = (*self)->Numel();
  SortLongRows(n / length, n, ElementSize((*self)->dtype), emit);
}

// _pack_padded_sequence(input, lengths, batch_first, rows of the pieces) -> data, …: steps that the
// same sequences have are copied together, and then all of them into one piece. (2 runs)
void PackSequences(const Call& call, Emitter& emit) {
  std::vector<Slot> pieces;
  if (call.results() > 0) {
    const Layout& data = *call.Result(0);
    const std::int64_t rows = data.dims() > 0 ? std::max<std::int64_t>(data.sizes[0], 1) : 1;
    for (const std::int64_t n : call.IntsArg(3)) {
      if (n > 0) pieces.push_back(emit.Take(Product(data.bytes() / rows, n)));
    }
  }
  MakeAll(call, emit);
  for (const Slot& piece : pieces) emit.Give(piece);
}

constexpr std::array kIndexingRules = std::to_array<RuleEntry>({
    {"embedding", Embedding},
    {"embedding_dense_backward", DenseEmbeddingBackward},
    {"_embedding_bag", EmbeddingBag},
    {"_embedding_bag_backward", EmbeddingBagBackward},
    {"_embedding_bag_dense_backward", EmbeddingBagBackward},
    {"cumsum", RunningSum},
    {"cumprod", RunningSum},
    {"nonzero", Nonzero},
    {"index", Index},
    {"index_put", IndexPut},
    {"index_put_", IndexPut},
    {"_index_put_impl_", IndexPut},
    {"_unsafe_index_put", IndexPut},
    {"scatter", ScatterAlong},
    {"scatter_add", ScatterAlong},
    {"scatter_reduce", ScatterAlong},
    {"index_add", ScatterAlong},
    {"topk", TopK},
    {"multinomial", Multinomial},
    {"_pack_padded_sequence", PackSequences},
    {"sort", Sort},
});

}  // namespace

std::span<const RuleEntry> IndexingRules() { return kIndexingRules; }

}  // namespace plimsoll
