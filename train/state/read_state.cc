#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "train/state/json_limits.h"
#include "train/state/layout.h"
#include "train/state/state_file.h"

namespace plimsoll::train {
namespace {

using Json = nlohmann::json;

struct TypeRow {
  std::string_view name;
  std::size_t bytes;
};
/// In the order of ElementType.
constexpr std::array<TypeRow, 10> kTypes = {{{"f64", 8},
                                             {"f32", 4},
                                             {"f16", 2},
                                             {"bf16", 2},
                                             {"i64", 8},
                                             {"i32", 4},
                                             {"i16", 2},
                                             {"i8", 1},
                                             {"u8", 1},
                                             {"bool", 1}}};
static_assert(kTypes.size() == static_cast<std::size_t>(ElementType::kBool) + 1);

/// More dimensions than any tensor has.
constexpr std::size_t kMostDimensions = 64;
/// LibTorch counts elements and bytes in 64 bits with a sign.
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 62;

/// Reads one file; the first fault ends it.
class Reader {
 public:
  explicit Reader(const Input& input) : input_(input), bytes_(input.bytes()) {}

  Result<StateFile> Read() {
    if (!ReadFrame() || !ReadIndex()) return std::move(error_);
    return std::move(file_);
  }

 private:
  bool Fail(std::uint64_t offset, std::string message, std::string hint = {}) {
    error_ = {.message = std::move(message),
              .file = input_.name(),
              .offset = offset,
              .hint = std::move(hint)};
    return false;
  }
  bool Damaged(std::uint64_t offset, std::string what) {
    return Fail(offset, std::move(what), "the state is damaged, use an earlier one");
  }

  /// Beginning, footer and end, which say where the index is.
  bool ReadFrame() {
    if (bytes_.starts_with(layout::kFormerBegin)) {
      return Fail(0,
                  "a state of the former format, which could run code when it was loaded and is no "
                  "longer read",
                  "train again and save anew");
    }
    if (!bytes_.starts_with(layout::kBegin)) {
      return Fail(0, "this is not a training state that plimsoll saved");
    }
    if (!HasEnd(bytes_)) {
      const std::uint64_t end = EarlierEnd();
      if (end == 0) return Damaged(bytes_.size(), "the end is missing");
      const std::uint64_t more = bytes_.size() - end;
      return Fail(end,
                  more == 1 ? std::string("1 byte follows the end of the state")
                            : std::to_string(more) + " bytes follow the end of the state",
                  "something was appended to it; cut that off, or use an earlier state");
    }
    const layout::Footer footer = FooterOf(bytes_);
    const std::uint64_t footer_at = bytes_.size() - layout::kFooterBytes;
    if (!IsFooter(footer, footer_at)) return Damaged(footer_at, "the footer is not one");
    index_at_ = footer_at - footer.index_bytes;
    index_ = bytes_.substr(index_at_, footer.index_bytes);
    if (layout::Checksum(index_) != footer.index_checksum) {
      return Damaged(index_at_, "the index is not as it was written");
    }
    return true;
  }

  static bool HasEnd(std::string_view bytes) {
    return bytes.size() >= layout::kBegin.size() + layout::kFooterBytes &&
           bytes.ends_with(layout::kEnd);
  }
  static layout::Footer FooterOf(std::string_view bytes) {
    layout::Footer footer;
    std::memcpy(&footer, bytes.data() + bytes.size() - layout::kFooterBytes, sizeof footer);
    return footer;
  }
  static bool IsFooter(const layout::Footer& footer, std::uint64_t at) {
    return footer.zero == 0 && footer.index_bytes <= at - layout::kBegin.size();
  }

  /// Where a state ends that has more bytes after it; 0 if there is none.
  std::uint64_t EarlierEnd() const {
    // Of a file made of ends, not each is looked at.
    constexpr int kMostTried = 16;
    std::size_t at = bytes_.rfind(layout::kEnd);
    for (int i = 0; i < kMostTried && at != std::string_view::npos && at > 0; ++i) {
      const std::string_view whole = bytes_.substr(0, at + layout::kEnd.size());
      if (HasEnd(whole)) {
        const layout::Footer footer = FooterOf(whole);
        const std::uint64_t footer_at = whole.size() - layout::kFooterBytes;
        const bool same =
            footer.index_bytes > 0 && IsFooter(footer, footer_at) &&
            layout::Checksum(whole.substr(footer_at - footer.index_bytes, footer.index_bytes)) ==
                footer.index_checksum;
        if (same) return whole.size();
      }
      at = bytes_.rfind(layout::kEnd, at - 1);
    }
    return 0;
  }

