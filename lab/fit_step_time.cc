// Fits the constants of src/job/time to measured operators, and says how well they fit:
//   fit_step_time TIMES.step.json.xz... [--write FILE] [--only NAMES] [--worst GROUP] [--rows FILE]
//   fit_step_time --host CAPTURES TIMES.jsonl       the constants of the host, by wall times
//   fit_step_time --step JOB.step.json.gz BATCH [PRECISION]   the time of a captured step, by
//   operator
// Each group of constants is fitted to the calls that it times: the robust sum of
// |log(predicted / measured)|, by steps up and down on each constant until none helps. --only: the
// constants whose names begin so (depthwise_last,convolution_tf32.dilated). Of a sweep whose
// settings have "aside": n, every nth shape is no part of the fit; the report shows those by
// themselves. --rows: each call with what was measured and predicted, a line each.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "files/input.h"
#include "job/cudnn/convolution_workspace.h"
#include "job/file/step_file.h"
#include "job/time/step_time.h"

namespace plimsoll {
namespace {

struct Row {
  const CallRecord* record = nullptr;
  const AtBatch* at = nullptr;
  std::string group;
  std::string job;
  double calls = 0;
  double kernels = 0;
  double us = 0;
  bool tf32 = false;
  bool aside = false;
  double weight = 1;

  Call call() const { return {*record, *at, Stage::kUnknown}; }
};

struct Measured {
  explicit Measured(Job&& of) : job(std::move(of)), at(job, job.batches[0]) {}
  Job job;
  AtBatch at;
  std::vector<Row> rows;
};

/// The groups of constants are told apart by type; those of calls are not.
std::string GroupOf(const Call& call, bool tf32) {
  std::string group(TimeGroupOf(call));
  std::size_t input = call.op().ends_with("backward") ? 1 : 0;
  if (group == "product") input = call.op().find("add") != std::string_view::npos ? 1 : 0;
  if (group == "convolution") {
    input = call.op().find("backward") != std::string_view::npos ? 1 : 0;
  }
  const auto t = call.TensorArg(input);
  const bool half = t && IsHalf((*t)->dtype);
  if (group == "product") {
    const bool batched = t && (*t)->dims() == 3 && (*t)->sizes[0] > 1;
    return std::string(batched ? "batched" : "product") + (half   ? "_half"
                                                           : tf32 ? "_tf32"
                                                                  : "_fp32");
  }
  if (group == "convolution") {
    const std::optional<ConvolutionCall> read = ReadConvolution(call);
    const std::string type = half ? "_half" : "_tf32";
    if (read && read->shape.groups > 1) {
      return (read->shape.channels_last ? "grouped_last" : "grouped") + type;
    }
    return (read && read->shape.volume ? "volume" : "convolution") + type;
  }
  if (group == "depthwise") {
    const std::optional<ConvolutionCall> read = ReadConvolution(call);
    if (read && read->shape.volume) return "depthwise_volume";
    if (!read || !read->shape.channels_last) return group;
    return IsHalf(read->dtype) ? "depthwise_last_half" : "depthwise_last_fp32";
  }
  if (group == "attention") return half ? "attention_cudnn" : "attention_fp32";
  return group;
}

/// The same for all directions of a convolution; of other calls, for all of one shape.
bool IsAside(const Call& call, std::size_t every) {
  if (every == 0) return false;
  std::uint64_t mixed = 0;
  const auto mix = [&](std::int64_t n) { mixed = mixed * 31 + static_cast<std::uint64_t>(n); };
  if (const std::optional<ConvolutionCall> read = ReadConvolution(call)) {
    const ConvShape& s = read->shape;
    for (const std::int64_t n : {s.n, s.c, s.h, s.k, s.kh, s.stride_h, s.dilation_h, s.groups}) {
      mix(n);
    }
  } else if (const auto first = call.TensorArg(0)) {
    for (const std::int64_t n : (*first)->sizes) mix(n);
  } else if (call.results() > 0) {
    for (const std::int64_t n : call.Result(0)->sizes) mix(n);
  }
  return (mixed * 0x9E3779B97F4A7C15ULL >> 32) % every == 0;
}

std::unique_ptr<Measured> ReadMeasured(const std::string& path) {
  const Result<Input> input = Input::Open(path);
  if (!input) throw std::runtime_error(input.error().ToLine());
  Result<Job> job = ReadJob(*input);
  if (!job) throw std::runtime_error(job.error().ToLine());
  auto measured = std::make_unique<Measured>(std::move(*job));
  const nlohmann::json document = nlohmann::json::parse(input->bytes());
  const auto& times = document["times"];
  for (std::size_t v = 0; v < measured->job.variants.size(); ++v) {
    const Variant& variant = measured->job.variants[v];
    const auto& settings = times[v]["settings"];
    const bool tf32 = settings.value("matmul_tf32", false);
    for (std::size_t i = 0; i < variant.calls.size(); ++i) {
      const auto& row = times[v]["calls"][i];
      Row made{.record = &variant.calls[i],
               .at = &measured->at,
               .job = times[v]["job"],
               .calls = row[0],
               .kernels = row[1],
               .us = row[2],
               .tf32 = tf32};
      made.group = GroupOf(made.call(), tf32);
      // Without TF32 other kernels run, of which no rule knows.
      if (!settings.value("cudnn_tf32", true)) made.group += ", strict";
      made.aside = IsAside(made.call(), settings.value("aside", std::size_t{0}));
      measured->rows.push_back(made);
    }
  }
  return measured;
}

class Fitter {
 public:
  explicit Fitter(std::vector<Row> rows)
      : gpu_(*FindGpu("H200")), model_(TimeModelOf(gpu_)), rows_(std::move(rows)) {}

