#include "job/file/step_events.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "job/file/step_values.h"

namespace plimsoll::step_file {
namespace {

/// Arguments nest two or three deep; more is not a step file.
constexpr int kDeepest = 8;
/// Storages are numbered as they come, so that far higher ones are a mistake or an attack.
constexpr std::int64_t kMostSkipped = 1 << 16;
constexpr std::int64_t kMostStorages = 1 << 30;

template <typename T>
std::uint32_t Index(const std::vector<T>& list) {
  return static_cast<std::uint32_t>(list.size() - 1);
}

ReleaseEdit::Kind ReadEditKind(const Json& json) {
  static constexpr std::pair<std::string_view, ReleaseEdit::Kind> kKinds[] = {
      {"variable", ReleaseEdit::Kind::kVariable},   {"place", ReleaseEdit::Kind::kPlace},
      {"graph", ReleaseEdit::Kind::kGraph},         {"batch", ReleaseEdit::Kind::kBatch},
      {"gradients", ReleaseEdit::Kind::kGradients},
  };
  for (const auto& [name, kind] : kKinds) {
    if (json.is_text() && *json.text() == name) return kind;
  }
  Refuse("a release has an edit of an unknown kind");
}

std::uint32_t ReadPiece(const Json& json) {
  const std::int64_t piece = Int(json);
  if (piece < 1 || piece > kMostStorages) Refuse(fmt::format("no piece {}", piece));
  return static_cast<std::uint32_t>(piece);
}

bool AreAlike(const Argument& a, const Argument& b) {
  if (a.is.index() != b.is.index()) return false;
  const auto* list = std::get_if<Argument::List>(&a.is);
  if (list == nullptr) return true;
  const auto& other = std::get<Argument::List>(b.is);
  return std::ranges::equal(*list, other,
                            [](const Argument& x, const Argument& y) { return AreAlike(x, y); });
}

/// Whether they are the same call with other numbers.
bool AreAlike(const CallRecord& a, const CallRecord& b) {
  return a.op == b.op && a.results.size() == b.results.size() &&
         std::ranges::equal(a.fresh, b.fresh, {}, &NewStorage::result, &NewStorage::result) &&
         std::ranges::equal(a.args, b.args,
                            [](const Argument& x, const Argument& y) { return AreAlike(x, y); }) &&
         std::ranges::equal(a.kwargs, b.kwargs, [](const auto& x, const auto& y) {
           return x.first == y.first && AreAlike(x.second, y.second);
         });
}

bool AreAlike(const Variant& variant, const Part& a, const Part& b) {
  return std::ranges::equal(a.events, b.events, [&](const JobEvent& x, const JobEvent& y) {
    return x.kind == y.kind && (x.kind != JobEvent::Kind::kCall ||
                                AreAlike(variant.calls[x.index], variant.calls[y.index]));
  });
}

Heaviest ReadHeaviest(const Json& json) {
  if (json.is_text() && *json.text() == "of_all") return Heaviest::kOfAll;
  if (json.is_text() && *json.text() == "of_first") return Heaviest::kOfFirst;
  Refuse("\"heaviest\" is neither \"of_all\" nor \"of_first\"");
}

}  // namespace

StringId EventReader::ReadString(const Json& value) const {
  const std::int64_t index = Int(value);
  if (index == -1) return {};
  if (index < 0 || index >= std::ssize(strings_)) Refuse(fmt::format("no string {}", index));
  return strings_[static_cast<std::size_t>(index)];
}

std::uint32_t EventReader::ReadLayoutIndex(const Json& value) const {
  const std::int64_t index = Int(value);
  if (index < 0 || index >= std::ssize(job_.layouts)) Refuse(fmt::format("no layout {}", index));
  return static_cast<std::uint32_t>(index);
}

Storage EventReader::ReadStorage(const Json& value) {
  const std::int64_t storage = Int(value);
  const std::int64_t most = std::min(variant().storages + kMostSkipped, kMostStorages);
  if (storage < 0 || storage > most) Refuse(fmt::format("no storage {}", storage));
  ++mentions_;
  variant().storages = std::max(variant().storages, static_cast<Storage>(storage + 1));
  return static_cast<Storage>(storage);
}

TensorUse EventReader::ReadTensor(const Json& json) {
  if (!json.is_array() || json.size() != 3) Refuse("a tensor is not [storage, layout, flags]");
  const std::int64_t flags = Int(json[2]);
  return {.storage = ReadStorage(json[0]),
          .layout = ReadLayoutIndex(json[1]),
          .view = (flags & 1) != 0,
          .parameter = (flags & 2) != 0,
          .needs_grad = (flags & 4) != 0};
}

Argument EventReader::ReadArgument(const Json& json, int depth) {
  Keep<Argument>();
  if (depth > kDeepest) Refuse("arguments nest too deep");
  if (json.boolean()) return {*json.boolean()};
  if (json.integer()) return {ReadNumber(json, job_)};
  if (json.number()) return {*json.number()};
  if (json.is_array()) {
    Argument::List list;
    for (const Json& element : json.items()) list.push_back(ReadArgument(element, depth + 1));
    return {std::move(list)};
  }
  if (json.is_object()) {
    if (json.contains("t")) return {ReadTensor(json["t"])};
    if (json.contains("n")) return {ReadNumber(json["n"], job_)};
    if (json.contains("text")) return {ReadString(json["text"])};
  }
  return {};
}

void EventReader::ReadCall(const Json& json) {
  if (json.size() != 9) Refuse("a call does not have nine parts");
  CallRecord& call = variant().calls.emplace_back();
  Keep<CallRecord>();
  call.op = ReadString(json[1]);
  call.where = ReadString(json[2]);
  call.module = ReadString(json[3]);
  call.thread = static_cast<int>(std::clamp<std::int64_t>(Int(json[4]), 0, 1000));
  if (!json[5].is_array() || !json[6].is_object() || !json[7].is_array() || !json[8].is_array()) {
    Refuse("a call's parts are not what they should be");
  }
  for (const Json& value : json[5].items()) call.args.push_back(ReadArgument(value, 0));
  for (const auto& [key, value] : json[6].members()) {
    call.kwargs.emplace_back(job_.strings.Intern(key), ReadArgument(value, 0));
  }
  for (const Json& value : json[7].items()) {
    Keep<TensorUse>();
    if (!value.contains("t")) Refuse("a result is no tensor");
    call.results.push_back(ReadTensor(value["t"]));
  }
  for (const Json& value : json[8].items()) {
    if (!value.is_array() || value.size() < 3 || value.size() > 4) {
      Refuse("a new storage does not have three or four parts");
    }
    NewStorage& fresh = call.fresh.emplace_back();
    Keep<NewStorage>();
    fresh.storage = ReadStorage(value[0]);
    fresh.bytes = ReadCount(value[1], job_);
    const std::int64_t result = Int(value[2]);
    if (result < 0 || result >= std::ssize(call.results)) {
      Refuse(fmt::format("a new storage is that of result {}, which is not there", result));
    }
    fresh.result = static_cast<std::uint32_t>(result);
    if (value.size() == 4) {
      fresh.held_calls = static_cast<std::uint32_t>(
          std::clamp<std::int64_t>(Int(value[3]), 0, std::numeric_limits<std::uint32_t>::max()));
    }
  }
  Add({.kind = JobEvent::Kind::kCall, .index = Index(variant().calls)});
}

void EventReader::Add(const JobEvent& event) {
  Keep<JobEvent>();
  std::vector<Part>& later = variant().later;
  (later.empty() ? variant().events : later.back().events).push_back(event);
}

void EventReader::ReadModelTensor(const Json& json, bool buffer) {
  if (json.size() < 4) Refuse("a parameter or buffer lacks parts");
  variant().model_tensors.push_back({.storage = ReadStorage(json[1]),
                                     .layout = ReadLayoutIndex(json[2]),
                                     .name = ReadString(json[3]),
                                     .trainable = !buffer && IsTrue(json[4]),
                                     .buffer = buffer,
                                     .piece = json.size() > 5 ? ReadPiece(json[5]) : 0});
  Add({.kind = JobEvent::Kind::kModelTensor, .index = Index(variant().model_tensors)});
}

void EventReader::ReadStage(const Json& json) {
  static constexpr Stage kStages[] = {Stage::kTransfer, Stage::kForward, Stage::kBackward,
                                      Stage::kOptimizer, Stage::kUnknown};
  if (json.size() != 2 || !json[1].is_text()) Refuse("a phase has no name");
  for (const Stage stage : kStages) {
    if (*json[1].text() == StageName(stage)) {
      return Add({.kind = JobEvent::Kind::kStage, .stage = stage});
    }
  }
  Refuse(fmt::format("phase \"{}\" is not known", *json[1].text()));
}

void EventReader::ReadPart(const Json& json) {
  static constexpr Stage kParts[] = {Stage::kEvaluation, Stage::kSave,   Stage::kLoad,
                                     Stage::kStep,       Stage::kPrompt, Stage::kGeneration,
                                     Stage::kUnknown};
  if (json.size() < 2 || json.size() > 3 || !json[1].is_text()) Refuse("a part has no name");
  for (const Stage stage : kParts) {
    if (*json[1].text() != StageName(stage)) continue;
    Keep<Part>();
    Part& part = variant().later.emplace_back();
    part.stage = stage;
    if (json.size() == 2) return;
    if (!json[2].is_object()) Refuse("what is known of a part is no object");
    if (json[2].contains("times")) part.times = ReadCount(json[2]["times"], job_);
    if (json[2].contains("grows")) part.grows = IsTrue(json[2]["grows"]);
    if (json[2].contains("heaviest")) part.heaviest = ReadHeaviest(json[2]["heaviest"]);
    if (!json[2].contains("batches")) return;
    part.batches = ReadCount(json[2]["batches"], job_);
    part.seen = Int(json[2]["seen"]);
    if (part.seen < 1 || part.seen > part.batches.least()) Refuse("a part has seen no batch");
    return;
  }
  Refuse(fmt::format("part \"{}\" is not known", *json[1].text()));
}

void EventReader::ReadLabel(const Json& json) {
  static constexpr std::pair<std::string_view, Category> kLabels[] = {
      {"gradient", Category::kGradients},
      {"optimizer_state", Category::kOptimizerState},
      {"input", Category::kInputs},
      {"cache", Category::kCache},
  };
  if (json.size() != 3 || !json[1].is_text() || !json[2].is_array()) Refuse("a label is broken");
  for (const auto& [name, category] : kLabels) {
    if (*json[1].text() != name) continue;
    for (const Json& storage : json[2].items()) {
      Add({.kind = JobEvent::Kind::kLabel, .category = category, .index = ReadStorage(storage)});
    }
  }
}

void EventReader::Read(const Json& json) {
  begins_.push_back(variant().events.size());
  try {
    ReadParts(json);
  } catch (const Unusable& unusable) {
    Refuse(fmt::format("event {}: {}", begins_.size() - 1, unusable.message));
  }
}

void EventReader::ReadParts(const Json& json) {
  if (!json.is_array() || json.empty() || !json[0].is_text()) Refuse("it has no kind");
  const std::string& kind = *json[0].text();
  if (kind == "call") return ReadCall(json);
  if (kind == "free") {
    if (json.size() != 2) Refuse("a free names no storage");
    return Add({.kind = JobEvent::Kind::kFree, .index = ReadStorage(json[1])});
  }
  if (kind == "phase") return ReadStage(json);
  if (kind == "step") {
    if (!variant().later.empty()) Refuse("a step begins behind the parts that follow the steps");
    return Add({.kind = JobEvent::Kind::kStep});
  }
  if (kind == "part") return ReadPart(json);
  if (kind == "label") return ReadLabel(json);
  if (kind == "parameter" || kind == "buffer") return ReadModelTensor(json, kind == "buffer");
  Refuse(fmt::format("its kind \"{}\" is not known", kind));
}

void EventReader::ReadRelease(const Json& json) {
  if (!json.is_object()) Refuse("a release is no object");
  Release& release = variant().releases.emplace_back();
  for (const Json& edit : Array(json, "edits")) {
    if (!edit.is_array() || edit.size() != 3) Refuse("an edit does not have three parts");
    release.edits.push_back(
        {.kind = ReadEditKind(edit[0]), .name = ReadString(edit[1]), .where = ReadString(edit[2])});
  }
  if (release.edits.empty()) Refuse("a release has no edits");
  for (const Json& free : Array(json, "frees")) {
    if (!free.is_array() || free.size() != 2) Refuse("a release does not free [event, storage]");
    const std::int64_t event = Int(free[0]);
    const std::int64_t storage = Int(free[1]);
    if (event < 0 || event >= std::ssize(begins_) || storage < 0 || storage >= variant().storages) {
      Refuse(fmt::format("a release frees storage {} at event {}, which are not there", storage,
                         event));
    }
    release.frees.push_back(
        {begins_[static_cast<std::size_t>(event)], static_cast<Storage>(storage)});
  }
}

/// The parts before one that grows do the same, so that its numbers can go on from theirs.
void EventReader::CheckGrowing() {
  const std::vector<Part>& later = variant().later;
  for (std::size_t i = 0; i < later.size(); ++i) {
    if (!later[i].grows) continue;
    if (i < 2 || !AreAlike(variant(), later[i - 1], later[i]) ||
        !AreAlike(variant(), later[i - 2], later[i])) {
      Refuse(fmt::format("part {} grows, and is not like the two before it", i));
    }
  }
}

void EventReader::End() {
  CheckGrowing();
  // Memory is taken for each number below the highest; a file must not ask for much with little.
  if (variant().storages > mentions_ + 64) {
    Refuse(fmt::format("storage {} where only a few are there", variant().storages - 1));
  }
  begins_.push_back(variant().events.size());
}

}  // namespace plimsoll::step_file
