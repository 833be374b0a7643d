// Error texts as people paste them, each with what an expert reads from it:
// tests/data/errors/corpus. A file has many cases; "=== name" begins one, lines "key: value" say
// what is expected, and the text follows behind "---". Those of harmless.txt must be refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "answer/invariants.h"
#include "diagnose/explain.h"
#include "readers/error_text/error_text.h"

namespace plimsoll::error_corpus_test {

struct Case {
  std::string name;
  std::vector<std::pair<std::string, std::string>> expected;
  std::string text;
};

std::vector<Case> CasesOf(const std::filesystem::path& path) {
  std::vector<Case> cases;
  std::ifstream file(path, std::ios::binary);
  bool in_text = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("=== ")) {
      cases.push_back({.name = path.stem().string() + "/" + line.substr(4)});
      in_text = false;
    } else if (in_text) {
      cases.back().text += line + "\n";
    } else if (line == "---") {
      in_text = true;
    } else if (const std::size_t colon = line.find(": "); colon != std::string::npos) {
      cases.back().expected.emplace_back(line.substr(0, colon), line.substr(colon + 2));
    }
  }
  // A text that was cut off has no last line end.
  for (Case& c : cases) {
    if (c.name.find("/cut_") != std::string::npos) c.text.pop_back();
  }
  return cases;
}

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  std::set<std::filesystem::path> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(PLIMSOLL_TEST_DATA) + "/errors/corpus")) {
    files.insert(entry.path());
  }
  for (const auto& path : files) {
    for (Case& c : CasesOf(path)) cases.push_back(std::move(c));
  }
  return cases;
}

const std::map<std::string, MessageSource> kSources = {
    {"cuda", MessageSource::kTorchCuda},
    {"hip", MessageSource::kTorchHip},
    {"xpu", MessageSource::kTorchXpu},
    {"mps", MessageSource::kTorchMps},
    {"npu", MessageSource::kTorchNpu},
    {"other_device", MessageSource::kTorchOtherDevice},
    {"async", MessageSource::kTorchAsync},
    {"rejected", MessageSource::kTorchRejected},
    {"absurd", MessageSource::kTorchAbsurd},
    {"nvml", MessageSource::kTorchNvml},
    {"cuda_runtime", MessageSource::kCudaRuntime},
    {"hip_runtime", MessageSource::kHipRuntime},
    {"cublas", MessageSource::kCublas},
    {"cudnn", MessageSource::kCudnn},
    {"nccl", MessageSource::kNccl},
    {"host", MessageSource::kHostMemory},
    {"gaudi", MessageSource::kHabana},
    {"tensorflow", MessageSource::kTensorFlow},
    {"jax", MessageSource::kJax},
    {"ggml", MessageSource::kGgml},
    {"paddle", MessageSource::kPaddle},
    {"cupy", MessageSource::kCupy},
    {"onnx", MessageSource::kOnnxRuntime},
    {"tensorrt", MessageSource::kTensorRt},
    {"directml", MessageSource::kDirectMl},
    {"mlx", MessageSource::kMlx},
    {"rmm", MessageSource::kRmm},
    {"bitsandbytes", MessageSource::kBitsandbytes},
    {"server", MessageSource::kServer},
    {"unknown", MessageSource::kUnknown},
    {"address", MessageSource::kVirtualAddress}};

const std::map<std::string, HostEvent> kHosts = {
    {"request", HostEvent::kRequest},     {"pinned", HostEvent::kPinned},
    {"page_file", HostEvent::kPageFile},  {"shared", HostEvent::kSharedMemory},
    {"worker", HostEvent::kWorkerKilled}, {"kernel", HostEvent::kKernelKill},
    {"cgroup", HostEvent::kCgroupKill},   {"slurm", HostEvent::kSlurmKill},
    {"batch", HostEvent::kBatchKill},     {"kubernetes", HostEvent::kKubernetesKill},
    {"node", HostEvent::kNodePressure},   {"lost", HostEvent::kWorkerLost},
    {"systemd", HostEvent::kSystemdKill}, {"java", HostEvent::kJavaHeap},
    {"ray", HostEvent::kRayKill},         {"killed", HostEvent::kKilled}};

const std::map<std::string, Stage> kStages = {
    {"unknown", Stage::kUnknown},       {"load", Stage::kLoad},
    {"build", Stage::kBuild},           {"transfer", Stage::kTransfer},
    {"forward", Stage::kForward},       {"loss", Stage::kLoss},
    {"backward", Stage::kBackward},     {"all_gather", Stage::kAllGather},
    {"optimizer", Stage::kOptimizer},   {"evaluation", Stage::kEvaluation},
    {"generation", Stage::kGeneration}, {"save", Stage::kSave}};

