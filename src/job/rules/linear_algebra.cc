// Decompositions and inverses of matrices, as optimizers of matrices ask for them (Shampoo, SOAP):
// what cuSOLVER takes beside the results. By 1,056 calls of 20 functions on an H200, CUDA 13.0.
#include <algorithm>
#include <array>

#include "job/calls/arithmetic.h"
#include "job/rules/common.h"
#include "job/rules/rules.h"

namespace plimsoll {
namespace {

/// A batch of matrices.
struct Matrices {
  std::int64_t count = 1;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  Bytes element = 0;
  /// Of all of them.
  Bytes bytes = 0;

  std::int64_t larger() const { return std::max(rows, columns); }
  std::int64_t smaller() const { return std::min(rows, columns); }
};

std::optional<Matrices> MatricesOf(const std::optional<Tensor>& tensor) {
  if (!tensor || (*tensor)->dims() < 2) return {};
  const Layout& layout = **tensor;
  Matrices m{.rows = layout.sizes[layout.dims() - 2],
             .columns = layout.sizes.back(),
             .element = ElementSize(layout.dtype),
             .bytes = layout.bytes()};
  if (m.rows <= 0 || m.columns <= 0 || m.bytes <= 0) return {};
  m.count = std::max<std::int64_t>(1, layout.Numel() / Product(m.rows, m.columns));
  return m;
}

/// What each matrix of a batch takes in turn: one is as good as all.
void BorrowInTurn(Bytes bytes, Emitter& emit) { emit.Give(emit.Take(bytes)); }

/// Which way a decomposition into eigenvalues goes is PyTorch's choice: many small matrices at
/// once, rotations for single precision up to 512, else by division into halves.
Bytes EigenWorkspace(const Matrices& m) {
  const std::int64_t n = m.rows;
  if (m.count > 1 && n <= 32) return Product(m.count, m.element * (64'128 + 907 * n));
  if (m.element == 4 && n >= 32 && n <= 512) return Product(4, n, n) + 148 * n;
  const Bytes square = Product(4 * m.element, n, n);
  if (n < 640) return square + m.element * std::min<std::int64_t>(196'691, 68'000 + 620 * n);
  return square + m.element * (127 * n + 32'995);
}

// _linalg_eigh(self, uplo, compute_v) -> (values, vectors): vectors lie where the matrices were
// copied to, also where nobody asked for them. (90 rows)
void Eigen(const Call& call, Emitter& emit) {
  const auto matrices = MatricesOf(call.TensorArg(0));
  if (!matrices) return MakeAll(call, emit);
  const bool vectors = call.results() > 1 && call.FreshOfResult(1).has_value() &&
                       call.FreshBytes(*call.FreshOfResult(1)) > 0;
  const Slot copy = emit.Take(vectors ? 0 : matrices->bytes);
  if (vectors) MakeResult(call, 1, emit);
  if (call.results() > 0) MakeResult(call, 0, emit);
  const Slot info = emit.Take(4 * matrices->count);
  BorrowInTurn(EigenWorkspace(*matrices), emit);
  emit.Give(info);
  emit.Give(copy);
}

/// Reflections of a QR: cuSOLVER's, one matrix after another, or cuBLAS's for many small ones.
Bytes ReflectionsWorkspace(const Matrices& m) {
  const bool at_once = m.columns <= 256 && m.count >= std::max<std::int64_t>(2, m.columns / 16);
  if (at_once) return 8 * m.count;
  return m.element / 4 * (Product(4096, std::max<std::int64_t>(m.columns, 256)) + 2'097'152 + 128);
}

// linalg_qr(self, mode) -> (Q, R). (100 rows)
void Qr(const Call& call, Emitter& emit) {
  const auto matrices = MatricesOf(call.TensorArg(0));
  MakeAll(call, emit);
  if (!matrices) return;
  const Slot scales = emit.Take(Product(matrices->count, matrices->element, matrices->smaller()));
  BorrowInTurn(ReflectionsWorkspace(*matrices), emit);
  BorrowInTurn(matrices->element / 4 * (Product(1536, matrices->rows) + 66'560), emit);
  emit.Give(scales);
}

/// Jacobi's way, which PyTorch takes first. Tall matrices go through a QR.
Bytes SingularWorkspace(const Matrices& m) {
  if (m.larger() <= 32) return 124 * m.element * m.smaller() / 4;
  const Bytes both = Product(2 * m.element, m.rows, m.columns);
  const Bytes turned = m.rows < m.columns ? both / 2 : 0;
  const Bytes reflections =
      m.rows >= 4 * m.columns && m.columns <= 128
          ? ReflectionsWorkspace({.rows = m.rows, .columns = m.columns, .element = m.element})
          : 0;
  return std::max(both + turned + 34 * m.element * (m.rows + m.columns), reflections);
}

/// The decomposition itself, once there is room for its results.
void Decompose(const Matrices& matrices, Emitter& emit) {
  const Slot info = emit.Take(4 * matrices.count);
  const Slot copy = emit.Take(matrices.bytes);
  BorrowInTurn(SingularWorkspace(matrices), emit);
  emit.Give(copy);
  emit.Give(info);
}

Bytes SquareBytes(const Matrices& m) { return Product(m.element, m.smaller(), m.smaller()); }

// _linalg_svd(self, full_matrices, compute_uv) -> (U, S, V): where nobody asked for U and V they
// are made for one matrix. (130 rows)
void SingularValues(const Call& call, Emitter& emit) {
  const auto matrices = MatricesOf(call.TensorArg(0));
  if (!matrices) return MakeAll(call, emit);
  std::array<Slot, 2> unasked;
  for (const std::size_t side : {std::size_t{0}, std::size_t{2}}) {
    const auto fresh = side < call.results() ? call.FreshOfResult(side) : std::nullopt;
    if (fresh && call.FreshBytes(*fresh) > 0) {
      emit.Make(*fresh);
    } else {
      unasked[side / 2] =
          emit.Take(side == 0 ? matrices->bytes / matrices->count : SquareBytes(*matrices));
    }
  }
  if (call.results() > 1) MakeResult(call, 1, emit);
  Decompose(*matrices, emit);
  for (const Slot slot : unasked) emit.Give(slot);
}

// linalg_pinv(self, …): by singular values. (65 rows)
void PseudoInverse(const Call& call, Emitter& emit) {
  const auto matrices = MatricesOf(call.TensorArg(0));
  if (!matrices) return MakeAll(call, emit);
  const Slot left = emit.Take(matrices->bytes);
  const Slot right = emit.Take(Product(matrices->count, SquareBytes(*matrices)));
  Decompose(*matrices, emit);
  const Slot scaled = emit.Take(matrices->bytes);
  MakeAll(call, emit);
  emit.Give(scaled);
  emit.Give(right);
  emit.Give(left);
}

/// Of what is solved with: pivots as rows, twice.
void Solve(const Matrices& matrices, Bytes solution, Emitter& emit) {
  const Slot rows = emit.Take(Product(8 * matrices.count, matrices.rows));
  const Slot pivots = emit.Take(Product(8 * matrices.count, matrices.rows));
  BorrowInTurn(solution, emit);
  emit.Give(pivots);
  emit.Give(rows);
}

// linalg_inv_ex(self) -> (inverse, info): its factors, and a copy of the inverse. (45 rows)
void Inverse(const Call& call, Emitter& emit) {
  MakeAll(call, emit);
  const auto matrices = MatricesOf(call.TensorArg(0));
  if (!matrices) return;
  const Slot factors = emit.Take(matrices->bytes);
  const Slot pivots = emit.Take(Product(4 * matrices->count, matrices->rows));
  Solve(*matrices, matrices->bytes, emit);
  emit.Give(pivots);
  emit.Give(factors);
}

// _linalg_solve_ex(A, B) -> (solution, factors, pivots, info). (90 rows)
void SolveSystem(const Call& call, Emitter& emit) {
  MakeAll(call, emit);
  const auto matrices = MatricesOf(call.TensorArg(0));
  const auto right = call.TensorArg(1);
  if (matrices && right) Solve(*matrices, (*right)->bytes(), emit);
}

// cholesky_inverse(self), cholesky_solve(self, factors): a copy of what is read. (90 rows)
template <std::size_t kArg>
void WithCopy(const Call& call, Emitter& emit) {
  MakeAll(call, emit);
  const auto read = call.TensorArg(kArg);
  if (read) emit.Give(emit.Take((*read)->bytes()));
}

constexpr std::array kLinearAlgebraRules = std::to_array<RuleEntry>({
    {"_linalg_eigh", Eigen},
    {"linalg_qr", Qr},
    {"_linalg_svd", SingularValues},
    {"linalg_pinv", PseudoInverse},
    {"linalg_inv_ex", Inverse},
    {"_linalg_solve_ex", SolveSystem},
    {"cholesky_inverse", WithCopy<0>},
    {"cholesky_solve", WithCopy<1>},
});

}  // namespace

std::span<const RuleEntry> LinearAlgebraRules() { return kLinearAlgebraRules; }

}  // namespace plimsoll
