// Images from files.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "train/data/source.h"

namespace plimsoll::train {

struct ImageOptions {
  /// Every image is brought to this size.
  std::int64_t height = 224;
  std::int64_t width = 224;
  /// 1 or 3.
  int channels = 3;
};

/// folder/class/image: batches of images [n, channels, height, width], from -1 to 1, and class
/// numbers [n], which count the folders in the order of their names.
class ImageFolder : public Source {
 public:
  explicit ImageFolder(const std::filesystem::path& folder, ImageOptions options = {});

  const std::vector<std::string>& classes() const { return classes_; }
  std::int64_t size() const override { return static_cast<std::int64_t>(samples_.size()); }
  /// Pixels, as they are in the batch.
  std::int64_t Length(std::int64_t /*index*/) const override {
    return options_.height * options_.width;
  }
  Batch Get(std::span<const std::int64_t> indices, const at::TensorOptions& where) const override;

 private:
  struct Sample {
    std::filesystem::path file;
    std::int64_t label = 0;
  };

  ImageOptions options_;
  std::vector<std::string> classes_;
  std::vector<Sample> samples_;
};

/// folder/images and folder/masks, with files of the same name before the ending. A mask is a grey
/// image of class numbers; with two classes, 255 is the second. Batches of images and of masks
/// [n, height, width].
class SegmentationFolder : public Source {
 public:
  SegmentationFolder(const std::filesystem::path& folder, std::int64_t classes,
                     ImageOptions options = {});

  std::int64_t size() const override { return static_cast<std::int64_t>(pairs_.size()); }
  /// Pixels, as they are in the batch.
  std::int64_t Length(std::int64_t /*index*/) const override {
    return options_.height * options_.width;
  }
  Batch Get(std::span<const std::int64_t> indices, const at::TensorOptions& where) const override;

 private:
  struct Pair {
    std::filesystem::path image;
    std::filesystem::path mask;
  };

  void ReadMask(const std::filesystem::path& file, std::int64_t* out) const;

  ImageOptions options_;
  std::int64_t classes_;
  std::vector<Pair> pairs_;
};

}  // namespace plimsoll::train
