// A training state as it is, and one whose lengths and checksums are made right around the bytes,
// since no mutation would find those.
#include "fuzz.h"
#include "train/state/layout.h"
#include "train/state/state_file.h"

namespace plimsoll {
namespace {

using train::StateFile;
using train::StateTensor;

Result<StateFile> Read(const Result<Input>& input) {
  if (!input) return input.error();
  return train::ReadState(*input);
}

bool Same(const StateFile& a, const StateFile& b) {
  if (a.values != b.values || a.tensors.size() != b.tensors.size()) return false;
  for (const auto& [name, tensor] : a.tensors) {
    const auto other = b.tensors.find(name);
    if (other == b.tensors.end() || other->second.type != tensor.type ||
        other->second.sizes != tensor.sizes || other->second.bytes != tensor.bytes) {
      return false;
    }
  }
  return true;
}

/// What is read lies in the input, and reads the same when it is written again.
void Check(const Result<Input>& input) {
  const Result<StateFile> file = Read(input);
  if (!file) return CheckError(file.error());
  std::string written;
  train::StateWriter writer([&](std::string_view more) { written += more; });
  for (const auto& [name, tensor] : file->tensors) {
    const std::string_view whole = input->bytes();
    PLIMSOLL_CHECK(tensor.bytes.data() >= whole.data() &&
                   tensor.bytes.data() + tensor.bytes.size() <= whole.data() + whole.size());
    std::size_t bytes = train::ElementBytes(tensor.type);
    for (const std::int64_t size : tensor.sizes) bytes *= static_cast<std::size_t>(size);
    PLIMSOLL_CHECK(bytes == tensor.bytes.size());
    writer.AddTensor(name, tensor.type, tensor.sizes, tensor.bytes);
  }
  for (const auto& [name, value] : file->values) writer.AddValue(name, value);
  PLIMSOLL_CHECK(!writer.Finish());
  const Result<Input> again = Input::FromMemory("again", written);
  const Result<StateFile> read = Read(again);
  PLIMSOLL_CHECK(read.ok() && Same(*file, *read));
}

/// The bytes as an index, behind as many zeros as the first byte says times 8.
std::string Framed(std::string_view bytes) {
  if (bytes.empty()) return {};
  const std::size_t zeros = 8 * static_cast<unsigned char>(bytes.front());
  const std::string_view index = bytes.substr(1);
  const train::layout::Footer footer{.index_bytes = index.size(),
                                     .index_checksum = train::layout::Checksum(index)};
  std::string file(train::layout::kBegin);
  file.append(zeros, '\0');
  file += index;
  file.append(reinterpret_cast<const char*>(&footer), sizeof footer);
  return file + std::string(train::layout::kEnd);
}

}  // namespace
}  // namespace plimsoll

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace plimsoll;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  Check(Input::FromMemory("fuzz", bytes));
  Check(Input::FromMemory("fuzz", Framed(bytes)));
  return 0;
}
