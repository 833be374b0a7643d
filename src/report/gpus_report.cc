#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "report/format/json_values.h"
#include "report/format/table.h"
#include "report/format/writer.h"
#include "report/json.h"
#include "report/text.h"

namespace plimsoll {
namespace {

std::string KindText(GpuKind kind) {
  switch (kind) {
    case GpuKind::kConsumer:
      return "Consumer";
    case GpuKind::kWorkstation:
      return "Workstation";
    case GpuKind::kDataCentre:
      return "Data centre";
  }
  return "";
}

std::string KindId(GpuKind kind) {
  switch (kind) {
    case GpuKind::kConsumer:
      return "consumer";
    case GpuKind::kWorkstation:
      return "workstation";
    case GpuKind::kDataCentre:
      return "data_centre";
  }
  return "";
}

/// Data sheets have three figures, four from a thousand on: "8.1", "165.2", "1978.9".
std::string NumberText(double value) {
  const std::string text = fmt::format("{:.1f}", value);
  return text.ends_with(".0") ? text.substr(0, text.size() - 2) : text;
}

std::string Tera(const std::optional<double>& rate) {
  return rate ? NumberText(*rate / 1e12) : "-";
}

std::string Capability(const Gpu& gpu) {
  if (gpu.vendor == GpuVendor::kAmd) return "-";
  return fmt::format("{}.{}", gpu.capability.major, gpu.capability.minor);
}

std::string NvlinkText(const Gpu& gpu) {
  return gpu.interconnect.nvlink > 0 ? NumberText(gpu.interconnect.nvlink / 1e9) : "-";
}

std::string PcieText(const Gpu& gpu) {
  return fmt::format("{}x{}", gpu.interconnect.pcie_generation, gpu.interconnect.pcie_lanes);
}

std::vector<std::string> TableRow(const Gpu& gpu) {
  return {gpu.name,
          fmt::format("{}{:.2f}", gpu.memory_is_measured ? "" : "~",
                      double(gpu.Total()) / double(kGiB)),
          NumberText(gpu.bandwidth / 1e9),
          NumberText(gpu.rates.fp32 / 1e12),
          Tera(gpu.rates.tf32),
          NumberText(gpu.rates.fp16 / 1e12),
          Tera(gpu.rates.fp8),
          Capability(gpu),
          NvlinkText(gpu),
          PcieText(gpu)};
}

Table EmptyTable(GpuKind kind) {
  std::vector<Column> columns = {{.heading = KindText(kind)}, {.heading = "GiB", .right = true}};
  for (const char* figure : {"GB/s", "fp32", "tf32", "16 bit", "fp8", "cc", "NVLink", "PCIe"}) {
    columns.push_back({.heading = figure, .right = true, .may_go = true});
  }
  return Table(std::move(columns));
}

void Field(Writer& w, std::string_view name, std::string_view value) {
  w.Wrapped(value, fmt::format("  {:<17}", name), fmt::format("  {:<17}", ""));
}

std::string MemoryText(const Gpu& gpu) {
  const char* how = gpu.assumed              ? "as given"
                    : gpu.memory_is_measured ? "as a driver reported it"
                                             : "estimated: marketed size less what drivers keep";
  std::string text = fmt::format("{} ({} bytes), {}", FormatBytes(gpu.Total()), gpu.Total(), how);
  if (!gpu.unified && gpu.less_elsewhere + gpu.more_elsewhere > 0) {
    text += fmt::format("; {} to {} by other drivers", FormatBytes(gpu.LeastMemory()),
                        FormatBytes(gpu.memory + gpu.more_elsewhere));
  }
  return text;
}

std::string UnifiedText(const Gpu& gpu) {
  if (gpu.system == 0) {
    return "the host's memory is this one; --beside says what the system and others hold of it";
  }
  return fmt::format(
      "the host's memory is this one; {} to {} of it were free after a fresh boot, and predictions "
      "go by {}",
      FormatBytes(gpu.LeastMemory()), FormatBytes(gpu.memory + gpu.more_elsewhere),
      FormatBytes(gpu.memory));
}

std::string RateText(const std::optional<double>& rate) {
  return rate ? Tera(rate) + " TFLOP/s" : "none";
}

std::string HostText(const Interconnect& link) {
  const std::string rate = NumberText(link.host / 1e9);
  if (link.host_is_c2c) return fmt::format("NVLink-C2C, {} GB/s in one direction", rate);
  return fmt::format("PCIe {}.0 x{}, {} GB/s in one direction", link.pcie_generation,
                     link.pcie_lanes, rate);
}

std::string WorkspaceText(const Gpu& gpu) {
  std::string text = fmt::format("{} for each thread and stream that multiplies",
                                 FormatBytes(gpu.cublas_workspace));
  if (gpu.cublas_workspace_before_2_12 != gpu.cublas_workspace) {
    text += fmt::format("; {} up to torch 2.11", FormatBytes(gpu.cublas_workspace_before_2_12));
  }
  return text;
}

std::string_view BasisWords(FigureBasis basis) {
  switch (basis) {
    case FigureBasis::kMeasured:
      return "measured";
    case FigureBasis::kMeasuredHere:
      return "measured here";
    case FigureBasis::kAlike:
      return "as measured on the H200";
    case FigureBasis::kScaled:
      return "scaled from readings of many cards";
    case FigureBasis::kAssumed:
      break;
  }
  return "assumed: nobody is known to have read it";
}

std::string_view BasisId(FigureBasis basis) {
  switch (basis) {
    case FigureBasis::kMeasured:
      return "measured";
    case FigureBasis::kMeasuredHere:
      return "measured_here";
    case FigureBasis::kAlike:
      return "alike";
    case FigureBasis::kScaled:
      return "scaled";
    case FigureBasis::kAssumed:
      break;
  }
  return "assumed";
}

std::string ContextText(const ContextSize& context, std::string_view when) {
  std::string text =
      fmt::format("{} {}, {}", FormatBytes(context.bytes), when, BasisWords(context.basis));
  if (context.low == context.high) return text;
  return text + fmt::format(" ({} to {})", FormatBytes(context.low), FormatBytes(context.high));
}

Json ContextJson(const ContextSize& context) {
  return {{"bytes", context.bytes},
          {"low", context.low},
          {"high", context.high},
          {"measured", context.basis == FigureBasis::kMeasured},
          {"basis", BasisId(context.basis)}};
}

void ContextFields(Writer& w, const Gpu& gpu) {
  if (gpu.vendor == GpuVendor::kAmd) {
    Field(w, "hipBLAS", "workspace of " + WorkspaceText(gpu));
    Field(w, "HIP context", ContextText(gpu.context, "while training"));
    Field(w, "kernels",
          "what operators take besides their results goes by CUDA's rules: on ROCm nothing was "
          "measured, and MIOpen is not cuDNN");
    return;
  }
  Field(w, "cuBLAS workspace", WorkspaceText(gpu));
  Field(w, "context", ContextText(gpu.bare, "when CUDA starts"));
  Field(w, "", ContextText(gpu.context, "while training"));
}

void RateFields(Writer& w, const MatrixRates& rates) {
  w.Heading("Matrix products, dense, summed up in fp32");
  Field(w, "fp32", RateText(rates.fp32) + " (without tensor cores)");
  Field(w, "tf32", RateText(rates.tf32));
  Field(w, "fp16", RateText(rates.fp16));
  Field(w, "bf16", RateText(rates.bf16));
  Field(w, "fp8", RateText(rates.fp8));
}

/// Per second, as an integer like all else in the documents.
Json WholeOrNull(const std::optional<double>& rate) {
  return rate ? Json(std::llround(*rate)) : Json(nullptr);
}

Json GpuJson(const Gpu& gpu) {
  const Interconnect& link = gpu.interconnect;
  return {
      {"name", gpu.name},
      {"aliases", gpu.aliases},
      {"kind", KindId(gpu.kind)},
      {"vendor", gpu.vendor == GpuVendor::kAmd ? "amd" : "nvidia"},
      {"assumed", gpu.assumed},
      {"like", gpu.assumed ? Json(gpu.like) : Json(nullptr)},
      {"memory", gpu.Total()},
      {"memory_low", gpu.unified ? gpu.Total() : gpu.LeastMemory()},
      {"memory_high", gpu.unified ? gpu.Total() : gpu.memory + gpu.more_elsewhere},
      {"unified", gpu.unified},
      {"free", gpu.memory},
      {"memory_is_measured", gpu.memory_is_measured},
      {"compute_capability", gpu.vendor == GpuVendor::kAmd ? Json(nullptr) : Json(Capability(gpu))},
      {"gfx", gpu.gfx.empty() ? Json(nullptr) : Json(gpu.gfx)},
      {"multiprocessors", gpu.multiprocessors},
      {"threads_per_multiprocessor", gpu.threads_per_multiprocessor},
      {"bandwidth", WholeOrNull(gpu.bandwidth)},
      {"flops",
       {{"fp32", WholeOrNull(gpu.rates.fp32)},
        {"tf32", WholeOrNull(gpu.rates.tf32)},
        {"fp16", WholeOrNull(gpu.rates.fp16)},
        {"bf16", WholeOrNull(gpu.rates.bf16)},
        {"fp8", WholeOrNull(gpu.rates.fp8)}}},
      {"nvlink", link.nvlink > 0 ? WholeOrNull(link.nvlink) : Json(nullptr)},
      {"pcie", {{"generation", link.pcie_generation}, {"lanes", link.pcie_lanes}}},
      {"host",
       {{"bandwidth", WholeOrNull(link.host)}, {"kind", link.host_is_c2c ? "c2c" : "pcie"}}},
      {"cublas_workspace", gpu.cublas_workspace},
      {"cublas_workspace_before_2_12", gpu.cublas_workspace_before_2_12},
      {"bare_context", ContextJson(gpu.bare)},
      {"context", ContextJson(gpu.context)}};
}

}  // namespace

std::string GpusText(const std::vector<Gpu>& gpus, const TextStyle& style) {
  Writer w(style);
  w.Headline(fmt::format("{} GPUs", gpus.size()));
  std::vector<std::string> left_out;
  for (const GpuKind kind : {GpuKind::kConsumer, GpuKind::kWorkstation, GpuKind::kDataCentre}) {
    Table table = EmptyTable(kind);
    for (const Gpu& gpu : gpus) {
      if (gpu.kind == kind) table.Row(TableRow(gpu));
    }
    w.Line();
    for (std::string& column : table.WriteTo(w)) {
      if (std::ranges::find(left_out, column) == left_out.end()) left_out.push_back(column);
    }
  }
  w.Line();
  if (!left_out.empty()) {
    w.Wrapped(fmt::format("A wider terminal shows {} too.", Joined(left_out, ", ")), "", "");
  }
  w.Wrapped(
      "GiB: what torch.cuda.mem_get_info() gives as total, ~ where estimated. fp32 to fp8: TFLOP/s "
      "of dense matrix products, summed up in fp32. cc: compute capability. NVLink (AMD's: "
      "Infinity "
      "Fabric): GB/s in one direction. One card in full: plimsoll gpus NAME",
      "", "");
  return w.Take();
}

std::string GpuText(const Gpu& gpu, const TextStyle& style) {
  Writer w(style);
  w.Headline(gpu.assumed ? fmt::format("{}; all else as on the {}", gpu.name, gpu.like) : gpu.name);
  w.Line();
  Field(w, "memory", MemoryText(gpu));
  if (gpu.unified) Field(w, "shared", UnifiedText(gpu));
  const bool amd = gpu.vendor == GpuVendor::kAmd;
  Field(w, "bandwidth", NumberText(gpu.bandwidth / 1e9) + " GB/s");
  if (amd) {
    Field(w, "architecture", gpu.gfx);
  } else {
    Field(w, "capability", Capability(gpu));
  }
  Field(
      w, amd ? "compute units" : "multiprocessors",
      fmt::format("{} with {} threads each", gpu.multiprocessors, gpu.threads_per_multiprocessor));
  Field(w, amd ? "Infinity Fabric" : "NVLink",
        gpu.interconnect.nvlink > 0 ? NvlinkText(gpu) + " GB/s in one direction" : "none");
  Field(w, "host", HostText(gpu.interconnect));
  RateFields(w, gpu.rates);
  w.Heading("What PyTorch takes besides tensors");
  ContextFields(w, gpu);
  return w.Take();
}

std::string GpusJson(const std::vector<Gpu>& gpus) {
  Json list = Json::array();
  for (const Gpu& gpu : gpus) list.push_back(GpuJson(gpu));
  return Dump({{"schema", "plimsoll.gpus/1"}, {"gpus", list}});
}

}  // namespace plimsoll
