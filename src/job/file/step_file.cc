#include "job/file/step_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "files/json.h"

namespace plimsoll {
namespace {

constexpr std::string_view kSchema = "plimsoll.step/1";
/// Arguments nest two or three deep; more is not a step file.
constexpr int kDeepest = 8;
constexpr std::size_t kMostDimensions = 64;
constexpr std::int64_t kMostPasses = 1 << 20;
/// Storages are numbered as they come, so that far higher ones are a mistake or an attack.
constexpr std::int64_t kMostSkipped = 1 << 16;
constexpr std::int64_t kMostStorages = 1 << 30;

/// Thrown inside this file only; ReadJob turns it into an Error.
struct Unusable {
  std::string message;
};

[[noreturn]] void Refuse(std::string message) { throw Unusable{std::move(message)}; }

/// Events are nearly all of a file, and as a tree they take ten times their text. They are read as
/// they come where what they refer to came before them, which is so in what we write; in a file of
/// another order they stay in the tree.
class Reader : public JsonItems {
 public:
  Reader(Job& job, ReadBudget& budget) : job_(job), budget_(budget) {}

  std::span<const std::string_view> path() const override {
    static constexpr std::string_view kPath[] = {"variants", "*", "events"};
    return kPath;
  }
  bool Take(const Json& so_far, const Json& event) override {
    if (!has_tables_) {
      if (so_far["schema"] != kSchema || !so_far["strings"].is_array() ||
          !so_far["layouts"].is_array()) {
        return false;
      }
      ReadTables(so_far);
    }
    Enter(so_far["variants"].size() - 1);
    ReadEvent(event);
    return true;
  }

  /// What was not taken.
  void Read(const Json& document) {
    ReadHead(document);
    if (!has_tables_) ReadTables(document);
    const std::span<const Json> variants = Array(document, "variants");
    for (std::size_t i = 0; i < variants.size(); ++i) {
      Enter(i);
      ReadVariant(variants[i]);
    }
    if (job_.variants.empty()) Refuse("it holds no variant");
    for (const Json& note : document["notes"].items()) {
      if (note.is_text()) job_.notes.push_back(*note.text());
    }
  }

 private:
  static std::span<const Json> Array(const Json& object, const char* key) {
    if (!object[key].is_array()) Refuse(fmt::format("no list \"{}\"", key));
    return object[key].items();
  }
  static bool IsTrue(const Json& value) { return value.boolean().value_or(false); }
  static std::int64_t Int(const Json& value) {
    if (!IsInteger(value)) Refuse("a number is no integer");
    if (!value.integer()) Refuse("a number is too large");
    return *value.integer();
  }
  static Number ReadNumber(const Json& value) {
    if (IsInteger(value)) return {Int(value), Int(value)};
    if (value.is_array() && value.size() == 2) return {Int(value[0]), Int(value[1])};
    Refuse("a number is neither an integer nor a pair");
  }
  /// Of a size, a stride or a count of bytes.
  static Number ReadCount(const Json& value) {
    const Number number = ReadNumber(value);
    for (const std::int64_t n : {number.first, number.second}) {
      if (n < 0 || n > kMostElements) Refuse(fmt::format("a size of {}", n));
    }
    return number;
  }

  void ReadHead(const Json& document) {
    job_.torch = TextOr(document["torch"], "");
    job_.gpu = TextOr(document["gpu"], "");
    job_.model = TextOr(document["model"], "");
    const std::span<const Json> batches = Array(document, "batches");
    if (batches.size() != 2) Refuse("\"batches\" does not hold two sizes");
    for (std::size_t i = 0; i < 2; ++i) job_.batches[i] = Int(batches[i]);
    if (job_.batches[0] < 1 || job_.batches[1] <= job_.batches[0] ||
        job_.batches[1] > kMostElements) {
      Refuse("\"batches\" does not hold two growing sizes");
    }
    if (const Json& own = document["own_batch"]; !own.is_null()) {
      job_.own_batch = Int(own);
      if (*job_.own_batch < 1 || *job_.own_batch > kMostElements) {
        Refuse("\"own_batch\" is no batch size");
      }
    }
    const Json& settings = document["settings"];
    job_.matmul_tf32 = IsTrue(settings["matmul_tf32"]);
    ReadRanks(settings);
    if (const Json& passes = document["passes"]; !passes.is_null()) {
      if (!IsInteger(passes)) Refuse("\"passes\" is no number");
      const std::int64_t told = Int(passes);
      if (told < 1 || told > kMostPasses) Refuse("\"passes\" is not a number of batches");
      passes_ = static_cast<int>(told);
    }
    job_.names_root = IsTrue(document["names_root"]);
    job_.sizes_change = IsTrue(document["sizes_change"]);
  }

