// Draws out-of-memory texts in every wording of PyTorch's allocators, with what each text says: for
// tests that compare the answer with it.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"

namespace plimsoll {

/// The figures that a text says, as printed (two decimals). Empty: not in the text.
struct SaidFigures {
  std::optional<Bytes> requested = {};
  std::optional<Bytes> capacity = {};
  std::optional<Bytes> free = {};
  std::optional<Bytes> allocated = {};
  std::optional<Bytes> reserved = {};
  std::optional<Bytes> unallocated = {};  // reserved but unallocated
  std::optional<Bytes> allowed = {};
  std::optional<Bytes> other = {};  // MPS: other allocations
  std::optional<Bytes> this_process = {};
  Bytes named = 0;  // sum of the processes with a pid
  bool names_processes = false;
};

struct DrawnText {
  std::string text;
  /// Of the only message; with several messages, or pieces of one, nothing is compared.
  SaidFigures said;
  bool comparable = true;
  /// The figures are of one moment of one device.
  bool consistent = true;
};

/// One moment of a device, from which the figures of a message are taken.
struct DrawnMoment {
  Bytes capacity, driver, context, allocated, unallocated, requested;
  std::optional<Bytes> limit;
  std::vector<std::pair<int, Bytes>> others;

  Bytes reserved() const { return allocated + unallocated; }
  Bytes own() const { return context + reserved(); }
  Bytes free() const {
    Bytes left = capacity - driver - own();
    for (const auto& [pid, bytes] : others) left -= bytes;
    return left;
  }
};

class TextGrammar {
 public:
  explicit TextGrammar(std::uint64_t seed) : random_(seed) {}

  DrawnText Draw() {
    out_ = {};
    const int messages = Chance(0.8) ? 1 : Int(2, 3);
    for (int i = 0; i < messages; ++i) {
      if (Chance(0.4)) out_.text += Garbage();
      DrawMessage(i);
      if (Chance(0.4)) out_.text += Garbage();
    }
    if (messages > 1) out_.comparable = false;
    return std::move(out_);
  }

 private:
  using Field = std::optional<Bytes> SaidFigures::*;

  bool Chance(double p) { return std::uniform_real_distribution<>(0, 1)(random_) < p; }
  int Int(int low, int high) { return std::uniform_int_distribution<>(low, high)(random_); }
  Bytes Share(Bytes of, double low, double high) {
    return Bytes(double(of) * std::uniform_real_distribution<>(low, high)(random_));
  }
  template <typename T, std::size_t n>
  const T& Pick(const T (&from)[n]) {
    return from[Int(0, n - 1)];
  }

  /// As PyTorch's format_size prints it, now and then in another unit; `printed` is what a reader
  /// can know of it.
  std::string Size(Bytes bytes, Bytes& printed) {
    struct Unit {
      Bytes bytes;
      std::string_view name;
    };
    static constexpr Unit kUnits[] = {
        {kKiB, "KiB"}, {kMiB, "MiB"}, {kGiB, "GiB"}, {1024 * kGiB, "TiB"}};
    std::size_t unit = bytes <= kMiB ? 0 : bytes <= kGiB ? 1 : 2;
    const bool larger = Chance(0.03);
    if (larger) unit = std::min<std::size_t>(unit + 1, 3);
    if (bytes <= 1024) {
      printed = bytes;
      return fmt::format("{} bytes", bytes);
    }
    const std::string number =
        fmt::format("{:.{}f}", double(bytes) / double(kUnits[unit].bytes), larger ? 5 : 2);
    printed = Bytes(std::stod(number) * double(kUnits[unit].bytes) + 0.5);
    return fmt::format("{} {}", number, kUnits[unit].name);
  }

  DrawnMoment Moment() {
    static constexpr double kCards[] = {7.79, 10.75, 14.58, 23.69, 39.39, 47.4, 79.15, 139.72};
    DrawnMoment m{};
    m.capacity = Bytes(Pick(kCards) * double(kGiB));
    m.driver = Chance(0.5) ? 0 : Share(m.capacity, 0, 0.02);
    m.context = Chance(0.9) ? Bytes(Int(100, 800)) * kMiB : Share(m.capacity, 0.05, 0.2);
    Bytes left = m.capacity - m.driver - m.context;
    for (int n = Chance(0.6) ? 0 : Int(1, 3); n > 0; --n) {
      m.others.emplace_back(Int(100, 999999), Share(left, 0.02, 0.4));
      left -= m.others.back().second;
    }
    const Bytes reserved = Chance(0.1) ? 0 : Share(left, 0.3, 0.999);
    m.unallocated = Chance(0.1) ? 0 : Share(reserved, 0, Chance(0.5) ? 0.05 : 0.6);
    m.allocated = reserved - m.unallocated;
    m.requested = m.free() + Share(m.capacity, 0.0001, Chance(0.9) ? 0.3 : 1.5);
    if (Chance(0.4)) {
      m.limit = std::min(m.capacity, reserved + Share(m.capacity, 0, 0.3));
      if (Chance(0.8)) m.requested = *m.limit - reserved + Share(m.capacity, 0.0001, 0.2);
    }
    return m;
  }

