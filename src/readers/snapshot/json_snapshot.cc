// The JSON form of a snapshot, as memory_viz and Mosaic accept it.
#include <bit>
#include <nlohmann/json.hpp>

#include "readers/snapshot/builder.h"
#include "readers/snapshot/snapshot.h"

namespace plimsoll {
namespace {

using snapshot::Builder;
using snapshot::Kind;
using snapshot::kNoMemo;
using snapshot::Value;

/// Hands containers to the builder when they close; nlohmann's parser is not recursive.
class JsonHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit JsonHandler(Builder& builder) : builder_(builder) {}

  bool null() override { return Push({Kind::kNone, 0}); }
  bool boolean(bool v) override { return Push({Kind::kBool, v ? 1u : 0u}); }
  bool number_integer(number_integer_t v) override { return Push(Value::Int(v)); }
  bool number_unsigned(number_unsigned_t v) override { return Push({Kind::kInt, v}); }
  bool number_float(number_float_t v, const string_t&) override {
    return Push({Kind::kFloat, std::bit_cast<std::uint64_t>(v)});
  }
  bool string(string_t& v) override { return Push(builder_.String(v)); }
  bool binary(binary_t&) override { return Push({Kind::kOpaque, 0}); }
  bool key(string_t& v) override { return Push(builder_.String(v)); }
  bool start_object(std::size_t) override { return Open({Kind::kNewDict, kNoMemo}); }
  bool start_array(std::size_t) override { return Open({Kind::kNewList, kNoMemo}); }
  bool end_object() override {
    builder_.Extend(stack_[opened_.back()], Items());
    return Close();
  }
  bool end_array() override {
    builder_.Append(stack_[opened_.back()], Items());
    return Close();
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    offset_ = position > 0 ? position - 1 : 0;  // it counts the byte that it stopped at
    // "[json.exception.parse_error.101] parse error at line 1, column 9: what went wrong"
    message_ = error.what();
    const std::size_t colon = message_.find(": ");
    if (colon != std::string::npos) message_.erase(0, colon + 2);
    return false;
  }

  Value root() const { return stack_.empty() ? Value{} : stack_.front(); }
  std::size_t offset() const { return offset_; }
  const std::string& message() const { return message_; }

 private:
  bool Push(Value v) {
    // An array of small numbers takes eight times its text here.
    if (stack_.size() == stack_.capacity()) builder_.budget().Take(stack_.size() * sizeof(Value));
    stack_.push_back(v);
    return !builder_.budget().spent();
  }
  bool Open(Value v) {
    // A snapshot is six levels deep.
    constexpr std::size_t kDeepest = 512;
    if (opened_.size() >= kDeepest) {
      message_ = "it is nested too deeply for a snapshot";
      return false;
    }
    opened_.push_back(stack_.size());
    return Push(v);
  }
  bool Close() {
    stack_.resize(opened_.back() + 1);
    opened_.pop_back();
    return true;
  }
  std::span<const Value> Items() const { return std::span(stack_).subspan(opened_.back() + 1); }

  Builder& builder_;
  std::vector<Value> stack_;
  std::vector<std::size_t> opened_;
  std::size_t offset_ = 0;
  std::string message_;
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
  const bool fine = nlohmann::json::sax_parse(input.bytes(), &handler);
  if (builder.budget().spent()) return ReadBudget::Refusal();
  if (!fine) {
    return Error{.message = "the JSON cannot be read: " + handler.message(),
                 .file = input.name(),
                 .offset = handler.offset(),
                 .hint = "was the file cut off?"};
  }
  Result<Recording> recording = builder.Finish(handler.root());
  if (recording) {
    recording->file = input.name();
    recording->format = "PyTorch memory snapshot (JSON)";
  }
  return recording;
}

}  // namespace plimsoll
