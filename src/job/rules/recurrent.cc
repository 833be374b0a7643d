// LSTM and GRU, which cuDNN runs as one call, and their cells, which PyTorch has kernels for.
#include <algorithm>
#include <array>
#include <vector>

#include "job/calls/arithmetic.h"
#include "job/rules/common.h"
#include "job/rules/reduction.h"
#include "job/rules/rules.h"

namespace plimsoll {
namespace {

// As cuDNN counts them; 0 and 1 are plain recurrent layers.
constexpr std::int64_t kLstm = 2;
constexpr std::int64_t kGru = 3;
constexpr Bytes kDropoutState = 6'488'064;

struct RecurrentCall {
  /// A cell is one step of one sequence.
  std::int64_t cells = 0, batch = 0, input = 0, hidden = 0, layers = 1, directions = 1;
  std::int64_t mode = kLstm;
  bool dropout = false;
  Bytes el = 4;
  Bytes input_bytes = 0;
  /// The matrices alone, and with the biases.
  std::int64_t matrix_elements = 0;
  Bytes weight_bytes = 0;
  /// The input is copied to put the steps first.
  bool transposed = false;
  /// Sequences of several lengths, without the rest of the shorter ones.
  bool packed = false;
};

/// The arguments that both directions have; `mode` is where the mode of cuDNN stands, and after it
/// the sizes.
std::optional<RecurrentCall> Read(const Call& call, std::size_t mode) {
  const auto input = call.TensorArg(0);
  if (!input || (*input)->dims() < 2 || (*input)->dims() > 3) return std::nullopt;
  RecurrentCall r;
  r.mode = call.IntArg(mode).value_or(kLstm);
  r.hidden = call.IntArg(mode + 1).value_or(1);
  r.layers = call.IntArg(mode + 3).value_or(1);
  const bool batch_first = call.BoolArg(mode + 4, false);
  r.dropout = call.FloatArg(mode + 5, 0) > 0 && call.BoolArg(mode + 6, true);
  r.directions = call.BoolArg(mode + 7, false) ? 2 : 1;
  const Layout& x = **input;
  r.el = ElementSize(x.dtype);
  r.input = x.sizes.back();
  r.input_bytes = x.bytes();
  r.cells = x.Numel() / std::max<std::int64_t>(r.input, 1);
  if (x.dims() == 3) {
    r.batch = x.sizes[batch_first ? 0 : 1];
    r.transposed = batch_first ? r.batch > 1 && r.cells > r.batch : !x.IsContiguous();
  } else {  // packed: how many sequences are left at each step
    r.packed = true;
    const std::vector<std::int64_t> left = call.IntsArg(mode + 8);
    r.batch = left.empty() ? 1 : left.front();
  }
  for (const Tensor& weight : call.TensorsArg(1)) {
    r.weight_bytes += weight->bytes();
    if (weight->dims() == 2) r.matrix_elements += weight->Numel();
  }
  return r;
}

/// What the backward needs of every step. (52 rows)
Bytes Reserve(const RecurrentCall& r) {
  const std::int64_t gates = r.mode == kLstm ? 5 : r.mode == kGru ? 6 : 1;
  const Bytes one = r.cells * r.hidden * r.el;
  const Bytes states = gates * r.layers * r.directions + r.directions * (r.layers - 1);
  const Bytes dropped = r.dropout ? r.cells * r.directions * r.hidden / 4 * (r.layers - 1) : 0;
  return one * states + 256 + dropped;
}

/// How many numbers a workspace has: for each cell so many times the input's width and the hidden
/// one, and for each sequence so many times the hidden width.
struct Share {
  std::int64_t input = 0, hidden = 0, sequence = 0;
};

/// What each of cuDNN's steps needs; the workspace serves all. From 514 calls on an H200 (8 shapes,
/// 1 to 4 layers, fp32 and bf16): all 256 of an LSTM or a GRU without dropout to 1 %, 250 to the
/// byte.
std::vector<Share> SharesOf(const RecurrentCall& r) {
  const bool lstm = r.mode == kLstm;
  const bool plain = r.mode < kLstm;
  const bool one = r.layers == 1;
  const bool narrow_floats = r.el == 4 && r.hidden <= (plain ? 256 : 128);
  if (r.directions == 2) {
    const Share wide = {6, one ? 6 : 8, (lstm ? 26 : 14) * r.layers};
    std::vector<Share> all = {wide};
    if (plain) {
      all.push_back({2, one ? 10 : 12, wide.sequence});
      if (narrow_floats) all.push_back({6, wide.hidden + 9, wide.sequence});
    } else {
      all.push_back({one || lstm ? 1 : 2, lstm ? 14 : 12, (lstm ? 24 : 14) * r.layers});
      // (4 rows of 8, of few sequences)
      if (narrow_floats && r.batch < 16) all.push_back({6, lstm ? 20 : 22, wide.sequence});
    }
    return all;
  }
  // Between layers each value is kept a second time.
  const std::int64_t dropped = r.dropout && !one ? 1 : 0;
  if (one && lstm) return {{1, 5, 10}, {3, 3, 11}};
  std::vector<Share> all = {{1, (lstm ? 5 : 4) + dropped, (lstm ? 10 : 5) * r.layers}};
  if (one) all = {{r.input < r.hidden ? 0 : 3, r.input < r.hidden ? 5 : 3, 5}};
  const std::int64_t few = r.batch < 16 ? 16 : r.batch < 32 ? 4 : 0;
  if (!one) all.push_back({3, 2 + dropped, ((lstm ? 15 : 9) + few) * r.layers + 8});
  if (plain && narrow_floats) all.push_back({3, one ? 12 : 13, 6 * r.layers});
  return all;
}

/// Of packed sequences, where another algorithm runs. (36 rows, each exact)
Bytes PackedWorkspace(const RecurrentCall& r) {
  const bool lstm = r.mode == kLstm;
  const std::int64_t gates = lstm ? 4 : 3;
  const Bytes fixed =
      Product(8 * kMiB, r.layers, r.directions) + 256 + Product(r.el, r.matrix_elements);
  const auto with = [&](std::int64_t of_cell, std::int64_t of_sequence) {
    return Product(r.el, r.cells, of_cell) + Product(r.el, of_sequence, r.batch, r.hidden);
  };
  if (r.directions == 2) {
    return fixed + with((lstm ? 12 : 10) * r.hidden, (lstm ? 16 : 10) * r.layers);
  }
  const std::int64_t dropped = r.dropout && r.layers > 1 ? r.hidden : 0;
  // A wide input alone can need more than the gates.
  return fixed + std::max(with(gates * r.hidden + dropped, (lstm ? 6 : 3) * r.layers),
                          with(r.input + r.hidden, (lstm ? 3 : 1) * r.layers));
}

Workspace WorkspaceOf(const RecurrentCall& r) {
  if (r.packed && r.mode >= kLstm) {
    const Bytes bytes = PackedWorkspace(r);
    return {.likely = bytes, .upper = bytes};
  }
  Bytes of_cells = 0;
  for (const Share& share : SharesOf(r)) {
    const std::int64_t of_cell = share.input * r.input + share.hidden * r.hidden;
    of_cells = std::max(of_cells, Product(r.el, r.cells, of_cell) +
                                      Product(r.el, share.sequence, r.batch, r.hidden));
  }
  const Bytes likely = Product(8 * kMiB, r.layers, r.directions) + 256 +
                       2 * RoundUp(4 * r.batch, 16) + Product(r.el, r.matrix_elements) + of_cells;
  // In single precision some calls of narrow layers take so much more.
  const bool unsure = r.directions == 2 && r.el == 4 && r.hidden <= 256;
  return {.likely = likely, .upper = likely + (unsure ? Product(r.el, r.cells, 12 * r.hidden) : 0)};
}

// _cudnn_rnn(input, weight, weight_stride0, weight_buf, hx, cx, mode, hidden_size, proj_size,
//            num_layers, batch_first, dropout, train, bidirectional, batch_sizes, dropout_state)
//   -> output, hy, cy (an LSTM's), reserve, weight_buf (where the weights are not flat already, as
//   in
//      bf16, and are copied into one buffer)
void RecurrentForward(const Call& call, Emitter& emit) {
  const std::optional<RecurrentCall> r = Read(call, 6);
  if (!r) return MakeAll(call, emit);
  if (r->dropout) emit.Keep("cudnn dropout", call.thread(), kDropoutState);
  const Slot input = emit.Take(r->transposed ? r->input_bytes : 0);
  const std::size_t reserve_at = r->mode == kLstm ? 3 : 2;
  for (std::size_t result = 0; result < reserve_at; ++result) MakeResult(call, result, emit);
  MakeResult(call, reserve_at + 1, emit);
  const Slot workspace = emit.Take(WorkspaceOf(*r));
  if (const auto reserve = call.FreshOfResult(reserve_at)) {
    emit.Make(*reserve, Reserve(*r));
  } else if (call.results() > 0) {
    emit.Hold(call.Result(0).storage, 0, Reserve(*r));
  }
  emit.Give(workspace);
  emit.Give(input);
}

// _cudnn_rnn_backward(input, weight, weight_stride0, weight_buf, hx, cx, output, grad_output,
//                     grad_hy, grad_cy, mode, …, reserve, output_mask)
//   -> grad_input, grad_hx, grad_cx (an LSTM's), grad_weight…
void RecurrentBackward(const Call& call, Emitter& emit) {
  const std::optional<RecurrentCall> r = Read(call, 10);
  const auto hx = call.TensorArg(4);
  if (!r || !hx) return MakeAll(call, emit);
  // Gradients that are not given are zeros.
  const Slot grad_hy = emit.Take(call.TensorArg(8) ? 0 : (*hx)->bytes());
  const Slot grad_cy = emit.Take(r->mode != kLstm || call.TensorArg(9) ? 0 : (*hx)->bytes());
  const Workspace workspace = WorkspaceOf(*r);
  const Slot input = emit.Take(r->transposed ? r->input_bytes : 0);
  for (std::size_t result = 0; result < (r->mode == kLstm ? 3u : 2u); ++result) {
    MakeResult(call, result, emit);
  }
  emit.Give(emit.Take(workspace));
  emit.Give(input);
  const Slot input_again = emit.Take(r->transposed ? r->input_bytes : 0);
  MakeAll(call, emit);  // the weights' gradients lie in one buffer
  emit.Give(emit.Take(workspace));
  emit.Give(input_again);
  emit.Give(grad_cy);
  emit.Give(grad_hy);
}

// _thnn_fused_gru_cell(input_gates, hidden_gates, hx, input_bias, hidden_bias) -> hy, kept
// _thnn_fused_lstm_cell(input_gates, hidden_gates, cx, …) -> hy, cy, kept
// What is kept for the backward is made first. This and the backward are by the order in which
// ATen/native/cuda/RNN.cu makes them; no row was measured.
void CellForward(const Call& call, Emitter& emit) {
  if (call.results() > 0) MakeResult(call, call.results() - 1, emit);
  MakeAll(call, emit);
}

/// -> the gradients of the products, of the state, of the biases, which are sums over the batch.
void CellBackward(const Call& call, Emitter& emit, std::size_t products) {
  constexpr std::array<std::int64_t, 1> kOverBatch{0};
  for (std::size_t result = 0; result <= products; ++result) MakeResult(call, result, emit);
  for (std::size_t i = 0; products + 1 + i < call.results() && i < products; ++i) {
    MakeResult(call, products + 1 + i, emit);
    const Layout& gates = *call.Result(i);
    Reduce(emit, gates, kOverBatch, {.bytes = std::max<Bytes>(ElementSize(gates.dtype), 4)});
  }
}

// _thnn_fused_gru_cell_backward(grad_hy, kept, has_bias)
void GruCellBackward(const Call& call, Emitter& emit) { CellBackward(call, emit, 2); }

// _thnn_fused_lstm_cell_backward_impl(grad_hy, grad_cy, cx, cy, kept, has_bias): both products have
// the same gradient.
void LstmCellBackward(const Call& call, Emitter& emit) { CellBackward(call, emit, 1); }

constexpr std::array kRecurrentRules = std::to_array<RuleEntry>({
    {"_cudnn_rnn", RecurrentForward},
    {"_cudnn_rnn_backward", RecurrentBackward},
    {"_thnn_fused_gru_cell", CellForward},
    {"_thnn_fused_gru_cell_backward", GruCellBackward},
    {"_thnn_fused_lstm_cell", CellForward},
    {"_thnn_fused_lstm_cell_backward_impl", LstmCellBackward},
});

}  // namespace

std::span<const RuleEntry> RecurrentRules() { return kRecurrentRules; }

}  // namespace plimsoll
