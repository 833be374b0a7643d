#include "train/data/image.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <optional>
#include <string>
#include <string_view>

#include "files/input.h"
#include "train/data/source.h"

#ifdef PLIMSOLL_TRAIN_STB
#define STB_IMAGE_IMPLEMENTATION
#define STB_IMAGE_STATIC
#define STBI_NO_STDIO
#define STBI_ONLY_JPEG
#define STBI_ONLY_PNG
#include <stb_image.h>
#endif

namespace plimsoll::train {
namespace {

/// Larger ones are a broken header.
constexpr int kMaxSide = 1 << 15;

[[noreturn]] void Fail(const std::string& file, const std::string& why) {
  throw DataError(file + ": " + why);
}

std::string LowerEnding(const std::filesystem::path& path) {
  std::string ending = path.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return ending;
}

bool IsPortable(const std::filesystem::path& path) {
  const std::string ending = LowerEnding(path);
  return ending == ".ppm" || ending == ".pgm";
}

/// The next number of a header, in which anything after a # is a comment.
std::optional<int> TakeNumber(std::string_view& rest) {
  for (;;) {
    rest.remove_prefix(std::min(rest.find_first_not_of(" \t\r\n"), rest.size()));
    if (!rest.starts_with('#')) break;
    rest.remove_prefix(std::min(rest.find('\n'), rest.size()));
  }
  int number = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  if (error != std::errc()) return std::nullopt;
  rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
  return number;
}

Image DecodePortable(const std::string& file, std::string_view bytes) {
  Image image;
  image.channels = bytes.starts_with("P6") ? 3 : 1;
  if (image.channels == 1 && !bytes.starts_with("P5")) {
    Fail(file, "is not a binary .ppm or .pgm (P6 or P5)");
  }
  bytes.remove_prefix(2);
  const auto width = TakeNumber(bytes);
  const auto height = TakeNumber(bytes);
  const auto largest = TakeNumber(bytes);
  if (!width || !height || !largest || *width < 1 || *width > kMaxSide || *height < 1 ||
      *height > kMaxSide) {
    Fail(file, "its header has no sensible size");
  }
  if (*largest != 255) Fail(file, c10::str("has values up to ", *largest, ", not 255"));
  image.width = *width;
  image.height = *height;
  bytes.remove_prefix(std::min<std::size_t>(1, bytes.size()));
  const std::size_t wanted = static_cast<std::size_t>(image.width) *
                             static_cast<std::size_t>(image.height) *
                             static_cast<std::size_t>(image.channels);
  if (bytes.size() < wanted) {
    Fail(file, c10::str("is cut short: ", bytes.size(), " bytes of pixels, not ", wanted));
  }
  image.pixels.assign(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(wanted));
  return image;
}

Image WithChannels(Image image, int channels) {
  if (image.channels == channels) return image;
  const std::size_t pixels = image.pixels.size() / static_cast<std::size_t>(image.channels);
  std::vector<std::uint8_t> converted(pixels * static_cast<std::size_t>(channels));
  for (std::size_t i = 0; i < pixels; ++i) {
    if (channels == 3) {
      std::fill_n(converted.begin() + static_cast<std::ptrdiff_t>(3 * i), 3, image.pixels[i]);
    } else {
      // The eye's weights, as stb_image has them.
      const std::uint8_t* rgb = &image.pixels[3 * i];
      converted[i] = static_cast<std::uint8_t>((rgb[0] * 77 + rgb[1] * 150 + rgb[2] * 29) >> 8);
    }
  }
  image.channels = channels;
  image.pixels = std::move(converted);
  return image;
}

#ifdef PLIMSOLL_TRAIN_STB
constexpr bool kReadsPackedImages = true;

unsigned ByteAt(std::string_view bytes, std::size_t at) {
  return at < bytes.size() ? static_cast<unsigned char>(bytes[at]) : 0;
}

/// Whether each of a segment's code tables has at most 256 codes: a kind, 16 counts, the codes. The
/// last one may be longer than the segment says.
bool TablesFit(std::string_view bytes, std::size_t length) {
  for (std::size_t at = 0; at < length;) {
    std::size_t codes = 0;
    for (std::size_t i = 1; i <= 16; ++i) codes += ByteAt(bytes, at + i);
    if (codes > 256) return false;
    at += 17 + codes;
  }
  return true;
}

/// stb_image before 2.28 (Debian 12 has 2.27) writes beyond its tables where a JPEG file's are too
/// long. Finds the segments as it does: one after the other, and among the pixels any that looks
/// like one, since there are no lengths to go by.
bool HasSoundTables(std::string_view bytes) {
  constexpr unsigned kTables = 0xc4;
  constexpr unsigned kPixels = 0xda;
  bool among_pixels = false;
  for (std::size_t at = 2; at + 3 < bytes.size();) {
    const unsigned marker = ByteAt(bytes, at + 1);
    if (ByteAt(bytes, at) != 0xff || marker == 0xff) {
      ++at;
      continue;
    }
    const std::size_t length = ByteAt(bytes, at + 2) << 8 | ByteAt(bytes, at + 3);
    if (marker == kTables && length > 2 && !TablesFit(bytes.substr(at + 4), length - 2)) {
      return false;
    }
    among_pixels = among_pixels || marker == kPixels;
    at += among_pixels ? 2 : 2 + length;
  }
  return true;
}

Image DecodePacked(const std::string& file, std::string_view bytes, int channels) {
  if (bytes.size() > INT_MAX) Fail(file, "is too large");
  if (bytes.starts_with("\xff\xd8") && !HasSoundTables(bytes)) {
    Fail(file, "is not an image: its code tables are too long");
  }
  const auto* data = reinterpret_cast<const stbi_uc*>(bytes.data());
  const int length = static_cast<int>(bytes.size());
  Image image;
  int own_channels = 0;
  // The size first: a few broken bytes may ask for gigabytes.
  if (stbi_info_from_memory(data, length, &image.width, &image.height, &own_channels) == 0) {
    Fail(file, c10::str("is not an image: ", stbi_failure_reason()));
  }
  if (image.width > kMaxSide || image.height > kMaxSide) Fail(file, "its size makes no sense");
  stbi_uc* pixels =
      stbi_load_from_memory(data, length, &image.width, &image.height, &own_channels, channels);
  if (pixels == nullptr) Fail(file, c10::str("is not an image: ", stbi_failure_reason()));
  image.channels = channels;
  image.pixels.assign(pixels, pixels + static_cast<std::size_t>(image.width) *
                                           static_cast<std::size_t>(image.height) *
                                           static_cast<std::size_t>(channels));
  stbi_image_free(pixels);
  return image;
}
#else
constexpr bool kReadsPackedImages = false;

Image DecodePacked(const std::string& file, std::string_view, int) {
  Fail(file, "only .ppm and .pgm are read, since this was built without stb_image.h");
}
#endif

/// Where a pixel of the result lies among those of the image: between two, with this share of the
/// second.
struct Between {
  Between(std::int64_t i, std::int64_t size, int image_size) {
    const float at =
        (static_cast<float>(i) + 0.5F) * static_cast<float>(image_size) / static_cast<float>(size) -
        0.5F;
    const float inside = std::clamp(at, 0.0F, static_cast<float>(image_size - 1));
    first = static_cast<int>(inside);
    second = std::min(first + 1, image_size - 1);
    share = inside - static_cast<float>(first);
  }
  int first = 0;
  int second = 0;
  float share = 0;
};

}  // namespace

bool IsImageName(const std::filesystem::path& path) {
  const std::string ending = LowerEnding(path);
  return IsPortable(path) || ending == ".png" || ending == ".jpg" || ending == ".jpeg";
}

bool ReadsPackedImages() { return kReadsPackedImages; }

Image ReadImage(const std::filesystem::path& path, int channels) {
  const std::string file = path.string();
  // A pipe would be waited for.
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    Fail(file, "is not an image but a folder, a pipe or a device");
  }
  const Result<Input> input = Input::Open(file);
  if (!input.ok()) throw DataError(input.error().ToLine());
  const std::string_view bytes = input.value().bytes();
  if (IsPortable(path)) return WithChannels(DecodePortable(file, bytes), channels);
  return DecodePacked(file, bytes, channels);
}