using SizeField = std::optional<Bytes> OomMessage::*;
const std::map<std::string, SizeField> kSizes = {
    {"requested", &OomMessage::requested}, {"capacity", &OomMessage::capacity},
    {"free", &OomMessage::free},           {"allocated", &OomMessage::allocated},
    {"reserved", &OomMessage::reserved},   {"unallocated", &OomMessage::reserved_free},
    {"allowed", &OomMessage::allowed},     {"pools", &OomMessage::private_pools},
    {"active", &OomMessage::active},       {"other", &OomMessage::other}};

/// Everything that the answer says, to be searched.
std::string Everything(const Explanation& e) {
  std::string all = e.verdict + "\n";
  for (const Finding& f : e.findings) {
    all += f.title + "\n";
    for (const std::string& line : f.evidence) all += line + "\n";
    for (const Remedy& r : f.remedies) {
      all += r.change + "\n" + r.costs + "\n";
      for (const std::string& line : r.code) all += line + "\n";
    }
  }
  for (const RuledOut& excluded : e.ruled_out) all += excluded.because + "\n";
  for (const std::string& line : e.arithmetic) all += line + "\n";
  for (const std::string& line : e.record_next.Lines()) all += line + "\n";
  for (const RankReport& rank : e.ranks) {
    for (const std::string& note : rank.notes) all += note + "\n";
  }
  return all;
}

std::string Text(const std::optional<int>& number) {
  return number ? std::to_string(*number) : "none";
}

/// The message that the answer is about: of the rank and device of its first entry, with the
/// figures of its account.
const OomMessage& Decisive(const Recording& recording, const Explanation& e) {
  const RankReport& rank = e.ranks.front();
  const OomMessage* found = &recording.messages.front();
  for (const OomMessage& m : recording.messages) {
    const bool same = m.rank == rank.rank && m.device == rank.device && m.allowed == rank.limit &&
                      m.allocated == rank.instant.allocated;
    if (same && !m.survived) found = &m;
  }
  return *found;
}

bool CheckField(const std::string& key, const std::string& value, const OomMessage& m) {
  if (const auto size = kSizes.find(key); size != kSizes.end()) {
    const std::optional<Bytes>& got = m.*size->second;
    if (value == "none") {
      EXPECT_EQ(got, std::nullopt) << key;
      return true;
    }
    const Result<Bytes> want = ParseBytes(value);
    EXPECT_TRUE(want.ok()) << key << " " << value;
    EXPECT_TRUE(got.has_value()) << key;
    EXPECT_NEAR(double(got.value_or(0)), double(*want), double(*want) * 1e-5 + 1) << key;
    return true;
  }
  if (key == "source") {
    EXPECT_EQ(m.source, kSources.at(value)) << key;
  } else if (key == "host") {
    EXPECT_EQ(m.host, kHosts.at(value)) << key;
  } else if (key == "device") {
    EXPECT_EQ(Text(m.device), value) << key;
  } else if (key == "rank") {
    EXPECT_EQ(Text(m.rank), value) << key;
  } else if (key == "stage") {
    EXPECT_EQ(m.stage, kStages.at(value)) << key << " " << value;
  } else if (key == "cgroup") {
    EXPECT_EQ(m.cgroup, value) << key;
  } else if (key == "where") {
    EXPECT_EQ(m.where, value);
  } else if (key == "processes") {
    EXPECT_EQ(std::to_string(m.processes.size()), value) << key;
  } else if (key == "torch") {
    EXPECT_EQ(m.torch ? m.torch->ToString() : "", value);
  } else {
    return false;
  }
  return true;
}

/// The remedy that is told first: its words and its lines of code.
std::string FirstRemedy(const Explanation& e) {
  for (const Finding& f : e.findings) {
    if (f.remedies.empty()) continue;
    std::string text = f.remedies.front().change;
    for (const std::string& line : f.remedies.front().code) text += "\n" + line;
    return text;
  }
  return "";
}

/// The levers of all remedies, in their order.
std::vector<std::string> LeversOf(const Explanation& e) {
  std::vector<std::string> levers;
  for (const Finding& f : e.findings) {
    for (const Remedy& r : f.remedies) levers.emplace_back(LeverName(r.lever));
  }
  return levers;
}

