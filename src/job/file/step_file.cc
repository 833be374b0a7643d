#include "job/file/step_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "files/json.h"
#include "job/file/step_asked.h"
#include "job/file/step_epoch.h"
#include "job/file/step_events.h"
#include "job/file/step_values.h"

namespace plimsoll {
namespace step_file {
namespace {

/// Of a job over the batch alone, and over more.
constexpr std::string_view kSchema = "plimsoll.step/1";
constexpr std::string_view kSchemaOfMore = "plimsoll.step/2";
bool IsSchema(const Json& schema) { return schema == kSchema || schema == kSchemaOfMore; }

constexpr std::size_t kMostDimensions = 64;
constexpr std::int64_t kMostPasses = 1 << 20;
/// What has room for more is never full.
constexpr std::int64_t kMostKept = 1 << 30;
constexpr std::size_t kMostSequence = 4096;

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
      if (!IsSchema(so_far["schema"]) || !so_far["strings"].is_array() ||
          !so_far["layouts"].is_array()) {
        return false;
      }
      ReadTables(so_far);
    }
    EventsOf(so_far["variants"].size() - 1).Read(event);
    return true;
  }

  /// What was not taken.
  void Read(const Json& document) {
    if (!has_tables_) ReadTables(document);
    ReadHead(document);
    ReadSequence(document);
    const std::span<const Json> variants = Array(document, "variants");
    for (std::size_t i = 0; i < variants.size(); ++i) ReadVariant(variants[i], i);
    if (job_.variants.empty()) Refuse("it holds no variant");
    std::vector<std::string> notes;
    for (const Json& note : document["notes"].items()) {
      if (note.is_text()) notes.push_back(*note.text());
    }
    job_.notes = MergedNotes(notes);
    ReadAsItStands(document["as_it_stands"]);
  }

 private:
  void ReadHead(const Json& document) {
    job_.torch = TextOr(document["torch"], "");
    job_.gpu = TextOr(document["gpu"], "");
    job_.model = TextOr(document["model"], "");
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
    job_.no_autocast = TextOr(document["no_autocast"], "");
    job_.sizes_change = IsTrue(document["sizes_change"]);
    if (const Json& lines = document["selected_at"]; !lines.is_null()) {
      for (const Json& line : Array(document, "selected_at")) {
        if (!line.is_text()) Refuse("\"selected_at\" does not hold lines");
        job_.selected_at.insert(*line.text());
      }
    }
    for (const auto& [line, alike] : document["counted"].members()) {
      job_.counted[std::string(line)] = IsTrue(alike);
    }
    job_.keeper = ReadKeeper(document["kept_by"]);
    if (const Json& lists = document["lists"]; !lists.is_null()) {
      job_.lists = std::make_shared<const GivenLists>(GivenLists{
          .to = ReadModules(lists, "given_to"), .changed_by = ReadModules(lists, "changed_by")});
    }
    ReadGrowing(document);
    ReadHost(document["host"]);
    job_.asked = ReadAsked(document["asked"]);
    if (const std::string* lost = document["lost_at"].text()) job_.lost_at = *lost;
    ReadNotFollowed(document);
    if (!document["epoch"].is_null()) job_.epoch = ReadCount(document["epoch"], job_);
  }

  void ReadNotFollowed(const Json& document) {
    if (document["not_followed"].is_null()) return;
    for (const Json& part : Array(document, "not_followed")) {
      if (!part["what"].is_text()) Refuse("\"not_followed\" does not say what");
      NotFollowed found{.what = *part["what"].text()};
      if (const std::string* file = part["file"].text(); file && IsInteger(part["line"])) {
        found.file = *file;
        found.line = Int(part["line"]);
      }
      job_.not_followed.push_back(std::move(found));
    }
  }

  std::optional<Keeper> ReadKeeper(const Json& kept) {
    if (kept.is_null()) return std::nullopt;
    if (!kept["name"].is_text() || !kept["where"].is_text()) Refuse("\"kept_by\" has no name");
    Keeper keeper{.name = *kept["name"].text(), .where = *kept["where"].text()};
    if (const Json& most = kept["most"]; !most.is_null()) {
      if (!IsInteger(most) || Int(most) < 1) Refuse("\"kept_by\" keeps no number of them");
      keeper.most = std::min(Int(most), kMostKept);
      keeper.before = IsTrue(kept["before"]);
    }
    return keeper;
  }

