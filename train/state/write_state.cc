#include <cmath>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/printable.h"
#include "train/state/layout.h"
#include "train/state/state_file.h"

namespace plimsoll::train {
namespace {

using Json = nlohmann::json;

template <class Plain>
std::string_view BytesOf(const Plain& plain) {
  return {reinterpret_cast<const char*>(&plain), sizeof plain};
}

}  // namespace

StateWriter::StateWriter(Sink sink) : sink_(std::move(sink)) { Write(layout::kBegin); }

void StateWriter::Write(std::string_view bytes) {
  sink_(bytes);
  written_ += bytes.size();
}

void StateWriter::AddTensor(std::string name, ElementType type, std::vector<std::int64_t> sizes,
                            std::string_view bytes) {
  Write(std::string(layout::Aligned(written_) - written_, '\0'));
  Write(bytes);
  tensors_.push_back({std::move(name), type, std::move(sizes), layout::Checksum(bytes)});
}

void StateWriter::AddValue(std::string name, StateValue value) {
  const bool added = values_.emplace(std::move(name), std::move(value)).second;
  PLIMSOLL_CHECK(added);
}

std::optional<Error> StateWriter::Finish() {
  Json index = {{"tensors", Json::array()}, {"values", Json::object()}};
  for (const Written& tensor : tensors_) {
    index["tensors"].push_back({{"name", tensor.name},
                                {"type", ElementName(tensor.type)},
                                {"sizes", tensor.sizes},
                                {"crc", tensor.checksum}});
  }
  for (const auto& [name, value] : values_) {
    const auto* number = std::get_if<double>(&value);
    if (number != nullptr && !std::isfinite(*number)) {
      return Error{.message = "'" + Printable(name) +
                              "' is not a finite number, so that the state cannot be saved"};
    }
    std::visit([&, &key = name](const auto& plain) { index["values"][key] = plain; }, value);
  }
  std::string text;
  try {
    text = index.dump();
  } catch (const Json::type_error&) {
    return Error{.message =
                     "a name or a text of the state is not UTF-8, so that it cannot be saved"};
  }
  const layout::Footer footer{.index_bytes = text.size(), .index_checksum = layout::Checksum(text)};
  Write(text);
  Write(BytesOf(footer));
  Write(layout::kEnd);
  return std::nullopt;
}

}  // namespace plimsoll::train