  TimeContext ContextOf(const Row& row) const {
    return {.model = model_, .gpu = gpu_, .torch = {2, 11}, .matmul_tf32 = row.tf32};
  }

  double Predict(const Row& row) const { return TimeOf(row.call(), ContextOf(row)).us; }

  void FitAll(const std::string& only) {
    std::map<std::string, std::vector<double*>> groups;
    ForEachConstant(model_, [&](std::string_view group, std::string_view name, Scaling, double& v) {
      const std::string whole = fmt::format("{}.{}", group, name);
      std::istringstream list(only);
      bool chosen = only.empty();
      for (std::string begin; std::getline(list, begin, ',');) chosen |= whole.starts_with(begin);
      if (chosen) groups[std::string(group)].push_back(&v);
    });
    for (const auto& [group, constants] : groups) Fit(group, constants);
  }

  void Report(const std::string& worst) const {
    std::map<std::string, std::vector<const Row*>> by;
    for (const Row& row : rows_) by[row.group + (row.aside ? ", aside" : "")].push_back(&row);
    for (const auto& [group, rows] : by) {
      std::vector<double> errors;
      double predicted = 0;
      double spent = 0;
      for (const Row* row : rows) {
        const double p = Predict(*row);
        errors.push_back(std::abs(p / row->us - 1));
        predicted += p * row->calls;
        spent += row->us * row->calls;
      }
      std::sort(errors.begin(), errors.end());
      fmt::print(
          "{:28s} {:6d} calls  {:8.1f} ms  error {:5.1f} % median {:5.1f} % p90, all of it "
          "{:+5.1f} %\n",
          group, rows.size(), spent / 1e3, 100 * errors[errors.size() / 2],
          100 * errors[errors.size() * 9 / 10], 100 * (predicted / spent - 1));
      if (group == worst) Worst(rows);
    }
    Jobs();
  }

  void WriteRows(const std::string& path) const {
    std::ofstream out(path);
    for (const Row& row : rows_) {
      const Call call = row.call();
      nlohmann::json args = nlohmann::json::array();
      for (std::size_t a = 0; a < call.args(); ++a) {
        if (const auto t = call.TensorArg(a)) {
          args.push_back({{"sizes", (*t)->sizes}, {"strides", (*t)->strides}});
        } else {
          args.push_back(call.IntsArg(a));
        }
      }
      const KernelTime predicted = TimeOf(row.call(), ContextOf(row));
      out << nlohmann::json{{"group", row.group},        {"job", row.job},
                            {"op", call.op()},           {"args", args},
                            {"calls", row.calls},        {"us", row.us},
                            {"predicted", predicted.us}, {"aside", row.aside},
                            {"kernels", row.kernels}}
                 .dump()
          << "\n";
    }
  }

  void Write(const std::string& path) {
    std::ofstream out(path);
    out << "// Written by lab/fit_step_time; not to be edited.\n"
           "#include \"job/time/h200_times.h\"\n\nnamespace plimsoll {\nnamespace {\n\n"
           "constexpr MeasuredConstant kConstants[] = {\n";
    ForEachConstant(model_, [&](std::string_view group, std::string_view name, Scaling, double& v) {
      out << fmt::format("    {{\"{}\", \"{}\", {:.4g}}},\n", group, name, v);
    });
    out << "};\n\n}  // namespace\n\n"
           "std::span<const MeasuredConstant> H200Times() { return kConstants; }\n\n"
           "}  // namespace plimsoll\n";
  }

