// One rank of what train/bench/parallel_twins.py compares with PyTorch's own
// DistributedDataParallel and fully_shard. Started by it, once for each rank, with the variables of
// torchrun and words NAME=VALUE:
//   parallel_bench exact way=shard3 model=gpt folder=F     F/gpt.safetensors, trained, to
//   F/shard3.safetensors parallel_bench speed way=ddp device=cuda …             milliseconds a
//   step, and the peak of memory parallel_bench timeline way=shard3 …                   one step:
//   what was computed and sent, and when
#include <ATen/record_function.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "train/bench/train_jobs.h"
#include "train/budget/budget.h"
#include "train/models/mlp.h"
#include "train/optimizers/fused_adam.h"
#include "train/parallel/data_parallel/data_parallel.h"
#include "train/parallel/sharded/sharded.h"
#include "train/parallel/sharded/sharded_state.h"
#include "train/saving/state_tensors.h"
#include "train/saving/weights.h"
#include "train/state/safetensors.h"

namespace plimsoll::train {
namespace {

using Clock = std::chrono::steady_clock;

double Milliseconds(Clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

class Words {
 public:
  explicit Words(const std::vector<std::string>& words) {
    for (const std::string& word : words) {
      const std::size_t equals = word.find('=');
      TORCH_CHECK(equals != word.npos, "'", word, "' is not NAME=VALUE");
      values_[word.substr(0, equals)] = word.substr(equals + 1);
    }
  }
  const std::string& Text(const std::string& name) const {
    const auto found = values_.find(name);
    TORCH_CHECK(found != values_.end(), "there is no ", name, "=");
    return found->second;
  }
  std::int64_t Number(const std::string& name) const { return std::stoll(Text(name)); }

 private:
  std::map<std::string, std::string> values_;
};

/// A model that is trained on one of the ways: "ddp", or "shard1" to "shard3".
class Way {
 public:
  Way(TrainModel& model, Ranks& ranks, const std::string& name) : model_(model) {
    if (name == "ddp") {
      data_.emplace(model, ranks);
    } else {
      const auto shard = static_cast<Shard>(name.back() - '0');
      sharded_.emplace(model, ranks, ShardedOptions{.shard = shard});
    }
  }

  std::vector<at::Tensor> parameters() const {
    return data_ ? model_.parameters() : sharded_->parts();
  }

  at::Tensor AddGradients(const Batch& batch) {
    const auto loss = [&](const Batch& rows) { return model_.Loss(rows); };
    const Pieces pieces{.rows = batch.size()};
    return data_ ? data_->AccumulateGradients(loss, batch, pieces)
                 : sharded_->AccumulateGradients(loss, batch, pieces);
  }

  void Step(torch::optim::Optimizer& optimizer) {
    if (data_) {
      optimizer.step();
      optimizer.zero_grad(/*set_to_none=*/false);
    } else {
      sharded_->Step(optimizer);
      optimizer.zero_grad();
    }
  }

  void SaveWhole(const std::string& path, bool write) {
    std::optional<Sharded::Whole> whole;
    if (sharded_) whole.emplace(*sharded_);
    if (write) SaveWeights(path, model_);
  }

 private:
  TrainModel& model_;
  std::optional<DataParallel> data_;
  std::optional<Sharded> sharded_;
};

/// As train/bench/parallel_twins.py has them.
std::shared_ptr<TrainModel> SmallModel(const std::string& name) {
  if (name == "mlp") {
    return std::make_shared<Mlp>(MlpOptions{.inputs = 24, .hidden = 32, .classes = 7});
  }
  return std::make_shared<Gpt>(
      GptOptions{.vocabulary = 64, .context = 16, .width = 32, .layers = 3, .heads = 4});
}

/// The losses, and the parameters at the end.
void Exact(const Words& words, Ranks& ranks) {
  const std::string folder = words.Text("folder") + "/";
  const auto model = SmallModel(words.Text("model"));
  LoadWeights(folder + words.Text("model") + ".safetensors", *model);
  const Result<Input> input = Input::Open(folder + words.Text("model") + ".batches.safetensors");
  TORCH_CHECK(input.ok(), input.error().ToLine());
  const Result<SafeTensors> batches = ReadSafetensors(*input);
  TORCH_CHECK(batches.ok(), batches.error().ToLine());
  const auto tensor = [&](const std::string& name) {
    const StateTensor& saved = batches->at(name);
    return at::from_blob(const_cast<char*>(saved.bytes.data()), saved.sizes,
                         at::TensorOptions(ScalarTypeOf(saved.type)))
        .clone();
  };
  Way way(*model, ranks, words.Text("way"));
  torch::optim::SGD optimizer(way.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  std::cout.precision(9);
  for (int step = 0; batches->contains(std::to_string(step) + ".inputs"); ++step) {
    const Batch all{
        {tensor(std::to_string(step) + ".inputs"), tensor(std::to_string(step) + ".targets")}};
    const std::int64_t each = all.size() / ranks.size();
    const at::Tensor loss =
        way.AddGradients(all.Rows(ranks.rank() * each, (ranks.rank() + 1) * each));
    way.Step(optimizer);
    if (ranks.rank() == 0) std::cout << loss.item<double>() << "\n";
  }
  way.SaveWhole(folder + words.Text("way") + ".safetensors", ranks.rank() == 0);
}

/// A GPT of any size, and one batch.
struct GptRun {
  GptRun(const Words& words, Ranks& ranks, c10::Device on) : device(on) {
    const GptOptions sizes{.vocabulary = words.Number("vocabulary"),
                           .context = words.Number("context"),
                           .width = words.Number("width"),
                           .layers = words.Number("layers"),
                           .heads = words.Number("heads")};
    torch::manual_seed(1);
    model = std::make_shared<Gpt>(sizes);
    model->to(device);
    const at::Tensor text =
        at::randint(sizes.vocabulary, {words.Number("rows"), sizes.context + 1});
    batch = {{text.slice(1, 0, sizes.context).contiguous().to(device),
              text.slice(1, 1).contiguous().to(device)}};
    way = std::make_unique<Way>(*model, ranks, words.Text("way"));
    optimizer = std::make_unique<FusedAdamW>(way->parameters(), torch::optim::AdamWOptions(1e-4));
  }

  at::Tensor Step() {
    at::Tensor loss = way->AddGradients(batch);
    way->Step(*optimizer);
    return loss;
  }

  c10::Device device;
  std::shared_ptr<Gpt> model;
  Batch batch;
  std::unique_ptr<Way> way;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

void Speed(const Words& words, Ranks& ranks, c10::Device device) {
  GptRun run(words, ranks, device);
  for (int i = 0; i < 3; ++i) run.Step();
  Budget budget(device, std::nullopt);
  std::vector<double> times;
  at::Tensor loss;
  for (int i = 0; i < words.Number("steps"); ++i) {
    Wait(device);
    ranks.Barrier();
    const auto begin = Clock::now();
    loss = run.Step();
    Wait(device);
    times.push_back(Milliseconds(Clock::now() - begin));
  }
  std::ranges::sort(times);
  const MemoryFigures figures = budget.figures();
  std::cout << "{\"ms\": " << times[times.size() / 2] << ", \"fastest\": " << times.front()
            << ", \"peak\": " << figures.peak_allocated << ", \"between\": " << figures.allocated
            << ", \"loss\": " << loss.item<double>() << "}\n";
}

/// Operators and collectives of one step, by torch's own record of them.
class Timeline {
 public:
  struct Event {
    std::string name;
    bool backward = false;
    Clock::time_point begin, end;
    bool sends() const { return name.starts_with("gloo:") || name.starts_with("nccl:"); }
  };

  Timeline() {
    at::RecordFunctionCallback callback(&Begin, &End);
    callback.scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION,
                     at::RecordScope::USER_SCOPE});
    handle_ = at::addGlobalCallback(std::move(callback));
  }
  ~Timeline() { at::removeCallback(handle_); }
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  static std::vector<Event> Take() {
    const std::lock_guard lock(mutex_);
    return std::move(events_);
  }

 private:
  struct Open : at::ObserverContext {
    Clock::time_point begin = Clock::now();
  };
  static std::unique_ptr<at::ObserverContext> Begin(const at::RecordFunction&) {
    return std::make_unique<Open>();
  }
  static void End(const at::RecordFunction& function, at::ObserverContext* context) {
    const std::lock_guard lock(mutex_);
    events_.push_back({function.name(), function.scope() == at::RecordScope::BACKWARD_FUNCTION,
                       static_cast<Open*>(context)->begin, Clock::now()});
  }

  static inline std::mutex mutex_;
  static inline std::vector<Event> events_;
  at::CallbackHandle handle_ = 0;
};

/// The part of the time in which any of them was there, column by column.
class Row {
 public:
  Row(Clock::time_point begin, Clock::time_point end) : begin_(begin), end_(end) {}
  void Add(const Timeline::Event& event) {
    const auto column = [&](Clock::time_point time) {
      const double part = Milliseconds(time - begin_) / Milliseconds(end_ - begin_);
      return std::clamp(static_cast<int>(part * kFine), 0, kFine);
    };
    std::fill(busy_.begin() + column(event.begin),
              busy_.begin() + std::min(column(event.end) + 1, kFine), true);
  }
  double Part() const { return static_cast<double>(std::ranges::count(busy_, true)) / kFine; }
  /// Where both are.
  double PartWith(const Row& other) const {
    int both = 0;
    for (int i = 0; i < kFine; ++i) both += busy_[i] && other.busy_[i] ? 1 : 0;
    return static_cast<double>(both) / kFine;
  }
  std::string Text(char mark) const {
    std::string text(kColumns, ' ');
    for (int i = 0; i < kColumns; ++i) {
      const auto from = busy_.begin() + i * kFine / kColumns;
      const auto busy = std::count(from, from + kFine / kColumns, true);
      if (busy * 2 >= kFine / kColumns) text[i] = mark;
    }
    return text;
  }

 private:
  static constexpr int kColumns = 100;
  static constexpr int kFine = 10000;
  Clock::time_point begin_, end_;
  std::vector<bool> busy_ = std::vector<bool>(kFine);
};

void PrintTimeline(const Words& words, Ranks& ranks, c10::Device device) {
  GptRun run(words, ranks, device);
  for (int i = 0; i < 3; ++i) run.Step();
  Wait(device);
  ranks.Barrier();
  const auto begin = Clock::now();
  {
    const Timeline timeline;
    run.Step();
    Wait(device);
    // What was sent is recorded by other threads.
    ranks.Barrier();
  }
  const auto end = Clock::now();
  if (ranks.rank() != 0) return;
  Row forward(begin, end), backward(begin, end), sent(begin, end), computed(begin, end);
  int messages = 0;
  for (const Timeline::Event& event : Timeline::Take()) {
    if (event.sends()) {
      sent.Add(event);
      ++messages;
    } else if (event.backward) {
      backward.Add(event);
      computed.Add(event);
    } else if (event.name.starts_with("aten::")) {
      forward.Add(event);
      computed.Add(event);
    }
  }
  std::cout << words.Text("way") << ", rank 0 of " << ranks.size() << ", one step of "
            << Milliseconds(end - begin) << " ms, " << messages << " messages\n"
            << "operators |" << forward.Text('o') << "|\nbackward  |" << backward.Text('b')
            << "|\nsending   |" << sent.Text('s') << "|\n"
            << "sending " << 100 * sent.Part() << " % of the time, of which "
            << 100 * sent.PartWith(computed) / std::max(sent.Part(), 1e-9)
            << " % while something is computed\n";
}

/// A few steps on the device in every form of Sharded, and after a save and load.
void Check(Ranks& ranks, c10::Device device) {
  const std::string path = "/tmp/parallel_bench.save";
  std::map<std::string, at::Tensor> found;
  const auto train = [&](const std::string& name, const ShardedOptions& options) {
    torch::manual_seed(3);
    const auto model = std::make_shared<Gpt>(
        GptOptions{.vocabulary = 256, .context = 64, .width = 128, .layers = 3, .heads = 4});
    model->to(device);
    Sharded sharded(*model, ranks, options);
    torch::optim::SGD optimizer(sharded.parts(), torch::optim::SGDOptions(0.05).momentum(0.9));
    const at::Tensor text = at::randint(256, {4, 65}).to(device);
    const Batch batch{{text.slice(1, 0, 64).contiguous(), text.slice(1, 1).contiguous()}};
    for (int step = 0; step < 8; ++step) {
      optimizer.zero_grad();
      sharded.AccumulateGradients([&](const Batch& rows) { return model->Loss(rows); }, batch,
                                  {.rows = 2});
      sharded.ClipNorm(0.5);
      sharded.Step(optimizer);
      if (step == 4) {
        SaveSharded(path, sharded, {&optimizer}, ranks, name);
        for (const at::Tensor& part : sharded.parts()) part.detach().fill_(7);
        TORCH_CHECK(LoadSharded(path, sharded, {&optimizer}, ranks) == name, "another save");
      }
    }
    const Sharded::Whole whole(sharded);
    std::vector<at::Tensor> all;
    for (const at::Tensor& one : model->parameters()) {
      all.push_back(one.detach().to(at::kFloat).cpu().flatten());
    }
    found[name] = at::cat(all);
  };
  for (const int number : {1, 2, 3}) {
    for (const bool bf16 : {false, true}) {
      for (const bool offload : {false, true}) {
        ShardedOptions options{.shard = static_cast<Shard>(number), .offload = offload};
        if (bf16) options.compute_dtype = at::kBFloat16;
        const auto name = [&](int shard, bool on_host) {
          return c10::str("shard", shard, bf16 ? " bf16" : " fp32", on_host ? " on the host" : "");
        };
        train(name(number, offload), options);
        const at::Tensor& first = found.at(name(1, false));
        const at::Tensor off = (found.at(name(number, offload)) - first).norm() / first.norm();
        if (ranks.rank() == 0) {
          std::cout << name(number, offload) << ": off " << name(1, false) << " by "
                    << off.item<double>() << std::endl;
        }
      }
    }
  }
}

int Run(const std::vector<std::string>& arguments) {
  TORCH_CHECK(!arguments.empty(), "exact, speed or timeline");
  const Words words({arguments.begin() + 1, arguments.end()});
  const bool exact = arguments[0] == "exact";
  const c10::Device device(exact ? "cpu" : words.Text("device"));
  // NCCL is for one rank a GPU, so here for one alone.
  const bool nccl = !exact && words.Text("backend") == "nccl";
  Ranks ranks(LaunchFromEnvironment(), {.device = device,
                                        .transport = nccl ? Transport::kNccl : Transport::kGloo,
                                        .even_alone = nccl});
  if (exact) {
    Exact(words, ranks);
  } else if (arguments[0] == "check") {
    Check(ranks, device);
  } else if (arguments[0] == "speed") {
    Speed(words, ranks, device);
  } else {
    PrintTimeline(words, ranks, device);
  }
  return 0;
}

}  // namespace
}  // namespace plimsoll::train

int main(int argc, char** argv) {
  try {
    return plimsoll::train::Run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
