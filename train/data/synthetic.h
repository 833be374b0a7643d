// Samples made on the spot from a seed: to try a model, or a budget, without any data. There is
// something in them to learn. A sample depends on the seed and on its number only.
#pragma once

#include <memory>

#include "train/data/source.h"

namespace plimsoll::train {

struct SyntheticImageOptions {
  std::int64_t size = 1000;
  std::uint64_t seed = 0;
  std::int64_t channels = 3;
  std::int64_t height = 64;
  std::int64_t width = 64;
  std::int64_t classes = 10;
};
/// Stripes in noise, and how they lie: images [n, channels, height, width] and class numbers [n].
std::unique_ptr<Source> SyntheticImages(const SyntheticImageOptions& options);
/// Bright rectangles in noise, a brightness for each class but the first: images and masks
/// [n, height, width].
std::unique_ptr<Source> SyntheticMasks(const SyntheticImageOptions& options);

struct SyntheticTextOptions {
  std::int64_t size = 1000;
  std::uint64_t seed = 0;
  std::int64_t context = 128;
  std::int64_t vocabulary = 256;
};
/// Each token follows from the one before it, but one in eight: tokens and targets [n, context].
std::unique_ptr<Source> SyntheticText(const SyntheticTextOptions& options);

struct SyntheticVectorOptions {
  std::int64_t size = 1000;
  std::uint64_t seed = 0;
  std::int64_t inputs = 1000;
  std::int64_t classes = 10;
};
/// Noise, larger where the class has it: inputs [n, inputs] and class numbers [n].
std::unique_ptr<Source> SyntheticVectors(const SyntheticVectorOptions& options);

}  // namespace plimsoll::train
