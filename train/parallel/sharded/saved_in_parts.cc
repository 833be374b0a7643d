#include "train/parallel/sharded/saved_in_parts.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <cctype>
#include <iomanip>
#include <random>
#include <sstream>

#include "base/printable.h"
#include "files/output.h"
#include "train/parallel/ranks/agreement.h"
#include "train/state/layout.h"

namespace plimsoll::train {
namespace {

namespace fs = std::filesystem;

std::string BytesName(int part) { return c10::str("file ", part, " bytes"); }
std::string ChecksumName(int part) { return c10::str("file ", part, " checksum"); }

fs::path PartsFolder(const fs::path& path) { return path.string() + ".parts"; }

fs::path PartFile(const fs::path& path, const std::string& save, int part) {
  return PartsFolder(path) / (save + "." + std::to_string(part));
}

/// A name for a save that no other has, the same on all ranks.
std::string NewSave(Ranks& ranks) {
  std::random_device random;
  const auto word = [&] { return static_cast<std::int64_t>(random()); };
  const at::Tensor words = at::tensor({word(), word()});
  ranks.Broadcast({words});
  std::ostringstream text;
  text << std::hex << std::setfill('0');
  for (int i = 0; i < 2; ++i) text << std::setw(8) << words[i].item<std::int64_t>();
  return text.str();
}

/// On disk when it returns.
WrittenPart WritePart(const fs::path& file, const std::string& bytes) {
  std::error_code ignored;  // WriteFile says that there is no folder
  fs::create_directories(file.parent_path(), ignored);
  const std::optional<Error> error = WriteFile(file.string(), bytes);
  TORCH_CHECK(!error.has_value(), Printable(error->ToLine()));
  return {static_cast<std::int64_t>(bytes.size()), layout::Checksum(bytes)};
}

/// That all are where it will be said that they are.
void CheckThatPartsAreThere(const fs::path& path, const std::string& save,
                            const std::vector<WrittenPart>& parts) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const fs::path file = PartFile(path, save, static_cast<int>(i));
    std::error_code error;
    const auto bytes = fs::file_size(file, error);
    TORCH_CHECK(
        !error && static_cast<std::int64_t>(bytes) == parts[i].bytes, Printable(file.string()),
        ": part ", i,
        " was written, but rank 0 does not see it; all ranks must save to one place, and no "
        "other run there");
  }
}

/// "0123456789abcdef.3", or what was being written to become it.
bool IsNameOfPart(const std::string& name) {
  constexpr std::size_t kSaveName = 16;
  const auto digits = name.find_first_not_of("0123456789abcdef");
  return digits == kSaveName && name[digits] == '.' && name.size() > kSaveName + 1 &&
         std::isdigit(static_cast<unsigned char>(name[kSaveName + 1])) != 0;
}

/// Those of the save, or all others: of former saves, and of those that were never completed. What
/// cannot be removed harms nobody.
void RemoveParts(const fs::path& path, const std::string& save, bool of_save) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(PartsFolder(path), ignored)) {
    const std::string name = entry.path().filename().string();
    if (!IsNameOfPart(name) || !entry.is_regular_file(ignored)) continue;
    if (name.starts_with(save + ".") == of_save) fs::remove(entry.path(), ignored);
  }
}

/// What all ranks have written.
std::vector<WrittenPart> InAgreement(Ranks& ranks, int parts, std::optional<int> own,
                                     const WrittenPart& written) {
  at::Tensor all = at::zeros({parts, 2}, at::kLong);
  if (own) all[*own].copy_(at::tensor({written.bytes, written.checksum}));
  ranks.Sum(all);
  std::vector<WrittenPart> list;
  for (int i = 0; i < parts; ++i) {
    list.push_back({all[i][0].item<std::int64_t>(), all[i][1].item<std::int64_t>()});
  }
  return list;
}

}  // namespace

