// The JSON form of a snapshot, as memory_viz and Mosaic accept it.
#include <bit>

#include "files/json_visit.h"
#include "readers/snapshot/builder.h"
#include "readers/snapshot/snapshot.h"

namespace plimsoll {
namespace {

using snapshot::Builder;
using snapshot::Kind;
using snapshot::kNoMemo;
using snapshot::Value;

/// Hands containers to the builder when they close.
class JsonHandler : public JsonVisitor {
 public:
  explicit JsonHandler(Builder& builder) : builder_(builder) {}

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

}  // namespace

bool RecogniseJsonSnapshot(std::string_view bytes) {
  const std::size_t first = bytes.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  if (first == std::string_view::npos || (bytes[first] != '{' && bytes[first] != '[')) return false;
  const std::string_view head = bytes.substr(first, std::size_t{1} << 20);
  // The segments come first in what PyTorch writes; a re-written file may have any order.
  return head.find("\"segments\"") != std::string_view::npos ||
         head.find("\"device_traces\"") != std::string_view::npos ||
         head.find("\"total_size\"") != std::string_view::npos;
}

Result<Recording> ReadJsonSnapshot(const Input& input) {
  Builder builder(input.size());
  JsonHandler handler(builder);
  if (std::optional<Error> fault = VisitJson(input, handler)) {
    if (builder.budget().spent()) return ReadBudget::Refusal();
    return *std::move(fault);
  }
  Result<Recording> recording = builder.Finish(handler.root());
  if (recording) {
    recording->file = input.name();
    recording->format = "PyTorch memory snapshot (JSON)";
  }
  return recording;
}

}  // namespace plimsoll
