#include "train/data/synthetic.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "train/data/random.h"

namespace plimsoll::train {
namespace {

using Shape = std::vector<std::int64_t>;

/// Samples of one input and one target, each filled where it lies.
template <class Input>
class Synthetic : public Source {
 public:
  Synthetic(std::int64_t size, std::uint64_t seed, Shape input, Shape target)
      : size_(size), seed_(seed), input_(std::move(input)), target_(std::move(target)) {
    TORCH_CHECK(size > 0, "a source of ", size, " samples");
    for (const std::int64_t n : input_) TORCH_CHECK(n > 0, "samples of shape ", input_);
  }

  std::int64_t size() const override { return size_; }
  /// Pixels of an image, whatever its channels; tokens of a text, numbers of a vector.
  std::int64_t Length(std::int64_t /*index*/) const override {
    return input_.size() == 1 ? input_[0] : input_[1] * input_[2];
  }

  Batch Get(std::span<const std::int64_t> indices, const at::TensorOptions& where) const override {
    const auto rows = static_cast<std::int64_t>(indices.size());
    const auto make = [&](Shape shape, at::ScalarType type) {
      shape.insert(shape.begin(), rows);
      return at::empty(shape, where.dtype(type));
    };
    const at::Tensor inputs = make(input_, c10::CppTypeToScalarType<Input>::value);
    const at::Tensor targets = make(target_, at::kLong);
    auto* input = inputs.data_ptr<Input>();
    auto* target = targets.data_ptr<std::int64_t>();
    for (const std::int64_t index : indices) {
      TORCH_CHECK_INDEX(index >= 0 && index < size_, "no sample ", index, " among ", size_);
      Random random(seed_, static_cast<std::uint64_t>(index));
      Fill(random, input, target);
      input += inputs.stride(0);
      target += targets.stride(0);
    }
    return {{inputs, targets}};
  }

 private:
  virtual void Fill(Random& random, Input* input, std::int64_t* target) const = 0;

  std::int64_t size_;
  std::uint64_t seed_;
  Shape input_;
  Shape target_;
};

Shape ImageShape(const SyntheticImageOptions& of) { return {of.channels, of.height, of.width}; }

class Images : public Synthetic<float> {
 public:
  explicit Images(const SyntheticImageOptions& options)
      : Synthetic(options.size, options.seed, ImageShape(options), {}), options_(options) {
    TORCH_CHECK(options.classes > 0, "images of ", options.classes, " classes");
  }

 private:
  void Fill(Random& random, float* input, std::int64_t* target) const override {
    *target = random.Below(options_.classes);
    const float angle = std::numbers::pi_v<float> * static_cast<float>(*target) /
                        static_cast<float>(options_.classes);
    const float across = std::cos(angle);
    const float along = std::sin(angle);
    const float phase = random.Signed() * std::numbers::pi_v<float>;
    for (std::int64_t c = 0; c < options_.channels; ++c) {
      for (std::int64_t y = 0; y < options_.height; ++y) {
        for (std::int64_t x = 0; x < options_.width; ++x) {
          const float place = across * static_cast<float>(x) + along * static_cast<float>(y);
          *input++ = 0.5F * std::sin(0.5F * place + phase) + 0.5F * random.Signed();
        }
      }
    }
  }

  SyntheticImageOptions options_;
};

class Masks : public Synthetic<float> {
 public:
  explicit Masks(const SyntheticImageOptions& options)
      : Synthetic(options.size, options.seed, ImageShape(options), {options.height, options.width}),
        options_(options) {
    TORCH_CHECK(options.classes >= 2, "segmentation into ", options.classes, " classes");
  }

 private:
  void Fill(Random& random, float* input, std::int64_t* target) const override {
    const std::int64_t pixels = options_.height * options_.width;
    std::fill_n(target, pixels, 0);
    for (std::int64_t kind = 1; kind < options_.classes; ++kind) Draw(random, kind, target);
    for (std::int64_t c = 0; c < options_.channels; ++c) {
      for (std::int64_t i = 0; i < pixels; ++i) {
        const float bright =
            static_cast<float>(target[i]) / static_cast<float>(options_.classes - 1);
        *input++ = bright - 0.5F + 0.5F * random.Signed();
      }
    }
  }

  void Draw(Random& random, std::int64_t kind, std::int64_t* mask) const {
    const std::int64_t top = random.Below(options_.height);
    const std::int64_t left = random.Below(options_.width);
    const std::int64_t bottom = std::min(top + 1 + options_.height / 3, options_.height);
    const std::int64_t right = std::min(left + 1 + options_.width / 3, options_.width);
    for (std::int64_t y = top; y < bottom; ++y) {
      std::fill(mask + y * options_.width + left, mask + y * options_.width + right, kind);
    }
  }

  SyntheticImageOptions options_;
};

class Text : public Synthetic<std::int64_t> {
 public:
  explicit Text(const SyntheticTextOptions& options)
      : Synthetic(options.size, options.seed, {options.context}, {options.context}),
        options_(options) {
    TORCH_CHECK(options.vocabulary > 0, "a vocabulary of ", options.vocabulary, " tokens");
  }

 private:
  void Fill(Random& random, std::int64_t* input, std::int64_t* target) const override {
    std::int64_t token = random.Below(options_.vocabulary);
    for (std::int64_t i = 0; i < options_.context; ++i) {
      input[i] = token;
      const bool surprise = random.Below(8) == 0;
      token = (surprise ? random.Below(options_.vocabulary) : 5 * token + 3) % options_.vocabulary;
      target[i] = token;
    }
  }

  SyntheticTextOptions options_;
};

class Vectors : public Synthetic<float> {
 public:
  explicit Vectors(const SyntheticVectorOptions& options)
      : Synthetic(options.size, options.seed, {options.inputs}, {}), options_(options) {
    TORCH_CHECK(options.classes > 0, "vectors of ", options.classes, " classes");
  }

 private:
  void Fill(Random& random, float* input, std::int64_t* target) const override {
    *target = random.Below(options_.classes);
    for (std::int64_t i = 0; i < options_.inputs; ++i) {
      input[i] = random.Signed() + (i % options_.classes == *target ? 1.0F : 0.0F);
    }
  }

  SyntheticVectorOptions options_;
};

}  // namespace

std::unique_ptr<Source> SyntheticImages(const SyntheticImageOptions& options) {
  return std::make_unique<Images>(options);
}
std::unique_ptr<Source> SyntheticMasks(const SyntheticImageOptions& options) {
  return std::make_unique<Masks>(options);
}
std::unique_ptr<Source> SyntheticText(const SyntheticTextOptions& options) {
  return std::make_unique<Text>(options);
}
std::unique_ptr<Source> SyntheticVectors(const SyntheticVectorOptions& options) {
  return std::make_unique<Vectors>(options);
}

}  // namespace plimsoll::train