bool CheckRemedies(const std::string& key, const std::string& value, const Explanation& e) {
  const std::vector<std::string> levers = LeversOf(e);
  if (key == "first") {
    EXPECT_NE(FirstRemedy(e).find(value), std::string::npos)
        << "first is: " << FirstRemedy(e) << "\nlacks: " << value;
  } else if (key == "lever") {
    EXPECT_EQ(levers.empty() ? "none" : levers.front(), value) << FirstRemedy(e);
  } else if (key == "no_lever") {
    EXPECT_EQ(std::count(levers.begin(), levers.end(), value), 0) << value << "\n" << Everything(e);
  } else {
    return false;
  }
  return true;
}

bool CheckAnswer(const std::string& key, const std::string& value, const Recording& recording,
                 const Explanation& e) {
  const std::string all = Everything(e);
  if (key == "cause") {
    EXPECT_EQ(OomCauseName(e.ranks.front().ooms.back().why), value);
  } else if (key == "finding") {
    EXPECT_EQ(FindingName(e.findings.front().id), value);
  } else if (key == "severity") {
    EXPECT_EQ(SeverityName(e.findings.front().severity), value);
  } else if (key == "says") {
    EXPECT_NE(all.find(value), std::string::npos) << "lacks: " << value << "\n" << all;
  } else if (key == "not") {
    EXPECT_EQ(all.find(value), std::string::npos) << "has: " << value << "\n" << all;
  } else if (key == "fatal") {
    EXPECT_EQ(e.ranks.front().ooms.back().fatal ? "yes" : "no", value) << key;
  } else if (key == "messages") {
    EXPECT_EQ(std::to_string(recording.messages.size()), value) << key;
  } else if (key == "ranks") {
    EXPECT_EQ(std::to_string(e.ranks.size()), value) << key;
  } else {
    return false;
  }
  return true;
}

/// Lines add up to the capacity where it is known, unless the host lends memory; of a program that
/// met a limit of its own, to that.
void CheckAccount(const RankReport& rank) {
  Bytes sum = 0;
  for (const AccountLine& line : rank.account) sum += line.bytes;
  const bool whole = BytesOf(rank.account, AccountItem::kFree) > 0 && rank.instant.allocated;
  if (!rank.capacity || rank.instant.reserved.value_or(0) > *rank.capacity) return;
  EXPECT_LE(sum, *rank.capacity);
  if (!whole) return;
  const bool of_limit = rank.account.back().because == "what is left of the limit";
  const Bytes all = of_limit ? *rank.limit : *rank.capacity;
  EXPECT_NEAR(double(sum), double(all), double(32 * kMiB));
}

/// Texts of harmless.txt only speak of running out of memory, or are about something else.
bool IsHarmless(const Case& c) { return c.name.starts_with("harmless/"); }

TEST(ErrorCorpus, EveryTextIsReadAndJudged) {
  const std::vector<Case> cases = AllCases();
  EXPECT_GE(cases.size(), 470u);
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    if (IsHarmless(c)) {
      EXPECT_FALSE(RecogniseErrorText(c.text));
      continue;
    }
    ASSERT_TRUE(RecogniseErrorText(c.text));
    Result<Input> input = Input::FromMemory("run.log", c.text);
    ASSERT_TRUE(input.ok());
    const Result<Recording> recording = ReadErrorText(*input);
    ASSERT_TRUE(recording.ok());
    ASSERT_FALSE(recording->messages.empty());
    const Result<Explanation> e = ExplainRecording(*recording, {});
    ASSERT_TRUE(e.ok());
    ASSERT_FALSE(e->findings.empty());
    for (const std::string& sentence : BrokenInvariants(*e)) ADD_FAILURE() << sentence;
    for (const RankReport& rank : e->ranks) CheckAccount(rank);
    const OomMessage& message = Decisive(*recording, *e);
    for (const auto& [key, value] : c.expected) {
      const bool known = CheckField(key, value, message) || CheckRemedies(key, value, *e) ||
                         CheckAnswer(key, value, *recording, *e);
      EXPECT_TRUE(known) << "no such expectation: " << key;
    }
  }
}

TEST(ErrorCorpus, TextsAboutOtherThingsAreNotRead) {
  for (const char* text : {"epoch 3: loss 0.25, 11.2 GiB used", "Process finished with exit code 0",
                           "\"OOMKilled\": false, \"ExitCode\": 0", "exitcode: -15",
                           "worker exited with code 1", "Test killed by the user request",
                           "DataLoader worker (pid 7) is killed by signal: "
                           "Segmentation fault.",
                           "Stats: 25 images, Limit: none", "invoked with arguments",
                           "Detected 3 cameras in step 4"}) {
    EXPECT_FALSE(RecogniseErrorText(text)) << text;
  }
}

}  // namespace plimsoll::error_corpus_test
