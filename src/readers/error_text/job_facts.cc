#include "readers/error_text/job_facts.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <functional>
#include <map>

#include "base/text.h"
#include "readers/error_text/surroundings.h"

namespace plimsoll {
namespace {

constexpr auto kNone = std::string_view::npos;
/// How much of a line is looked at in front of a phrase and behind it, and of the lines below.
constexpr std::size_t kNearPhrase = 300;
constexpr std::size_t kAhead = 1500;
/// The kernel's table of tasks has a line for each process of the machine.
constexpr std::size_t kTable = std::size_t{256} << 10;
/// A hostile text of nothing but such phrases must not take minutes.
constexpr std::size_t kMostLookedAt = 200'000;
/// Programs of the kernel's table that are told.
constexpr std::size_t kMostTasks = 3;

struct FactRow {
  std::string_view phrase;
  void (JobFactReader::*read)(const FactPlace& place);
};
// Blanks and case do not count in a phrase.
constexpr auto kRows = std::to_array<FactRow>({
    {"zero_optimization", &JobFactReader::ReadZeroOptimization},
    {"zero_stage", &JobFactReader::ReadZeroStage},
    {"ZeRO stage", &JobFactReader::ReadZeroStage},
    {"offload_optimizer", &JobFactReader::ReadOffload},
    {"skipped=", &JobFactReader::ReadDeepSpeedStep},
    {"loss", &JobFactReader::ReadLoss},
    {"Instantaneous batch size per device", &JobFactReader::ReadDeviceBatch},
    {"Batch size per device", &JobFactReader::ReadDeviceBatch},
    {"Gradient Accumulation steps", &JobFactReader::ReadAccumulation},
    {"per_device_train_batch_size", &JobFactReader::ReadBatchArgument},
    {"gradient_accumulation_steps", &JobFactReader::ReadAccumulation},
    {"Number of trainable parameters", &JobFactReader::ReadTrained},
    {"trainable params:", &JobFactReader::ReadTrained},
    {"Trainable parameters", &JobFactReader::ReadTrained},
    {"--bf16", &JobFactReader::ReadAutocast},
    {"--fp16", &JobFactReader::ReadAutocast},
    {"bf16=True", &JobFactReader::ReadAutocast},
    {"fp16=True", &JobFactReader::ReadAutocast},
    {"bf16: true", &JobFactReader::ReadAutocast},
    {"fp16: true", &JobFactReader::ReadAutocast},
    {"\"bf16\": {\"enabled\": true", &JobFactReader::ReadAutocast},
    {"\"fp16\": {\"enabled\": true", &JobFactReader::ReadAutocast},
    {"mixed_precision=bf16", &JobFactReader::ReadAutocast},
    {"mixed_precision=fp16", &JobFactReader::ReadAutocast},
    {"mixed_precision=\"bf16", &JobFactReader::ReadAutocast},
    {"mixed_precision=\"fp16", &JobFactReader::ReadAutocast},
    {"mixed_precision='bf16", &JobFactReader::ReadAutocast},
    {"mixed_precision='fp16", &JobFactReader::ReadAutocast},
    {"mixed_precision: bf16", &JobFactReader::ReadAutocast},
    {"mixed_precision: fp16", &JobFactReader::ReadAutocast},
    {"Mixed precision type: bf16", &JobFactReader::ReadAutocast},
    {"Mixed precision type: fp16", &JobFactReader::ReadAutocast},
    {"--mixed_precision bf16", &JobFactReader::ReadAutocast},
    {"--mixed_precision fp16", &JobFactReader::ReadAutocast},
    {"Automatic Mixed Precision (AMP)", &JobFactReader::ReadAutocast},
    {"dtype=torch.bfloat16", &JobFactReader::ReadAutocast},
    {"dtype=torch.float16", &JobFactReader::ReadAutocast},
    {"dtype: torch.bfloat16", &JobFactReader::ReadAutocast},
    {"dtype: torch.float16", &JobFactReader::ReadAutocast},
    {"dtype\": \"bfloat16", &JobFactReader::ReadAutocast},
    {"dtype\": \"float16", &JobFactReader::ReadAutocast},
    {"dtype: bfloat16", &JobFactReader::ReadAutocast},
    {"dtype: float16", &JobFactReader::ReadAutocast},
    {"--dtype bf16", &JobFactReader::ReadAutocast},
    {"--dtype bfloat16", &JobFactReader::ReadAutocast},
    {"precision: bf16", &JobFactReader::ReadAutocast},
    {"precision=\"bf16", &JobFactReader::ReadAutocast},
    {"precision=\"16", &JobFactReader::ReadAutocast},
    {"--gradient_checkpointing", &JobFactReader::ReadCheckpointing},
    {"incompatible with gradient checkpointing", &JobFactReader::ReadCheckpointing},
    {"gradient_checkpointing: true", &JobFactReader::ReadCheckpointing},
    {"gradient_checkpointing=True", &JobFactReader::ReadCheckpointing},
    {"enable_activation_checkpointing: True", &JobFactReader::ReadCheckpointing},
    {"--recompute-granularity full", &JobFactReader::ReadCheckpointing},
    {"micro_batch_size", &JobFactReader::ReadBatchArgument},
    {"micro-batch-size", &JobFactReader::ReadBatchArgument},
    {"micro_batch_size_per_gpu", &JobFactReader::ReadBatchArgument},
    {"_no_trainer.py", &JobFactReader::ReadOwnLoop},
    {"Num batches each epoch", &JobFactReader::ReadOwnLoop},
    {"ncclUnhandledCudaError", &JobFactReader::ReadNcclError},
    {"ncclInternalError", &JobFactReader::ReadNcclError},
    {"ncclRemoteError", &JobFactReader::ReadNcclError},
    {"ncclSystemError", &JobFactReader::ReadNcclError},
    {"Watchdog caught collective operation timeout", &JobFactReader::ReadNcclError},
    {"Connection closed by remote peer", &JobFactReader::ReadNcclError},
    {"Connection closed by peer", &JobFactReader::ReadNcclError},
    {"socketProgress: Connection closed", &JobFactReader::ReadNcclError},
    {"with config: model=", &JobFactReader::ReadServedModel},
    {"vllm serve", &JobFactReader::ReadServedModel},
    {"non-default args:", &JobFactReader::ReadModelArgument},
    {"api_server", &JobFactReader::ReadModelArgument},
    {"Starting to load model", &JobFactReader::ReadLoadedModel},
    {"CPU Virtual Memory:", &JobFactReader::ReadHostUse},
    {"tgid total_vm", &JobFactReader::ReadTasks},
    {"Sleep mode freed", &JobFactReader::ReadEngine},
    {"CUDA graph memory:", &JobFactReader::ReadEngine},
});

/// The number behind signs that set a value apart from its name: " ...... 2", "\": 2", "=2".
std::optional<std::int64_t> NumberBehind(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t.:=\"'\\[(#");
  if (first == kNone || first > 80) return {};
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data() + first, text.data() + text.size(), value);
  if (error != std::errc() || value < 0 || value > 1'000'000'000) return {};
  return value;
}

/// The largest number that stands behind the word: "step 12", "global_step=12", "Iter[12/500]".
std::int64_t CountBehind(std::string_view line, std::string_view word) {
  std::int64_t most = 0;
  for (std::size_t at = line.find(word); at != kNone; at = line.find(word, at + 1)) {
    // Not "time/step", nor the end of another word.
    if (at > 0 && std::isalpha(static_cast<unsigned char>(line[at - 1]))) continue;
    most = std::max(most, NumberBehind(line.substr(at + word.size())).value_or(0));
  }
  return most;
}

/// The number in front of the slash of a progress bar: "30/1000 [00:10<05:01".
std::int64_t CountOfBar(std::string_view line) {
  const std::size_t bracket = line.find(" [");
  const std::size_t slash = line.substr(0, bracket).rfind('/');
  if (bracket == kNone || slash == kNone || slash == 0) return 0;
  const std::string_view all = line.substr(slash + 1, bracket - slash - 1);
  if (all.empty() || !std::all_of(all.begin(), all.end(), IsDigit)) return 0;
  std::size_t first = slash;
  while (first > 0 && IsDigit(line[first - 1])) --first;
  return NumberBehind(line.substr(first, slash - first)).value_or(0);
}

/// Whether a line with a loss shows that the optimizer has done a step before this line: the first
/// loss may be printed before its step.
bool ShowsEarlierStep(std::string_view line) {
  // transformers' Trainer prints this behind a step.
  if (Contains(line, "{'loss':")) return true;
  for (std::string_view word : {"step", "iter", "iteration", "epoch"}) {
    if (CountBehind(line, word) >= 2) return true;
  }
  return CountOfBar(line) >= 2;
}

/// A name that can be typed as it is: whoever wrote the log does not decide what is run.
bool IsPlainName(std::string_view name) {
  constexpr std::string_view kSigns = "_./-:@";
  return !name.empty() && name.size() < 200 && !name.starts_with('-') &&
         std::ranges::all_of(name, [&](unsigned char c) {
           return std::isalnum(c) != 0 || kSigns.find(static_cast<char>(c)) != kNone;
         });
}

/// The word at the beginning, without blanks and quotes around it.
std::string_view FirstWord(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t=:'\"");
  if (first == kNone) return {};
  text.remove_prefix(first);
  return text.substr(0, text.find_first_of(" \t\r\n,'\"})"));
}

/// "8,030,261,248" at the beginning, behind signs that set a value apart from its name.
std::optional<std::int64_t> NumberWithCommas(std::string_view text) {
  text.remove_prefix(std::min(text.size(), text.find_first_not_of(" \t:=")));
  std::string digits(text.substr(0, text.find_first_not_of("0123456789,")).substr(0, 24));
  std::erase(digits, ',');
  std::int64_t count = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
  constexpr std::int64_t kMost = std::int64_t{1} << 50;
  return error == std::errc() && count > 0 && count < kMost ? std::optional(count) : std::nullopt;
}

/// A flag that is not taken back by what stands behind it: "--bf16 False".
bool IsOn(std::string_view behind) { return !FirstWord(behind).starts_with("False"); }

/// The number behind a name: "97.1" of "percent = 97.1%".
std::optional<double> AmountBehind(std::string_view text, std::string_view name) {
  const std::size_t at = text.find(name);
  if (at == kNone) return {};
  text.remove_prefix(at + name.size());
  text.remove_prefix(std::min(text.size(), text.find_first_not_of(" \t")));
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !(value >= 0)) return {};
  return value;
}

