// The host's memory: who noticed, and what to do about it. A row each.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "diagnose/error_texts/advice.h"
#include "diagnose/error_texts/causes.h"

namespace plimsoll {
namespace {

struct HostRow {
  HostEvent event;
  std::string_view title;
  std::string_view evidence;
};
constexpr auto kRows = std::to_array<HostRow>({
    {HostEvent::kRequest, "The host's memory (RAM) ran out, not the GPU's",
     "the request went to the host's allocator"},
    {HostEvent::kPinned, "The host could give no more pinned (page-locked) memory",
     "pinned memory cannot be swapped, and systems, containers and WSL limit it"},
    {HostEvent::kDriver,
     "NVIDIA's driver found no memory of the host for itself: the machine is full, not the job "
     "alone",
     "the kernel's log says so (NV_ERR_NO_MEMORY); where GPU and host share one memory (GB10, "
     "Jetson, GH200) this is how it ends"},
    {HostEvent::kPageFile, "Windows could commit no more memory: the page file is too small",
     "every process that imports torch with CUDA commits several GiB, DataLoader workers too"},
    {HostEvent::kSharedMemory,
     "Shared memory (/dev/shm) is full: DataLoader workers pass their "
     "batches through it",
     "containers have 64 MiB of it unless told otherwise"},
    {HostEvent::kWorkerKilled,
     "A DataLoader worker was killed, as the kernel does when the host's "
     "memory is full",
     "the text names no sender of the signal; the kernel's log does"},
    {HostEvent::kWorkerLost,
     "A DataLoader worker ended, and the text does not say that memory was the reason",
     "a worker that runs out of the host's memory ends so, and so does one that crashes"},
    {HostEvent::kJavaHeap, "The heap of a Java virtual machine is full, not the GPU's memory",
     "Java has a limit of its own, below what the host has"},
    {HostEvent::kSystemdKill,
     "systemd-oomd killed the processes of a session or service because memory pressure was high",
     "it acts before the kernel would, on a whole group of processes"},
    {HostEvent::kKernelKill, "The kernel killed the process because the host's memory was full",
     "the whole machine was short, so other programs count too"},
    {HostEvent::kCgroupKill,
     "The kernel killed the process at the memory limit of its container "
     "or job",
     "the machine itself may have had memory left"},
    {HostEvent::kSlurmKill, "Slurm's memory limit of the job was reached, and the kernel killed it",
     "the limit is on the host's memory, not on the GPU's"},
    {HostEvent::kBatchKill, "The batch system's memory limit of the job was reached",
     "the limit is on the host's memory, not on the GPU's"},
    {HostEvent::kKubernetesKill, "Kubernetes ended the container at its memory limit",
     "the limit is on the host's memory, not on the GPU's"},
    {HostEvent::kNodePressure,
     "Kubernetes evicted the pod because its node had too little memory left",
     "the node was short, not the container at its limit; pods that use more than they requested "
     "go first"},
    {HostEvent::kRayKill,
     "Ray's memory monitor killed workers because the node's memory was nearly "
     "full",
     "it acts before the kernel would, at a share of the memory"},
    {HostEvent::kEarlyOomKill,
     "earlyoom ended the process because little of the host's memory was left",
     "it acts before the kernel would: at 10 % available, unless it is told otherwise"},
    {HostEvent::kDaskKill, "Dask restarted a worker that came near its memory limit",
     "its nanny acts at 95 % of the worker's limit, unless it is told otherwise"},
    {HostEvent::kKilled,
     "The process was killed by signal 9, most often by the kernel because the "
     "host's memory was full",
     "the text does not say who sent it; a user, a scheduler or a launcher can too"},
});

/// How to ask for more, by who sets the limit. "{Gi}" in the code is a size that is more than
/// there was, with the unit as it is typed there.
struct MoreRow {
  HostEvent event;
  Lever lever;
  std::string_view change;
  std::string_view code = {};
};
constexpr std::string_view kWhoKilled = "sudo dmesg -T | grep -i -A2 'killed process'\nfree -h";
constexpr auto kMore = std::to_array<MoreRow>({
    {HostEvent::kSharedMemory, Lever::kSharedMemory, "more shared memory for the container",
     "docker run --shm-size=16g ...   # or --ipc=host\n"
     "# Kubernetes: an emptyDir volume with medium: Memory at /dev/shm\ndf -h /dev/shm"},
    {HostEvent::kSlurmKill, Lever::kHostLimit, "ask for more host memory",
     "sbatch --mem={G} job.sh\nsacct -j JOB -o JobID,ReqMem,MaxRSS,State"},
    {HostEvent::kBatchKill, Lever::kHostLimit,
     "ask the batch system for more memory (PBS -l mem=, LSF -M, HTCondor request_memory=)"},
    {HostEvent::kKubernetesKill, Lever::kHostLimit,
     "raise resources.limits.memory of the container",
     "kubectl describe pod POD   # Last State, limits\nresources: {limits: {memory: {Gi}}}"},
    {HostEvent::kNodePressure, Lever::kHostLimit,
     "request as much memory as the pod uses, so that it gets a node that has it, or a larger node",
     "kubectl describe node NODE   # Allocated resources, Conditions\n"
     "resources: {requests: {memory: {Gi}}}"},
    {HostEvent::kCgroupKill, Lever::kHostLimit, "raise the memory limit of the container or job",
     "cat /sys/fs/cgroup/memory.max   # the limit\ndocker run --memory={g} ..."},
    {HostEvent::kRayKill, Lever::kHostLimit, "more memory for each task, fewer tasks at once",
     "@ray.remote(memory=SIZE)   # in bytes\n"
     "export RAY_memory_usage_threshold=0.98   # the kernel kills soon after"},
    {HostEvent::kEarlyOomKill, Lever::kHostLimit,
     "a machine with more memory, or let earlyoom leave the job alone; the kernel kills soon after",
     "journalctl -u earlyoom\nearlyoom -m 4 --avoid '^python'   # in /etc/default/earlyoom"},
    {HostEvent::kDaskKill, Lever::kHostLimit, "more memory for each worker, fewer workers",
     "dask worker --memory-limit SIZE --nworkers N ..."},
    {HostEvent::kDriver, Lever::kMemoryLimit,
     "set a limit, so that the job fails cleanly before the machine does",
     "torch.cuda.set_per_process_memory_fraction(0.8)\n"
     "free -h   # what counts on such a machine is \"available\""},
    {HostEvent::kPageFile, Lever::kHostLimit,
     "a larger page file: System > Advanced > Performance > Virtual memory, on a drive with room"},
    {HostEvent::kPinned, Lever::kHostLimit, "less pinned memory",
     "DataLoader(..., pin_memory=False)\n"
     "\"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": false}   # DeepSpeed\n"
     "ulimit -l   # the limit on locked memory; WSL: memory= in .wslconfig"},
    {HostEvent::kJavaHeap, Lever::kHostLimit, "a larger heap",
     "java -Xmx{g} ...\nspark-submit --driver-memory {g} --executor-memory {g} ..."},
    {HostEvent::kSystemdKill, Lever::kHostLimit,
     "see what it killed, and run the job where it does not look",
     "journalctl -u systemd-oomd\n"
     "sudo systemd-run --scope -p ManagedOOMMemoryPressure=auto python train.py"},
    {HostEvent::kKilled, Lever::kHostLimit, "see who sent the signal, and how much the process had",
     kWhoKilled},
    {HostEvent::kWorkerKilled, Lever::kHostLimit,
     "see who sent the signal, and how much the process had", kWhoKilled},
    {HostEvent::kWorkerLost, Lever::kLoaderWorkers,
     "read the data once without workers: an error in the dataset then shows itself",
     "DataLoader(dataset, num_workers=0)"},
});

/// Who set the limit, by the path of the control group.
HostEvent WhoseLimit(const OomMessage& m) {
  if (m.host != HostEvent::kCgroupKill) return m.host;
  if (m.cgroup.find("slurm") != std::string::npos) return HostEvent::kSlurmKill;
  if (m.cgroup.find("kubepods") != std::string::npos) return HostEvent::kKubernetesKill;
  return m.host;
}

/// What there was: the limit, or what was in use where that is more or alone is known.
Bytes KnownNeed(const OomMessage& m) {
  Bytes processes = 0;
  for (const ProcessUse& process : m.processes) processes += process.bytes.value_or(0);
  return std::max({m.allowed.value_or(0), m.allocated.value_or(0), processes});
}

/// A quarter more, in whole steps as people ask for it.
Bytes QuarterMore(Bytes known) {
  const Bytes step = known >= 16 * kGiB ? 8 * kGiB : kGiB;
  return (known / 4 * 5 + step - 1) / step * step;
}

/// Sizes in the place of "{Gi}", "{G}" and "{g}": a size that is known to be too small must never
/// be advised, so that SIZE stands there where the text tells none.
std::vector<std::string> WithSizes(std::vector<std::string> lines, const OomMessage& m) {
  constexpr Bytes kMost = Bytes{1} << 50;
  const Bytes known = KnownNeed(m);
  const bool tells = known > 0 && known < kMost;
  for (std::string& line : lines) {
    bool placed = false;
    for (const std::string_view unit : {"Gi", "G", "g"}) {
      const std::string place = fmt::format("{{{}}}", unit);
      const std::string size =
          tells ? fmt::format("{}{}", QuarterMore(known) / kGiB, unit) : "SIZE";
      for (std::size_t at = line.find(place); at != std::string::npos; at = line.find(place, at)) {
        line.replace(at, place.size(), size);
        placed = true;
      }
    }
    if (!placed || !tells) continue;
    line += m.allowed == known ? fmt::format("   # the limit was {}", FormatBytes(known))
                               : fmt::format("   # {} was in use", FormatBytes(known));
  }
  return lines;
}

/// Slurm's number of the job, as its messages and its control groups name it.
std::string JobNumber(const OomMessage& m) {
  const auto behind = [](const std::string& text, std::string_view key) -> std::string {
    const std::size_t at = text.find(key);
    if (at == std::string::npos) return {};
    const std::string rest = text.substr(at + key.size());
    return rest.substr(0, rest.find_first_not_of("0123456789"));
  };
  const std::string of_step = behind(m.subject, "StepId=");
  return of_step.empty() ? behind(m.cgroup, "job_") : of_step;
}

/// With the job's number where the text has it.
std::vector<std::string> WithJob(std::vector<std::string> lines, const OomMessage& m) {
  constexpr std::string_view kPlace = "-j JOB ";
  const std::string number = JobNumber(m);
  for (std::string& line : lines) {
    const std::size_t at = line.find(kPlace);
    if (at == std::string::npos || number.empty()) continue;
    line.replace(at, kPlace.size(), "-j " + number + " ");
  }
  return lines;
}

std::optional<Remedy> MoreMemory(const OomMessage& m) {
  if (m.host == HostEvent::kCgroupKill && m.cgroup.find(".slice") != std::string::npos) {
    const std::string unit = m.cgroup.substr(m.cgroup.rfind('/') + 1);
    return Rule("raise the memory limit of the systemd unit", Lever::kHostLimit,
                WithSizes({"systemctl set-property " + unit + " MemoryMax={G}"}, m));
  }
  for (const MoreRow& row : kMore) {
    if (row.event != WhoseLimit(m)) continue;
    return Rule(std::string(row.change), row.lever, WithJob(WithSizes(LinesOf(row.code), m), m));
  }
  if (!m.signs.windows) return {};
  return Rule("a larger page file: System > Advanced > Performance > Virtual memory",
              Lever::kHostLimit);
}

/// Of the host's memory, last printed before a kill: so full that nobody else needs to be asked.
constexpr double kFullPercent = 90;
/// Of a kernel's table: what is worth a line.
constexpr Bytes kTellTask = kGiB;

bool WasFull(const OomMessage& m) {
  return m.host_use && m.host_use->second.percent >= kFullPercent;
}

std::vector<Remedy> LessHostMemory(const OomMessage& m) {
  if (m.host == HostEvent::kJavaHeap) return {};
  // PyTorch/XLA reads its data as PyTorch does.
  if (m.program != Program::kUnknown && m.program != Program::kTorchXla &&
      m.program != Program::kOther) {
    return NeedLessOnHost(m);
  }
  if (m.subject == "NCCL") return {};
  if (!MayBePython(m)) {
    return {Rule("less in that process at a time: fewer threads and requests, smaller inputs")};
  }
  if (m.subject == "Ray" && m.host == HostEvent::kSharedMemory) {
    return {Rule("a larger object store, fewer and smaller objects at once", Lever::kOther,
                 {"ray.init(object_store_memory=SIZE)   # in bytes"})};
  }
  std::vector<Remedy> remedies;
  if (m.signs.frameworks.Has(Framework::kDeepSpeed)) {
    remedies.push_back(Rule(
        "DeepSpeed's offload to a fast local disk instead of the host's memory", Lever::kOffload,
        {"\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/local_nvme\"}",
         "\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"/local_nvme\"}   # stage 3"}));
  }
  remedies.push_back(Rule("fewer DataLoader workers, and fewer batches read ahead",
                          Lever::kLoaderWorkers,
                          {"DataLoader(dataset, num_workers=2, prefetch_factor=2)"}));
  if (m.host != HostEvent::kSharedMemory && m.host != HostEvent::kPinned) {
    remedies.push_back(
        Rule("data that stays on disk: np.load(path, mmap_mode=\"r\"), Arrow or LMDB instead of "
             "lists of Python objects, which every worker copies"));
    remedies.push_back(Rule("weights read straight to the device, one process after the other",
                            Lever::kOther, {"torch.load(path, mmap=True, map_location=\"cuda\")"}));
  }
  return remedies;
}

void AddFigures(const OomMessage& m, Finding& finding) {
  if (m.requested) {
    finding.evidence.push_back(fmt::format("{} was asked for", FormatBytes(*m.requested)));
  }
  if (m.free) finding.evidence.push_back(fmt::format("{} was available", FormatBytes(*m.free)));
  if (m.allocated && m.capacity) {
    finding.evidence.push_back(fmt::format("{} of {} on the node in use", FormatBytes(*m.allocated),
                                           FormatBytes(*m.capacity)));
  }
  if (!m.cgroup.empty()) finding.evidence.push_back("the control group is " + m.cgroup);
  if (m.allowed) {
    const std::string use =
        m.allocated && !m.capacity ? FormatBytes(*m.allocated) + " in use, " : "";
    const std::string share =
        m.capacity && *m.capacity > 0
            ? fmt::format(" ({:.0f} % of that)", 100 * double(*m.allowed) / double(*m.capacity))
            : "";
    finding.evidence.push_back(
        fmt::format("{}the limit is {}{}", use, FormatBytes(*m.allowed), share));
  }
  if (m.host_use) {
    const auto& [first, last] = *m.host_use;
    std::string line =
        fmt::format("{} of the host's memory ({} %) was in use when it was last printed",
                    FormatBytes(last.used), last.percent);
    if (first.percent != last.percent) {
      line += fmt::format(", {} ({} %) when it was first", FormatBytes(first.used), first.percent);
    }
    finding.evidence.push_back(std::move(line));
  }
  for (const TaskUse& task : m.tasks) {
    if (task.bytes < kTellTask) continue;
    finding.evidence.push_back(
        fmt::format("{} {} of {} had {} together, by the kernel's table (pages of 4 KiB; what they "
                    "share is counted for each)",
                    task.processes, task.processes == 1 ? "process" : "processes", task.name,
                    FormatBytes(task.bytes)));
  }
  for (const ProcessUse& p : m.processes) {
    if (!p.pid) continue;
    const std::string name = m.subject.empty() ? "" : fmt::format(" ({})", m.subject);
    finding.evidence.push_back(
        p.bytes ? fmt::format("process {}{} had {}", *p.pid, name, FormatBytes(*p.bytes))
                : fmt::format("process {}{}", *p.pid, name));
  }
}

}  // namespace

