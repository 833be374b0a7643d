#include "train/trainer/plan_file.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "files/input.h"

namespace plimsoll::train {
namespace {

using Json = nlohmann::json;
constexpr const char* kSchema = "plimsoll.plan/1";

std::optional<int> NumberOf(std::string_view text) {
  int number = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  const bool whole = parsed.ec == std::errc() && parsed.ptr == end && number >= 0;
  return whole ? std::optional(number) : std::nullopt;
}

/// "transformer.h.3" is block 3; what is within a block, or has no number, is none.
std::optional<int> BlockOf(std::string_view module) {
  std::optional<int> last;
  int numbers = 0;
  for (std::size_t begin = 0; begin <= module.size();) {
    const std::size_t end = std::min(module.find('.', begin), module.size());
    last = NumberOf(module.substr(begin, end - begin));
    numbers += last ? 1 : 0;
    begin = end + 1;
  }
  return numbers == 1 ? last : std::nullopt;
}

/// Reads one way, lever by lever. Whatever it does not know it leaves out, and says so.
class WayReader {
 public:
  explicit WayReader(const std::filesystem::path& path) : path_(path.string()) {}

  PlannedWay Read(int number) {
    const Json way = WayOf(Document(), number);
    way_.micro_batch = Count(way, "batch");
    way_.batch = Count(way, "samples");
    const auto levers = way.find("levers");
    if (levers == way.end() || !levers->is_array()) Fail("this way has no \"levers\"");
    for (const Json& lever : *levers) Take(lever);
    LeaveOutOfPipelines();
    return way_;
  }

 private:
  /// Blocks are numbered otherwise there, and its loss is a layer.
  void LeaveOutOfPipelines() {
    if (way_.stages == 1) return;
    if (way_.checkpoint && way_.checkpoint->last() >= 0) {
      way_.left_out.push_back("checkpointing of single blocks in a pipeline");
      way_.checkpoint.reset();
    }
    if (way_.chunked_loss) way_.left_out.emplace_back("loss in chunks in a pipeline");
    way_.chunked_loss.reset();
  }

  [[noreturn]] void Fail(const std::string& what) const {
    TORCH_CHECK(false, Printable(path_), ": ", Printable(what),
                "; give what `plimsoll plan --json` prints");
  }

  Json Document() const {
    Result<Input> input = Input::Open(path_);
    TORCH_CHECK(input.ok(), Printable(input.error().ToLine()));
    Json document = Json::parse(input->bytes(), nullptr, /*allow_exceptions=*/false);
    if (!document.is_object() || document.value("schema", Json()) != kSchema) {
      Fail(c10::str("it is no plan (", kSchema, ")"));
    }
    return document;
  }

  Json WayOf(const Json& document, int number) const {
    const auto ways = document.find("ways");
    if (ways == document.end() || !ways->is_array()) Fail("it has no \"ways\"");
    if (ways->empty()) Fail("it has no way that fits");
    if (number < 0 || static_cast<std::size_t>(number) >= ways->size()) {
      Fail(c10::str("it has no way ", number, ": they count from 0 to ", ways->size() - 1));
    }
    const Json& way = ways->at(static_cast<std::size_t>(number));
    if (!way.is_object()) Fail(c10::str("way ", number, " is no object"));
    return way;
  }

  std::int64_t Count(const Json& way, const char* key) const {
    const auto found = way.find(key);
    constexpr std::int64_t kMost = std::int64_t{1} << 40;
    const bool good = found != way.end() && found->is_number_integer() &&
                      found->get<std::int64_t>() >= 1 && found->get<std::int64_t>() <= kMost;
    if (!good) Fail(c10::str("\"", key, "\" is not a number from 1 on"));
    return found->get<std::int64_t>();
  }

  /// {"lever": "loss", "set_to": "chunked:8", "value": {"chunks": 8}}
  void Take(const Json& lever) {
    const bool good = lever.is_object() && lever.value("lever", Json()).is_string() &&
                      lever.value("set_to", Json()).is_string() &&
                      lever.value("value", Json()).is_object();
    if (!good) Fail("a lever of this way has no \"value\"");
    const auto name = lever["lever"].get<std::string>();
    if (!Take(name, lever["value"])) {
      way_.left_out.push_back(name + " " + lever["set_to"].get<std::string>());
    }
  }

  bool Take(const std::string& lever, const Json& value) {
    if (lever == "accumulation") return true;  // the batch, the ranks and the micro-batch say it
    if (lever == "parallel") return TakeParallel(value);
    if (lever == "checkpointing") return TakeCheckpoint(value);
    if (lever == "precision") return TakePrecision(TextIn(value, "name"));
    if (lever == "optimizer") return TakeOptimizer(value);
    if (lever == "loss") way_.chunked_loss = true;
    if (lever == "offload") way_.offload = true;
    return lever == "loss" || lever == "offload";
  }