/// Of a card, however many of them are one.
constexpr double kMostGiB = 1e4;

std::optional<Bytes> GraphEstimate(const FactPlace& place) {
  const std::size_t first = place.behind.find_first_not_of(" \t");
  if (!Contains(place.line, "Estimated") || first == kNone || first > 8) return {};
  std::string_view rest = place.behind.substr(first);
  // Some logs print the sign of typographers.
  constexpr std::string_view kMinus = "\u2212";
  const bool below = rest.starts_with('-') || rest.starts_with(kMinus);
  if (below) rest.remove_prefix(rest.starts_with('-') ? 1 : kMinus.size());
  const std::optional<double> amount = AmountBehind(rest, "");
  if (!amount || *amount > kMostGiB || !Contains(rest.substr(0, 24), "GiB")) return {};
  return static_cast<Bytes>(*amount * double(kGiB)) * (below ? -1 : 1);
}

/// "[  51801]  1000 51801 14211877  1902113 22020096   201001             0 python".
std::optional<TaskUse> TaskOf(std::string_view line) {
  constexpr Bytes kPage = 4 * kKiB;
  constexpr std::int64_t kMostPages = std::int64_t{1} << 40;
  const std::size_t close = line.rfind(']');
  const std::size_t open = line.rfind('[', close);
  if (close == kNone || open == kNone) return {};
  const auto is_pid = [](char c) { return IsDigit(c) || c == ' '; };
  if (!std::ranges::all_of(line.substr(open + 1, close - open - 1), is_pid)) return {};
  std::vector<std::string_view> words;
  for (std::string_view rest = line.substr(close + 1); !rest.empty();) {
    rest.remove_prefix(std::min(rest.size(), rest.find_first_not_of(" \t\r")));
    const std::string_view word = rest.substr(0, rest.find_first_of(" \t\r"));
    if (!word.empty()) words.push_back(word);
    rest.remove_prefix(word.size());
  }
  constexpr std::size_t kResident = 3;
  if (words.size() < kResident + 3 || !std::ranges::all_of(words[kResident], IsDigit)) return {};
  const std::int64_t pages = NumberBehind(words[kResident]).value_or(kMostPages);
  if (pages >= kMostPages || words.back().size() > 64) return {};
  return TaskUse{.name = std::string(words.back()), .processes = 1, .bytes = pages * kPage};
}