 private:
  void Fit(const std::string& group, const std::vector<double*>& constants) {
    std::vector<const Row*> rows;
    for (Row& row : rows_) {
      if (row.group != group || row.us <= 0 || row.aside) continue;
      row.weight = WeightOf(row);
      rows.push_back(&row);
    }
    if (rows.empty()) return;
    double best = Loss(rows);
    for (double job = 0.4; job > 0.01; job *= 0.6) {
      for (bool better = true; better;) {
        better = false;
        for (double* constant : constants) {
          for (const double factor : {1 + job, 1 / (1 + job)}) {
            const double before = *constant;
            *constant = before * factor;
            const double loss = Loss(rows);
            if (loss < best * (1 - 1e-5)) {
              best = loss;
              better = true;
              break;
            }
            *constant = before;
          }
        }
      }
    }
    fmt::print("{:20s} {:6d} calls, loss {:.4f}\n", group, rows.size(), best);
    std::fflush(stdout);
  }

  /// Calls that take long count more, and so do those of whole models; none counts for all. Nor
  /// does one count more because it is slower than it should be.
  double WeightOf(const Row& row) const {
    return std::sqrt(std::min(row.us, Predict(row))) *
           (row.job.starts_with("sweep") ? 1 : std::sqrt(row.calls) * 2);
  }

  double Loss(const std::vector<const Row*>& rows) const {
    double sum = 0;
    double weights = 0;
    for (const Row* row : rows) {
      sum += row->weight * std::abs(std::log(std::max(1e-3, Predict(*row)) / row->us));
      weights += row->weight;
    }
    return sum / weights;
  }

  void Worst(std::vector<const Row*> rows) const {
    const auto off = [&](const Row* r) { return std::abs(Predict(*r) - r->us) * r->calls; };
    std::sort(rows.begin(), rows.end(), [&](auto* a, auto* b) { return off(a) > off(b); });
    for (std::size_t i = 0; i < std::min<std::size_t>(40, rows.size()); ++i) {
      const Call call = rows[i]->call();
      std::string shapes;
      for (std::size_t a = 0; a < call.args(); ++a) {
        if (const auto t = call.TensorArg(a)) {
          shapes += fmt::format(" [{}]", fmt::join((*t)->sizes, ","));
          if (!(*t)->IsContiguous()) shapes += fmt::format("/{}", fmt::join((*t)->strides, ","));
        } else if (const auto ints = call.IntsArg(a); !ints.empty()) {
          shapes += fmt::format(" {}", fmt::join(ints, ","));
        }
      }
      fmt::print("   {:9.1f} us measured {:9.1f} predicted ×{:g} {} {}{}\n", rows[i]->us,
                 Predict(*rows[i]), rows[i]->calls, rows[i]->job, call.op(), shapes);
    }
  }

  void Jobs() const {
    std::map<std::string, std::pair<double, double>> jobs;
    for (const Row& row : rows_) {
      jobs[row.job].first += row.us * row.calls;
      jobs[row.job].second += Predict(row) * row.calls;
    }
    for (const auto& [job, us] : jobs) {
      fmt::print("{:32s} {:9.2f} ms measured {:9.2f} predicted {:+6.1f} %\n", job, us.first / 1e3,
                 us.second / 1e3, 100 * (us.second / us.first - 1));
    }
  }