  /// What events refer to.
  void ReadTables(const Json& document) {
    has_tables_ = true;
    for (const Json& text : Array(document, "strings")) {
      if (!text.is_text()) Refuse("\"strings\" holds something else than a text");
      strings_.push_back(job_.strings.Intern(*text.text()));
    }
    for (const Json& layout : Array(document, "layouts")) ReadLayout(layout);
  }

  void ReadRanks(const Json& settings) {
    if (settings["backend"] == "gloo") job_.backend = Backend::kGloo;
    if (const std::string* ddp = settings["data_parallel"].text()) job_.data_parallel = *ddp;
    for (const Json& call : settings["sharded"].items()) {
      if (!call.is_array()) Refuse("\"sharded\" does not hold lists of modules");
      std::vector<std::string>& modules = job_.sharded.emplace_back();
      for (const Json& module : call.items()) {
        if (!module.is_text()) Refuse("\"sharded\" does not hold lists of modules");
        modules.push_back(*module.text());
      }
    }
  }

  void ReadLayout(const Json& json) {
    if (!json.is_array() || json.size() != 3 || !json[0].is_text() || !json[1].is_array() ||
        !json[2].is_array() || json[1].size() != json[2].size() ||
        json[1].size() > kMostDimensions) {
      Refuse(fmt::format("layout {} is not [dtype, sizes, strides]", job_.layouts.size()));
    }
    LayoutRecord& layout = job_.layouts.emplace_back();
    const auto dtype = ParseDType(*json[0].text());
    if (!dtype) Refuse(fmt::format("dtype \"{}\" is not known", *json[0].text()));
    layout.dtype = *dtype;
    for (const Json& size : json[1].items()) layout.sizes.push_back(ReadCount(size));
    for (const Json& stride : json[2].items()) layout.strides.push_back(ReadCount(stride));
    for (const auto member : {&Number::first, &Number::second}) {
      std::int64_t elements = 1;
      for (const Number& size : layout.sizes) {
        const std::int64_t n = std::max<std::int64_t>(size.*member, 1);
        if (n > kMostElements / elements) {
          Refuse(fmt::format("layout {} is larger than any device", job_.layouts.size() - 1));
        }
        elements *= n;
      }
    }
  }

  StringId ReadString(const Json& value) const {
    const std::int64_t index = Int(value);
    if (index == -1) return {};
    if (index < 0 || index >= std::ssize(strings_)) Refuse(fmt::format("no string {}", index));
    return strings_[static_cast<std::size_t>(index)];
  }
  std::uint32_t ReadLayoutIndex(const Json& value) const {
    const std::int64_t index = Int(value);
    if (index < 0 || index >= std::ssize(job_.layouts)) Refuse(fmt::format("no layout {}", index));
    return static_cast<std::uint32_t>(index);
  }
  Storage ReadStorage(const Json& value) {
    const std::int64_t storage = Int(value);
    const std::int64_t most = std::min(variant_->storages + kMostSkipped, kMostStorages);
    if (storage < 0 || storage > most) Refuse(fmt::format("no storage {}", storage));
    ++state_->mentions;
    variant_->storages = std::max(variant_->storages, static_cast<Storage>(storage + 1));
    return static_cast<Storage>(storage);
  }

  TensorUse ReadTensor(const Json& json) {
    if (!json.is_array() || json.size() != 3) Refuse("a tensor is not [storage, layout, flags]");
    const std::int64_t flags = Int(json[2]);
    return {.storage = ReadStorage(json[0]),
            .layout = ReadLayoutIndex(json[1]),
            .view = (flags & 1) != 0,
            .parameter = (flags & 2) != 0,
            .needs_grad = (flags & 4) != 0};
  }