/// All phrases that are looked for, and the framework that writes each, if one does.
struct SoughtPhrase {
  std::string_view words;
  std::optional<Framework> framework;
};
const std::vector<SoughtPhrase>& SoughtPhrases() {
  static const std::vector<SoughtPhrase> phrases = [] {
    std::vector<SoughtPhrase> sought;
    for (const FactRow& row : kRows) sought.push_back({row.phrase, {}});
    for (const FrameworkPhrase& phrase : FrameworkPhrases()) {
      const auto known = std::ranges::find(sought, phrase.words, &SoughtPhrase::words);
      if (known == sought.end()) {
        sought.push_back({phrase.words, phrase.framework});
      } else {
        known->framework = phrase.framework;
      }
    }
    return sought;
  }();
  return phrases;
}

/// Not "finetune run" for "tune run".
bool IsWholeWord(std::string_view part, std::size_t begin, std::string_view words) {
  const auto is_of_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  };
  return begin == 0 || !is_of_word(words.front()) || !is_of_word(part[begin - 1]);
}

FactPlace PlaceOf(std::string_view part, std::size_t begin, std::size_t end, std::size_t offset) {
  const std::size_t far = begin > kNearPhrase ? begin - kNearPhrase : 0;
  const std::size_t before = part.substr(far, begin - far).rfind('\n');
  const std::size_t from = before == kNone ? far : far + before + 1;
  const std::string_view rest = part.substr(end, kAhead);
  const std::string_view behind = rest.substr(0, rest.find('\n'));
  const std::size_t to = end + std::min(behind.size(), kNearPhrase);
  return {.line = part.substr(from, to - from),
          .behind = behind,
          .ahead = rest,
          .below = part.substr(std::min(part.size(), end + behind.size() + 1), kTable),
          .offset = offset + begin};
}

}  // namespace

