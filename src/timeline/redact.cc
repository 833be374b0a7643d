#include "timeline/redact.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/text.h"
#include "timeline/torch_folder.h"

namespace plimsoll {
namespace {

/// Where PyTorch's C++ lies, in whatever folder it was built.
constexpr std::array<std::string_view, 4> kTorchSources = {"/aten/src/ATen/", "/c10/",
                                                           "/torch/csrc/", "/caffe2/"};
constexpr std::array<std::string_view, 5> kSystemFolders = {"/usr/lib", "/usr/include/",
                                                            "/usr/local/cuda", "/lib/", "/lib64/"};
/// In a text these name no file of anybody's.
constexpr std::array<std::string_view, 2> kDevices = {"/dev/nvidia", "/proc/driver/"};
/// Names that are a file's even where they stand alone in a text.
constexpr std::array<std::string_view, 9> kSourceExtensions = {
    ".py", ".pyx", ".ipynb", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h"};
constexpr std::array<std::string_view, 3> kHomes = {"/home/", "/Users/", "/root/"};

constexpr std::string_view kInPackages = "-packages/torch/";
constexpr std::string_view kPython = "/lib/python";

bool HasFolder(std::string_view path) { return path.find_first_of("/\\") != kNowhere; }

template <std::size_t N>
bool StartsWithAny(std::string_view text, const std::array<std::string_view, N>& beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(),
                     [&](std::string_view known) { return text.starts_with(known); });
}
template <std::size_t N>
bool EndsWithAny(std::string_view text, const std::array<std::string_view, N>& ends) {
  return std::any_of(ends.begin(), ends.end(),
                     [&](std::string_view known) { return text.ends_with(known); });
}

/// SipHash-2-4 under the key (salt, constant): names cannot be told from it, nor the salt from
/// names that somebody knows.
class KeyedHash {
 public:
  explicit KeyedHash(std::uint64_t salt)
      : v0_(salt ^ 0x736f6d6570736575u),
        v1_(kSecond ^ 0x646f72616e646f6du),
        v2_(salt ^ 0x6c7967656e657261u),
        v3_(kSecond ^ 0x7465646279746573u) {}

  std::uint64_t Of(std::string_view text) && {
    std::uint64_t word = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      word |= std::uint64_t{static_cast<unsigned char>(text[i])} << (8 * (i % 8));
      if (i % 8 != 7) continue;
      Take(word);
      word = 0;
    }
    Take(word | static_cast<std::uint64_t>(text.size()) << 56);
    v2_ ^= 0xff;
    for (int round = 0; round < 4; ++round) Round();
    return v0_ ^ v1_ ^ v2_ ^ v3_;
  }

 private:
  static constexpr std::uint64_t kSecond = 0x9e3779b97f4a7c15u;

  void Take(std::uint64_t word) {
    v3_ ^= word;
    Round();
    Round();
    v0_ ^= word;
  }
  void Round() {
    v0_ += v1_;
    v1_ = std::rotl(v1_, 13) ^ v0_;
    v0_ = std::rotl(v0_, 32);
    v2_ += v3_;
    v3_ = std::rotl(v3_, 16) ^ v2_;
    v0_ += v3_;
    v3_ = std::rotl(v3_, 21) ^ v0_;
    v2_ += v1_;
    v1_ = std::rotl(v1_, 17) ^ v2_;
    v2_ = std::rotl(v2_, 32);
  }

  std::uint64_t v0_, v1_, v2_, v3_;
};

/// ".py"; "" where what follows the last dot is not short enough to be no more than a kind.
std::string_view Extension(std::string_view path) {
  const std::size_t folder = path.find_last_of("/\\");
  const std::string_view name = folder == kNowhere ? path : path.substr(folder + 1);
  const std::size_t dot = name.rfind('.');
  if (dot == kNowhere) return "";
  const std::string_view extension = name.substr(dot);
  const bool plain = std::all_of(extension.begin() + 1, extension.end(),
                                 [](char c) { return IsDigit(c) || IsLetter(c); });
  return plain && extension.size() > 1 && extension.size() <= 6 ? extension : "";
}

/// Whether `rest` goes on as a folder of Python's own library does: "3.12/".
bool IsVersionFolder(std::string_view rest) {
  const std::size_t slash = rest.find('/');
  if (slash == kNowhere || slash == 0 || !IsDigit(rest[0])) return false;
  const std::string_view version = rest.substr(0, slash);
  return std::all_of(version.begin(), version.end(), [](char c) { return IsDigit(c) || c == '.'; });
}

/// The position of the last folder of installed packages; kNowhere where there is none.
std::size_t PackagesFolder(std::string_view path) {
  std::size_t last = kNowhere;
  for (std::string_view folder :
       {"site-packages/", "dist-packages/", "site-packages\\", "dist-packages\\"}) {
    const std::size_t at = path.rfind(folder);
    if (at != kNowhere && (last == kNowhere || at > last)) last = at;
  }
  return last;
}

/// Ends a word in a text in which paths are looked for.
bool EndsWord(char c) {
  return static_cast<unsigned char>(c) <= ' ' ||
         std::string_view("\"'`()[]{}<>,;=|").find(c) != kNowhere;
}

/// Where a word's path ends: before ":57", ":57:3" and what ends a sentence.
std::size_t PathLength(std::string_view word) {
  const auto ends_sentence = [](char c) { return c == '.' || c == ':' || c == '!' || c == '?'; };
  std::size_t end = word.size();
  while (end > 0 && ends_sentence(word[end - 1])) --end;
  while (end > 0) {
    std::size_t digits = end;
    while (digits > 0 && IsDigit(word[digits - 1])) --digits;
    if (digits == end || digits == 0 || word[digits - 1] != ':') break;
    end = digits - 1;
  }
  return end;
}

class Redactor {
 public:
  explicit Redactor(std::uint64_t salt) : salt_(salt) {}

