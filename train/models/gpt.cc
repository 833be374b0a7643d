#include "train/models/gpt.h"

#include <torch/nn/init.h>
#include <torch/nn/modules/container/modulelist.h>

#include <cmath>

#include "train/checkpointing/random_state.h"
#include "train/models/model_layers.h"

namespace plimsoll::train {
namespace {

namespace nn = torch::nn;

nn::LayerNorm NormOf(std::int64_t width) { return nn::LayerNorm(nn::LayerNormOptions({width})); }

bool EndsResidual(const std::string& name) {
  return name.ends_with("project.weight") || name.ends_with("down.weight");
}

at::Tensor DropoutOf(const at::Tensor& x, double probability, const std::optional<int>& part) {
  const RandomPartScope random(x.device(), probability > 0 ? part : std::nullopt);
  return at::dropout(x, probability, /*train=*/true);
}

}  // namespace

GptBlockImpl::GptBlockImpl(const GptOptions& options)
    : head_width_(options.width / options.heads),
      dropout_(options.dropout),
      attention_norm_(register_module("attention_norm", NormOf(options.width))),
      qkv_(register_module("qkv", LightLinear(options.width, 3 * options.width))),
      project_(register_module("project", LightLinear(options.width, options.width))),
      mlp_norm_(register_module("mlp_norm", NormOf(options.width))),
      up_(register_module("up", LightLinear(options.width, 4 * options.width))),
      down_(register_module("down", LightLinear(4 * options.width, options.width))) {}

at::Tensor GptBlockImpl::forward(at::Tensor x) {
  x = x + Attention(attention_norm_(x));
  return x + Mlp(mlp_norm_(x));
}

at::Tensor GptBlockImpl::Attention(const at::Tensor& x) {
  // Where ranks share it, of some heads, and of more positions than x has.
  const at::Tensor qkv = qkv_(x);
  const std::int64_t width = qkv.size(-1) / 3;
  const auto by_head = [&](const at::Tensor& part) {
    return part.unflatten(-1, {width / head_width_, head_width_}).transpose(1, 2);
  };
  const std::vector<at::Tensor> parts = qkv.split(width, -1);
  const double dropout = is_training() ? dropout_ : 0;
  at::Tensor mixed;
  {
    const RandomPartScope random(x.device(), dropout > 0 ? dropout_parts_.heads : std::nullopt);
    mixed = at::scaled_dot_product_attention(by_head(parts[0]), by_head(parts[1]),
                                             by_head(parts[2]), /*attn_mask=*/{}, dropout,
                                             /*is_causal=*/true);
  }
  return Dropout(project_(mixed.transpose(1, 2).flatten(2)));
}

at::Tensor GptBlockImpl::Mlp(const at::Tensor& x) {
  return Dropout(down_(at::gelu(up_(x), "tanh")));
}

at::Tensor GptBlockImpl::Dropout(const at::Tensor& x) const {
  return is_training() ? DropoutOf(x, dropout_, dropout_parts_.positions) : x;
}

Gpt::Gpt(const GptOptions& options)
    : options_(options),
      tokens_(register_module("tokens", EmbeddingTable(options.vocabulary, options.width))),
      positions_(register_module("positions", EmbeddingTable(options.context, options.width))),
      norm_(nullptr) {
  TORCH_CHECK(options.heads > 0 && options.width % options.heads == 0, "a GPT's width of ",
              options.width, " must be a multiple of its ", options.heads, " heads");
  const auto blocks = register_module("blocks", nn::ModuleList());
  for (std::int64_t i = 0; i < options.layers; ++i) {
    blocks_.emplace_back(options);
    blocks->push_back(blocks_.back());
  }
  norm_ = register_module("norm", NormOf(options.width));
  register_module("loss", loss_);
  Initialize();
}

/// As GPT-2: what adds to the residual stream is scaled down, since that many layers add to it.
void Gpt::Initialize() {
  const double residual = 0.02 / std::sqrt(2.0 * static_cast<double>(options_.layers));
  for (const auto& parameter : named_parameters()) {
    if (parameter.value().dim() > 1) {
      nn::init::normal_(parameter.value(), 0, EndsResidual(parameter.key()) ? residual : 0.02);
    } else if (parameter.key().ends_with("bias")) {
      nn::init::zeros_(parameter.value());
    }
  }
}

at::Tensor Gpt::Embed(const at::Tensor& tokens, EmbeddingTable embedding, EmbeddingTable positions,
                      const GptOptions& options, std::optional<int> dropout_part) {
  const std::int64_t length = tokens.size(1);
  TORCH_CHECK(length <= options.context, "a sequence of ", length,
              " tokens does not fit into a context of ", options.context);
  const at::Tensor where = at::arange(length, tokens.options().dtype(at::kLong));
  const at::Tensor x = embedding(tokens) + positions(where);
  return embedding->is_training() ? DropoutOf(x, options.dropout, dropout_part) : x;
}

at::Tensor Gpt::Hidden(const at::Tensor& tokens) {
  const at::Tensor x = Embed(tokens, tokens_, positions_, options_, dropout_parts_.positions);
  std::vector<Block> chain;
  chain.reserve(blocks_.size());
  for (GptBlock& block : blocks_) {
    chain.emplace_back([block](const at::Tensor& in) mutable { return block(in); });
  }
  return norm_(RunChain(chain, x));
}

at::Tensor Gpt::forward(const at::Tensor& tokens) {
  return loss_->Logits(Hidden(tokens), tokens_->weight);
}

at::Tensor Gpt::Loss(const at::Tensor& tokens, const at::Tensor& targets) {
  return loss_(Hidden(tokens), tokens_->weight, targets);
}

std::vector<ModelLayer> Gpt::AsLayers() const {
  ModelLayers layers;
  layers.push_back({{{"tokens", tokens_.ptr()}, {"positions", positions_.ptr()}},
                    [tokens = tokens_, positions = positions_, options = options_](
                        const auto& /*given*/, const Batch& rows) {
                      return Tensors{Embed(rows.tensors[0], tokens, positions, options, {})};
                    }});
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    layers.push_back({{{"blocks." + std::to_string(i), blocks_[i].ptr()}},
                      [block = blocks_[i]](const Tensors& given, const Batch& /*rows*/) mutable {
                        return Tensors{block(given[0])};
                      }});
  }
  layers.push_back({{{"norm", norm_.ptr()}, {"tokens", tokens_.ptr()}, {"loss", loss_.ptr()}},
                    [norm = norm_, tokens = tokens_, loss = loss_](const Tensors& given,
                                                                   const Batch& rows) mutable {
                      return Tensors{loss(norm(given[0]), tokens->weight, rows.tensors[1])};
                    }});
  return layers;
}

void Gpt::set_dropout_parts(const DropoutParts& parts) {
  dropout_parts_ = parts;
  for (GptBlock& block : blocks_) block->set_dropout_parts(parts);
}

double Gpt::Weight(const Batch& batch) const {
  const at::Tensor& targets = batch.tensors[1];
  if (!options_.padded) return static_cast<double>(targets.numel());
  return static_cast<double>(targets.ne(-100).sum().item<std::int64_t>());
}

}  // namespace plimsoll::train