  Gpu gpu_;
  TimeModel model_;
  std::vector<Row> rows_;
};

/// A captured step, by operator: microseconds and calls.
int ShowStep(const std::string& path, std::int64_t batch, const std::string& precision) {
  const Result<Input> input = Input::Open(path);
  if (!input) throw std::runtime_error(input.error().ToLine());
  const Result<Job> job = ReadJob(*input);
  if (!job) throw std::runtime_error(job.error().ToLine());
  const Gpu gpu = *FindGpu("H200");
  const TimeModel model = TimeModelOf(gpu);
  const AtBatch at(*job, batch);
  const auto asked = std::find_if(job->variants.begin(), job->variants.end(),
                                  [&](const Variant& v) { return v.precision == precision; });
  const Variant& variant = asked == job->variants.end() ? job->variants.front() : *asked;
  std::map<std::string, std::pair<double, int>> by;
  for (const JobEvent& event : variant.events) {
    if (event.kind == JobEvent::Kind::kStep) by.clear();
    if (event.kind != JobEvent::Kind::kCall) continue;
    const Call call(variant.calls[event.index], at, Stage::kUnknown);
    const double us = TimeOf(call, {.model = model, .gpu = gpu, .torch = {2, 11}}).us;
    auto& [sum, count] = by[std::string(call.op())];
    sum += us;
    count += us > 0 ? 1 : 0;
  }
  for (const auto& [op, spent] : by) fmt::print("{} {:.1f} {}\n", op, spent.first, spent.second);
  return 0;
}

struct Timed {
  std::string id;
  const Job* job = nullptr;
  std::int64_t batch = 0;
  double wall_us = 0;
};

/// The constants of the host, by the wall times of captured jobs.
int FitHost(const std::string& captures, const std::string& times) {
  std::map<std::string, Job> steps;
  std::map<std::string, std::pair<std::string, std::int64_t>> index;
  for (const auto& entry : std::filesystem::directory_iterator(captures)) {
    if (!entry.path().filename().string().starts_with("index")) continue;
    std::ifstream in(entry.path());
    const nlohmann::json part = nlohmann::json::parse(in);
    for (const auto& [id, where] : part.items()) {
      index[id] = {where["file"], where["batch"]};
    }
  }
  std::vector<Timed> jobs;
  std::ifstream in(times);
  for (std::string line; std::getline(in, line);) {
    const nlohmann::json row = nlohmann::json::parse(line);
    const auto& [file, batch] = index.at(row["id"]);
    if (!steps.contains(file)) {
      steps.emplace(file, *ReadJob(*Input::Open(captures + "/" + file)));
    }
    jobs.push_back({row["id"], &steps.at(file), batch, 1e3 * double(row["median_ms"])});
  }
  const Gpu gpu = *FindGpu("H200");
  HostModel host;
  const auto errors = [&] {
    std::vector<double> found;
    for (const Timed& job : jobs) {
      const double us = StepTime(*job.job, job.job->variants.front(), gpu, job.batch, {}, host).us;
      found.push_back(us / job.wall_us - 1);
    }
    return found;
  };
  const auto loss = [&] {
    double sum = 0;
    for (const double e : errors()) sum += std::abs(std::log(1 + e));
    return sum;
  };
  double best = loss();
  double* constants[] = {&host.forward, &host.backward, &host.list,
                         &host.entry,   &host.step,     &host.gap};
  for (double job = 0.4; job > 0.03; job *= 0.6) {
    for (double* constant : constants) {
      for (const double factor : {1 + job, 1 / (1 + job)}) {
        const double before = *constant;
        *constant *= factor;
        const double now = loss();
        if (now < best) {
          best = now;
        } else {
          *constant = before;
        }
      }
    }
  }
  std::vector<double> sizes;
  const std::vector<double> found = errors();
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    sizes.push_back(std::abs(found[i]));
    fmt::print("{:44s} {:8.2f} ms {:+6.1f} %\n", jobs[i].id, jobs[i].wall_us / 1e3, 100 * found[i]);
  }
  std::sort(sizes.begin(), sizes.end());
  fmt::print("forward {:.1f} backward {:.1f} list {:.1f} entry {:.2f} step {:.0f} gap {:.2f}\n",
             host.forward, host.backward, host.list, host.entry, host.step, host.gap);
  fmt::print("{} jobs: median {:.1f} %, p90 {:.1f} %\n", jobs.size(), 100 * sizes[sizes.size() / 2],
             100 * sizes[sizes.size() * 9 / 10]);
  return 0;
}

int Main(int argc, char** argv) {
  if (argc == 4 && std::string_view(argv[1]) == "--host") return FitHost(argv[2], argv[3]);
  if (argc >= 4 && std::string_view(argv[1]) == "--step") {
    return ShowStep(argv[2], std::stoll(argv[3]), argc > 4 ? argv[4] : "");
  }
  std::map<std::string, std::string> flags;
  std::vector<std::unique_ptr<Measured>> measured;
  std::vector<Row> rows;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]).starts_with("--") && i + 1 < argc) {
      flags[argv[i]] = argv[i + 1];
      ++i;
      continue;
    }
    measured.push_back(ReadMeasured(argv[i]));
    rows.insert(rows.end(), measured.back()->rows.begin(), measured.back()->rows.end());
  }
  Fitter fitter(std::move(rows));
  if (const std::string& write = flags["--write"]; !write.empty()) {
    fitter.FitAll(flags["--only"]);
    fitter.Write(write);
  }
  if (const std::string& rows_file = flags["--rows"]; !rows_file.empty()) {
    fitter.WriteRows(rows_file);
  }
  fitter.Report(flags["--worst"]);
  return 0;
}

}  // namespace
}  // namespace plimsoll

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fputs(
        "fit_step_time TIMES.step.json.xz... [--write FILE] [--only GROUP.CONSTANT] [--worst "
        "GROUP]\n",
        stderr);
    return 2;
  }
  return plimsoll::Main(argc, argv);
}
