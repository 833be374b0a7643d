#include "train/state_file.h"

#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

namespace plimsoll::train {
namespace {

constexpr std::string_view kBegin = "plimsoll train state 1\n";
/// The file ends with: the index (JSON), its length and checksum, these eight bytes.
constexpr std::string_view kEnd = "the end\n";

struct Footer {
  std::uint64_t index_bytes = 0;
  std::uint32_t index_crc = 0;
  std::uint32_t unused = 0;
};
constexpr std::size_t kFooterBytes = sizeof(Footer) + kEnd.size();

constexpr std::array kTypes = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong,
                               at::kInt,   at::kShort,  at::kChar, at::kByte,     at::kBool};

std::uint32_t Checksum(const void* data, std::size_t bytes) {
  return static_cast<std::uint32_t>(crc32_z(0, static_cast<const Bytef*>(data), bytes));
}

at::ScalarType TypeNamed(const std::string& name) {
  for (const at::ScalarType type : kTypes) {
    if (name == c10::toString(type)) return type;
  }
  TORCH_CHECK(false, "a tensor of unknown type '", name, "'");
}

/// A folder's entry for a new name must reach the disk as well.
void SyncFolder(const std::filesystem::path& path) {
  const auto folder = path.has_parent_path() ? path.parent_path() : ".";
  const int file = open(folder.c_str(), O_RDONLY | O_DIRECTORY);
  if (file < 0) return;
  fsync(file);
  close(file);
}

}  // namespace

StateWriter::StateWriter(std::filesystem::path path)
    : path_(std::move(path)), temporary_(path_.string() + ".partial") {
  file_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) Fail("cannot be made");
  try {
    Write(kBegin.data(), kBegin.size());
  } catch (...) {
    close(file_);
    unlink(temporary_.c_str());
    throw;
  }
}

StateWriter::~StateWriter() {
  if (file_ < 0) return;
  close(file_);
  unlink(temporary_.c_str());
}

void StateWriter::Fail(const char* what) const {
  const int reason = errno;
  TORCH_CHECK(false, path_.string(), ": ", what, ": ", std::strerror(reason),
              ". A state that was saved there before is untouched.");
}

void StateWriter::Write(const void* data, std::size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = write(file_, next, bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) Fail("cannot be written");
    next += done;
    bytes -= static_cast<std::size_t>(done);
    written_ += static_cast<std::uint64_t>(done);
  }
}

StateSection StateWriter::Append(const void* data, std::size_t bytes) {
  StateSection section{.begin = written_, .bytes = bytes, .crc = Checksum(data, bytes)};
  Write(data, bytes);
  return section;
}

void StateWriter::AddBytes(const std::string& name, std::string_view bytes) {
  sections_[name] = Append(bytes.data(), bytes.size());
}

void StateWriter::AddTensor(const std::string& name, const at::Tensor& tensor) {
  const at::Tensor plain = tensor.detach().cpu().contiguous();
  StateSection section = Append(plain.data_ptr(), plain.nbytes());
  section.dtype = c10::toString(plain.scalar_type());
  section.sizes = plain.sizes().vec();
  sections_[name] = std::move(section);
}

void StateWriter::Commit() {
  nlohmann::json index;
  for (const auto& [name, section] : sections_) {
    index[name] = {{"begin", section.begin},
                   {"bytes", section.bytes},
                   {"crc", section.crc},
                   {"dtype", section.dtype},
                   {"sizes", section.sizes}};
  }
  const std::string text = index.dump();
  Write(text.data(), text.size());
  const Footer footer{.index_bytes = text.size(), .index_crc = Checksum(text.data(), text.size())};
  Write(&footer, sizeof footer);
  Write(kEnd.data(), kEnd.size());
  if (fsync(file_) != 0) Fail("cannot be written");
  // From here the destructor has nothing to remove.
  const int file = std::exchange(file_, -1);
  if (close(file) != 0 || rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int reason = errno;
    unlink(temporary_.c_str());
    errno = reason;
    Fail("cannot be put in its place");
  }
  SyncFolder(path_);
}

