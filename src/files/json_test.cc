#include "files/json.h"

#include <gtest/gtest.h>

#include <cmath>

namespace plimsoll::json_test {

Json Read(std::string text) {
  const Result<Input> input = Input::FromMemory("a.json", std::move(text));
  Result<Json> read = ReadJson(*input);
  EXPECT_TRUE(read) << read.error().ToLine();
  return read ? *std::move(read) : Json();
}

std::string Fault(std::string text) {
  const Result<Input> input = Input::FromMemory("a.json", std::move(text));
  const Result<Json> read = ReadJson(*input);
  return read ? "" : read.error().ToLine();
}

TEST(Json, BracesMakeObjectsAndArrays) {
  const Json json = {{"name", "x"}, {"sizes", {1, 2}}, {"none", nullptr}, {"empty", Json::array()}};
  EXPECT_EQ(WriteJson(json), R"({"name":"x","sizes":[1,2],"none":null,"empty":[]})");
  EXPECT_EQ(WriteJson(json, 1),
            "{\n \"name\": \"x\",\n \"sizes\": [\n  1,\n  2\n ],\n \"none\": null,\n"
            " \"empty\": []\n}");
}

TEST(Json, AnswersNothingWhereItIsSomethingElse) {
  const Json json = Read(R"({"a": [1, -2, 3.5, true, "t"], "big": 18446744073709551615})");
  EXPECT_EQ(json["a"][0].integer(), 1);
  EXPECT_EQ(json["a"][1].integer(), -2);
  EXPECT_FALSE(json["a"][1].whole());
  EXPECT_FALSE(json["a"][2].integer());
  EXPECT_EQ(json["a"][2].number(), 3.5);
  EXPECT_EQ(json["a"][3].boolean(), true);
  EXPECT_EQ(TextOr(json["a"][4], "else"), "t");
  EXPECT_EQ(TextOr(json["a"][5], "else"), "else");
  EXPECT_FALSE(json["big"].integer());
  EXPECT_EQ(json["big"].whole(), 18446744073709551615u);
  EXPECT_TRUE(json["none"]["deeper"][7].is_null());
  EXPECT_TRUE(json["a"].members().empty());
}

TEST(Json, NumbersCompareByTheirValue) {
  EXPECT_EQ(Read("[1, 2.0]"), Json({1, 2}));
  EXPECT_NE(Read("[18446744073709551615]"), Json({-1}));
  EXPECT_EQ(Read(R"({"a": 1, "b": 2})"), Read(R"({"b": 2, "a": 1})"));
  EXPECT_EQ(Read(R"({"a": 1, "a": 2})")["a"], 2);
}

TEST(Json, TextsAreEscapedAndValid) {
  EXPECT_EQ(WriteJson(Json("a\"\\\n\x01z")), R"("a\"\\\n\u0001z")");
  EXPECT_EQ(WriteJson(Json(std::string("\xc3\xa4\xff\xc3"))),
            "\"\xc3\xa4\xef\xbf\xbd\xef\xbf\xbd\"");
}

TEST(Json, NumbersComeBackAsTheyWere) {
  for (const double value : {0.0, 1.0, -0.1, 1e-5, 123456.75, 1e15, 1.7976931348623157e308}) {
    EXPECT_EQ(Read(WriteJson(Json(value))).number(), value) << WriteJson(Json(value));
  }
  EXPECT_EQ(WriteJson(Json(2.0)), "2.0");
  EXPECT_EQ(WriteJson(Json(NAN)), "null");
  EXPECT_EQ(WriteJson(Json(std::int64_t{-5})), "-5");
}

TEST(Json, SaysWhereItIsBroken) {
  EXPECT_EQ(Fault("[1, 2").substr(0, 41), "a.json: offset 5: the JSON ends too early");
  EXPECT_EQ(Fault("[1, x]").substr(0, 30), "a.json: offset 4: not valid JS");
}

TEST(Json, NestingAndSizeHaveABudget) {
  EXPECT_NE(Fault(std::string(1'000'000, '[')).find("nested more than 128 deep"),
            std::string::npos);
  std::string wide = "[[]";
  for (int i = 0; i < 4'000'000; ++i) wide += ",[]";
  EXPECT_NE(Fault(wide + "]").find("unfolds"), std::string::npos);
}

/// Takes the numbers of every "rows" of a list "tables".
class Rows : public JsonItems {
 public:
  std::span<const std::string_view> path() const override {
    static constexpr std::string_view kPath[] = {"tables", "*", "rows"};
    return kPath;
  }
  bool Take(const Json& so_far, const Json& item) override {
    if (!item.integer() && !item.is_array()) return false;
    taken += TextOr(so_far["tables"].items().back()["name"], "?") + WriteJson(item) + " ";
    return true;
  }
  std::string taken;
};

TEST(Json, HandsOverTheItemsOfLongLists) {
  const Result<Input> input = Input::FromMemory(
      "a.json", R"({"rows": [0], "tables": [{"name": "a", "rows": [1, [2, {"rows": [3]}], "x"]},
                    {"rows": [4], "name": "b"}, {"name": "c", "rows": {"rows": [5]}}], "n": [6]})");
  ReadBudget budget(*input);
  Rows rows;
  const Result<Json> rest = ReadJson(*input, budget, rows);
  ASSERT_TRUE(rest) << rest.error().ToLine();
  EXPECT_EQ(rows.taken, "a1 a[2,{\"rows\":[3]}] ?4 ");
  EXPECT_EQ(WriteJson(*rest),
            R"({"rows":[0],"tables":[{"name":"a","rows":["x"]},{"rows":[],"name":"b"},)"
            R"({"name":"c","rows":{"rows":[5]}}],"n":[6]})");
}

TEST(Json, WhatIsHandedOverDoesNotAddUp) {
  std::string text = R"({"tables": [{"rows": [)";
  for (int i = 0; i < 10'000; ++i) text += "[1,2,3,4,5,6,7,8],";
  text += "1]}]}";
  const Result<Input> input = Input::FromMemory("a.json", text);
  ReadBudget whole(*input), parts(*input);
  const std::size_t before = whole.left();
  Rows rows;
  EXPECT_TRUE(ReadJson(input->bytes(), whole));
  EXPECT_TRUE(ReadJson(*input, parts, rows));
  EXPECT_GT(before - whole.left(), 10 * text.size());
  EXPECT_LT(before - parts.left(), 1000u);
}

}  // namespace plimsoll::json_test
