// Texts about the memory of the host. They are taken for GPU problems often enough.
#include "readers/error_text/wordings.h"

namespace plimsoll {

/// "can't allocate memory: you tried to allocate N bytes. Error code 12 (Cannot allocate memory)";
/// on Windows "not enough memory: you tried to allocate N bytes."
bool ReadCpuAllocator(Scanner& scanner, std::string_view, OomMessage& message) {
  if (!scanner.SkipPast("you tried to allocate", 48)) {
    message.cut_off = scanner.ended();
    return message.cut_off || scanner.SkipPast("memory", 48);
  }
  message.cut_off = !scanner.Size(message.requested);
  return true;
}

/// "Unable to allocate 3.00 GiB for an array with shape (402653184,) and data type float64"
bool ReadNumpy(Scanner& scanner, std::string_view, OomMessage& message) {
  if (!scanner.Size(message.requested) || !scanner.Literal("for an array")) return false;
  if (scanner.Literal("with shape")) message.subject = scanner.Until(")", 64) + ")";
  return true;
}

/// "Out of memory: Killed process 4242 (python) total-vm:81788928kB, anon-rss:64000000kB, …"; until
/// Linux 5.2 "Kill process 4242 (python) score 900 or sacrifice child".
bool ReadKernelKill(Scanner& scanner, std::string_view, OomMessage& message) {
  scanner.Literal("ed");
  if (!scanner.Literal("process")) return scanner.ended();
  ProcessUse process;
  process.pid = scanner.Integer();
  if (!process.pid) return scanner.ended();
  scanner.Literal(",");
  if (scanner.Literal("(")) message.subject = scanner.Until(")", 32);
  if (scanner.SkipPast("anon-rss:", 64)) scanner.Size(process.bytes);
  message.processes.push_back(process);
  return true;
}

/// "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),…,task=python,pid=4242,uid=1000"
bool ReadKernelConstraint(Scanner& scanner, std::string_view, OomMessage& message) {
  if (!scanner.SkipPast(",task=", 600)) return true;
  message.subject = scanner.Until(",", 32);
  if (!scanner.Literal(",pid=")) return true;
  if (auto pid = scanner.Integer()) message.processes.push_back({.pid = pid, .bytes = {}});
  return true;
}

/// "Detected 1 oom_kill event in StepId=4242.0."; older "oom-kill event(s) in step 4242.batch
/// cgroup."
bool ReadSlurm(Scanner& scanner, std::string_view, OomMessage& message) {
  if (!scanner.Integer()) return false;
  if (!scanner.Literal("oom_kill event") && !scanner.Literal("oom-kill event")) return false;
  scanner.Literal("(s)");
  scanner.Literal("s");
  if (!scanner.Literal("in")) return true;
  if (!scanner.Literal("StepId=") && !scanner.Literal("step")) return true;
  const std::optional<std::int64_t> job = scanner.Integer();
  if (!job) return true;
  message.subject = "StepId=" + std::to_string(*job);
  for (std::string_view step : {".batch", ".extern", ".interactive"}) {
    if (scanner.Literal(step)) message.subject += step;
  }
  if (!scanner.Literal(".")) return true;
  if (auto step = scanner.Integer()) message.subject += "." + std::to_string(*step);
  return true;
}

bool ReadKubernetes(Scanner&, std::string_view, OomMessage&) { return true; }

}  // namespace plimsoll
