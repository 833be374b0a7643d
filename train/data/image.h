// Images as files have them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace plimsoll::train {

/// Row by row, the channels of a pixel together.
struct Image {
  int height = 0;
  int width = 0;
  /// 1 is grey, 3 is red, green and blue.
  int channels = 0;
  std::vector<std::uint8_t> pixels;

  std::uint8_t at(int y, int x, int channel) const {
    return pixels[(static_cast<std::size_t>(y) * static_cast<std::size_t>(width) +
                   static_cast<std::size_t>(x)) *
                      static_cast<std::size_t>(channels) +
                  static_cast<std::size_t>(channel)];
  }
};

/// By its ending: .ppm, .pgm, .png, .jpg or .jpeg.
bool IsImageName(const std::filesystem::path& path);

/// Whether this was built with stb_image.h.
bool ReadsPackedImages();

/// With 1 or 3 channels, whatever the file has. Reads .ppm and .pgm (binary, one byte a value), and
/// .png and .jpg where ReadsPackedImages. Throws DataError.
Image ReadImage(const std::filesystem::path& path, int channels);

/// All channels of a size, one after the other, from -1 (black) to 1; bilinear.
void WriteScaled(const Image& image, std::int64_t height, std::int64_t width, float* out);

/// The first channel of a size, as numbers; each pixel as the nearest one.
void WriteNearest(const Image& image, std::int64_t height, std::int64_t width, std::int64_t* out);

}  // namespace plimsoll::train