StateReader::StateReader(std::filesystem::path path)
    : path_(std::move(path)), file_(path_, std::ios::binary) {
  TORCH_CHECK(file_.is_open(), path_.string(), ": cannot be read: ", std::strerror(errno));
  const std::string name = path_.string();
  std::string begin(kBegin.size(), '\0');
  file_.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  TORCH_CHECK(begin == kBegin, name, ": is not a state that plimsoll::train saved");
  file_.seekg(0, std::ios::end);
  const auto size = static_cast<std::uint64_t>(file_.tellg());
  const char* const kBroken = ": is not whole; use an earlier one";
  TORCH_CHECK(size >= kBegin.size() + kFooterBytes, name, kBroken);
  Footer footer;
  std::string end(kEnd.size(), '\0');
  file_.seekg(static_cast<std::streamoff>(size - kFooterBytes));
  file_.read(reinterpret_cast<char*>(&footer), sizeof footer);
  file_.read(end.data(), static_cast<std::streamsize>(end.size()));
  TORCH_CHECK(
      file_.good() && end == kEnd && footer.index_bytes <= size - kFooterBytes - kBegin.size(),
      name, kBroken);
  std::string text(footer.index_bytes, '\0');
  file_.seekg(static_cast<std::streamoff>(size - kFooterBytes - footer.index_bytes));
  file_.read(text.data(), static_cast<std::streamsize>(text.size()));
  TORCH_CHECK(file_.good() && Checksum(text.data(), text.size()) == footer.index_crc, name,
              kBroken);
  const auto index = nlohmann::json::parse(text, nullptr, false);
  TORCH_CHECK(index.is_object() || index.is_null(), name, kBroken);
  for (const auto& [key, entry] : index.items()) {
    sections_[key] = {.begin = entry.at("begin"),
                      .bytes = entry.at("bytes"),
                      .crc = entry.at("crc"),
                      .dtype = entry.at("dtype"),
                      .sizes = entry.at("sizes")};
    const StateSection& section = sections_[key];
    TORCH_CHECK(section.begin <= size && section.bytes <= size - section.begin, name, kBroken);
  }
}

const StateSection& StateReader::Find(const std::string& name) const {
  const auto found = sections_.find(name);
  TORCH_CHECK(found != sections_.end(), path_.string(), ": has no '", name,
              "'; it was saved by another model or another optimizer");
  return found->second;
}

void StateReader::Read(const std::string& name, const StateSection& section, char* to) {
  file_.clear();
  file_.seekg(static_cast<std::streamoff>(section.begin));
  file_.read(to, static_cast<std::streamsize>(section.bytes));
  TORCH_CHECK(file_.good() && Checksum(to, section.bytes) == section.crc, path_.string(), ": '",
              name, "' is damaged; use an earlier file");
}

std::string StateReader::Bytes(const std::string& name) {
  const StateSection& section = Find(name);
  std::string bytes(section.bytes, '\0');
  Read(name, section, bytes.data());
  return bytes;
}

at::Tensor StateReader::Tensor(const std::string& name) {
  const StateSection& section = Find(name);
  at::Tensor tensor = at::empty(section.sizes, TypeNamed(section.dtype));
  TORCH_CHECK(tensor.nbytes() == section.bytes, path_.string(), ": '", name,
              "' is damaged; use an earlier file");
  Read(name, section, static_cast<char*>(tensor.data_ptr()));
  return tensor;
}

void StateReader::ReadInto(const std::string& name, at::Tensor& tensor) {
  const at::Tensor read = Tensor(name);
  TORCH_CHECK(read.sizes() == tensor.sizes() && read.scalar_type() == tensor.scalar_type(),
              path_.string(), ": '", name, "' is ", read.dtype(), " ", read.sizes(),
              ", the model's is ", tensor.dtype(), " ", tensor.sizes());
  const torch::autograd::AutoGradMode no_grad(false);
  tensor.copy_(read);
}

}  // namespace plimsoll::train
