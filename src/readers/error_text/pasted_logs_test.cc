// The logs in tests/data/errors, whole and cut.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "readers/error_text/testing.h"

namespace plimsoll::pasted_logs_test {
namespace {

std::map<std::string, std::string> Logs() {
  std::map<std::string, std::string> logs;
  const std::string folder = std::string(PLIMSOLL_TEST_DATA) + "/errors";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".txt") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    logs[entry.path().stem()] = std::string(std::istreambuf_iterator<char>(file), {});
  }
  return logs;
}

TEST(PastedLogs, EachHoldsAMessage) {
  const std::map<std::string, std::string> logs = Logs();
  EXPECT_GE(logs.size(), 20u);
  for (const auto& [name, text] : logs) {
    EXPECT_TRUE(RecogniseErrorText(text)) << name;
    EXPECT_GE(ReadText(text).messages.size(), 1u) << name;
  }
}

TEST(PastedLogs, FieldsOfTheHardestOnes) {
  const std::map<std::string, std::string> logs = Logs();
  const Recording mixed = ReadText(logs.at("torch_2_11_two_ranks_mixed"));
  ASSERT_EQ(mixed.messages.size(), 2u);
  EXPECT_EQ(mixed.messages[0].rank, 3);
  EXPECT_EQ(mixed.messages[1].rank, 5);
  EXPECT_EQ(mixed.messages[1].where, "train.py:157 in main");
  const OomMessage wrapped = ReadOne(logs.at("torch_2_4_private_pools_wrapped80"));
  EXPECT_EQ(wrapped.private_pools, GiB(3.25));
  EXPECT_EQ(wrapped.where, "serve.py:41 in decode");
  const OomMessage json = ReadOne(logs.at("torch_json_log"));
  EXPECT_EQ(json.rank, 0);
  EXPECT_EQ(json.reserved_free, GiB(8.74));
  const OomMessage cut = ReadOne(logs.at("torch_cut_off"));
  EXPECT_TRUE(cut.cut_off);
  EXPECT_EQ(cut.free, MiB(704.88));
}

TEST(PastedLogs, NotebooksNameTheirCell) {
  constexpr const char* kMessage =
      "OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 has a total "
      "capacity "
      "of 23.65 GiB of which 777.06 MiB is free.\n";
  const std::string head = "OutOfMemoryError            Traceback (most recent call last)\n";
  const std::string library =
      "/usr/lib/python3/dist-packages/torch/nn/functional.py in relu(input)\n"
      "   1296     else:\n-> 1297         result = torch.relu(input)\n\n";
  EXPECT_EQ(
      ReadOne(head + "<ipython-input-9-aabb> in forward(self, x)\n     22   a\n---> 23   b\n\n" +
              library + kMessage)
          .where,
      "<ipython-input-9-aabb>:23 in forward");
  EXPECT_EQ(ReadOne(head + "~/proj/net.py in forward(self, x)\n     22   a\n---> 23   b\n\n" +
                    library + kMessage)
                .where,
            "net.py:23 in forward");
  EXPECT_EQ(ReadOne(head + "Cell In[9], line 23, in Net.forward(self, x)\n---> 23   b\n\n" +
                    library + kMessage)
                .where,
            "Cell In[9]:23 in Net.forward");
}

TEST(PastedLogs, CutAnywhereTheyAreStillRead) {
  for (const auto& [name, text] : Logs()) {
    for (std::size_t cut = 0; cut < text.size(); ++cut) {
      EXPECT_LE(ReadText(text.substr(0, cut)).messages.size(), 2u) << name << " " << cut;
    }
  }
}

}  // namespace
}  // namespace plimsoll::pasted_logs_test
