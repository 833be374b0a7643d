#include "train/state/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "train/state/json_limits.h"

namespace plimsoll::train {
namespace {

using Json = nlohmann::json;

/// In the order of ElementType.
constexpr std::array<std::string_view, 10> kNames = {"F64", "F32", "F16", "BF16", "I64",
                                                     "I32", "I16", "I8",  "U8",   "BOOL"};
/// The format's own limit.
constexpr std::uint64_t kLongestHeader = 100'000'000;
constexpr std::uint64_t kMostTensorBytes = std::uint64_t{1} << 62;
constexpr std::size_t kMostShape = 64;
constexpr std::string_view kMetadata = "__metadata__";
constexpr std::size_t kLengthBytes = 8;

class SafetensorsReader {
 public:
  explicit SafetensorsReader(const Input& input) : input_(input), bytes_(input.bytes()) {}

  Result<SafeTensors> Read() {
    if (bytes_.size() < kLengthBytes) return Fault(0, "it is too short to be safetensors");
    std::uint64_t length = 0;
    std::memcpy(&length, bytes_.data(), sizeof length);
    if (length > kLongestHeader || length > bytes_.size() - kLengthBytes) {
      return Fault(0, "its header would be " + std::to_string(length) + " bytes long");
    }
    const std::string_view text = bytes_.substr(kLengthBytes, length);
    // The metadata of some programs is an object of objects.
    constexpr int kDeepest = 16;
    if (!WithinJsonLimits(text, kDeepest)) {
      return Fault(kLengthBytes, "its header holds more than one of real weights does");
    }
    const Json header = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!header.is_object()) return Fault(kLengthBytes, "its header is no JSON object");
    data_ = bytes_.substr(kLengthBytes + length);
    for (const auto& [name, entry] : header.items()) {
      if (name == kMetadata) continue;
      if (std::optional<Error> error = Add(name, entry)) return *error;
    }
    return Covered();
  }

 private:
  Error Fault(std::uint64_t offset, std::string message) const {
    return {.message = std::move(message),
            .file = input_.name(),
            .offset = offset,
            .hint = "it is damaged, or no safetensors file"};
  }
  Error FaultOf(const std::string& name, const std::string& what) const {
    return Fault(kLengthBytes, "'" + Printable(name) + "' " + what);
  }

  std::optional<Error> Add(const std::string& name, const Json& entry) {
    if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") ||
        !entry.contains("data_offsets")) {
      return FaultOf(name, "has no dtype, shape and data_offsets");
    }
    const Json& dtype = entry["dtype"];
    const auto known =
        dtype.is_string() ? std::ranges::find(kNames, dtype.get<std::string>()) : kNames.end();
    if (known == kNames.end()) return FaultOf(name, "is of a type that is not known here");
    StateTensor tensor{.type = static_cast<ElementType>(known - kNames.begin())};
    const Json& shape = entry["shape"];
    std::uint64_t wanted = ElementBytes(tensor.type);
    if (!shape.is_array() || shape.size() > kMostShape) return FaultOf(name, "has no shape");
    for (const Json& size : shape) {
      if (!size.is_number_unsigned()) return FaultOf(name, "has no shape");
      const auto count = size.get<std::uint64_t>();
      if (count > kMostTensorBytes || (count > 0 && wanted > kMostTensorBytes / count)) {
        return FaultOf(name, "is larger than anything");
      }
      wanted *= count;
      tensor.sizes.push_back(static_cast<std::int64_t>(count));
    }
    const Json& offsets = entry["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
        !offsets[1].is_number_unsigned()) {
      return FaultOf(name, "has no data_offsets");
    }
    const auto begin = offsets[0].get<std::uint64_t>();
    const auto end = offsets[1].get<std::uint64_t>();
    if (begin > end || end > data_.size() || end - begin != wanted) {
      return FaultOf(name, "lies where its bytes cannot be");
    }
    tensor.bytes = data_.substr(begin, end - begin);
    places_.emplace_back(begin, end);
    tensors_.emplace(name, std::move(tensor));
    return std::nullopt;
  }

  Result<SafeTensors> Covered() {
    std::ranges::sort(places_);
    std::uint64_t at = 0;
    for (const auto& [begin, end] : places_) {
      if (begin != at) return Fault(kLengthBytes, "its tensors overlap or leave a gap");
      at = end;
    }
    if (at != data_.size()) return Fault(bytes_.size(), "it has bytes that are no tensor's");
    return std::move(tensors_);
  }

  const Input& input_;
  std::string_view bytes_;
  std::string_view data_;
  SafeTensors tensors_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> places_;
};

}  // namespace

Result<SafeTensors> ReadSafetensors(const Input& input) { return SafetensorsReader(input).Read(); }

Result<std::string> WriteSafetensors(const SafeTensors& tensors) {
  Json header = Json::object();
  std::uint64_t at = 0;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", kNames[static_cast<std::size_t>(tensor.type)]},
                    {"shape", tensor.sizes},
                    {"data_offsets", {at, at + tensor.bytes.size()}}};
    at += tensor.bytes.size();
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::type_error&) {
    return Error{.message = "a name is not UTF-8, so that the weights cannot be saved"};
  }
  // Spaces, so that the data begins aligned.
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');
  const std::uint64_t length = text.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
  bytes.reserve(bytes.size() + text.size() + at);
  bytes += text;
  for (const auto& [name, tensor] : tensors) bytes += tensor.bytes;
  return bytes;
}

}  // namespace plimsoll::train