  /// Files below it are PyTorch's.
  void SetTorchFolder(std::string folder) { torch_folder_ = std::move(folder); }
  std::string File(std::string_view path);
  std::string Text(std::string_view text);

 private:
  /// `before`, "file-" and as many digits of the hash as tell the path from all others so far.
  std::string Hashed(std::string_view path, std::string_view before = "");
  /// `name`, unless another path has it already.
  std::string Kept(std::string name, std::string_view path);
  std::string OfLibrary(std::string_view path);
  std::string Word(std::string_view word);
  bool Claim(const std::string& name, std::string_view path) {
    return owners_.try_emplace(name, path).first->second == path;
  }

  std::uint64_t salt_;
  std::string torch_folder_;
  /// Two files never get one name, or two places in the program would become one.
  HashMap<std::string, std::string> owners_;
};

std::string Redactor::Hashed(std::string_view path, std::string_view before) {
  const std::string hash = fmt::format("{:016x}", KeyedHash(salt_).Of(path));
  std::string name;
  for (std::size_t digits = 6; digits <= hash.size(); digits += 2) {
    name = fmt::format("{}file-{}{}", before, hash.substr(0, digits), Extension(path));
    if (Claim(name, path)) break;
  }
  return name;
}

std::string Redactor::Kept(std::string name, std::string_view path) {
  if (Claim(name, path)) return name;
  // The same package in two places; which is which is told by the hash of the whole path.
  constexpr std::string_view kLeftOut = "…/";
  return fmt::format("{}{:06x}/{}", kLeftOut, KeyedHash(salt_).Of(path) >> 40,
                     std::string_view(name).substr(kLeftOut.size()));
}

std::string Redactor::File(std::string_view path) {
  if (path.empty() || path.starts_with("??")) return std::string(path);
  // "<frozen importlib._bootstrap>", "<string>"; "<eval_with_key>.3 from /me/train.py:20 in
  // forward".
  if (path.starts_with("<")) return HasFolder(path) ? Text(path) : std::string(path);
  if (!torch_folder_.empty() && path.starts_with(torch_folder_)) {
    const bool installed = torch_folder_.find(kInPackages) != kNowhere;
    return Kept(fmt::format("…/{}torch/{}", installed ? "site-packages/" : "",
                            path.substr(torch_folder_.size())),
                path);
  }
  if (const std::size_t at = path.find(kInPackages); at != kNowhere) {
    return Kept(fmt::format("…/site-packages/torch/{}", path.substr(at + kInPackages.size())),
                path);
  }
  const std::string of_library = OfLibrary(path);
  return of_library.empty() ? Hashed(path) : of_library;
}

/// "" for the user's own. What diagnose/stack_traits.cc takes for a library's stays one: where such
/// a path may hold the user's own names, only the folder that it is told by is left.
std::string Redactor::OfLibrary(std::string_view path) {
  if (const std::size_t at = PackagesFolder(path); at != kNowhere) {
    return Kept(fmt::format("…/{}", path.substr(at)), path);
  }
  // torch.compile writes into /tmp/torchinductor_alice.
  if (path.find("torchinductor") != kNowhere) return Hashed(path, "…/torchinductor/");
  if (const std::size_t at = path.rfind(kPython); at != kNowhere) {
    if (!IsVersionFolder(path.substr(at + kPython.size()))) return Hashed(path, "…/lib/python/");
    return Kept(fmt::format("…{}", path.substr(at)), path);
  }
  for (std::string_view folder : kTorchSources) {
    const std::size_t at = path.rfind(folder);
    if (at != kNowhere) return Kept(fmt::format("…{}", path.substr(at)), path);
  }
  return StartsWithAny(path, kSystemFolders) ? std::string(path) : "";
}

std::string Redactor::Word(std::string_view word) {
  // "loading:/scratch/alice", "run@/data/alice"; but an address on the web is none of these.
  for (std::size_t i = 1; i + 1 < word.size(); ++i) {
    const bool begins = (word[i] == ':' || word[i] == '@') && word[i + 1] == '/' && i > 1;
    if (!begins || word.substr(i + 1).starts_with("//")) continue;
    return fmt::format("{}{}", word.substr(0, i + 1), Word(word.substr(i + 1)));
  }
  const std::string_view path = word.substr(0, PathLength(word));
  const std::string_view after = word.substr(path.size());
  const std::string_view extension = Extension(path);
  const bool file = HasFolder(path) && extension.size() > 1 && IsLetter(extension[1]);
  if (file || EndsWithAny(path, kSourceExtensions)) return fmt::format("{}{}", File(path), after);
  // Folders: absolute ones, and whatever lies in somebody's home.
  const bool absolute = path.starts_with("~/") || path.starts_with("\\\\") ||
                        path.find(":\\") == 1 || path.find(":/") == 1 ||
                        (path.starts_with("/") && path.find('/', 1) != kNowhere);
  const bool home = std::any_of(kHomes.begin(), kHomes.end(),
                                [&](std::string_view h) { return path.find(h) != kNowhere; });
  const bool kept = StartsWithAny(path, kSystemFolders) || StartsWithAny(path, kDevices);
  if ((!absolute && !home) || kept) return std::string(word);
  return fmt::format("path-{:06x}{}", KeyedHash(salt_).Of(path) >> 40, after);
}

std::string Redactor::Text(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i;
    while (end < text.size() && !EndsWord(text[end])) ++end;
    out += Word(text.substr(i, end - i));
    if (end < text.size()) out += text[end++];
    i = end;
  }
  return out;
}