  /// A size with the words behind it. A clause may be left out; a figure may be of another moment.
  std::string Clause(std::string_view before, Bytes bytes, std::string_view after, Field field) {
    if (Chance(missing_)) return {};
    if (Chance(wrong_)) {
      bytes = Share(bytes + kGiB, 0, 3);
      out_.consistent = false;
    }
    Bytes printed = 0;
    const std::string size = Size(bytes, printed);
    if (field) out_.said.*field = printed;
    last_ = printed;
    return fmt::format("{}{}{}", before, size, after);
  }

  std::string Processes(const DrawnMoment& m) {
    std::string text;
    const bool by_name = Chance(0.7);
    for (const auto& [pid, bytes] : m.others) {
      last_ = 0;
      text += Clause(fmt::format(" Process {} has ", pid), bytes, " memory in use.", nullptr);
      out_.said.named += last_;
      out_.said.names_processes |= last_ > 0;
    }
    if (Chance(0.2)) return text;
    if (by_name) {
      return text + Clause(" Including non-PyTorch memory, this process has ", m.own(),
                           " memory in use.", &SaidFigures::this_process);
    }
    last_ = 0;
    text += Clause(fmt::format(" Process {} has ", Int(100, 99999)), m.own(), " memory in use.",
                   nullptr);
    out_.said.named += last_;
    out_.said.names_processes |= last_ > 0;
    return text;
  }

  std::string Parentheses(const DrawnMoment& m, std::string_view device) {
    std::string text = fmt::format(" ({} {}", device, Int(0, 7));
    text += Clause("; ", m.capacity, " total capacity", &SaidFigures::capacity);
    text += Clause("; ", m.allocated, " already allocated", &SaidFigures::allocated);
    text += Clause("; ", m.free(), " free", &SaidFigures::free);
    if (Chance(0.2)) {
      return text + Clause("; ", m.unallocated, " cached", &SaidFigures::unallocated) + ")";
    }
    if (m.limit) text += Clause("; ", *m.limit, " allowed", &SaidFigures::allowed);
    text += Clause("; ", m.reserved(), " reserved in total by PyTorch", &SaidFigures::reserved);
    text += ")";
    if (Chance(0.5)) {
      text +=
          " If reserved memory is >> allocated memory try setting max_split_size_mb to avoid "
          "fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF";
    }
    return text;
  }

  std::string Sentences(const DrawnMoment& m, std::string_view device) {
    std::string text = fmt::format(". {} {} has a total ", device, Int(0, 7));
    text += Clause(Chance(0.1) ? "capacty of " : "capacity of ", m.capacity, "",
                   &SaidFigures::capacity);
    text += Clause(" of which ", m.free(), " is free.", &SaidFigures::free);
    if (Chance(0.7)) text += Processes(m);
    if (m.limit) text += Clause(" ", *m.limit, " allowed;", &SaidFigures::allowed);
    text += Clause(" Of the allocated memory ", m.allocated, " is allocated by PyTorch",
                   &SaidFigures::allocated);
    text += Clause(", and ", m.unallocated, " is reserved by PyTorch but unallocated.",
                   &SaidFigures::unallocated);
    if (Chance(0.5)) {
      text +=
          " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF="
          "expandable_segments:True to avoid fragmentation.  See documentation for Memory "
          "Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)";
    }
    return text;
  }

  std::string Torch(const DrawnMoment& m) {
    static constexpr std::string_view kMakers[] = {"CUDA", "CUDA", "CUDA", "CUDA", "HIP",
                                                   "XPU",  "NPU",  "MUSA", "MLU"};
    static constexpr std::string_view kClasses[] = {
        "RuntimeError: ", "torch.cuda.OutOfMemoryError: ", "torch.OutOfMemoryError: ", ""};
    const std::string_view maker = Pick(kMakers);
    const std::string_view device = maker == "CUDA" || maker == "HIP" ? "GPU" : maker;
    std::string text = fmt::format("{}{} out of memory.", Pick(kClasses), maker);
    text += Clause(" Tried to allocate ", m.requested, "", &SaidFigures::requested);
    if (!out_.said.requested) out_.comparable = false;
    return text + (Chance(0.4) ? Parentheses(m, device) : Sentences(m, device));
  }

