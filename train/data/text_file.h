// Text from a file, a byte a token.
#pragma once

#include <filesystem>

#include "files/input.h"
#include "train/data/source.h"

namespace plimsoll::train {

/// The file cut into windows of `context` bytes. Batches of tokens and of targets, both
/// [n, context]: a token's target is the byte after it, for the last one the first of the next
/// window. The file is mapped, not copied; a compressed one is unpacked.
class TextFile : public Source {
 public:
  static constexpr std::int64_t kVocabulary = 256;

  TextFile(const std::filesystem::path& file, std::int64_t context);

  std::int64_t size() const override;
  /// Goes through all of the file.
  std::int64_t LargestToken() const;
  /// Tokens.
  std::int64_t Length(std::int64_t /*index*/) const override { return context_; }
  Batch Get(std::span<const std::int64_t> indices, const at::TensorOptions& where) const override;

 private:
  Input input_;
  std::int64_t context_;
};

}  // namespace plimsoll::train
