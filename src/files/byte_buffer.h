// A run of bytes that grows. Unlike a string it neither clears what it grows by nor copies what it
// holds (large blocks are moved by the system), so that a file takes its own size and no more.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <new>
#include <string_view>
#include <utility>

namespace plimsoll {

class ByteBuffer {
 public:
  ByteBuffer() = default;
  ~ByteBuffer() { std::free(data_); }
  ByteBuffer(ByteBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  ByteBuffer& operator=(ByteBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }

  /// Where `bytes` more can be written; Grow says how many were.
  char* Room(std::size_t bytes) {
    if (capacity_ - size_ < bytes) Reserve(size_ + bytes + size_ / 2);
    return data_ + size_;
  }
  void Grow(std::size_t bytes) { size_ += bytes; }
  /// Throws std::bad_alloc where there is not so much.
  void Reserve(std::size_t capacity) {
    if (capacity <= capacity_) return;
    char* const moved =
        static_cast<char*>(data_ == nullptr && capacity >= kLarge ? AllocateLarge(capacity)
                                                                  : std::realloc(data_, capacity));
    if (moved == nullptr) throw std::bad_alloc();
    data_ = moved;
    capacity_ = capacity;
  }
  std::size_t size() const { return size_; }
  std::string_view view() const { return {data_, size_}; }

 private:
  static constexpr std::size_t kHugePage = std::size_t{2} << 20;
  static constexpr std::size_t kLarge = 4 * kHugePage;

  /// On huge pages where the system has them: half of what reading a file takes is making small
  /// ones.
  static void* AllocateLarge(std::size_t capacity) {
    void* const made =
        std::aligned_alloc(kHugePage, (capacity + kHugePage - 1) / kHugePage * kHugePage);
#ifdef MADV_HUGEPAGE
    if (made != nullptr) ::madvise(made, capacity, MADV_HUGEPAGE);
#endif
    return made;
  }

  char* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace plimsoll