std::vector<std::string_view> JobFactReader::Phrases() {
  std::vector<std::string_view> phrases;
  for (const SoughtPhrase& phrase : SoughtPhrases()) phrases.push_back(phrase.words);
  return phrases;
}

void JobFactReader::See(std::size_t phrase, std::string_view part, std::size_t begin,
                        std::size_t end, std::size_t offset) {
  const SoughtPhrase& sought = SoughtPhrases()[phrase];
  if (sought.framework && IsWholeWord(part, begin, sought.words)) {
    signs_.frameworks.Add(*sought.framework);
  }
  if (phrase >= kRows.size()) return;
  // Most lines of a log may have a loss; one that tells is enough.
  if (kRows[phrase].read == &JobFactReader::ReadLoss && first_step_) return;
  if (++looked_at_ > kMostLookedAt) return;
  (this->*kRows[phrase].read)(PlaceOf(part, begin, end, offset));
}

void JobFactReader::ReadZeroOptimization(const FactPlace& place) {
  constexpr std::string_view kStage = "stage";
  const std::size_t stage = place.ahead.substr(0, kNearPhrase).find(kStage);
  if (stage == kNone) return;
  ReadZeroStage({.line = place.line,
                 .behind = place.ahead.substr(stage + kStage.size(), kNearPhrase),
                 .ahead = {},
                 .below = {},
                 .offset = place.offset});
}