void WriteScaled(const Image& image, std::int64_t height, std::int64_t width, float* out) {
  std::vector<Between> columns;
  for (std::int64_t x = 0; x < width; ++x) columns.emplace_back(x, width, image.width);
  for (int channel = 0; channel < image.channels; ++channel) {
    for (std::int64_t i = 0; i < height; ++i) {
      const Between y(i, height, image.height);
      const auto down = [&](int x) {
        const auto top = static_cast<float>(image.at(y.first, x, channel));
        const auto bottom = static_cast<float>(image.at(y.second, x, channel));
        return top + (bottom - top) * y.share;
      };
      for (const Between& x : columns) {
        const float left = down(x.first);
        *out++ = (left + (down(x.second) - left) * x.share) / 127.5F - 1;
      }
    }
  }
}

void WriteNearest(const Image& image, std::int64_t height, std::int64_t width, std::int64_t* out) {
  for (std::int64_t i = 0; i < height; ++i) {
    // The pixel that the middle of this one lies in.
    const auto y = static_cast<int>((2 * i + 1) * image.height / (2 * height));
    for (std::int64_t j = 0; j < width; ++j) {
      const auto x = static_cast<int>((2 * j + 1) * image.width / (2 * width));
      *out++ = image.at(y, x, 0);
    }
  }
}

}  // namespace plimsoll::train
