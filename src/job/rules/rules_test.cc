#include "job/rules/rules.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "job/rules/testing.h"

namespace plimsoll::rules_test {
namespace {

using Events = std::vector<Bytes>;

TEST(RulesTest, OperatorsAreFoundByTheirName) {
  EXPECT_NE(FactsOf("aten.mm.default").rule, nullptr);
  EXPECT_NE(FactsOf("plimsoll.attention").rule, nullptr);
  EXPECT_NE(FactsOf("aten.sum.dim_IntList").rule, nullptr);
  EXPECT_TRUE(FactsOf("aten.gelu.default").known);
  EXPECT_EQ(FactsOf("aten.gelu.default").rule, nullptr);
  EXPECT_TRUE(FactsOf("aten.mul_.Tensor").known);
  EXPECT_TRUE(FactsOf("aten._foreach_addcdiv_.ScalarList").known);
  EXPECT_FALSE(FactsOf("aten.cholesky.default").known);
  EXPECT_FALSE(FactsOf("mylib.mul_like.default").known);
  EXPECT_FALSE(FactsOf("").known);
}

class RuleTest : public testing::Test {
 protected:
  RecordingEmitter emit_{*FindGpu("H200")};
  CallMaker maker_;

  TensorUse Floats(const std::vector<std::int64_t>& sizes, std::vector<std::int64_t> strides = {}) {
    return maker_.MakeTensor(DType::kFloat32, sizes, std::move(strides));
  }
  Events Run(std::string_view op, std::vector<Argument> args, const std::vector<TensorUse>& results,
             Stage stage = Stage::kForward) {
    return emit_.Run(maker_.job(), maker_.MakeCall(op, std::move(args), results), stage);
  }
};

TEST_F(RuleTest, ACublasWorkspaceIsKept) {
  Run("aten.mm.default", {Arg(Floats({8, 8})), Arg(Floats({8, 8}))}, {Floats({8, 8})});
  EXPECT_EQ(emit_.kept().at("cublas"), 32 * kMiB);
  EXPECT_FALSE(emit_.kept().contains("cublasLt"));
  Run("aten.addmm.default", {Arg(Floats({8, 8})), Arg(Floats({8, 8})), Arg(Floats({8, 8}))},
      {Floats({8, 8})});
  EXPECT_FALSE(emit_.kept().contains("cublasLt"));
  Run("aten.addmm.default", {Arg(Floats({8})), Arg(Floats({8, 8})), Arg(Floats({8, 8}))},
      {Floats({8, 8})});
  EXPECT_EQ(emit_.kept().at("cublasLt"), kMiB);
}

TEST_F(RuleTest, GradientsAreSummedInPlace) {
  const TensorUse older = Floats({4, 16});
  const TensorUse newer = Floats({4, 16});
  const auto add = [&](const TensorUse& a, Stage stage) {
    return Run("aten.add.Tensor", {Arg(a), Arg(newer)}, {Floats({4, 16})}, stage);
  };
  EXPECT_EQ(add(older, Stage::kBackward), Events{256});  // somebody else still has it
  emit_.SayItDiesSoon(older.storage);
  EXPECT_EQ(add(older, Stage::kBackward), Events{});
  EXPECT_EQ(add(older, Stage::kForward), Events{256});
  TensorUse view = older;
  view.view = true;
  EXPECT_EQ(add(view, Stage::kBackward), Events{256});
  TensorUse recomputed = older;
  recomputed.needs_grad = true;
  EXPECT_EQ(add(recomputed, Stage::kBackward), Events{256});
}

TEST_F(RuleTest, ALinearLayerAddsItsBiasInPlace) {
  const TensorUse product = Floats({2, 4, 16});
  emit_.SayItDiesSoon(product.storage);
  EXPECT_EQ(Run("aten.add.Tensor", {Arg(product), Arg(Floats({16}))}, {Floats({2, 4, 16})}),
            Events{});
  EXPECT_EQ(Run("aten.add.Tensor", {Arg(product), Arg(Floats({2, 4, 16}))}, {Floats({2, 4, 16})}),
            Events{512});
}

// x = 4 * 256 * 512 * 4 bytes, as an H200 recorded it.
TEST_F(RuleTest, AttentionOfAnEvaluationIsOneCall) {
  const TensorUse x = Floats({4, 256, 512});
  const TensorUse weight = Floats({512, 512});
  const Bytes size = 2097152;
  const auto attend = [&](bool weights) {
    return Run("aten._native_multi_head_attention.default",
               {Arg(x), Arg(x), Arg(x), Arg(std::int64_t{512}), Arg(std::int64_t{8}), Arg(weight),
                Arg(weight), Arg(weight), Arg(weight), Argument{}, Arg(weights)},
               {Floats({4, 256, 512})});
  };
  EXPECT_EQ(attend(false), (Events{3 * size, size, size, -size, -3 * size}));
  EXPECT_EQ(attend(true), (Events{3 * size, 3 * size, -3 * size, 8388608, size, size, -size,
                                  -8388608, -3 * size}));
}

TEST_F(RuleTest, AnEncoderLayerOfAnEvaluationIsOneCall) {
  const TensorUse x = Floats({4, 256, 512});
  const TensorUse weight = Floats({512});
  const Bytes size = 2097152;
  const auto layer = [&](bool norm_first) {
    std::vector<Argument> args = {Arg(x), Arg(std::int64_t{512}), Arg(std::int64_t{8})};
    args.insert(args.end(), 4, Arg(weight));
    args.insert(args.end(), {Arg(false), Arg(norm_first), Arg(1e-5)});
    args.insert(args.end(), 4, Arg(weight));
    args.push_back(Arg(Floats({2048, 512})));
    return Run("aten._transformer_encoder_layer_fwd.default", args, {Floats({4, 256, 512})});
  };
  EXPECT_EQ(layer(false), (Events{3 * size, size, size, -size, -3 * size, size, -size, 4 * size,
                                  size, -4 * size, size, -size, -size}));
  EXPECT_EQ(layer(true), (Events{size, 3 * size, size, size, -size, -3 * size, -size, size,
                                 4 * size, size, -4 * size, -size, -size}));
}

TEST_F(RuleTest, LayerNormCopiesWhatIsNotContiguous) {
  const TensorUse weight = Floats({16});
  const auto norm = [&](const TensorUse& input) {
    return Run("aten.native_layer_norm.default",
               {Arg(input), ListArg(std::vector<std::int64_t>{16}), Arg(weight), Arg(weight)},
               {Floats({4, 8, 16}), Floats({4, 8, 1}), Floats({4, 8, 1})});
  };
  EXPECT_EQ(norm(Floats({4, 8, 16})), (Events{2048, 128, 128}));
  EXPECT_EQ(norm(Floats({4, 8, 16}, {16, 64, 1})), (Events{2048, 2048, 128, 128, -2048}));
}

TEST_F(RuleTest, ManyShortRowsAreSummedByBlocks) {
  const std::int64_t rows = 100352;  // 32 images of 56 x 56
  const TensorUse x = Floats({rows, 96});
  const Events events =
      Run("aten.native_layer_norm_backward.default",
          {Arg(x), Arg(x), ListArg(std::vector<std::int64_t>{96}), Arg(Floats({rows, 1})),
           Arg(Floats({rows, 1})), Arg(Floats({96})), Arg(Floats({96}))},
          {Floats({rows, 96}), Floats({96}), Floats({96})}, Stage::kBackward);
  const Bytes blocks = 3136 * 96 * 4;
  ASSERT_GE(events.size(), 5u);
  EXPECT_EQ(Events(events.begin(), events.begin() + 5),
            (Events{rows * 96 * 4, 384, 384, blocks, blocks}));
}

TEST_F(RuleTest, DropoutMakesItsMaskFirst) {
  EXPECT_EQ(Run("aten.native_dropout.default", {Arg(Floats({64})), Arg(0.1), Arg(true)},
                {Floats({64}), maker_.MakeTensor(DType::kBool, {64})}),
            (Events{64, 256}));
}

struct MeasuredRecurrent {
  std::int64_t mode, layers, directions;
  /// Widths of the input and of what is hidden, sequences, steps.
  std::array<std::int64_t, 4> shape;
  std::int64_t matrix_elements;
  Bytes workspace;
};

/// In fp32 on an H200, as PyTorch's allocator recorded them.
TEST_F(RuleTest, WorkspacesOfRecurrentLayersAreAsMeasured) {
  const MeasuredRecurrent rows[] = {{2, 1, 1, {512, 1024, 64, 128}, 6291456, 220726016},
                                    {2, 1, 1, {512, 256, 32, 100}, 786432, 41386496},
                                    {2, 1, 2, {512, 1024, 64, 128}, 12582912, 559940352},
                                    {2, 1, 2, {512, 256, 32, 100}, 1572864, 82903552},
                                    {2, 3, 1, {512, 1024, 64, 128}, 23068672, 309854976},
                                    {2, 3, 1, {512, 256, 32, 100}, 1835008, 60457472},
                                    {2, 3, 2, {512, 1024, 64, 128}, 62914560, 807404288},
                                    {2, 3, 2, {512, 256, 32, 100}, 4718592, 137298432},
                                    {3, 1, 1, {512, 1024, 64, 128}, 4718592, 196346624},
                                    {3, 1, 1, {512, 256, 32, 100}, 589824, 40403456},
                                    {3, 1, 2, {512, 1024, 64, 128}, 9437184, 477627136},
                                    {3, 1, 2, {512, 256, 32, 100}, 1179648, 80937472},
                                    {3, 3, 1, {512, 1024, 64, 128}, 17301504, 249299712},
                                    {3, 3, 1, {512, 256, 32, 100}, 1376256, 58032640},
                                    {3, 3, 2, {512, 1024, 64, 128}, 47185920, 686293760},
                                    {3, 3, 2, {512, 256, 32, 100}, 3538944, 131400192}};
  for (const MeasuredRecurrent& row : rows) {
    const auto& [input, hidden, batch, steps] = row.shape;
    const std::vector<Argument> args = {Arg(Floats({steps, batch, input})),
                                        {Argument::List{Arg(Floats({1, row.matrix_elements}))}},
                                        Arg(std::int64_t{4}),
                                        {},
                                        {},
                                        {},
                                        Arg(row.mode),
                                        Arg(hidden),
                                        Arg(std::int64_t{0}),
                                        Arg(row.layers),
                                        Arg(false),
                                        Arg(0.0),
                                        Arg(true),
                                        Arg(row.directions == 2),
                                        {},
                                        {}};
    const Events events = Run("aten._cudnn_rnn.default", args,
                              {Floats({steps, batch, row.directions * hidden}), Floats({1}),
                               Floats({1}), Floats({1}), Floats({1})});
    const auto near = [&](Bytes bytes) { return std::abs(bytes - row.workspace) < 512; };
    EXPECT_TRUE(std::ranges::any_of(events, near))
        << row.mode << " of " << row.layers << " layers, " << row.directions << ": "
        << row.workspace << " in " << testing::PrintToString(events);
  }
}

TEST_F(RuleTest, CellsMakeWhatTheyKeepFirst) {
  EXPECT_EQ(Run("aten._thnn_fused_gru_cell.default", {}, {Floats({8, 64}), Floats({8, 320})}),
            (Events{10240, 2048}));
  EXPECT_EQ(Run("aten._thnn_fused_lstm_cell.default", {},
                {Floats({8, 64}), Floats({8, 64}), Floats({8, 256})}),
            (Events{8192, 2048, 2048}));
}

TEST_F(RuleTest, CellsSumTheGradientsOfTheirBiases) {
  const Bytes gates = Bytes{65536} * 192 * 4, state = Bytes{65536} * 64 * 4;
  const Events gru = Run("aten._thnn_fused_gru_cell_backward.default", {},
                         {Floats({65536, 192}), Floats({65536, 192}), Floats({65536, 64}),
                          Floats({192}), Floats({192})},
                         Stage::kBackward);
  // A result, what many blocks share, and both given back, for each bias.
  const Events sum =
      Run("aten.sum.dim_IntList", {Arg(Floats({65536, 192})), ListArg<std::int64_t>({0})},
          {Floats({192})}, Stage::kBackward);
  ASSERT_EQ(sum.size(), 5u);
  Events expected{gates, gates, state};
  for (int bias = 0; bias < 2; ++bias) expected.insert(expected.end(), sum.begin(), sum.end());
  EXPECT_EQ(gru, expected);
  EXPECT_EQ(Run("aten._thnn_fused_lstm_cell_backward_impl.default", {},
                {Floats({8, 256}), Floats({8, 64}), Floats({256})}, Stage::kBackward),
            (Events{8192, 2048, 1024}));
  EXPECT_EQ(Run("aten._thnn_fused_lstm_cell_backward_impl.default", {},
                {Floats({8, 256}), Floats({8, 64})}, Stage::kBackward),
            (Events{8192, 2048}));
}

TEST_F(RuleTest, RulesBearCallsWithoutArguments) {
  for (const char* op : {"plimsoll.attention",
                         "plimsoll.attention_backward",
                         "aten.convolution.default",
                         "aten.convolution_backward.default",
                         "aten.sum.default",
                         "aten.logsumexp.default",
                         "aten.native_layer_norm_backward.default",
                         "aten.native_group_norm.default",
                         "aten.native_batch_norm_backward.default",
                         "aten.embedding_dense_backward.default",
                         "aten.index.Tensor",
                         "aten.index_put.default",
                         "aten.topk.default",
                         "aten.sort.default",
                         "aten._cudnn_rnn.default",
                         "aten._cudnn_rnn_backward.default",
                         "aten._thnn_fused_gru_cell.default",
                         "aten._thnn_fused_gru_cell_backward.default",
                         "aten._thnn_fused_lstm_cell.default",
                         "aten._thnn_fused_lstm_cell_backward_impl.default",
                         "aten.mse_loss.default",
                         "aten.roll.default",
                         "aten.add.Tensor",
                         "aten._foreach_norm.Scalar"}) {
    EXPECT_EQ(Run(op, {}, {Floats({64})}).back(), 256) << op;
    Run(op, {}, {});
  }
}

TEST_F(RuleTest, RulesBearEmptyTensors) {
  const TensorUse empty = Floats({0, 0, 0, 0});
  const TensorUse scalar = Floats({});
  const std::vector<Argument> args(12, Arg(empty));
  const std::vector<Argument> scalars(12, Arg(scalar));
  for (const char* op :
       {"plimsoll.attention", "plimsoll.attention_backward", "aten.convolution.default",
        "aten.convolution_backward.default", "aten.sum.default", "aten.native_layer_norm.default",
        "aten.native_layer_norm_backward.default", "aten.cudnn_batch_norm.default",
        "aten.embedding_dense_backward.default", "aten.index.Tensor", "aten.index_put.default",
        "aten.topk.default", "aten.sort.default", "aten.cumsum.default", "aten._cudnn_rnn.default",
        "aten.im2col.default", "aten._embedding_bag_backward.default"}) {
    Run(op, args, {Floats({64})});
    Run(op, scalars, {Floats({64})}, Stage::kBackward);
  }
}

}  // namespace
}  // namespace plimsoll::rules_test