  GivenLists::Paths ReadModules(const Json& lists, const char* key) {
    GivenLists::Paths paths;
    for (const Json& module : Array(lists, key)) {
      if (!module.is_text()) Refuse("\"lists\" does not hold paths of modules");
      paths.insert(*module.text());
    }
    return paths;
  }

  void ReadGrowing(const Json& document) {
    if (document["growing"].is_null()) return;
    for (const Json& json : Array(document, "growing")) {
      if (!json["branch"].is_text() || !json["where"].is_text()) Refuse("what grows has no name");
      const Number every = ReadCount(json["every"], job_);
      if (every.depends()) Refuse("what grows does so at other steps with other batches");
      job_.growing.push_back({.branch = *json["branch"].text(),
                              .where = *json["where"].text(),
                              .bytes = ReadCount(json["bytes"], job_),
                              .every = every.least(),
                              .keeper = ReadKeeper(json["kept_by"])});
    }
  }

  HostPeak ReadHostPeak(const Json& json) {
    if (json.size() < 2 || json.size() > 3 || !json[1].is_text()) {
      Refuse("a peak of the host is not [bytes, line, more]");
    }
    HostPeak peak{.bytes = ReadCount(json[0], job_), .where = *json[1].text()};
    if (json.size() < 3) return peak;
    const Json& more = json[2];
    if (!more["pinned"].is_null()) {
      for (const Json& event : Array(more, "pinned")) peak.pinned.push_back(ReadPinned(event));
    }
    if (!more["left"].is_null()) peak.left = ReadCount(more["left"], job_);
    if (!more["workers"].is_null()) peak.workers = ReadCount(more["workers"], job_);
    if (!more["shared"].is_null()) peak.shared = ReadCount(more["shared"], job_);
    return peak;
  }

  /// Bytes of a request, or -k at the end of the k-th.
  PinnedEvent ReadPinned(const Json& json) {
    const Number number = ReadNumber(json, job_);
    if (number.least() >= 0) {
      ++pinned_;
      return {.bytes = ReadCount(json, job_)};
    }
    if (number.depends() || number.least() < -std::int64_t{pinned_}) {
      Refuse("pinned memory is given back that nobody asked for");
    }
    return {.ends = static_cast<std::uint32_t>(-number.least())};
  }

  void ReadHost(const Json& host) {
    if (host.is_null()) return;
    HostPeaks peaks{.imports = ReadCount(host["imports"], job_).least(),
                    .build = ReadHostPeak(host["build"]),
                    .steps = ReadHostPeak(host["steps"])};
    for (const Json& part : Array(host, "later")) peaks.later.push_back(ReadHostPeak(part));
    job_.host = std::move(peaks);
  }

  /// What events refer to.
  void ReadTables(const Json& document) {
    has_tables_ = true;
    ReadBatches(document);
    // Numbers refer to them.
    if (document["schema"] == kSchemaOfMore) job_.forms = ReadForms(document);
    for (const Json& text : Array(document, "strings")) {
      if (!text.is_text()) Refuse("\"strings\" holds something else than a text");
      strings_.push_back(job_.strings.Intern(*text.text()));
    }
    for (const Json& layout : Array(document, "layouts")) ReadLayout(layout);
  }

  void ReadBatches(const Json& document) {
    const std::span<const Json> batches = Array(document, "batches");
    if (batches.size() != 2) Refuse("\"batches\" does not hold two sizes");
    for (std::size_t i = 0; i < 2; ++i) job_.batches[i] = Int(batches[i]);
    if (job_.batches[0] < 1 || job_.batches[1] <= job_.batches[0] ||
        job_.batches[1] > kMostElements) {
      Refuse("\"batches\" does not hold two growing sizes");
    }
  }

  /// Of a job over more than the batch. Its steps may have sizes of their own.
  void ReadSequence(const Json& document) {
    if (!job_.forms) return;
    if (document["sequence"].is_null()) {
      job_.length = job_.forms->points().front()[1];
      return;
    }
    if (Array(document, "sequence").size() > kMostSequence) Refuse("\"sequence\" is too long");
    for (const Json& step : Array(document, "sequence")) {
      job_.sequence.push_back(ReadSequenceStep(step, *job_.forms));
    }
    if (!document["data"].is_null()) job_.data = ReadEpoch(document["data"]);
  }

