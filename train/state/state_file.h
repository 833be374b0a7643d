// A training state as a file: named tensors as plain bytes, and named values. Nothing in it is ever
// run: there is no pickle and no TorchScript. docs/formats/train_state.md describes the file.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "files/input.h"

namespace plimsoll::train {

enum class ElementType : std::uint8_t {
  kFloat64,
  kFloat32,
  kFloat16,
  kBfloat16,
  kInt64,
  kInt32,
  kInt16,
  kInt8,
  kUint8,
  kBool,
};

/// "f32", "i64"...
std::string_view ElementName(ElementType type);
std::size_t ElementBytes(ElementType type);

/// Doubles are finite.
using StateValue = std::variant<bool, std::int64_t, double, std::string>;

struct StateTensor {
  ElementType type = ElementType::kFloat32;
  std::vector<std::int64_t> sizes;
  /// Contiguous and little-endian; for each element of the sizes one. Aligned for any type.
  std::string_view bytes;
};

/// What a file holds. The tensors' bytes are those of the input, which must live as long.
struct StateFile {
  std::map<std::string, StateTensor> tensors;
  std::map<std::string, StateValue> values;
};

/// Either the whole file as it was written, every checksum compared, or why not.
Result<StateFile> ReadState(const Input& input);

/// Makes a file, piece by piece. A name is used once.
class StateWriter {
 public:
  using Sink = std::function<void(std::string_view bytes)>;

  /// The sink is given the bytes of the file, one run after the other.
  explicit StateWriter(Sink sink);

  void AddTensor(std::string name, ElementType type, std::vector<std::int64_t> sizes,
                 std::string_view bytes);
  void AddValue(std::string name, StateValue value);

  /// Completes the file. What is wrong with it, if anything: a name or text that is not UTF-8, or a
  /// number that is not finite, which JSON cannot hold.
  std::optional<Error> Finish();

 private:
  struct Written {
    std::string name;
    ElementType type;
    std::vector<std::int64_t> sizes;
    std::uint32_t checksum;
  };

  void Write(std::string_view bytes);

  Sink sink_;
  std::uint64_t written_ = 0;
  std::vector<Written> tensors_;
  std::map<std::string, StateValue> values_;
};

}  // namespace plimsoll::train
