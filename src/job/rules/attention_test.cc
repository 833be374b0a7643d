// Attention against what an H200's allocator recorded (torch 2.11), with kernels that were asked
// for: the whole ordered sequence of allocations and releases, forward and backward. Those that
// torch chooses by itself are in operators_test.cc.
#include "job/rules/attention.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "files/input.h"
#include "job/rules/testing.h"

namespace plimsoll::attention_test {
namespace {

using Json = nlohmann::json;

Gpu Named(std::string_view name) {
  const Result<Gpu> gpu = FindGpu(name);
  EXPECT_TRUE(gpu.ok());
  return gpu.ok() ? *gpu : Gpu{};
}

std::vector<Json> ReadRows(const std::string& path) {
  const Result<Input> input = Input::Open(path);
  EXPECT_TRUE(input.ok()) << path;
  std::vector<Json> rows;
  if (!input.ok()) return rows;
  std::string_view rest = input->bytes();
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    rows.push_back(Json::parse(rest.substr(0, end)));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return rows;
}

/// The pair of calls that a row stands for.
struct Pair {
  CallMaker maker;
  CallRecord forward, backward;
  Storage logsumexp = 0;
};

TensorUse MakeMask(const Json& row, DType dtype, CallMaker& maker) {
  const std::string mask = row["mask"];
  const std::int64_t s = row["seq"];
  const std::int64_t sk = row["kv_seq"];
  if (mask == "bias_with_grad") return maker.MakeTensor(dtype, {1, row["heads"], s, sk}, {}, true);
  return maker.MakeTensor(mask == "bool" ? DType::kBool : dtype, {row["batch"], 1, s, sk});
}

void MakePair(const Json& row, Pair& pair) {
  CallMaker& maker = pair.maker;
  const DType dtype = *ParseDType(row["dtype"].get<std::string>());
  const std::vector<std::int64_t> q = {row["batch"], row["heads"], row["seq"], row["head_dim"]};
  const std::vector<std::int64_t> k = {row["batch"], row["kv_heads"], row["kv_seq"],
                                       row["head_dim"]};
  const std::string mask_kind = row["mask"];
  const bool has_mask = mask_kind != "none" && mask_kind != "causal";
  const bool causal = mask_kind == "causal";
  const TensorUse query = maker.MakeTensor(dtype, q, row["strides"], !row.value("no_grad", false));
  const TensorUse key = maker.MakeTensor(dtype, k);
  const TensorUse value = maker.MakeTensor(dtype, k);
  const Argument mask = has_mask ? Arg(MakeMask(row, dtype, maker)) : Argument{};
  const double dropout = row["dropout"];
  // As the kernel gives it, and the gradient of it likewise.
  const std::vector<std::int64_t> strides = row["strides"];
  const TensorUse output = maker.MakeTensor(dtype, q, strides);
  const TensorUse gradient = maker.MakeTensor(dtype, q, strides);
  const TensorUse logsumexp = maker.MakeTensor(DType::kFloat32, {q[0], q[1], q[2]});
  pair.logsumexp = logsumexp.storage;
  pair.forward = maker.MakeCall("plimsoll.attention",
                                {Arg(query), Arg(key), Arg(value), mask, Arg(dropout), Arg(causal)},
                                {output, logsumexp});

  const bool mask_wants = mask_kind == "bias_with_grad";
  std::vector<TensorUse> gradients = {maker.MakeTensor(dtype, q), maker.MakeTensor(dtype, k),
                                      maker.MakeTensor(dtype, k)};
  if (mask_wants) gradients.push_back(MakeMask(row, dtype, maker));
  pair.backward = maker.MakeCall(
      "plimsoll.attention_backward",
      {Arg(gradient), Arg(query), Arg(key), Arg(value), mask, Arg(output), Arg(logsumexp),
       Arg(dropout), Arg(causal), ListArg(std::vector<bool>{true, true, true, mask_wants})},
      gradients);
}

std::vector<Bytes> Predict(const Json& row, TorchVersion torch) {
  Pair pair;
  MakePair(row, pair);
  RecordingEmitter emit(Named("H200"), torch);
  const Job& job = pair.maker.job();
  std::vector<Bytes> events = emit.Run(job, pair.forward, Stage::kForward);
  const auto append = [&](const std::vector<Bytes>& more) {
    events.insert(events.end(), more.begin(), more.end());
  };
  if (!row.value("no_grad", false)) append(emit.Run(job, pair.backward, Stage::kBackward));
  append(emit.Free(pair.logsumexp));
  return events;
}

/// Calls with a kernel that was asked for. 2.10 takes flash where 2.11 takes cuDNN.
TEST(AttentionTest, KernelsAreAsMeasured) {
  const std::vector<Json> rows = ReadRows(PLIMSOLL_TEST_DATA "/operators/attention_kernels.jsonl");
  EXPECT_EQ(rows.size(), 28u);
  for (const Json& row : rows) {
    const std::string kernel = row["kernel"];
    if (kernel == "efficient") continue;  // in 16 bit never chosen on this GPU
    const TorchVersion torch = kernel == "flash" ? TorchVersion{2, 10} : TorchVersion{2, 11};
    std::vector<Bytes> measured = row["forward"];
    const std::vector<Bytes> backward = row.value("backward", std::vector<Bytes>{});
    measured.insert(measured.end(), backward.begin(), backward.end());
    EXPECT_EQ(Predict(row, torch), measured) << row.dump();
  }
}

Attention Shape(DType dtype) {
  Attention a;
  a.b = 2;
  a.h = a.hk = 8;
  a.s = a.sk = 512;
  a.d = a.dv = 64;
  a.dtype = dtype;
  a.el = ElementSize(dtype);
  return a;
}

TEST(AttentionTest, TheKernelDependsOnGpuAndRelease) {
  const Attention half = Shape(DType::kBFloat16);
  const Attention single = Shape(DType::kFloat32);
  const auto choose = [](const Attention& a, std::string_view gpu, TorchVersion torch) {
    return ChooseAttention(a, Named(gpu), torch);
  };
  EXPECT_EQ(choose(half, "H200", {2, 8}), AttentionKernel::kFlash);
  EXPECT_EQ(choose(half, "H200", {2, 9}), AttentionKernel::kCudnn);
  EXPECT_EQ(choose(half, "H200", {2, 10}), AttentionKernel::kFlash);
  EXPECT_EQ(choose(half, "H200", {2, 11}), AttentionKernel::kCudnn);
  EXPECT_EQ(choose(half, "RTX 4090", {2, 11}), AttentionKernel::kFlash);
  EXPECT_EQ(choose(half, "T4", {2, 11}), AttentionKernel::kMath);
  EXPECT_EQ(choose(Shape(DType::kFloat16), "T4", {2, 11}), AttentionKernel::kEfficient);
  EXPECT_EQ(choose(single, "H200", {2, 11}), AttentionKernel::kEfficient);
  EXPECT_EQ(choose(single, "RTX 4090", {2, 11}), AttentionKernel::kEfficient);
}

TEST(AttentionTest, FlashNeedsNoMaskAndASmallHead) {
  const Gpu gpu = Named("A100-80GB");
  Attention a = Shape(DType::kBFloat16);
  EXPECT_EQ(ChooseAttention(a, gpu, {}), AttentionKernel::kFlash);
  a.hk = 2;
  EXPECT_EQ(ChooseAttention(a, gpu, {}), AttentionKernel::kFlash);
  a.mask = Layout{.dtype = DType::kBool, .sizes = {2, 1, 512, 512}, .strides = {262144, 0, 512, 1}};
  EXPECT_EQ(ChooseAttention(a, gpu, {}), AttentionKernel::kMath);
  a.hk = 8;
  EXPECT_EQ(ChooseAttention(a, gpu, {}), AttentionKernel::kEfficient);
  a.mask.reset();
  a.d = a.dv = 264;
  EXPECT_EQ(ChooseAttention(a, gpu, {}), AttentionKernel::kEfficient);
}

Json HalfRow(std::int64_t kv_heads, std::vector<std::int64_t> strides) {
  return {{"dtype", "bfloat16"}, {"batch", 2},        {"heads", 4},    {"kv_heads", kv_heads},
          {"seq", 16},           {"kv_seq", 16},      {"head_dim", 8}, {"mask", "causal"},
          {"dropout", 0.0},      {"strides", strides}};
}

/// Falcon's one head of keys and values, which nothing says is a group: as torch 2.13 takes it
/// apart, and _safe_softmax as measured.
TEST(AttentionTest, BroadcastHeadsGoThroughTheMathematicalForm) {
  Pair pair;
  MakePair(HalfRow(1, {512, 128, 8, 1}), pair);
  pair.maker.AddKeyword(pair.forward, "enable_gqa", Arg(false));
  pair.maker.AddKeyword(pair.backward, "enable_gqa", Arg(false));
  RecordingEmitter emit(Named("H200"), {2, 11});
  EXPECT_EQ(emit.Run(pair.maker.job(), pair.forward, Stage::kForward),
            (std::vector<Bytes>{4096, 1024, 1024,  4096,  256,   256,   -256,  4,     4,
                                1024, -4,   -4,    -256,  1024,  4096,  8192,  -1024, 8192,
                                2048, 128,  4,     -4,    -128,  -2048, -8192, 4096,  4096,
                                4096, 2048, -4096, -1024, -1024, -1024, -4096, -4096}));
  EXPECT_EQ(emit.Run(pair.maker.job(), pair.backward, Stage::kBackward),
            (std::vector<Bytes>{4096,  4096,  8192,  -4096, -4096, 1024,  -4096, 8192, 8192,  -8192,
                                -8192, -8192, 4096,  4096,  -8192, -4096, -4096, 1024, -4096, 1024,
                                -1024, 4096,  -4096, 512,   -1024, 512,   -1024, 2048, -4096}));
}

/// In the first forward of a checkpoint autograd saves nothing.
TEST(AttentionTest, WhatNoBackwardNeedsGoesWithItsVariable) {
  Json row = HalfRow(4, {512, 8, 32, 1});
  row["mask"] = "none";
  row["dropout"] = 0.1;
  Pair pair;
  MakePair(row, pair);
  RecordingEmitter emit(Named("T4"), {2, 11});  // which has no kernel for bfloat16
  emit.SayItDiesSoon(pair.logsumexp);
  EXPECT_EQ(emit.Run(pair.maker.job(), pair.forward, Stage::kForward),
            (std::vector<Bytes>{4096,  4096,  4096,  4096,  4096,  4096,  4096,  8192, -4096,
                                -4096, -4096, 8192,  2048,  128,   4,     -4,    -128, -2048,
                                -8192, 2048,  8192,  -2048, -8192, 4096,  4096,  4096, -4096,
                                2048,  -4096, -8192, -4096, -4096, -4096, -4096, -4096}));
}

/// A release that lets one head pass takes a kernel for it, and not for two.
TEST(AttentionTest, OneBroadcastHeadIsTakenSince214) {
  Attention a = Shape(DType::kBFloat16);
  a.hk = 1;
  a.broadcast = true;
  EXPECT_EQ(ChooseAttention(a, Named("H200"), {2, 13}), AttentionKernel::kMath);
  EXPECT_EQ(ChooseAttention(a, Named("H200"), {2, 14}), AttentionKernel::kCudnn);
  a.hk = 2;
  EXPECT_EQ(ChooseAttention(a, Named("H200"), {2, 14}), AttentionKernel::kMath);
}

AttentionKernel KernelNamed(const std::string& name) {
  if (name == "cudnn") return AttentionKernel::kCudnn;
  if (name == "flash") return AttentionKernel::kFlash;
  return name == "efficient" ? AttentionKernel::kEfficient : AttentionKernel::kMath;
}

/// The Python package, which has to choose while it captures, answers the same cases:
/// python/tests/test_attention_choice.py.
TEST(AttentionTest, KernelsTakeFourDimensions) {
  Attention a;
  a.s = a.sk = 196;
  a.d = a.dv = 32;
  EXPECT_EQ(ChooseAttention(a, *FindGpu("A100 40GB"), {}), AttentionKernel::kEfficient);
  a.four_dimensional = false;
  EXPECT_EQ(ChooseAttention(a, *FindGpu("A100 40GB"), {}), AttentionKernel::kMath);
}

TEST(AttentionTest, ThePackageChoosesTheSame) {
  const std::vector<Json> rows = ReadRows(PLIMSOLL_TEST_DATA "/operators/attention_choice.jsonl");
  EXPECT_GT(rows.size(), 500u);
  for (const Json& row : rows) {
    const Json& c = row["case"];
    Attention a;
    a.dtype = *ParseDType(c["dtype"].get<std::string>());
    a.h = c["heads"];
    a.hk = c["kv_heads"];
    a.s = c["seq"];
    a.sk = c["kv_seq"];
    a.d = c["head"];
    a.dv = c["value_head"];
    if (c["mask"]) a.mask = Layout{.dtype = a.dtype, .sizes = {a.s, a.sk}, .strides = {a.sk, 1}};
    a.mask_needs_grad = c["mask_needs_grad"];
    a.causal = c["causal"];
    a.dropout = c["dropout"];
    a.rows_dense = c["rows_dense"];
    a.broadcast = c.value("broadcast", false);
    const TorchVersion torch = *ParseTorchVersion(row["torch"].get<std::string>());
    EXPECT_EQ(ChooseAttention(a, Named(row["gpu"].get<std::string>()), torch),
              KernelNamed(row["kernel"]))
        << row.dump();
  }
}

}  // namespace
}  // namespace plimsoll::attention_test
