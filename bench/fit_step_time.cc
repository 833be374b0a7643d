// Fits the constants of src/step/time to measured operators, and says how well they fit:
//   fit_step_time TIMES.step.json.xz [--write src/step/time/h200_times.cc] [--worst GROUP]
//   fit_step_time --host CAPTURES TIMES.jsonl       the constants of the host, by wall times
//   fit_step_time --step JOB.step.json.gz BATCH     the time of a captured step, by operator
// Each group of constants is fitted to the calls that it times: the robust sum of
// |log(predicted / measured)|, by steps up and down on each constant until none helps.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/input.h"
#include "step/file/step_file.h"
#include "step/time/step_time.h"

namespace plimsoll {
namespace {

struct Row {
  const CallRecord* call = nullptr;
  std::string group;
  std::string job;
  double calls = 0;
  double us = 0;
  bool tf32 = false;
};

struct Measured {
  Step step;
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
  if (group == "product") return half ? "product_half" : tf32 ? "product_tf32" : "product_fp32";
  if (group == "convolution") return half ? "convolution_half" : "convolution_tf32";
  if (group == "attention") return half ? "attention_cudnn" : "attention_fp32";
  return group;
}

Measured ReadMeasured(const std::string& path) {
  const Result<Input> input = Input::Open(path);
  if (!input) throw std::runtime_error(input.error().ToLine());
  Result<Step> step = ReadStep(*input);
  if (!step) throw std::runtime_error(step.error().ToLine());
  Measured measured{.step = std::move(*step), .rows = {}};
  const nlohmann::json document = nlohmann::json::parse(input->bytes());
  const AtBatch at(measured.step, measured.step.batches[0]);
  const auto& times = document["times"];
  for (std::size_t v = 0; v < measured.step.variants.size(); ++v) {
    const Variant& variant = measured.step.variants[v];
    const bool tf32 = times[v]["settings"].value("matmul_tf32", false);
    for (std::size_t i = 0; i < variant.calls.size(); ++i) {
      const auto& row = times[v]["calls"][i];
      const CallRecord& call = variant.calls[i];
      measured.rows.push_back({.call = &call,
                               .group = GroupOf(Call(call, at, Phase::kOther), tf32),
                               .job = times[v]["job"],
                               .calls = row[0],
                               .us = row[2],
                               .tf32 = tf32});
    }
  }
  return measured;
}

class Fitter {
 public:
  explicit Fitter(const Measured& measured)
      : at_(measured.step, measured.step.batches[0]),
        gpu_(*FindGpu("H200")),
        model_(TimeModelOf(gpu_)),
        rows_(measured.rows) {}

  double Predict(const Row& row) const {
    return TimeOf(Call(*row.call, at_, Phase::kOther),
                  {.model = model_, .gpu = gpu_, .torch = {2, 11}, .matmul_tf32 = row.tf32})
        .us;
  }

  void FitAll() {
    std::vector<std::string> groups;
    ForEachConstant(model_, [&](std::string_view group, std::string_view, Scaling, double&) {
      if (groups.empty() || groups.back() != group) groups.emplace_back(group);
    });
    for (const std::string& group : groups) Fit(group);
  }

  void Report(const std::string& worst) const {
    std::map<std::string, std::vector<const Row*>> by;
    for (const Row& row : rows_) by[row.group].push_back(&row);
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
          "{:20s} {:6d} calls  {:8.1f} ms  error {:5.1f} % median {:5.1f} % p90, all of it "
          "{:+5.1f} %\n",
          group, rows.size(), spent / 1e3, 100 * errors[errors.size() / 2],
          100 * errors[errors.size() * 9 / 10], 100 * (predicted / spent - 1));
      if (group == worst) Worst(rows);
    }
    Jobs();
  }

  void Write(const std::string& path) {
    std::ofstream out(path);
    out << "// Written by bench/fit_step_time; not to be edited.\n"
           "#include \"step/time/h200_times.h\"\n\nnamespace plimsoll {\nnamespace {\n\n"
           "constexpr MeasuredConstant kConstants[] = {\n";
    ForEachConstant(model_, [&](std::string_view group, std::string_view name, Scaling, double& v) {
      out << fmt::format("    {{\"{}\", \"{}\", {:.4g}}},\n", group, name, v);
    });
    out << "};\n\n}  // namespace\n\n"
           "std::span<const MeasuredConstant> H200Times() { return kConstants; }\n\n"
           "}  // namespace plimsoll\n";
  }

