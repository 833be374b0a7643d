#include "readers/snapshot/pickle_bytes.h"

#include <algorithm>
#include <utility>

namespace plimsoll::snapshot {

void PickleBytes::LookAtWindow() {
  begin_ = at_ = reinterpret_cast<const std::uint8_t*>(stream_.window().data());
  end_ = begin_ + stream_.window().size();
  turn_ = stream_.IsLast() ? end_ : end_ - std::min(stream_.window().size(), kLookAhead);
}

bool PickleBytes::TurnWindow(std::size_t wanted) {
  const auto done = static_cast<std::size_t>(at_ - begin_);
  passed_ += done;
  if (std::optional<Error> error = stream_.Advance(done, wanted)) {
    error_ = std::move(error);
    return false;
  }
  LookAtWindow();
  return at_ < end_ || CutShort();
}

bool PickleBytes::More(std::size_t n) {
  if (n > stream_.size().unpacked - Offset()) return CutShort();
  return TurnWindow(n) && (static_cast<std::size_t>(end_ - at_) >= n || CutShort());
}

bool PickleBytes::Fail(std::string message, std::string hint) {
  if (!error_) {
    error_ = Error{.message = std::move(message), .offset = Offset(), .hint = std::move(hint)};
  }
  return false;
}

bool PickleBytes::CutShort() {
  Fail("the snapshot ends in the middle", "copy the file again, or record it again");
  error_->offset = stream_.size().unpacked;
  return false;
}

}  // namespace plimsoll::snapshot