void SaveInParts(const fs::path& path, Ranks& ranks, int parts, std::optional<int> own,
                 const std::function<void(StateSaver&)>& add_part,
                 const std::function<void(StateSaver&)>& add_to_main) {
  const std::string save = NewSave(ranks);
  WrittenPart written;
  const auto write = [&] {
    if (!own) return;
    StateSaver saver;
    saver.AddValue(kSaveInParts, save);
    add_part(saver);
    written = WritePart(PartFile(path, save, *own), saver.Bytes());
  };
  DoEach(ranks, write, [&] {
    std::error_code ignored;
    if (own) fs::remove(PartFile(path, save, *own), ignored);
  });
  const std::vector<WrittenPart> all = InAgreement(ranks, parts, own, written);
  const auto complete = [&] {
    if (ranks.rank() != 0) return;
    CheckThatPartsAreThere(path, save, all);
    StateSaver saver;
    saver.AddValue(kSaveInParts, save);
    for (int i = 0; i < parts; ++i) {
      saver.AddValue(BytesName(i), all[static_cast<std::size_t>(i)].bytes);
      saver.AddValue(ChecksumName(i), all[static_cast<std::size_t>(i)].checksum);
    }
    add_to_main(saver);
    saver.Write(path);
  };
  DoEach(ranks, complete, [&] {
    if (ranks.rank() == 0) RemoveParts(path, save, /*of_save=*/true);
  });
  if (ranks.rank() == 0) RemoveParts(path, save, /*of_save=*/false);
}

SavedPart::SavedPart(const fs::path& file, const std::string& save, const WrittenPart& written)
    : name_(file.string()) {
  Result<Input> input = Input::Open(name_);
  TORCH_CHECK(input.ok(), Printable(input.error().ToLine()));
  input_ = std::make_unique<const Input>(std::move(*input));
  const std::string_view bytes = input_->bytes();
  if (static_cast<std::int64_t>(bytes.size()) != written.bytes) {
    Fail(c10::str("it has ", bytes.size(), " bytes, and ", written.bytes, " were saved"));
  }
  if (layout::Checksum(bytes) != written.checksum) {
    Fail("it is not what was saved: its checksum differs");
  }
  Result<StateFile> state = ReadState(*input_);
  TORCH_CHECK(state.ok(), Printable(state.error().ToLine()));
  state_ = std::move(*state);
  if (Value(kSaveInParts) != StateValue(save)) Fail("it belongs to another save");
}

const StateValue& SavedPart::Value(const std::string& name) const {
  const auto found = state_.values.find(name);
  if (found == state_.values.end()) Fail("there is no '" + name + "' in it");
  return found->second;
}

at::Tensor SavedPart::Tensor(const std::string& name) const {
  const auto found = state_.tensors.find(name);
  if (found == state_.tensors.end()) Fail("there is no '" + name + "' in it");
  const StateTensor& saved = found->second;
  // Only read from, as the header asks.
  return at::from_blob(const_cast<char*>(saved.bytes.data()), saved.sizes,
                       at::TensorOptions(ScalarTypeOf(saved.type)));
}

void SavedPart::Fail(const std::string& what) const {
  TORCH_CHECK(false, Printable(name_), ": ", Printable(what));
}

PartsList::PartsList(const fs::path& path, StateLoader& loader)
    : path_(path), save_(loader.Text(kSaveInParts)) {}

void PartsList::Take(StateLoader& loader, int parts) {
  for (int i = 0; i < parts; ++i) {
    written_.push_back({loader.Count(BytesName(i)), loader.Count(ChecksumName(i))});
  }
}

SavedPart PartsList::Open(int part) const {
  return {PartFile(path_, save_, part), save_, written_.at(static_cast<std::size_t>(part))};
}

StateLoader PartsList::Load(int part) const {
  Open(part);
  StateLoader loader = StateLoader::Open(PartFile(path_, save_, part));
  loader.Text(kSaveInParts);
  return loader;
}

}  // namespace plimsoll::train
