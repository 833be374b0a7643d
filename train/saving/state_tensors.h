// Tensors of LibTorch, and values beside them, to and from a training state (train/state). Errors
// are c10::Error, one sentence each.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "train/state/state_file.h"

namespace plimsoll::train {

/// Fails, naming the tensor, for a type that no file of ours holds.
ElementType ElementTypeOf(const std::string& name, const at::Tensor& tensor);
at::ScalarType ScalarTypeOf(ElementType type);
/// On the host and contiguous. Copies are not from the budget.
at::Tensor PlainOnHost(const at::Tensor& tensor);

/// What is to be saved. Tensors are read when the file is made, not before.
class StateSaver {
 public:
  void AddTensor(std::string name, at::Tensor tensor);
  void AddValue(std::string name, StateValue value);
  /// Any bytes, which a text in JSON could not be.
  void AddBytes(std::string name, std::string_view bytes);

  std::string Bytes() const;
  /// Whole or not at all.
  void Write(const std::filesystem::path& path) const;

 private:
  void WriteTo(const StateWriter::Sink& sink) const;

  std::vector<std::pair<std::string, at::Tensor>> tensors_;
  std::vector<std::pair<std::string, StateValue>> values_;
};

/// What was saved. Everything that is asked for must be there and be as is said; what was never
/// asked for shows that it belongs to something else.
class StateLoader {
 public:
  static StateLoader Open(const std::filesystem::path& path);
  static StateLoader FromBytes(std::string bytes);

  bool HasTensor(const std::string& name) const { return file_.tensors.contains(name); }
  bool HasValue(const std::string& name) const { return file_.values.contains(name); }
  /// Over the bytes of the file: to be copied from, not written to, while this lives.
  at::Tensor Tensor(const std::string& name, at::IntArrayRef sizes, at::ScalarType type);
  std::string Bytes(const std::string& name);

  bool Flag(const std::string& name) { return Value<bool>(name, "true or false"); }
  double Number(const std::string& name) { return Value<double>(name, "a number"); }
  std::string Text(const std::string& name) { return Value<std::string>(name, "a text"); }
  /// From 0 on; a count or an index.
  std::int64_t Count(const std::string& name);

  void CheckThatNothingIsLeft() const;
  /// Ends the load with one sentence that names the file.
  [[noreturn]] void Fail(const std::string& what) const;

 private:
  explicit StateLoader(Result<Input> input);

  template <class T>
  const T& Value(const std::string& name, const char* kind);
  [[noreturn]] void Missing(const std::string& name) const;

  /// Behind a pointer: the tensors of the file lie in it.
  std::unique_ptr<const Input> input_;
  StateFile file_;
  std::set<std::string> used_;
};

}  // namespace plimsoll::train
