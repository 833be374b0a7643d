// Whole snapshots, through every command. The fuzzer's bytes are no file but a list of changes to a
// small one that is valid: an address at the end of the address space, a list that is repeated, an
// action in the wrong place. So most runs come past the reader, and into what computes.
#include <array>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "allocator/record/ledger.h"
#include "diagnose/diff.h"
#include "diagnose/explain.h"
#include "diagnose/pack_trace.h"
#include "diagnose/what_if.h"
#include "document.h"
#include "fuzz.h"
#include "fuzz_answers.h"
#include "packing/validate.h"
#include "readers/registry.h"
#include "report/json.h"
#include "report/text.h"
#include "timeline/redact.h"

namespace plimsoll {
namespace {

using hostile::Node;

/// More only makes it slow: what grows too fast shows earlier.
constexpr std::size_t kMostNodes = 4000;
constexpr std::size_t kMostChanges = 64;

/// The fuzzer's bytes, one choice after the other; zeros when they are used up.
class Choices {
 public:
  Choices(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}

  bool Empty() const { return left_ == 0; }
  std::uint64_t Byte() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  std::size_t Below(std::size_t n) {
    const std::uint64_t high = Byte();
    return n == 0 ? 0 : static_cast<std::size_t>((high << 8 | Byte()) % n);
  }
  std::int64_t Number() {
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | Byte();
    return static_cast<std::int64_t>(value);
  }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

constexpr std::array<std::int64_t, 22> kNumbers = {0,
                                                   1,
                                                   -1,
                                                   511,
                                                   512,
                                                   513,
                                                   4096,
                                                   1 << 20,
                                                   (1 << 20) + 1,
                                                   2 << 20,
                                                   20 << 20,
                                                   std::int64_t{1} << 30,
                                                   std::int64_t{1} << 40,
                                                   std::int64_t{1} << 50,
                                                   std::int64_t{1} << 58,
                                                   INT64_MAX,
                                                   INT64_MIN,
                                                   -4096,
                                                   -(1 << 20),
                                                   0x7f2000000000,
                                                   0x7f2000000000 + (4 << 20),
                                                   0x7f2000000000 + (20 << 20)};

constexpr std::array<std::string_view, 22> kTexts = {
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "oom",
    "snapshot",
    "annotate",
    "active_allocated",
    "active_pending_free",
    "inactive",
    "small",
    "",
    "expandable_segments:True,max_split_size_mb:32",
    "garbage_collection_threshold:0.6,roundup_power2_divisions:[256:1,>:4]",
    "/site-packages/torch/nn/modules/module.py",
    "/site-packages/torch/optim/adam.py",
    "_call_impl",
    "=cmd|' /C calc'!A0\x1b[31m\xe2\x80\xae",
    "  File \"model.py\", line 3, in forward\n  File \"a\", line 99999999999, in b\n"};

/// More addresses and times where there are more events: a list that is merely repeated says
/// little.
void Shift(Node& node, std::int64_t by) {
  for (auto& [key, value] : node.fields) {
    const bool place = key == "addr" || key == "address" || key == "time_us";
    if (place && value.kind == Node::kInt) {
      value.number = static_cast<std::int64_t>(static_cast<std::uint64_t>(value.number) +
                                               static_cast<std::uint64_t>(by));
    }
  }
}

void Repeat(Node& list, Choices& choices) {
  if (list.items.empty()) return;
  const Node item = list.items[choices.Below(list.items.size())];
  const std::size_t times = choices.Byte();
  const std::int64_t step = kNumbers[choices.Below(kNumbers.size())];
  for (std::size_t i = 0; i < times; ++i) {
    list.items.push_back(item);
    Shift(list.items.back(), static_cast<std::int64_t>(static_cast<std::uint64_t>(step) * (i + 1)));
  }
}

void Alter(Node& root, Choices& choices) {
  const std::vector<Node*> all = hostile::AllNodes(root);
  Node& node = *all[choices.Below(all.size())];
  switch (choices.Byte() % 8) {
    case 0:
      node = {.kind = Node::kInt, .number = kNumbers[choices.Below(kNumbers.size())]};
      break;
    case 1:
      node = {.kind = Node::kInt, .number = choices.Number()};
      break;
    case 2:
      node = {.kind = Node::kText, .text = std::string(kTexts[choices.Below(kTexts.size())])};
      break;
    case 3: {
      Node other = *all[choices.Below(all.size())];  // a copy: it may hold the node
      if (all.size() + hostile::AllNodes(other).size() < kMostNodes) node = std::move(other);
      break;
    }
    case 4:
      if (all.size() < kMostNodes) Repeat(node, choices);
      break;
    case 5:
      if (!node.items.empty()) node.items.pop_back();
      if (!node.fields.empty()) node.fields.pop_back();
      break;
    case 6:
      if (node.items.size() > 1) {
        std::swap(node.items[choices.Below(node.items.size())], node.items.back());
      }
      break;
    case 7:
      if (node.kind == Node::kInt) {
        node.number = static_cast<std::int64_t>(
            static_cast<std::uint64_t>(node.number) +
            static_cast<std::uint64_t>(kNumbers[choices.Below(kNumbers.size())]));
      }
      break;
  }
}

void ExplainAndCompare(const Recording& recording) {
  const std::optional<Explanation> answer = ExplainAndPrint(recording);
  if (!answer || answer->ranks.size() < 2) return;
  if (const auto difference = Compare(answer->ranks[0], answer->ranks[1])) {
    PLIMSOLL_CHECK(!DifferenceText(*difference, {}).empty());
  }
}

void ReplayAndTune(const Recording& recording) {
  for (const Timeline& timeline : recording.timelines) {
    const WhatIfOptions options;
    const AnalysedTrace trace(timeline);
    const Result<ReplayableJob> job = PrepareJob(recording, trace, options);
    if (!job) {
      CheckError(job.error());
      continue;
    }
    if (const auto replayed = ReplayJob(*job, options)) {
      PLIMSOLL_CHECK(!ReplayJson(*replayed, false).empty());
    }
    PLIMSOLL_CHECK(!TuneJson(TuneJob(*job, options, {})).empty());
  }
}

void PackLifetimes(const Recording& recording) {
  for (const Timeline& timeline : recording.timelines) {
    const Problem problem = PackingProblem(timeline, Follow(timeline));
    const Result<PackResult> packed = Pack(problem, {.seconds = 0.01, .most_nodes = 1000});
    if (!packed) {
      CheckError(packed.error());
    } else {
      PLIMSOLL_CHECK(!FindFault(problem, packed->packing));
    }
  }
}

}  // namespace
}  // namespace plimsoll

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace plimsoll;
  Choices choices(data, size);
  const bool pickle = (choices.Byte() & 1) == 0;
  hostile::Node snapshot = hostile::SmallSnapshot();
  for (std::size_t i = 0; i < kMostChanges && !choices.Empty(); ++i) Alter(snapshot, choices);
  const Result<Input> input =
      Input::FromMemory("fuzz", pickle ? hostile::AsPickle(snapshot) : hostile::AsJson(snapshot));
  PLIMSOLL_CHECK(input.ok());
  Result<Recording> recording = Read(*input);
  if (!recording) {
    CheckError(recording.error());
    return 0;
  }
  CheckRecording(*recording);
  ExplainAndCompare(*recording);
  Draw(*recording);
  ReplayAndTune(*recording);
  PackLifetimes(*recording);
  RedactFileNames(*recording, 7);
  ExplainAndCompare(*recording);
  return 0;
}