  std::string Async(const DrawnMoment& m) {
    std::string text = fmt::format(
        "Allocation on device {} would exceed allowed memory. (out of memory)", Int(0, 7));
    text += Clause("\nCurrently allocated     : ", m.allocated, "", &SaidFigures::allocated);
    text += Clause("\nRequested               : ", m.requested, "", &SaidFigures::requested);
    text += Clause("\nDevice limit            : ", m.capacity, "", &SaidFigures::capacity);
    text += Clause("\nFree (according to CUDA): ", m.free(), "", &SaidFigures::free);
    text += "\nPyTorch limit (set by user-supplied memory fraction)\n                        : ";
    out_.comparable = missing_ == 0;
    return text + (m.limit ? Clause("", *m.limit, "", &SaidFigures::allowed)
                           : std::string("17179869184.00 GiB"));
  }

  std::string Rejected(const DrawnMoment& m) {
    const Bytes limit = m.limit.value_or(m.capacity / 2);
    std::string text = "Preemptively rejecting allocation:";
    text += Clause(" requested ", m.requested, "", &SaidFigures::requested);
    text += Clause(" but total_allocated_memory (", m.reserved(), ")", &SaidFigures::reserved);
    text +=
        Clause(" + requested size would exceed memory limit (", limit, "", &SaidFigures::allowed);
    text += Clause(" = 50.00% of ", m.capacity, ")", &SaidFigures::capacity);
    out_.comparable = missing_ == 0;
    return text;
  }

  std::string Mps(const DrawnMoment& m) {
    const Bytes limit = m.limit.value_or(m.capacity);
    std::string text = "RuntimeError: MPS backend out of memory (";
    text += Clause("MPS allocated: ", m.allocated, "", &SaidFigures::allocated);
    text += Clause(", other allocations: ", m.context, "", &SaidFigures::other);
    text += Clause(", max allowed: ", limit, ").", &SaidFigures::allowed);
    text +=
        Clause(" Tried to allocate ", m.requested, " on private pool.", &SaidFigures::requested);
    out_.comparable = missing_ == 0;
    if (m.allocated + m.context > limit) out_.consistent = false;
    return text;
  }

  std::string Message(const DrawnMoment& m) {
    const int kind = Int(0, 19);
    if (kind == 0) return Async(m);
    if (kind == 1) return Rejected(m);
    if (kind == 2) return Mps(m);
    if (kind == 3) {
      out_.comparable = false;
      static constexpr std::string_view kBare[] = {"CUDA error: out of memory",
                                                   "CUDA out of memory.",
                                                   "NVML_SUCCESS == r INTERNAL ASSERT FAILED at "
                                                   "\"../c10/cuda/CUDACachingAllocator.cpp\":1015"};
      return std::string(Pick(kBare));
    }
    return Torch(m);
  }

  void DrawMessage(int number) {
    missing_ = Chance(0.6) ? 0 : 0.25;
    wrong_ = Chance(0.8) ? 0 : 0.3;
    std::string text = Message(Moment());
    if (Chance(0.1)) {  // the paste begins or ends in the middle
      out_.comparable = false;
      const std::size_t at = std::size_t(Int(0, int(text.size())));
      text = Chance(0.5) ? text.substr(0, at) : text.substr(at);
    }
    if (Chance(0.15)) Wrap(text);
    const std::string prefix = Prefix(number);
    out_.text += prefix + text + "\n";
  }

  /// At 80 columns, as terminals do.
  static void Wrap(std::string& text) {
    for (std::size_t i = 80; i < text.size(); i += 81) text.insert(i, 1, '\n');
  }

  std::string Prefix(int rank) {
    switch (Int(0, 7)) {
      case 0:
        return fmt::format("[rank{}]: ", rank);
      case 1:
        return fmt::format("[default{}]:", rank);
      case 2:
        return "2026-11-19 12:00:00,123 - ERROR - ";
      case 3:
        return fmt::format("(train_fn pid={}) ", Int(1000, 99999));
      default:
        return {};
    }
  }

  std::string Garbage() {
    static constexpr std::string_view kLines[] = {
        "Traceback (most recent call last):\n  File \"train.py\", line 12, in <module>\n    "
        "loss.backward()\n",
        "Epoch 3:  45%|####5     | 450/1000 [02:11<02:40,  3.42it/s, loss=2.31]\n",
        "step 1200 | loss 2.31 | memory 12.50 GiB\n",
        "W1119 12:00:00.000 torch/distributed/run.py:793] Setting OMP_NUM_THREADS to be 1\n",
        "root@box:~# \n",
        "\n",
        "{\"loss\": 1.25, \"grad_norm\": 0.4, \"learning_rate\": 5e-05, \"epoch\": 0.1}\n",
        "| N/A   30C    P0    60W / 400W |  10240MiB / 81920MiB |      0%      Default |\n"};
    return std::string(Pick(kLines));
  }

  std::mt19937_64 random_;
  DrawnText out_;
  double missing_ = 0;
  double wrong_ = 0;
  Bytes last_ = 0;
};

}  // namespace plimsoll
