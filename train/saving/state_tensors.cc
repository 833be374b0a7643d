#include "train/saving/state_tensors.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>

#include "base/printable.h"
#include "files/output.h"
#include "train/budget/host_memory.h"

namespace plimsoll::train {
namespace {

/// In the order of ElementType.
constexpr std::array kTypes = {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong,
                               at::kInt,    at::kShort, at::kChar, at::kByte,     at::kBool};

std::string Describe(ElementType type, at::IntArrayRef sizes) {
  return c10::str(ElementName(type), " ", sizes);
}

constexpr const char* kAnother = "; it is the state of another model or another optimizer";

}  // namespace

ElementType ElementTypeOf(const std::string& name, const at::Tensor& tensor) {
  for (std::size_t i = 0; i < kTypes.size(); ++i) {
    if (kTypes[i] == tensor.scalar_type()) return static_cast<ElementType>(i);
  }
  TORCH_CHECK(false, "'", Printable(name), "' cannot be saved: a state holds no tensors of ",
              tensor.dtype());
}

at::ScalarType ScalarTypeOf(ElementType type) { return kTypes[static_cast<std::size_t>(type)]; }

at::Tensor PlainOnHost(const at::Tensor& tensor) {
  const at::Tensor here = tensor.detach().cpu();
  if (here.is_contiguous()) return here;
  return HostTensor(here.sizes(), here.scalar_type(), /*pinned=*/false).copy_(here);
}

void StateSaver::AddTensor(std::string name, at::Tensor tensor) {
  tensors_.emplace_back(std::move(name), std::move(tensor));
}

void StateSaver::AddValue(std::string name, StateValue value) {
  values_.emplace_back(std::move(name), std::move(value));
}

void StateSaver::AddBytes(std::string name, std::string_view bytes) {
  const at::Tensor copy =
      HostTensor({static_cast<std::int64_t>(bytes.size())}, at::kByte, /*pinned=*/false);
  std::copy(bytes.begin(), bytes.end(), static_cast<char*>(copy.data_ptr()));
  AddTensor(std::move(name), copy);
}

void StateSaver::WriteTo(const StateWriter::Sink& sink) const {
  StateWriter writer(sink);
  for (const auto& [name, tensor] : tensors_) {
    const at::Tensor plain = PlainOnHost(tensor);
    writer.AddTensor(name, ElementTypeOf(name, plain), plain.sizes().vec(),
                     {static_cast<const char*>(plain.data_ptr()), plain.nbytes()});
  }
  for (const auto& [name, value] : values_) writer.AddValue(name, value);
  const std::optional<Error> error = writer.Finish();
  TORCH_CHECK(!error.has_value(), error->ToLine());
}

std::string StateSaver::Bytes() const {
  std::size_t size = 0;
  for (const auto& [name, tensor] : tensors_) size += tensor.nbytes();
  std::string bytes;
  bytes.reserve(size);
  WriteTo([&](std::string_view more) { bytes += more; });
  return bytes;
}

void StateSaver::Write(const std::filesystem::path& path) const {
  const std::optional<Error> error = WriteFile(path.string(), Bytes());
  TORCH_CHECK(!error.has_value(), Printable(error->ToLine()));
}

StateLoader::StateLoader(Result<Input> input) {
  TORCH_CHECK(input.ok(), Printable(input.error().ToLine()));
  input_ = std::make_unique<const Input>(std::move(*input));
  Result<StateFile> file = ReadState(*input_);
  TORCH_CHECK(file.ok(), Printable(file.error().ToLine()));
  file_ = std::move(*file);
}

StateLoader StateLoader::Open(const std::filesystem::path& path) {
  return StateLoader(Input::Open(path.string()));
}

StateLoader StateLoader::FromBytes(std::string bytes) {
  return StateLoader(Input::FromMemory("state", std::move(bytes)));
}

void StateLoader::Fail(const std::string& what) const {
  TORCH_CHECK(false, Printable(input_->name()), ": ", Printable(what));
}

void StateLoader::Missing(const std::string& name) const {
  Fail("there is no '" + name + "' in it" + kAnother);
}

at::Tensor StateLoader::Tensor(const std::string& name, at::IntArrayRef sizes,
                               at::ScalarType type) {
  const auto found = file_.tensors.find(name);
  if (found == file_.tensors.end()) Missing(name);
  const StateTensor& saved = found->second;
  const at::ScalarType saved_type = ScalarTypeOf(saved.type);
  if (saved_type != type || sizes != saved.sizes) {
    Fail(c10::str("'", name, "' is ", Describe(saved.type, saved.sizes), " in it, and ",
                  c10::toString(type), " ", sizes, " here", kAnother));
  }
  used_.insert(name);
  // Only read from, as the header asks.
  return at::from_blob(const_cast<char*>(saved.bytes.data()), sizes, at::TensorOptions(type));
}

std::string StateLoader::Bytes(const std::string& name) {
  const auto found = file_.tensors.find(name);
  if (found == file_.tensors.end()) Missing(name);
  if (found->second.type != ElementType::kUint8) Fail("'" + name + "' is not bytes");
  used_.insert(name);
  return std::string(found->second.bytes);
}

template <class T>
const T& StateLoader::Value(const std::string& name, const char* kind) {
  const auto found = file_.values.find(name);
  if (found == file_.values.end()) Missing(name);
  const T* value = std::get_if<T>(&found->second);
  if (value == nullptr) Fail("'" + name + "' is not " + kind);
  used_.insert(name);
  return *value;
}

template const bool& StateLoader::Value(const std::string&, const char*);
template const double& StateLoader::Value(const std::string&, const char*);
template const std::string& StateLoader::Value(const std::string&, const char*);

std::int64_t StateLoader::Count(const std::string& name) {
  // So that one can be added to it, or it be made a double, without a thought.
  constexpr std::int64_t kMost = std::int64_t{1} << 53;
  const std::int64_t count = Value<std::int64_t>(name, "a whole number");
  if (count < 0 || count > kMost) Fail(c10::str("'", name, "' is ", count));
  return count;
}

void StateLoader::CheckThatNothingIsLeft() const {
  const auto check = [&](const std::string& name) {
    if (!used_.contains(name)) Fail("it holds '" + name + "', which is not here" + kAnother);
  };
  for (const auto& [name, tensor] : file_.tensors) check(name);
  for (const auto& [name, value] : file_.values) check(name);
}

}  // namespace plimsoll::train
