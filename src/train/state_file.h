// Named tensors, texts and bytes in one file that is either whole or not there: written beside its
// place and moved there in one go. docs/formats/train_state.md describes it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace plimsoll::train {

/// Where one thing lies in the file; dtype and sizes for tensors.
struct StateSection {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
  std::uint32_t crc = 0;
  std::string dtype;
  std::vector<std::int64_t> sizes;
};

class StateWriter {
 public:
  explicit StateWriter(std::filesystem::path path);
  /// Without Commit nothing is left behind.
  ~StateWriter();
  StateWriter(const StateWriter&) = delete;
  StateWriter& operator=(const StateWriter&) = delete;

  void AddBytes(const std::string& name, std::string_view bytes);
  void AddTensor(const std::string& name, const at::Tensor& tensor);
  /// Everything on the disk, then in its place. A file that was there before is replaced only now.
  void Commit();

 private:
  void Write(const void* data, std::size_t bytes);
  StateSection Append(const void* data, std::size_t bytes);
  [[noreturn]] void Fail(const char* what) const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int file_ = -1;
  std::uint64_t written_ = 0;
  std::map<std::string, StateSection> sections_;
};

class StateReader {
 public:
  /// Fails with one line if it is not such a file, or not whole.
  explicit StateReader(std::filesystem::path path);

  bool Has(const std::string& name) const { return sections_.contains(name); }
  std::string Bytes(const std::string& name);
  /// On the CPU.
  at::Tensor Tensor(const std::string& name);
  /// Into a tensor of the same shape and type, wherever that lies.
  void ReadInto(const std::string& name, at::Tensor& tensor);

 private:
  const StateSection& Find(const std::string& name) const;
  void Read(const std::string& name, const StateSection& section, char* to);

  std::filesystem::path path_;
  std::ifstream file_;
  std::map<std::string, StateSection> sections_;
};

}  // namespace plimsoll::train