  static std::string TextIn(const Json& value, const char* key) {
    const auto found = value.find(key);
    return found != value.end() && found->is_string() ? found->get<std::string>() : std::string();
  }
  /// 0 where there is none.
  static int NumberIn(const Json& value, const char* key) {
    constexpr std::int64_t kMost = 1 << 20;
    const auto found = value.find(key);
    if (found == value.end() || !found->is_number_integer()) return 0;
    const auto number = found->get<std::int64_t>();
    return number >= 1 && number <= kMost ? static_cast<int>(number) : 0;
  }
  static bool IsIn(const Json& value, const char* key) {
    const auto found = value.find(key);
    return found != value.end() && found->is_boolean() && found->get<bool>();
  }

  bool TakeParallel(const Json& value) {
    const std::string kind = TextIn(value, "kind");
    way_.ranks = NumberIn(value, "ranks");
    // Without it, it would be another run altogether.
    if (way_.ranks < 1) Fail("\"parallel\" does not say how many ranks");
    if (kind == "ddp") return true;  // gradients are views of what is sent in any case
    if (kind == "zero1") way_.shard = Shard::kOptimizerState;
    if (kind == "zero2") way_.shard = Shard::kGradients;
    if (kind == "zero1" || kind == "zero2") return true;
    if (kind == "fsdp") return TakeSharding(value);
    TORCH_CHECK(kind != "mesh", Printable(path_),
                ": this way is a mesh, several kinds of parallelism together, which the trainer "
                "does not do; choose another way of the plan");
    if (kind != "pipeline") Fail("\"parallel\" is '" + kind + "', which is not known here");
    way_.stages = way_.ranks;
    way_.chunks = std::max(1, NumberIn(value, "chunks"));
    way_.micro_batch =
        std::max<std::int64_t>(1, way_.micro_batch / std::max(1, NumberIn(value, "micro_batches")));
    return true;
  }

  /// Parameters are given back after each block's forward, and no model is built without memory.
  bool TakeSharding(const Json& value) {
    way_.shard = Shard::kParameters;
    const std::string compute = TextIn(value, "compute");
    const std::string keep = TextIn(value, "keep");
    if (compute == "bf16") way_.compute_dtype = at::kBFloat16;
    return (compute.empty() || compute == "bf16") && (keep.empty() || keep == "none") &&
           !IsIn(value, "meta");
  }

  /// Blocks as a whole. What else a plan names, the trainer chooses by itself.
  bool TakeCheckpoint(const Json& value) {
    const auto modules = value.find("modules");
    if (modules == value.end() || !modules->is_array()) return false;
    std::vector<CheckpointPolicy::Range> blocks;
    for (const Json& module : *modules) {
      const auto block = module.is_string() ? BlockOf(module.get<std::string>()) : std::nullopt;
      if (!block) return false;
      blocks.push_back({*block, *block + 1});
    }
    way_.checkpoint = CheckpointPolicy::Plan(std::move(blocks));
    return true;
  }

  bool TakePrecision(const std::string& name) {
    if (name == "fp32") way_.precision = Precision::kFloat32;
    if (name == "amp_bf16") way_.precision = Precision::kBfloat16;
    if (name == "amp_fp16") way_.precision = Precision::kFloat16;
    return way_.precision.has_value();
  }

  bool TakeOptimizer(const Json& value) {
    const std::string name = TextIn(value, "name");
    const std::string form = TextIn(value, "form");
    if (IsIn(value, "in_backward")) return false;
    if (name == "adam8bit" || name == "adamw8bit") way_.optimizer = OptimizerForm::kEightBits;
    if (name.starts_with("adam") && form == "host") way_.optimizer = OptimizerForm::kHost;
    if (name.starts_with("adam") && form == "fused") way_.optimizer = OptimizerForm::kFused;
    return way_.optimizer.has_value();
  }

  std::string path_;
  PlannedWay way_;
};

}  // namespace

void PlannedWay::Set(TrainerOptions& options) const {
  options.micro_batch = micro_batch;
  if (checkpoint) options.checkpoint = checkpoint;
  if (offload) options.offload = offload;
  if (chunked_loss) options.chunked_loss = chunked_loss;
  if (precision) options.precision = *precision;
  options.team.shard = shard;
  options.team.sharded.compute_dtype = compute_dtype;
}

PlannedWay ReadPlan(const std::filesystem::path& path, int way) {
  return WayReader(path).Read(way);
}

}  // namespace plimsoll::train
