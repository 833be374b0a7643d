#include "train/trainer/plan_file.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/input.h"
#include "base/printable.h"

namespace plimsoll::train {
namespace {

using Json = nlohmann::json;
constexpr const char* kSchema = "plimsoll.plan/1";

std::vector<std::string> Words(const std::string& text, char between) {
  std::vector<std::string> words;
  std::size_t begin = 0;
  while (true) {
    const std::size_t end = text.find(between, begin);
    words.push_back(text.substr(begin, end - begin));
    if (end == std::string::npos) return words;
    begin = end + 1;
  }
}

std::optional<int> NumberOf(std::string_view text) {
  int number = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  const bool whole = parsed.ec == std::errc() && parsed.ptr == end && number >= 0;
  return whole ? std::optional(number) : std::nullopt;
}

/// "transformer.h.3" is block 3; what is within a block, or has no number, is none.
std::optional<int> BlockOf(const std::string& module) {
  const std::vector<std::string> words = Words(module, '.');
  const auto numbers = std::ranges::count_if(
      words, [](const std::string& word) { return NumberOf(word).has_value(); });
  return numbers == 1 ? NumberOf(words.back()) : std::nullopt;
}

/// Reads one way, lever by lever. Whatever it does not know it leaves out, and says so.
class WayReader {
 public:
  explicit WayReader(const std::filesystem::path& path) : path_(path.string()) {}

  PlannedWay Read(int number) {
    const Json way = WayOf(Document(), number);
    way_.micro_batch = Count(way, "batch");
    way_.batch = Count(way, "samples");
    const auto set = way.find("set");
    if (set == way.end() || !set->is_object()) Fail("this way has no \"set\"");
    for (const auto& [lever, value] : set->items()) {
      if (!value.is_string()) Fail("\"set\" has a value that is no text");
      Take(lever, value.get<std::string>());
    }
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

  void Take(const std::string& lever, const std::string& value) {
    bool taken = true;
    if (lever == "accumulation") {
      // It follows from the batch, the ranks and the micro-batch.
    } else if (lever == "parallel") {
      taken = TakeParallel(Words(value, ':'));
    } else if (lever == "checkpointing") {
      taken = TakeCheckpoint(value);
    } else if (lever == "precision") {
      taken = TakePrecision(value);
    } else if (lever == "optimizer") {
      taken = TakeOptimizer(value);
    } else if (lever == "loss") {
      taken = value.starts_with("chunked");
      if (taken) way_.chunked_loss = true;
    } else if (lever == "offload") {
      taken = value == "activations";
      if (taken) way_.offload = true;
    } else {
      taken = false;
    }
    if (!taken) way_.left_out.push_back(lever + " " + value);
  }

  bool TakeParallel(const std::vector<std::string>& words) {
    const std::string& kind = words[0];
    const auto ranks = words.size() > 1 ? NumberOf(words[1]) : std::nullopt;
    constexpr int kMostRanks = 1 << 20;
    if (!ranks || *ranks < 1 || *ranks > kMostRanks) FailParallel(words);
    bool all = true;
    if (kind == "zero1") {
      way_.shard = Shard::kOptimizerState;
    } else if (kind == "zero2") {
      way_.shard = Shard::kGradients;
    } else if (kind == "fsdp") {
      way_.shard = Shard::kParameters;
    } else if (kind == "pipeline") {
      way_.stages = *ranks;
      const int pieces = words.size() > 2 ? NumberOf(words[2]).value_or(1) : 1;
      way_.micro_batch = std::max<std::int64_t>(1, way_.micro_batch / std::max(pieces, 1));
    } else if (kind != "ddp") {
      FailParallel(words);
    }
    for (std::size_t i = 2; i < words.size(); ++i) {
      // Gradients are views of what is sent in any case.
      const bool known = (kind == "ddp" && words[i] == "views") || (kind == "pipeline" && i == 2);
      const bool bf16 = kind == "fsdp" && words[i] == "bf16";
      const bool interleaved = kind == "pipeline" && words[i].starts_with("interleaved");
      if (bf16) way_.compute_dtype = at::kBFloat16;
      if (interleaved) way_.chunks = NumberOf(words[i].substr(11)).value_or(2);
      all = all && (known || bf16 || interleaved);
    }
    way_.ranks = *ranks;
    return all;
  }

  /// Without it, it would be another run altogether.
  [[noreturn]] void FailParallel(const std::vector<std::string>& words) const {
    std::string value;
    for (const std::string& word : words) value += (value.empty() ? "" : ":") + word;
    Fail("\"parallel\" is '" + value + "', which is not known here");
  }

  /// Blocks as a whole. What else a plan names, the trainer chooses by itself.
  bool TakeCheckpoint(const std::string& value) {
    if (value == "all" || value == "all blocks") {
      way_.checkpoint = CheckpointPolicy::All();
      return true;
    }
    if (value == "sqrt" || value.starts_with("every:")) {
      way_.checkpoint = CheckpointPolicy::Parse(value);
      return true;
    }
    std::vector<CheckpointPolicy::Range> blocks;
    for (const std::string& module : Words(value, ',')) {
      const auto block = BlockOf(module);
      if (!block) return false;
      blocks.push_back({*block, *block + 1});
    }
    way_.checkpoint = CheckpointPolicy::Plan(std::move(blocks));
    return true;
  }

  bool TakePrecision(const std::string& value) {
    if (value == "fp32") way_.precision = Precision::kFloat32;
    if (value == "amp_bf16") way_.precision = Precision::kBfloat16;
    if (value == "amp_fp16") way_.precision = Precision::kFloat16;
    return way_.precision.has_value();
  }

  bool TakeOptimizer(const std::string& value) {
    if (value == "adam8bit" || value == "adamw8bit") way_.optimizer = OptimizerForm::kEightBits;
    if (value.starts_with("adam") && value.ends_with(":host")) {
      way_.optimizer = OptimizerForm::kHost;
    }
    if (value.starts_with("adam") && value.ends_with(":fused")) {
      way_.optimizer = OptimizerForm::kFused;
    }
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
