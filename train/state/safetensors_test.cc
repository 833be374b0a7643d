#include "train/state/safetensors.h"

#include <gtest/gtest.h>

#include <string>

namespace plimsoll::train::safetensors_test {
namespace {

std::string FileOf(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + data;
}

Result<SafeTensors> Read(const std::string& bytes) {
  static std::optional<Input> kept;
  kept.emplace(*Input::FromMemory("weights", bytes));
  return ReadSafetensors(*kept);
}

TEST(Safetensors, ReadsWhatItWrites) {
  SafeTensors tensors;
  tensors["b"] = {.type = ElementType::kBfloat16, .sizes = {3}, .bytes = "abcdef"};
  tensors["a.weight"] = {.type = ElementType::kInt8, .sizes = {2, 2}, .bytes = "1234"};
  tensors["empty"] = {.type = ElementType::kFloat32, .sizes = {0, 5}, .bytes = ""};
  tensors["one"] = {.type = ElementType::kFloat64, .sizes = {}, .bytes = "12345678"};
  const Result<std::string> bytes = WriteSafetensors(tensors);
  ASSERT_TRUE(bytes.ok());
  const Result<SafeTensors> read = Read(*bytes);
  ASSERT_TRUE(read.ok());
  ASSERT_EQ(read->size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(read->at(name).type, tensor.type) << name;
    EXPECT_EQ(read->at(name).sizes, tensor.sizes) << name;
    EXPECT_EQ(read->at(name).bytes, tensor.bytes) << name;
  }
}

TEST(Safetensors, ReadsThatOfOthers) {
  // As the format's own library writes it, with metadata.
  const auto read = Read(FileOf(
      R"({"__metadata__":{"format":"pt"},"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
      "12345678"));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->at("x").sizes, std::vector<std::int64_t>{2});
}

TEST(Safetensors, RefusesWhatIsWrong) {
  const std::string eight = "12345678";
  const auto entry = [](const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
    return R"({"x":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
           offsets + "}}";
  };
  const std::string wrong[] = {
      "",
      "1234567",
      FileOf("", ""),
      FileOf("[]", ""),
      FileOf("{", ""),
      FileOf(std::string(5000, '['), ""),
      std::string(8, '\xff') + "{}",
      FileOf(R"({"x":3})", ""),
      FileOf(entry("F32", "[2]", "[0,4]"), eight),
      FileOf(entry("F32", "[2]", "[4,12]"), eight),
      FileOf(entry("F32", "[2]", "[8,0]"), eight),
      FileOf(entry("F32", "[-2]", "[0,8]"), eight),
      FileOf(entry("F32", "[2.0]", "[0,8]"), eight),
      FileOf(entry("F8_E4M3", "[8]", "[0,8]"), eight),
      FileOf(entry("F32", "[4294967296,4294967296,4294967296]", "[0,8]"), eight),
      FileOf(entry("F32", "[2]", "[0,8]"), eight + "more"),
      FileOf(R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
             R"("y":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
             "123456"),
  };
  for (const std::string& bytes : wrong) {
    const auto read = Read(bytes);
    ASSERT_FALSE(read.ok()) << bytes.substr(0, 80);
    EXPECT_FALSE(read.error().message.empty());
  }
}

TEST(Safetensors, AHeaderUnfoldsToNothingLarge) {
  const Result<SafeTensors> deep = Read(FileOf(std::string(95'000'000, '['), ""));
  ASSERT_FALSE(deep.ok());
  EXPECT_NE(deep.error().ToLine().find("more than one of real weights"), std::string::npos);
  std::string wide = "{\"__metadata__\":[0";
  for (int i = 0; i < 12'000'000; ++i) wide += ",0";
  EXPECT_FALSE(Read(FileOf(wide + "]}", "")).ok());
  // What is quoted is no bracket.
  EXPECT_TRUE(Read(FileOf(R"({"__metadata__":{"a":"[[[[[[[[[[[[[[[[[[[[[\"["}})", "")).ok());
}

TEST(Safetensors, AnyTruncationIsRefused) {
  SafeTensors tensors;
  tensors["x"] = {.type = ElementType::kUint8, .sizes = {100}, .bytes = {}};
  const std::string hundred(100, 'x');
  tensors["x"].bytes = hundred;
  const std::string bytes = *WriteSafetensors(tensors);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(Read(bytes.substr(0, size)).ok()) << size;
  }
}

}  // namespace
}  // namespace plimsoll::train::safetensors_test
