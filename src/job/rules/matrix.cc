#include "job/rules/matrix.h"

#include <array>

#include "job/rules/common.h"
#include "job/rules/rules.h"

namespace plimsoll {

void KeepCublasWorkspace(int thread, Emitter& emit) {
  const Gpu& gpu = emit.gpu();
  emit.Keep("cublas", thread,
            emit.torch() >= TorchVersion{2, 12} ? gpu.cublas_workspace
                                                : gpu.cublas_workspace_before_2_12);
}

namespace {

void KeepCublasLtWorkspace(int thread, Emitter& emit) { emit.Keep("cublasLt", thread, 1 * kMiB); }

}  // namespace

void KeepWorkspacesOfLinear(int thread, Emitter& emit) {
  KeepCublasWorkspace(thread, emit);
  KeepCublasLtWorkspace(thread, emit);
}

namespace {

void MatrixProduct(const Call& call, Emitter& emit) {
  MakeAll(call, emit);
  KeepCublasWorkspace(call.thread(), emit);
}

/// A bias of one dimension is added by cuBLASLt, which has a workspace of its own: in all jobs with
/// biases, and in no Llama, which has none.
void ProductWithBias(const Call& call, Emitter& emit) {
  MatrixProduct(call, emit);
  const auto bias = call.TensorArg(0);
  if (bias && (*bias)->dims() == 1) KeepWorkspacesOfLinear(call.thread(), emit);
}

/// In 8 bits cuBLASLt alone does it: a recorded Llama in float8 takes that workspace at its first.
void ScaledProduct(const Call& call, Emitter& emit) {
  MakeAll(call, emit);
  KeepCublasLtWorkspace(call.thread(), emit);
}

constexpr std::array kMatrixRules = std::to_array<RuleEntry>({
    {"mm", MatrixProduct},
    {"bmm", MatrixProduct},
    {"baddbmm", MatrixProduct},
    {"addbmm", MatrixProduct},
    {"addmv", MatrixProduct},
    {"mv", MatrixProduct},
    {"dot", MatrixProduct},
    {"vdot", MatrixProduct},
    {"addr", MatrixProduct},
    {"addmm", ProductWithBias},
    {"_addmm_activation", ProductWithBias},
    {"_scaled_mm", ScaledProduct},
});

}  // namespace

std::span<const RuleEntry> MatrixRules() { return kMatrixRules; }

}  // namespace plimsoll
