#include "train/data/image_folder.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>

#include "train/data/image.h"

namespace plimsoll::train {
namespace {

namespace fs = std::filesystem;

/// By name, so that samples have the same numbers on every machine.
std::vector<fs::path> SortedEntries(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(it->path());
  }
  if (error) throw DataError(folder.string() + ": " + error.message());
  std::sort(entries.begin(), entries.end());
  return entries;
}

std::vector<fs::path> ImagesIn(const fs::path& folder) {
  std::vector<fs::path> images;
  for (const fs::path& entry : SortedEntries(folder)) {
    if (IsImageName(entry)) images.push_back(entry);
  }
  return images;
}

void Check(const ImageOptions& options) {
  TORCH_CHECK(options.channels == 1 || options.channels == 3, "images have 1 or 3 channels, not ",
              options.channels);
  TORCH_CHECK(options.height > 0 && options.width > 0, "images of size ", options.height, " x ",
              options.width);
}

at::Tensor MakeImages(std::size_t count, const ImageOptions& options,
                      const at::TensorOptions& where) {
  return at::empty(
      {static_cast<std::int64_t>(count), options.channels, options.height, options.width},
      where.dtype(at::kFloat));
}

void ReadInto(float* out, const fs::path& file, const ImageOptions& options) {
  WriteScaled(ReadImage(file, options.channels), options.height, options.width, out);
}

}  // namespace

ImageFolder::ImageFolder(const fs::path& folder, ImageOptions options) : options_(options) {
  Check(options_);
  for (const fs::path& entry : SortedEntries(folder)) {
    if (!fs::is_directory(entry)) continue;
    const auto label = static_cast<std::int64_t>(classes_.size());
    classes_.push_back(entry.filename().string());
    for (const fs::path& image : ImagesIn(entry)) samples_.push_back({image, label});
  }
  if (samples_.empty()) {
    throw DataError(folder.string() +
                    ": has no images; they are looked for in a folder for each "
                    "class, as .ppm, .pgm, .png or .jpg");
  }
}

Batch ImageFolder::Get(std::span<const std::int64_t> indices,
                       const at::TensorOptions& where) const {
  const at::Tensor images = MakeImages(indices.size(), options_, where);
  const at::Tensor labels =
      at::empty({static_cast<std::int64_t>(indices.size())}, where.dtype(at::kLong));
  float* image = images.data_ptr<float>();
  auto* label = labels.data_ptr<std::int64_t>();
  for (const std::int64_t index : indices) {
    const Sample& sample = samples_.at(static_cast<std::size_t>(index));
    ReadInto(image, sample.file, options_);
    image += images.stride(0);
    *label++ = sample.label;
  }
  return {{images, labels}};
}

SegmentationFolder::SegmentationFolder(const fs::path& folder, std::int64_t classes,
                                       ImageOptions options)
    : options_(options), classes_(classes) {
  Check(options_);
  TORCH_CHECK(classes >= 2, "segmentation into ", classes, " classes");
  std::map<std::string, fs::path> masks;
  for (const fs::path& mask : ImagesIn(folder / "masks")) masks[mask.stem().string()] = mask;
  for (const fs::path& image : ImagesIn(folder / "images")) {
    const auto mask = masks.find(image.stem().string());
    if (mask == masks.end()) throw DataError(image.string() + ": has no mask of its name");
    pairs_.push_back({image, mask->second});
  }
  if (pairs_.empty()) throw DataError((folder / "images").string() + ": has no images");
}

void SegmentationFolder::ReadMask(const fs::path& file, std::int64_t* out) const {
  WriteNearest(ReadImage(file, 1), options_.height, options_.width, out);
  for (std::int64_t i = 0; i < options_.height * options_.width; ++i) {
    if (classes_ == 2 && out[i] == 255) out[i] = 1;
    if (out[i] >= classes_) {
      throw DataError(
          c10::str(file.string(), ": has a pixel of class ", out[i], ", and there are ", classes_));
    }
  }
}

Batch SegmentationFolder::Get(std::span<const std::int64_t> indices,
                              const at::TensorOptions& where) const {
  const at::Tensor images = MakeImages(indices.size(), options_, where);
  const at::Tensor masks =
      at::empty({static_cast<std::int64_t>(indices.size()), options_.height, options_.width},
                where.dtype(at::kLong));
  float* image = images.data_ptr<float>();
  auto* mask = masks.data_ptr<std::int64_t>();
  for (const std::int64_t index : indices) {
    const Pair& pair = pairs_.at(static_cast<std::size_t>(index));
    ReadInto(image, pair.image, options_);
    ReadMask(pair.mask, mask);
    image += images.stride(0);
    mask += masks.stride(0);
  }
  return {{images, masks}};
}

}  // namespace plimsoll::train