  Argument ReadArgument(const Json& json, int depth) {
    Keep<Argument>();
    if (depth > kDeepest) Refuse("arguments nest too deep");
    if (json.boolean()) return {*json.boolean()};
    if (json.integer()) return {ReadNumber(json)};
    if (json.number()) return {*json.number()};
    if (json.is_array()) {
      Argument::List list;
      for (const Json& element : json.items()) list.push_back(ReadArgument(element, depth + 1));
      return {std::move(list)};
    }
    if (json.is_object()) {
      if (json.contains("t")) return {ReadTensor(json["t"])};
      if (json.contains("n")) return {ReadNumber(json["n"])};
      if (json.contains("text")) return {ReadString(json["text"])};
    }
    return {};
  }

  void ReadCall(const Json& json) {
    if (json.size() != 9) Refuse("a call does not have nine parts");
    CallRecord& call = variant_->calls.emplace_back();
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
      if (!value.is_array() || value.size() != 3) Refuse("a new storage does not have three parts");
      NewStorage& fresh = call.fresh.emplace_back();
      Keep<NewStorage>();
      fresh.storage = ReadStorage(value[0]);
      fresh.bytes = ReadCount(value[1]);
      const std::int64_t result = Int(value[2]);
      if (result < 0 || result >= std::ssize(call.results)) {
        Refuse(fmt::format("a new storage is that of result {}, which is not there", result));
      }
      fresh.result = static_cast<std::uint32_t>(result);
    }
    Add({.kind = JobEvent::Kind::kCall, .index = Index(variant_->calls)});
  }

  template <typename T>
  static std::uint32_t Index(const std::vector<T>& list) {
    return static_cast<std::uint32_t>(list.size() - 1);
  }
  void Add(const JobEvent& event) {
    Keep<JobEvent>();
    variant_->events.push_back(event);
  }
  /// Twice, since a list that grows takes up to that. Where the budget is spent, reading ends.
  template <typename T>
  void Keep() {
    budget_.Take(2 * sizeof(T));
  }

  void ReadModelTensor(const Json& json, bool buffer) {
    if (json.size() < 4) Refuse("a parameter or buffer lacks parts");
    variant_->model_tensors.push_back({.storage = ReadStorage(json[1]),
                                       .layout = ReadLayoutIndex(json[2]),
                                       .name = ReadString(json[3]),
                                       .trainable = !buffer && IsTrue(json[4]),
                                       .buffer = buffer});
    Add({.kind = JobEvent::Kind::kModelTensor, .index = Index(variant_->model_tensors)});
  }

