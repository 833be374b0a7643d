// Models as a user of plimsoll::train writes them: what it takes to make one's own checkpointable.
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

#include "train/light/light_layer.h"
#include "train/models/model.h"

namespace plimsoll::train {

struct OwnTransformerOptions {
  std::int64_t width = 1024;
  std::int64_t layers = 16;
  std::int64_t heads = 16;
  std::int64_t inputs = 64;
  std::int64_t classes = 100;
};

/// One that a user has: attention by torch, layers in a list. `Linear` is torch's own, or the
/// library's, which does not add the bias in a kernel of its own.
template <class Linear>
class OwnTransformerOf : public TrainModel {
 public:
  using Options = OwnTransformerOptions;

  explicit OwnTransformerOf(const Options& options) : heads_(options.heads) {
    const std::int64_t width = options.width;
    embed_ = register_module("embed", Linear(options.inputs, width));
    for (std::int64_t i = 0; i < options.layers; ++i) {
      Layer layer{torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})),
                  Linear(width, 3 * width),
                  Linear(width, width),
                  torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})),
                  Linear(width, 4 * width),
                  Linear(4 * width, width)};
      const std::string name = "layer" + std::to_string(i);
      register_module(name + "_norm1", layer.norm1);
      register_module(name + "_qkv", layer.qkv);
      register_module(name + "_out", layer.out);
      register_module(name + "_norm2", layer.norm2);
      register_module(name + "_up", layer.up);
      register_module(name + "_down", layer.down);
      layers_.push_back(layer);
    }
    classify_ = register_module("classify", Linear(width, options.classes));
  }

  int checkpoint_blocks() const override { return static_cast<int>(layers_.size()); }

  at::Tensor Loss(const Batch& batch) override {
    std::vector<Block> blocks;
    for (const Layer& layer : layers_) {
      blocks.push_back([layer, heads = heads_](const at::Tensor& x) { return layer(x, heads); });
    }
    const at::Tensor x = RunChain(blocks, embed_->forward(batch.tensors[0]));
    return torch::nn::functional::cross_entropy(classify_->forward(x.mean(1)), batch.tensors[1]);
  }

 private:
  struct Layer {
    torch::nn::LayerNorm norm1;
    Linear qkv, out;
    torch::nn::LayerNorm norm2;
    Linear up, down;

    at::Tensor operator()(const at::Tensor& x, std::int64_t heads) const {
      Layer self = *this;
      const auto split = [&](const at::Tensor& t) {
        return t.view({t.size(0), t.size(1), heads, -1}).transpose(1, 2);
      };
      const auto parts = self.qkv(self.norm1(x)).chunk(3, -1);
      const at::Tensor mixed =
          at::scaled_dot_product_attention(split(parts[0]), split(parts[1]), split(parts[2]));
      const at::Tensor y = x + self.out(mixed.transpose(1, 2).reshape(x.sizes()));
      return y + self.down(at::gelu(self.up(self.norm2(y))));
    }
  };

  std::int64_t heads_;
  Linear embed_{nullptr};
  std::vector<Layer> layers_;
  Linear classify_{nullptr};
};
using OwnTransformer = OwnTransformerOf<torch::nn::Linear>;

/// One of ResNet-50's: three convolutions and what goes around them. Its parts are blocks too,
/// since one of the first stage alone may be more than there is room for.
class Bottleneck : public torch::nn::Module, public Checkpointable {
 public:
  Bottleneck(std::int64_t in, std::int64_t middle, std::int64_t stride, bool first) {
    reduce_ = register_module("reduce", Convolve(in, middle, 1, 1));
    middle_ = register_module("middle", Convolve(middle, middle, 3, stride));
    expand_ = register_module("expand", Convolve(middle, 4 * middle, 1, 1));
    if (first) shortcut_ = register_module("shortcut", Convolve(in, 4 * middle, 1, stride));
  }

  int checkpoint_blocks() const override { return 5; }

  at::Tensor forward(const at::Tensor& x) {
    const auto relu = [](torch::nn::Sequential part) {
      return [part](const at::Tensor& y) mutable { return at::relu(part->forward(y)); };
    };
    const auto alone = [](torch::nn::Sequential part) {
      return [part](const at::Tensor& y) mutable { return part->forward(y); };
    };
    const at::Tensor side = shortcut_.is_empty() ? x : RunBlock(0, alone(shortcut_), x);
    at::Tensor y = RunBlock(1, relu(reduce_), x);
    y = RunBlock(2, relu(middle_), y);
    y = RunBlock(3, alone(expand_), y);
    return RunBlock(
        4, [](const at::Tensor& a, const at::Tensor& b) { return at::relu(a + b); }, y, side);
  }

  static torch::nn::Sequential Convolve(std::int64_t in, std::int64_t out, std::int64_t kernel,
                                        std::int64_t stride) {
    return torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, kernel)
                                                       .stride(stride)
                                                       .padding(kernel / 2)
                                                       .bias(false)),
                                 torch::nn::BatchNorm2d(out));
  }

 private:
  torch::nn::Sequential reduce_{nullptr}, middle_{nullptr}, expand_{nullptr}, shortcut_{nullptr};
};

/// What comes before them.
class Stem : public torch::nn::Module, public Checkpointable {
 public:
  explicit Stem(std::int64_t width) {
    convolve_ = register_module("convolve", Bottleneck::Convolve(3, width, 7, 2));
  }

  int checkpoint_blocks() const override { return 2; }

  at::Tensor forward(const at::Tensor& x) {
    const auto convolve = [part = convolve_](const at::Tensor& y) mutable {
      return part->forward(y);
    };
    const auto pool = [](const at::Tensor& y) { return at::max_pool2d(at::relu(y), 3, 2, 1); };
    return RunBlock(1, pool, RunBlock(0, convolve, x));
  }

 private:
  torch::nn::Sequential convolve_{nullptr};
};

/// With batch normalization, so that a batch is not split.
class ResNet50 : public TrainModel {
 public:
  explicit ResNet50(std::int64_t width = 64, std::int64_t classes = 1000) {
    stem_ = register_module("stem", std::make_shared<Stem>(width));
    std::int64_t in = width;
    const int depths[] = {3, 4, 6, 3};
    for (int stage = 0; stage < 4; ++stage) {
      const std::int64_t middle = width << stage;
      for (int i = 0; i < depths[stage]; ++i) {
        const std::int64_t stride = stage > 0 && i == 0 ? 2 : 1;
        const std::string name = "stage" + std::to_string(stage) + "_" + std::to_string(i);
        blocks_.push_back(register_module(
            name, std::make_shared<Bottleneck>(in, middle, stride, /*first=*/i == 0)));
        in = 4 * middle;
      }
    }
    classify_ = register_module("classify", torch::nn::Linear(in, classes));
  }

  int checkpoint_blocks() const override { return 1 + static_cast<int>(blocks_.size()); }

  at::Tensor Loss(const Batch& batch) override {
    std::vector<Block> chain = {[stem = stem_](const at::Tensor& x) { return stem->forward(x); }};
    for (const auto& block : blocks_) {
      chain.push_back([block](const at::Tensor& x) { return block->forward(x); });
    }
    const at::Tensor x = RunChain(chain, batch.tensors[0]);
    return torch::nn::functional::cross_entropy(classify_->forward(x.mean({2, 3})),
                                                batch.tensors[1]);
  }

 private:
  std::shared_ptr<Stem> stem_;
  std::vector<std::shared_ptr<Bottleneck>> blocks_;
  torch::nn::Linear classify_{nullptr};
};

}  // namespace plimsoll::train