/// "--zero_stage 2", "Creating fp16 ZeRO stage 2 optimizer".
void JobFactReader::ReadZeroStage(const FactPlace& place) {
  const std::optional<std::int64_t> stage = NumberBehind(place.behind);
  if (!stage || *stage > 3) return;
  zero_stage_ = static_cast<int>(*stage);
  signs_.frameworks.Add(Framework::kDeepSpeed);
}

/// "offload_optimizer": {"device": "cpu", offload_optimizer=DeepSpeedZero…Config(device='cpu'.
void JobFactReader::ReadOffload(const FactPlace& place) {
  const std::string_view near = place.ahead.substr(0, 120);
  const std::size_t device = near.find("device");
  if (device == kNone || Contains(near.substr(0, device), "None")) return;
  const std::string_view value = near.substr(device, 48);
  if (Contains(value, "cpu") || Contains(value, "nvme")) signs_.offloads_optimizer = true;
}

/// "[Rank 0] step=10, skipped=0, lr=[1e-05]"
void JobFactReader::ReadDeepSpeedStep(const FactPlace& place) {
  if (CountBehind(place.line, "step") == 0) return;
  signs_.frameworks.Add(Framework::kDeepSpeed);
  NoteStep(place.offset);
}

void JobFactReader::ReadLoss(const FactPlace& place) {
  // torchtitan has a colour between "step:" and its number.
  if (ShowsEarlierStep(Lower(WithoutColours(place.line)))) NoteStep(place.offset);
}

void JobFactReader::ReadDeviceBatch(const FactPlace& place) {
  device_batch_ = NumberBehind(place.behind);
}

/// "--per_device_train_batch_size 4" of the command.
void JobFactReader::ReadBatchArgument(const FactPlace& place) {
  if (!device_batch_) device_batch_ = NumberBehind(place.behind);
}

void JobFactReader::ReadAutocast(const FactPlace& place) { signs_.autocast |= IsOn(place.behind); }

void JobFactReader::ReadCheckpointing(const FactPlace& place) {
  signs_.checkpoints |= IsOn(place.behind);
}

void JobFactReader::ReadAccumulation(const FactPlace& place) {
  accumulation_ = NumberBehind(place.behind);
}

/// Trainer's "Number of trainable parameters = 8,030,261,248", PEFT's "trainable params: 41,943,040
/// || all params: …", unsloth's "Trainable parameters = 41,943,040 of …".
void JobFactReader::ReadTrained(const FactPlace& place) {
  if (const auto count = NumberWithCommas(place.behind)) trained_ = count;
}

/// What a rank prints when another one has died.
void JobFactReader::ReadNcclError(const FactPlace&) { ++nccl_errors_; }

/// The examples of transformers and diffusers without its Trainer print the same lines.
void JobFactReader::ReadOwnLoop(const FactPlace&) { own_loop_ = true; }

/// "Initializing a V1 LLM engine (v0.11.0) with config: model='Qwen/Qwen3-8B', …", "vllm serve
/// Qwen/Qwen3-8B".
void JobFactReader::ReadServedModel(const FactPlace& place) { NoteModel(FirstWord(place.behind)); }

/// "non-default args: {'model': 'Qwen/Qwen3-8B', …", "vllm.entrypoints.openai.api_server --model
/// Qwen/Qwen3-8B".
void JobFactReader::ReadModelArgument(const FactPlace& place) {
  for (std::string_view key : {"'model_tag':", "'model':", "model_tag=", "--model ", "--model="}) {
    const std::size_t at = place.behind.find(key);
    if (at != kNone) return NoteModel(FirstWord(place.behind.substr(at + key.size())));
  }
}