  void ReadStage(const Json& json) {
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

  void ReadLabel(const Json& json) {
    static constexpr std::pair<std::string_view, Category> kLabels[] = {
        {"gradient", Category::kGradients},
        {"optimizer_state", Category::kOptimizerState},
        {"input", Category::kInputs},
    };
    if (json.size() != 3 || !json[1].is_text() || !json[2].is_array()) Refuse("a label is broken");
    for (const auto& [name, category] : kLabels) {
      if (*json[1].text() != name) continue;
      for (const Json& storage : json[2].items()) {
        Add({.kind = JobEvent::Kind::kLabel, .category = category, .index = ReadStorage(storage)});
      }
    }
  }

  void ReadEvent(const Json& json) {
    state_->begins.push_back(variant_->events.size());
    try {
      ReadEventParts(json);
    } catch (const Unusable& unusable) {
      Refuse(fmt::format("event {}: {}", state_->begins.size() - 1, unusable.message));
    }
  }
  void ReadEventParts(const Json& json) {
    if (!json.is_array() || json.empty() || !json[0].is_text()) Refuse("it has no kind");
    const std::string& kind = *json[0].text();
    if (kind == "call") return ReadCall(json);
    if (kind == "free") {
      if (json.size() != 2) Refuse("a free names no storage");
      return Add({.kind = JobEvent::Kind::kFree, .index = ReadStorage(json[1])});
    }
    if (kind == "phase") return ReadStage(json);
    if (kind == "step") return Add({.kind = JobEvent::Kind::kStep});
    if (kind == "label") return ReadLabel(json);
    if (kind == "parameter" || kind == "buffer") return ReadModelTensor(json, kind == "buffer");
    Refuse(fmt::format("its kind \"{}\" is not known", kind));
  }

  static ReleaseEdit::Kind ReadEditKind(const Json& json) {
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

  /// The events have been read.
  void ReadRelease(const Json& json) {
    if (!json.is_object()) Refuse("a release is no object");
    Release& release = variant_->releases.emplace_back();
    for (const Json& edit : Array(json, "edits")) {
      if (!edit.is_array() || edit.size() != 3) Refuse("an edit does not have three parts");
      release.edits.push_back({.kind = ReadEditKind(edit[0]),
                               .name = ReadString(edit[1]),
                               .where = ReadString(edit[2])});
    }
    if (release.edits.empty()) Refuse("a release has no edits");
    for (const Json& free : Array(json, "frees")) {
      if (!free.is_array() || free.size() != 2) Refuse("a release does not free [event, storage]");
      const std::int64_t event = Int(free[0]);
      const std::int64_t storage = Int(free[1]);
      if (event < 0 || event >= std::ssize(state_->begins) || storage < 0 ||
          storage >= variant_->storages) {
        Refuse(fmt::format("a release frees storage {} at event {}, which are not there", storage,
                           event));
      }
      release.frees.push_back(
          {state_->begins[static_cast<std::size_t>(event)], static_cast<Storage>(storage)});
    }
  }

  void ReadVariant(const Json& json) {
    if (!json.is_object()) Refuse("a variant is no object");
    variant_->precision = TextOr(json["precision"], "");
    variant_->passes = passes_;
    for (const Json& event : Array(json, "events")) ReadEvent(event);
    // Memory is taken for each number below the highest; a file must not ask for much with little.
    if (variant_->storages > state_->mentions + 64) {
      Refuse(fmt::format("storage {} where only a few are there", variant_->storages - 1));
    }
    state_->begins.push_back(variant_->events.size());
    if (json.contains("releases")) {
      for (const Json& release : Array(json, "releases")) ReadRelease(release);
    }
  }

  /// Of a variant, while it is read.
  struct State {
    std::int64_t mentions = 0;
    /// By event of the file: the first of those that it became. A label becomes one for each
    /// storage.
    std::vector<std::size_t> begins;
  };
  void Enter(std::size_t index) {
    if (index >= states_.size()) {
      states_.resize(index + 1);
      job_.variants.resize(index + 1);
    }
    state_ = &states_[index];
    variant_ = &job_.variants[index];
  }

  Job& job_;
  ReadBudget& budget_;
  bool has_tables_ = false;
  std::vector<StringId> strings_;
  std::vector<State> states_;
  State* state_ = nullptr;
  Variant* variant_ = nullptr;
  int passes_ = 1;
};

}  // namespace

bool IsStepFile(const Input& input) {
  return input.bytes().substr(0, 4096).find(kSchema) != std::string_view::npos;
}

Result<Job> ReadJob(const Input& input) {
  const std::string hint = "make it with plimsoll.capture in Python: docs/capture.md tells how";
  if (!IsStepFile(input)) {
    return Error{.message = "this is not a step file", .file = input.name(), .hint = hint};
  }
  Job job;
  job.file = input.name();
  ReadBudget budget(input);
  Reader reader(job, budget);
  try {
    const Result<Json> document = ReadJson(input, budget, reader);
    if (!document) {
      Error error = document.error();
      if (error.hint.empty()) error.hint = "capture the step again";
      return error;
    }
    if ((*document)["schema"] != kSchema) {
      return Error{.message = "this is not a step file", .file = input.name(), .hint = hint};
    }
    reader.Read(*document);
  } catch (const Unusable& unusable) {
    return Error{
        .message = unusable.message, .file = input.name(), .hint = "capture the step again"};
  }
  return job;
}

}  // namespace plimsoll