bool MayBePython(const OomMessage& m) {
  const bool kill = m.host == HostEvent::kKernelKill || m.host == HostEvent::kCgroupKill ||
                    m.host == HostEvent::kSystemdKill || m.host == HostEvent::kEarlyOomKill;
  if (!kill || m.subject.empty()) return true;
  for (std::string_view name : {"python", "pt_", "ray", "torchrun", "accelerate", "deepspeed",
                                "ipykernel", "jupyter", "Worker", "DataLoader"}) {
    if (m.subject.find(name) != std::string::npos) return true;
  }
  return false;
}

Opinion OfHost(const Figures& f) {
  const OomMessage& m = f.message;
  Finding finding;
  finding.id = FindingId::kHostMemory;
  finding.severity = m.survived ? Severity::kLow
                     : m.host == HostEvent::kKilled || m.host == HostEvent::kWorkerKilled
                         ? Severity::kMedium
                         : Severity::kHigh;
  for (const HostRow& row : kRows) {
    if (row.event != m.host) continue;
    finding.title = row.title;
    finding.evidence = {std::string(row.evidence)};
  }
  if (finding.title.empty()) {
    finding.title = "The host's memory (RAM) ran out, not the GPU's";
    finding.evidence = {"the service that runs the notebook says so"};
  }
  if (m.subject == "already mapped") {
    finding.title = "Windows could pin (page-lock) no more of the host's memory";
    finding.evidence = {
        "cudaErrorAlreadyMapped while memory is pinned: what is pinned counts against the card "
        "there, as memory that the GPU may share"};
  }
  if (m.host == HostEvent::kSystemdKill && m.capacity) {
    finding.title =
        "systemd-oomd killed the processes of a session or service because memory and swap were "
        "nearly full";
  }
  if (m.host == HostEvent::kWorkerLost) finding.severity = Severity::kLow;
  if (m.host == HostEvent::kKilled && WasFull(m)) {
    finding.title = fmt::format(
        "The process was killed by signal 9 while {} % of the host's memory was in use, most "
        "likely by "
        "the kernel",
        m.host_use->second.percent);
    finding.severity = Severity::kHigh;
  }
  if (m.host == HostEvent::kSharedMemory && (m.subject == "NCCL" || m.subject == "Ray")) {
    finding.title = m.subject == "Ray"
                        ? "Ray's object store, which lies in shared memory, is full"
                        : "Shared memory (/dev/shm) is full: NCCL passes data through it";
    if (m.subject == "Ray") {
      finding.evidence = {"Ray takes 30 % of the memory for it unless told otherwise"};
    }
  }
  if (m.survived) finding.evidence.push_back("the program goes on with ordinary memory");
  AddFigures(m, finding);
  if (auto more = MoreMemory(m)) finding.remedies.push_back(std::move(*more));
  for (Remedy& remedy : LessHostMemory(m)) finding.remedies.push_back(std::move(remedy));
  return {.found = std::move(finding), .why = OomCause::kHost};
}

}  // namespace plimsoll
