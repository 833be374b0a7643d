// Weights as safetensors: what is read lies in the input, and reads the same when it is written.
#include "fuzz.h"
#include "train/state/safetensors.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace plimsoll;
  const Result<Input> input =
      Input::FromMemory("fuzz", std::string(reinterpret_cast<const char*>(data), size));
  if (!input) return 0;
  const Result<train::SafeTensors> read = train::ReadSafetensors(*input);
  if (!read) {
    CheckError(read.error());
    return 0;
  }
  const std::string_view whole = input->bytes();
  for (const auto& [name, tensor] : *read) {
    PLIMSOLL_CHECK(tensor.bytes.data() >= whole.data() &&
                   tensor.bytes.data() + tensor.bytes.size() <= whole.data() + whole.size());
  }
  const Result<std::string> written = train::WriteSafetensors(*read);
  PLIMSOLL_CHECK(written.ok());
  const Result<Input> again = Input::FromMemory("again", *written);
  PLIMSOLL_CHECK(again.ok());
  const Result<train::SafeTensors> same = train::ReadSafetensors(*again);
  PLIMSOLL_CHECK(same.ok() && same->size() == read->size());
  return 0;
}
