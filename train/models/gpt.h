// A decoder-only transformer, as GPT-2.
#pragma once

#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <optional>
#include <vector>

#include "train/light/light_layer.h"
#include "train/models/embedding.h"
#include "train/models/model.h"
#include "train/models/vocabulary_loss.h"

namespace plimsoll::train {

/// The defaults are GPT-2's smallest, with its vocabulary rounded up to a multiple of 64.
struct GptOptions {
  std::int64_t vocabulary = 50304;
  std::int64_t context = 1024;
  std::int64_t width = 768;
  std::int64_t layers = 12;
  std::int64_t heads = 12;
  double dropout = 0;
  /// Targets may be -100, which are not counted. Off, since Weight then looks at the targets, and
  /// that waits for a GPU.
  bool padded = false;
};

/// Where ranks share a GPT, the parts that this one computes: what it drops there is not what
/// others drop. None: the same is computed on all.
struct DropoutParts {
  std::optional<int> heads;
  /// Outside of attention and MLP.
  std::optional<int> positions;
};

class GptBlockImpl : public torch::nn::Module {
 public:
  explicit GptBlockImpl(const GptOptions& options);

  at::Tensor forward(at::Tensor x);

  /// To be split among ranks.
  LightLinearImpl& qkv() { return *qkv_; }
  LightLinearImpl& project() { return *project_; }
  LightLinearImpl& up() { return *up_; }
  LightLinearImpl& down() { return *down_; }
  void set_dropout_parts(const DropoutParts& parts) { dropout_parts_ = parts; }

 private:
  at::Tensor Attention(const at::Tensor& x);
  at::Tensor Mlp(const at::Tensor& x);
  at::Tensor Dropout(const at::Tensor& x) const;

  std::int64_t head_width_;
  double dropout_;
  DropoutParts dropout_parts_;
  torch::nn::LayerNorm attention_norm_;
  LightLinear qkv_;
  LightLinear project_;
  torch::nn::LayerNorm mlp_norm_;
  LightLinear up_;
  LightLinear down_;
};
TORCH_MODULE(GptBlock);

/// A batch is tokens and targets, both [samples, positions]. Each layer is a checkpoint block.
class Gpt : public TrainModel {
 public:
  explicit Gpt(const GptOptions& options);

  /// The last hidden states, [samples, positions, width]; where ranks split the sequence, of this
  /// one's positions.
  at::Tensor Hidden(const at::Tensor& tokens);
  at::Tensor forward(const at::Tensor& tokens);
  at::Tensor Loss(const at::Tensor& tokens, const at::Tensor& targets);

  at::Tensor Loss(const Batch& batch) override { return Loss(batch.tensors[0], batch.tensors[1]); }
  /// Tokens.
  double Weight(const Batch& batch) const override;
  int checkpoint_blocks() const override { return static_cast<int>(blocks_.size()); }
  /// The embeddings, each block, and the loss, which shares the tokens' embedding.
  std::vector<ModelLayer> AsLayers() const override;
  const GptOptions& options() const { return options_; }

  /// Its logits are the largest tensor of a small GPT.
  VocabularyLoss& loss() { return loss_; }

  /// To be split among ranks.
  EmbeddingTableImpl& tokens() { return *tokens_; }
  EmbeddingTableImpl& positions() { return *positions_; }
  std::vector<GptBlock>& blocks() { return blocks_; }
  void set_dropout_parts(const DropoutParts& parts);

 private:
  void Initialize();
  /// What goes into the first block.
  static at::Tensor Embed(const at::Tensor& tokens, EmbeddingTable embedding,
                          EmbeddingTable positions, const GptOptions& options,
                          std::optional<int> dropout_part);

  GptOptions options_;
  DropoutParts dropout_parts_;
  EmbeddingTable tokens_;
  EmbeddingTable positions_;
  std::vector<GptBlock> blocks_;
  torch::nn::LayerNorm norm_;
  VocabularyLoss loss_;
};

}  // namespace plimsoll::train
