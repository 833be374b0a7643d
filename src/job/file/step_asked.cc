#include "job/file/step_asked.h"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "hardware/gpu.h"
#include "job/file/step_values.h"

namespace plimsoll::step_file {
namespace {

WorkspaceTable ReadAnswers(const Json& json, const char* name,
                           const WorkspaceTable::Lists& batches) {
  std::string text;
  for (const Json& line : Array(json, name)) {
    if (!line.is_text()) Refuse("an answer of cuDNN is no text");
    text += *line.text() + '\n';
  }
  const auto held = std::make_shared<const std::string>(std::move(text));
  WorkspaceTable table(held, batches);
  std::string_view rest = *held;
  for (std::size_t number = 0; !rest.empty(); ++number) {
    const std::size_t end = rest.find('\n');
    if (!table.Add(rest.substr(0, end))) {
      Refuse(fmt::format("answer {} of cuDNN is not a shape and its workspaces", number));
    }
    rest.remove_prefix(end + 1);
  }
  return table;
}

}  // namespace

std::shared_ptr<const AskedWorkspaces> ReadAsked(const Json& json) {
  if (json.is_null()) return nullptr;
  if (!json["gpu"].is_text() || !json["cudnn"].is_text()) {
    Refuse("\"asked\" does not say of which card and release");
  }
  std::optional<WorkspaceTable::Lists> batches = WorkspaceTable::ReadBatches(json["batches"]);
  if (!batches) Refuse("the batches that cuDNN was asked for do not rise");
  auto asked = std::make_shared<AskedWorkspaces>();
  const Result<Gpu> gpu = FindGpu(*json["gpu"].text());
  asked->gpu = gpu && !gpu->assumed ? gpu->name : *json["gpu"].text();
  asked->cudnn = *json["cudnn"].text();
  asked->table = ReadAnswers(json, "convolutions", *batches);
  if (!json["timed"].is_null()) asked->timed = ReadAnswers(json, "timed", *batches);
  if (!json["searched"].is_null()) asked->searched = ReadAnswers(json, "searched", *batches);
  return asked;
}

}  // namespace plimsoll::step_file
