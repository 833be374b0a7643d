// What a JSON text becomes in the builder's tables.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "files/json_visit.h"
#include "readers/snapshot/builder.h"

namespace plimsoll::snapshot {

/// Hands containers to the builder when they close.
class JsonValues : public JsonVisitor {
 public:
  explicit JsonValues(Builder& builder) : builder_(builder) {}

  void Open(bool object) override {
    opened_.push_back(stack_.size());
    Push({object ? Kind::kNewDict : Kind::kNewList, kNoMemo});
  }
  void Close() override {
    Value& container = stack_[opened_.back()];
    const std::span<const Value> items = std::span(stack_).subspan(opened_.back() + 1);
    if (container.kind == Kind::kNewDict) {
      builder_.Extend(container, items);
    } else {
      builder_.Append(container, items);
    }
    stack_.resize(opened_.back() + 1);
    opened_.pop_back();
  }
  void Key(std::string_view key) override { Push(builder_.String(key)); }
  void Scalar(const JsonScalar& scalar) override { Push(ValueOf(scalar)); }
  bool Enough() const override { return builder_.budget().spent(); }

  Value root() const { return stack_.empty() ? Value{} : stack_.front(); }

 private:
  Value ValueOf(const JsonScalar& scalar) {
    switch (scalar.kind) {
      case JsonScalar::Kind::kBool:
        return {Kind::kBool, scalar.integer != 0 ? 1u : 0u};
      case JsonScalar::Kind::kInteger:
        return Value::Int(scalar.integer);
      case JsonScalar::Kind::kUnsigned:
        return {Kind::kInt, scalar.whole};
      case JsonScalar::Kind::kReal:
        return {Kind::kFloat, std::bit_cast<std::uint64_t>(scalar.real)};
      case JsonScalar::Kind::kText:
        return builder_.String(scalar.text);
      case JsonScalar::Kind::kNothing:
        break;
    }
    return {Kind::kNone, 0};
  }
  void Push(Value v) {
    // An array of small numbers takes eight times its text here.
    if (stack_.size() == stack_.capacity()) builder_.budget().Take(stack_.size() * sizeof(Value));
    stack_.push_back(v);
  }

  Builder& builder_;
  std::vector<Value> stack_;
  std::vector<std::size_t> opened_;
};

}  // namespace plimsoll::snapshot
