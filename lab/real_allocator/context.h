// The place of a call as the trace shows it: what Python's stack is in a real recording.
#ifndef PLIMSOLL_TOOLS_REAL_ALLOCATOR_CONTEXT_H_
#define PLIMSOLL_TOOLS_REAL_ALLOCATOR_CONTEXT_H_

#include <memory>
#include <utility>

#include "release.h"

struct CallContext final : c10::GatheredContext {
  explicit CallContext(const char* name) : name(name) {}
  const char* name;
};

// The name of the call for as long as this lives.
class InCall {
 public:
  explicit InCall(const char* name)
      : before_(std::exchange(current_, std::make_shared<CallContext>(name))) {}
  InCall(const InCall&) = delete;
  InCall& operator=(const InCall&) = delete;
  ~InCall() { current_ = std::move(before_); }

  static std::shared_ptr<c10::GatheredContext> Current() { return current_; }

 private:
  static inline std::shared_ptr<c10::GatheredContext> current_;
  std::shared_ptr<c10::GatheredContext> before_;
};

#endif  // PLIMSOLL_TOOLS_REAL_ALLOCATOR_CONTEXT_H_