std::vector<bool> FilesAmong(const StackTable& stacks) {
  std::vector<bool> files(stacks.strings.size());
  for (std::size_t f = 0; f < stacks.frame_count(); ++f) {
    const StringId file = stacks.frame(FrameId(f)).file;
    if (file.valid()) files[file.index()] = true;
  }
  return files;
}

/// The table with other strings: frames and stacks keep their ids. Strings do so too as long as no
/// two become one; where they do, the marks and notes are told by what this returns.
std::vector<StringId> Rename(StackTable& stacks, Redactor& redactor) {
  redactor.SetTorchFolder(FindTorchFolder(stacks));
  const std::vector<bool> files = FilesAmong(stacks);
  StackTable fresh;
  std::vector<StringId> ids;
  ids.reserve(files.size());
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string_view text = stacks.strings[StringId(i)];
    ids.push_back(fresh.strings.Intern(files[i] ? redactor.File(text) : redactor.Text(text)));
  }
  const auto renamed = [&](StringId id) { return id.valid() ? ids[id.index()] : id; };
  for (std::size_t f = 0; f < stacks.frame_count(); ++f) {
    const Frame& frame = stacks.frame(FrameId(f));
    fresh.AddFrame({renamed(frame.function), renamed(frame.file), frame.line, renamed(frame.node)});
  }
  for (std::size_t s = 0; s < stacks.stack_count(); ++s) fresh.AddStack(stacks.stack(StackId(s)));
  stacks = std::move(fresh);
  return ids;
}

void RedactMessage(OomMessage& message, Redactor& redactor) {
  message.subject = redactor.Text(message.subject);
  message.where = redactor.Text(message.where);
  for (OomMessage::Buffer& buffer : message.buffers) {
    buffer.where = redactor.Text(buffer.where);
    buffer.what = redactor.Text(buffer.what);
  }
}

}  // namespace

void RedactFileNames(Recording& recording, std::uint64_t salt) {
  Redactor redactor(salt);
  for (Timeline& timeline : recording.timelines) {
    const std::vector<StringId> ids = Rename(timeline.stacks, redactor);
    for (Annotation& mark : timeline.annotations) {
      if (mark.name.valid()) mark.name = ids[mark.name.index()];
    }
    for (auto* const notes : {&timeline.notes, &timeline.purposes, &timeline.compile_contexts,
                              &timeline.given_categories}) {
      for (EventNote& note : *notes) {
        if (note.text.valid()) note.text = ids[note.text.index()];
      }
    }
    for (BlockNote& note : timeline.given_of_blocks) {
      if (note.text.valid()) note.text = ids[note.text.index()];
    }
    for (Block& block : timeline.blocks) {
      if (block.owner.valid()) block.owner = ids[block.owner.index()];
    }
    timeline.prediction = redactor.Text(timeline.prediction);
  }
  for (OomMessage& message : recording.messages) RedactMessage(message, redactor);
}

}  // namespace plimsoll