/// vLLM's "Starting to load model Qwen/Qwen3-8B...".
void JobFactReader::ReadLoadedModel(const FactPlace& place) {
  std::string_view name = FirstWord(place.behind);
  while (name.ends_with('.')) name.remove_suffix(1);
  NoteModel(name);
}

/// DeepSpeed's "CPU Virtual Memory:  used = 489.03 GB, percent = 97.1%", in units of 1024.
void JobFactReader::ReadHostUse(const FactPlace& place) {
  const std::optional<double> used = AmountBehind(place.behind, "used =");
  const std::optional<double> percent = AmountBehind(place.behind, "percent =");
  if (!used || !percent || *used > 1e6 || *percent > 100) return;
  signs_.frameworks.Add(Framework::kDeepSpeed);
  const HostUse seen{.used = static_cast<Bytes>(*used * double(kGiB)), .percent = *percent};
  host_use_ = std::pair(host_use_ ? host_use_->first : seen, seen);
}

/// The kernel's table, below "[  pid  ]   uid  tgid total_vm      rss pgtables_bytes … name": in
/// pages. Newer kernels have more columns, and `rss` is always the third of the numbers.
void JobFactReader::ReadTasks(const FactPlace& place) {
  if (!FirstWord(place.behind).starts_with("rss")) return;
  std::map<std::string, TaskUse> by_name;
  std::string_view rest = place.below;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    const std::optional<TaskUse> task = TaskOf(line);
    if (!task) break;
    TaskUse& all = by_name[task->name];
    all.name = task->name;
    all.processes += 1;
    all.bytes += task->bytes;
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
  }
  tasks_.clear();
  for (auto& [name, task] : by_name) tasks_.push_back(std::move(task));
  std::ranges::stable_sort(tasks_, std::ranges::greater(), &TaskUse::bytes);
  if (tasks_.size() > kMostTasks) tasks_.resize(kMostTasks);
}

/// vLLM's "Sleep mode freed 61.47 GiB memory, 7.93 GiB memory is still in use.", and "Estimated
/// CUDA graph memory: -35.12 GiB total".
void JobFactReader::ReadEngine(const FactPlace& place) {
  if (Contains(place.line, "graph memory:")) {
    if (const std::optional<Bytes> estimate = GraphEstimate(place)) graph_estimate_ = estimate;
    return;
  }
  const std::optional<double> freed = AmountBehind(place.behind, "");
  const std::optional<double> used = AmountBehind(place.behind, "memory,");
  if (!freed || !used || *freed > kMostGiB || *used > kMostGiB) return;
  if (!Contains(place.behind, "GiB") || !Contains(place.behind, "still in use")) return;
  sleeps_.emplace_back(place.offset,
                       EngineSleep{.freed = static_cast<Bytes>(*freed * double(kGiB)),
                                   .still_in_use = static_cast<Bytes>(*used * double(kGiB))});
}

void JobFactReader::NoteStep(std::size_t offset) {
  if (!first_step_) first_step_ = offset;
}

void JobFactReader::NoteModel(std::string_view name) {
  if (model_.empty() && IsPlainName(name)) model_ = name;
}

void JobFactReader::AddTo(OomMessage& message) const {
  Signs signs = signs_;
  if (own_loop_) signs.frameworks.Remove(Framework::kHfTrainer);
  signs.stepped_before = first_step_ && *first_step_ < message.offset;
  message.signs |= signs;
  // A traceback through one file may be of stage 1 or 2; the log knows which.
  if (zero_stage_) message.zero_stage = zero_stage_;
  if (!message.device_batch) message.device_batch = device_batch_;
  if (!message.graph_estimate) message.graph_estimate = graph_estimate_;
  if (!message.accumulation) message.accumulation = accumulation_;
  if (!message.trained) message.trained = trained_;
  if (message.model.empty()) message.model = model_;
  for (const auto& [offset, sleep] : sleeps_) {
    if (offset < message.offset) message.engine_sleep = sleep;
  }
  if (message.source != MessageSource::kHostMemory) return;
  message.host_use = host_use_;
  message.tasks = tasks_;
}

}  // namespace plimsoll