 private:
  void Fit(const std::string& group) {
    std::vector<const Row*> rows;
    for (const Row& row : rows_) {
      if (row.group == group && row.us > 0) rows.push_back(&row);
    }
    if (rows.empty()) return;
    std::vector<double*> constants;
    ForEachConstant(model_, [&](std::string_view g, std::string_view, Scaling, double& value) {
      if (g == group) constants.push_back(&value);
    });
    double best = Loss(rows);
    for (double step = 0.4; step > 0.01; step *= 0.6) {
      for (bool better = true; better;) {
        better = false;
        for (double* constant : constants) {
          for (const double factor : {1 + step, 1 / (1 + step)}) {
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

  /// Calls that take long count more, and so do those of whole models; none counts for all.
  static double WeightOf(const Row& row) {
    return std::sqrt(row.us) * (row.job.starts_with("sweep") ? 1 : std::sqrt(row.calls) * 2);
  }

  double Loss(const std::vector<const Row*>& rows) const {
    double sum = 0;
    double weights = 0;
    for (const Row* row : rows) {
      const double weight = WeightOf(*row);
      sum += weight * std::abs(std::log(std::max(1e-3, Predict(*row)) / row->us));
      weights += weight;
    }
    return sum / weights;
  }

  void Worst(std::vector<const Row*> rows) const {
    const auto off = [&](const Row* r) { return std::abs(Predict(*r) - r->us) * r->calls; };
    std::sort(rows.begin(), rows.end(), [&](auto* a, auto* b) { return off(a) > off(b); });
    for (std::size_t i = 0; i < std::min<std::size_t>(40, rows.size()); ++i) {
      const Call call(*rows[i]->call, at_, Phase::kOther);
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

  AtBatch at_;
  Gpu gpu_;
  TimeModel model_;
  const std::vector<Row>& rows_;
};

/// A captured step, by operator: microseconds and calls.
int ShowStep(const std::string& path, std::int64_t batch) {
  const Result<Input> input = Input::Open(path);
  if (!input) throw std::runtime_error(input.error().ToLine());
  const Result<Step> step = ReadStep(*input);
  if (!step) throw std::runtime_error(step.error().ToLine());
  const Gpu gpu = *FindGpu("H200");
  const TimeModel model = TimeModelOf(gpu);
  const AtBatch at(*step, batch);
  const Variant& variant = step->variants.front();
  std::map<std::string, std::pair<double, int>> by;
  for (const StepEvent& event : variant.events) {
    if (event.kind == StepEvent::Kind::kStep) by.clear();
    if (event.kind != StepEvent::Kind::kCall) continue;
    const Call call(variant.calls[event.index], at, Phase::kOther);
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
  const Step* step = nullptr;
  std::int64_t batch = 0;
  double wall_us = 0;
};

/// The constants of the host, by the wall times of captured jobs.
int FitHost(const std::string& captures, const std::string& times) {
  std::map<std::string, Step> steps;
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
      steps.emplace(file, *ReadStep(*Input::Open(captures + "/" + file)));
    }
    jobs.push_back({row["id"], &steps.at(file), batch, 1e3 * double(row["median_ms"])});
  }
  const Gpu gpu = *FindGpu("H200");
  HostModel host;
  const auto errors = [&] {
    std::vector<double> found;
    for (const Timed& job : jobs) {
      const double us =
          StepTime(*job.step, job.step->variants.front(), gpu, job.batch, {}, host).us;
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
  double* constants[] = {&host.forward, &host.backward, &host.other,
                         &host.tensor,  &host.step,     &host.gap};
  for (double step = 0.4; step > 0.03; step *= 0.6) {
    for (double* constant : constants) {
      for (const double factor : {1 + step, 1 / (1 + step)}) {
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
  fmt::print("forward {:.1f} backward {:.1f} other {:.1f} tensor {:.2f} step {:.0f} gap {:.2f}\n",
             host.forward, host.backward, host.other, host.tensor, host.step, host.gap);
  fmt::print("{} jobs: median {:.1f} %, p90 {:.1f} %\n", jobs.size(), 100 * sizes[sizes.size() / 2],
             100 * sizes[sizes.size() * 9 / 10]);
  return 0;
}

int Main(int argc, char** argv) {
  if (argc == 4 && std::string_view(argv[1]) == "--host") return FitHost(argv[2], argv[3]);
  if (argc == 4 && std::string_view(argv[1]) == "--step") {
    return ShowStep(argv[2], std::stoll(argv[3]));
  }
  std::string write;
  std::string worst;
  for (int i = 2; i + 1 < argc; ++i) {
    if (std::string_view(argv[i]) == "--write") write = argv[i + 1];
    if (std::string_view(argv[i]) == "--worst") worst = argv[i + 1];
  }
  const Measured measured = ReadMeasured(argv[1]);
  Fitter fitter(measured);
  if (!write.empty()) {
    fitter.FitAll();
    fitter.Write(write);
  }
  fitter.Report(worst);
  return 0;
}

}  // namespace
}  // namespace plimsoll

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fputs("fit_step_time TIMES.step.json.xz [--write FILE] [--worst GROUP]\n", stderr);
    return 2;
  }
  return plimsoll::Main(argc, argv);
}