  bool ReadIndex() {
    const Json index = ParseIndex();
    if (!index.is_object() || index.size() != 2 || !IsArray(index, "tensors") ||
        !index.contains("values") || !index["values"].is_object()) {
      return Damaged(index_at_, "the index is not a list of tensors and values");
    }
    std::uint64_t end = layout::kBegin.size();
    for (const Json& entry : index["tensors"]) {
      if (!ReadTensor(entry, end)) return false;
    }
    if (end != index_at_) return Damaged(end, "there are bytes that belong to no tensor");
    for (const auto& [name, value] : index["values"].items()) {
      if (!ReadValue(name, value)) return false;
    }
    return true;
  }

  /// Nothing where it is not JSON, or could take any memory.
  Json ParseIndex() const {
    constexpr int kDeepest = 4;  // the sizes of a tensor
    if (!WithinJsonLimits(index_, kDeepest)) return {};
    return Json::parse(index_, nullptr, /*allow_exceptions=*/false);
  }

  static bool IsArray(const Json& object, const char* name) {
    const auto found = object.find(name);
    return found != object.end() && found->is_array();
  }

  /// The next tensor after `end`, which moves on.
  bool ReadTensor(const Json& entry, std::uint64_t& end) {
    const bool whole = entry.is_object() && entry.size() == 4 && IsArray(entry, "sizes") &&
                       entry.contains("name") && entry["name"].is_string() &&
                       entry.contains("type") && entry["type"].is_string() &&
                       entry.contains("crc") && entry["crc"].is_number_unsigned();
    if (!whole) return Damaged(index_at_, "an entry of the index does not describe a tensor");
    const auto& name = entry["name"].get_ref<const std::string&>();
    const auto say = [&](const char* what) {
      return Damaged(end, "the tensor '" + Printable(name) + "' " + what);
    };
    StateTensor tensor;
    std::uint64_t size = 0;
    if (!ReadType(entry["type"].get_ref<const std::string&>(), tensor.type)) {
      return say("is of an unknown type");
    }
    if (!ReadSizes(entry["sizes"], tensor, size)) return say("has sizes that no tensor has");
    const std::uint64_t begin = layout::Aligned(end);
    if (begin > index_at_ || size > index_at_ - begin) return say("is cut short");
    if (bytes_.substr(end, begin - end).find_first_not_of('\0') != std::string_view::npos) {
      return say("has other bytes than zeros before it");
    }
    tensor.bytes = bytes_.substr(begin, size);
    if (layout::Checksum(tensor.bytes) != entry["crc"].get<std::uint64_t>()) {
      return say("is not as it was written");
    }
    if (tensor.type == ElementType::kBool && !AllBool(tensor.bytes)) {
      return say("holds other bytes than true and false");
    }
    end = begin + size;
    if (!file_.tensors.emplace(name, std::move(tensor)).second) return say("is there twice");
    return true;
  }

  static bool ReadType(std::string_view name, ElementType& type) {
    for (std::size_t i = 0; i < kTypes.size(); ++i) {
      if (kTypes[i].name != name) continue;
      type = static_cast<ElementType>(i);
      return true;
    }
    return false;
  }

  /// Sets sizes and, in bytes, their product. It must fit also where another dimension is empty.
  static bool ReadSizes(const Json& sizes, StateTensor& tensor, std::uint64_t& bytes) {
    if (sizes.size() > kMostDimensions) return false;
    std::uint64_t product = ElementBytes(tensor.type);
    bool empty = false;
    for (const Json& size : sizes) {
      if (!size.is_number_unsigned()) return false;
      const auto number = size.get<std::uint64_t>();
      empty = empty || number == 0;
      if (number > kMostBytes / product) return false;
      if (number > 0) product *= number;
      tensor.sizes.push_back(static_cast<std::int64_t>(number));
    }
    bytes = empty ? 0 : product;
    return true;
  }

  static bool AllBool(std::string_view bytes) {
    for (const char byte : bytes) {
      if (byte != 0 && byte != 1) return false;
    }
    return true;
  }

  bool ReadValue(const std::string& name, const Json& value) {
    constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (value.is_boolean()) {
      file_.values[name] = value.get<bool>();
    } else if (value.is_string()) {
      file_.values[name] = value.get<std::string>();
    } else if (value.is_number_float()) {
      file_.values[name] = value.get<double>();
    } else if (value.is_number_integer() &&
               !(value.is_number_unsigned() && value.get<std::uint64_t>() > kMost)) {
      file_.values[name] = value.get<std::int64_t>();
    } else {
      return Damaged(index_at_, "the value '" + Printable(name) + "' is not a number or a text");
    }
    return true;
  }

  const Input& input_;
  const std::string_view bytes_;
  std::string_view index_;
  std::uint64_t index_at_ = 0;
  StateFile file_;
  Error error_;
};

}  // namespace

std::string_view ElementName(ElementType type) {
  return kTypes[static_cast<std::size_t>(type)].name;
}
std::size_t ElementBytes(ElementType type) { return kTypes[static_cast<std::size_t>(type)].bytes; }

Result<StateFile> ReadState(const Input& input) { return Reader(input).Read(); }

}  // namespace plimsoll::train
