#include "files/pickle_writer.h"

#include <gtest/gtest.h>

namespace plimsoll::pickle_writer_test {
namespace {

TEST(PickleWriter, WritesWhatPythonReads) {
  std::string bytes;
  PickleWriter pickle([&](std::string_view more) { bytes += more; });
  pickle.BeginDict();
  pickle.Text("a");
  pickle.Number(7);
  pickle.Text("b");
  pickle.BeginList();
  pickle.Number(300);
  pickle.Number(-1);
  pickle.Text("a");
  pickle.EndList();
  pickle.EndDict();
  pickle.Finish();
  // pickle.loads of this is {"a": 7, "b": [300, -1, "a"]}.
  using namespace std::string_literals;
  EXPECT_EQ(bytes,
            "\x80\x02}(X\x01\x00\x00\x00\x61r\x00\x00\x00\x00K\x07"
            "X\x01\x00\x00\x00\x62r\x01\x00\x00\x00](M\x2c\x01J\xff\xff\xff\xffj\x00\x00\x00\x00"
            "eu."s);
}

TEST(PickleWriter, HandsOverAsItGoes) {
  std::size_t most = 0;
  std::size_t all = 0;
  PickleWriter pickle([&](std::string_view more) {
    most = std::max(most, more.size());
    all += more.size();
  });
  pickle.BeginList();
  for (std::int64_t i = 0; i < 100000; ++i) {
    pickle.Number(i << 40);
    pickle.Split();
  }
  pickle.EndList();
  pickle.Finish();
  EXPECT_GT(all, 900000);
  EXPECT_LT(most, 128 << 10);
}

}  // namespace
}  // namespace plimsoll::pickle_writer_test
