#include "train/data/text_file.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace plimsoll::train {
namespace {

Input Open(const std::filesystem::path& file) {
  Result<Input> input = Input::Open(file.string());
  if (!input.ok()) throw DataError(input.error().ToLine());
  return std::move(input).value();
}

}  // namespace

TextFile::TextFile(const std::filesystem::path& file, std::int64_t context)
    : input_(Open(file)), context_(context) {
  TORCH_CHECK(context > 0, "a context of ", context, " tokens");
  if (size() == 0) {
    throw DataError(c10::str(file.string(), ": has ", input_.bytes().size(), " bytes, and one ",
                             "sample takes ", context + 1));
  }
}

std::int64_t TextFile::size() const {
  const auto bytes = static_cast<std::int64_t>(input_.bytes().size());
  return bytes == 0 ? 0 : (bytes - 1) / context_;
}

std::int64_t TextFile::LargestToken() const {
  unsigned char largest = 0;
  for (const char byte : input_.bytes()) {
    largest = std::max(largest, static_cast<unsigned char>(byte));
  }
  return largest;
}

Batch TextFile::Get(std::span<const std::int64_t> indices, const at::TensorOptions& where) const {
  const std::vector<std::int64_t> shape = {static_cast<std::int64_t>(indices.size()), context_};
  const at::Tensor tokens = at::empty(shape, where.dtype(at::kLong));
  const at::Tensor targets = at::empty(shape, where.dtype(at::kLong));
  auto* token = tokens.data_ptr<std::int64_t>();
  auto* target = targets.data_ptr<std::int64_t>();
  for (const std::int64_t index : indices) {
    TORCH_CHECK_INDEX(index >= 0 && index < size(), "no sample ", index, " among ", size());
    const auto* bytes =
        reinterpret_cast<const unsigned char*>(input_.bytes().data()) + index * context_;
    for (std::int64_t i = 0; i < context_; ++i) {
      *token++ = bytes[i];
      *target++ = bytes[i + 1];
    }
  }
  return {{tokens, targets}};
}

}  // namespace plimsoll::train