  /// A document like this one, in it.
  void ReadAsItStands(const Json& document) {
    if (document.is_null()) return;
    if (document["schema"] != kSchemaOfMore || !document["as_it_stands"].is_null()) {
      Refuse("\"as_it_stands\" is no job with a sequence");
    }
    auto job = std::make_shared<Job>();
    job->file = job_.file;
    Reader(*job, budget_).Read(document);
    if (job->sequence.empty()) Refuse("\"as_it_stands\" is no job with a sequence");
    job_.as_it_stands = std::move(job);
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
    for (const Json& size : json[1].items()) layout.sizes.push_back(ReadCount(size, job_));
    for (const Json& stride : json[2].items()) layout.strides.push_back(ReadCount(stride, job_));
    const std::size_t points = job_.forms ? job_.forms->points().size() : Number::kPoints;
    for (std::size_t point = 0; point < points; ++point) {
      std::int64_t elements = 1;
      for (const Number& size : layout.sizes) {
        const std::int64_t n = std::max<std::int64_t>(
            job_.forms ? job_.forms->Captured(size, point) : size.at(point), 1);
        if (n > kMostElements / elements) {
          Refuse(fmt::format("layout {} is larger than any device", job_.layouts.size() - 1));
        }
        elements *= n;
      }
    }
  }

  void ReadVariant(const Json& json, std::size_t index) {
    if (!json.is_object()) Refuse("a variant is no object");
    EventReader& events = EventsOf(index);
    job_.variants[index].precision = TextOr(json["precision"], "");
    job_.variants[index].set_by = TextOr(json["set_by"], "");
    job_.variants[index].compiled = json.contains("compiled") && json["compiled"] == Json(true);
    job_.variants[index].passes = passes_;
    if (json.contains("gradients_used")) {
      std::vector<std::string>& lines = job_.variants[index].gradients_used.emplace();
      for (const Json& line : Array(json, "gradients_used")) {
        if (!line.is_text()) Refuse("\"gradients_used\" does not hold lines");
        lines.push_back(*line.text());
      }
    }
    for (const Json& event : Array(json, "events")) events.Read(event);
    events.End();
    if (json.contains("releases")) {
      for (const Json& release : Array(json, "releases")) events.ReadRelease(release);
    }
  }

  EventReader& EventsOf(std::size_t index) {
    while (events_.size() <= index) {
      job_.variants.emplace_back();
      events_.emplace_back(job_, strings_, events_.size(), budget_);
    }
    return events_[index];
  }

  Job& job_;
  ReadBudget& budget_;
  bool has_tables_ = false;
  std::vector<StringId> strings_;
  /// By variant.
  std::deque<EventReader> events_;
  int passes_ = 1;
  /// Requests of pinned memory so far.
  std::uint32_t pinned_ = 0;
};

}  // namespace
}  // namespace step_file

bool IsStepFile(const Input& input) {
  const std::string_view head = input.bytes().substr(0, 4096);
  return head.find(step_file::kSchema) != head.npos ||
         head.find(step_file::kSchemaOfMore) != head.npos;
}

Result<Job> ReadJob(const Input& input) {
  const std::string hint = "make it with plimsoll.capture in Python: docs/capture.md tells how";
  if (!IsStepFile(input)) {
    return Error{.message = "this is not a step file", .file = input.name(), .hint = hint};
  }
  Job job;
  job.file = input.name();
  ReadBudget budget(input);
  step_file::Reader reader(job, budget);
  try {
    const Result<Json> document = ReadJson(input, budget, reader);
    if (!document) {
      Error error = document.error();
      if (error.hint.empty()) error.hint = "capture the step again";
      return error;
    }
    if (!step_file::IsSchema((*document)["schema"])) {
      return Error{.message = "this is not a step file", .file = input.name(), .hint = hint};
    }
    reader.Read(*document);
  } catch (const step_file::Unusable& unusable) {
    return Error{
        .message = unusable.message, .file = input.name(), .hint = "capture the step again"};
  }
  return job;
}

}  // namespace plimsoll
