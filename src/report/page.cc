#include "report/page.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "base/printable.h"
#include "files/encode.h"
#include "report/format/json_values.h"
#include "report/json.h"
#include "report/web_files.h"

namespace plimsoll {
namespace {

constexpr char kOwnPrefix = 'h';
constexpr char kBaselinePrefix = 'b';

/// JSON inside a script element: nothing in it can end the element or open a comment.
std::string Harmless(std::string_view json) {
  std::string text;
  text.reserve(json.size());
  for (const char c : json) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

std::string EscapedHtml(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '&':
        escaped += "&amp;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string HashSource(std::string_view sha256) {
  return fmt::format("'sha256-{}'", Base64(FromHex(sha256)));
}

/// Only what is on the page itself may run or style it, and it may load nothing.
std::string SecurityPolicy() {
  return fmt::format(
      "default-src 'none'; script-src {} {}; style-src {}; base-uri 'none'; "
      "form-action 'none'",
      HashSource(WebLibrarySha256()), HashSource(WebScriptSha256()), HashSource(WebStyleSha256()));
}

Json Parsed(const std::string& json) { return json.empty() ? Json(nullptr) : ParseOwnJson(json); }

/// The element that holds the timeline of a run; `prefix` is one letter for each list of runs.
std::string HistoryId(char prefix, std::size_t i) { return fmt::format("{}{}", prefix, i); }

Json RunsJson(const std::vector<PageRun>& runs, char prefix) {
  Json list = Json::array();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const PageRun& run = runs[i];
    list.push_back({{"file", run.file},
                    {"device", run.device},
                    {"settings", run.settings},
                    {"history", run.history.empty() ? Json(nullptr) : Json(HistoryId(prefix, i))},
                    {"what_if", run.what_if ? Parsed(TuneJson(*run.what_if)) : Json(nullptr)}});
  }
  return list;
}

Json ToJson(const std::optional<PageBaseline>& baseline) {
  if (!baseline) return nullptr;
  Json pairs = Json::array();
  for (const auto& [rank, verdict] : baseline->pairs) {
    pairs.push_back({{"rank", rank}, {"verdict", verdict}});
  }
  return {{"title", baseline->title},
          {"explanation", Parsed(ExplanationJson(baseline->explanation))},
          {"runs", ReadBack(RunsJson(baseline->runs, kBaselinePrefix))},
          {"pairs", pairs}};
}

Json Data(const PageContent& content) {
  return {{"title", content.title},
          {"explanation", Parsed(ExplanationJson(content.explanation))},
          {"runs", ReadBack(RunsJson(content.runs, kOwnPrefix))},
          {"baseline", ToJson(content.baseline)},
          {"left_out", content.left_out},
          {"prediction", Parsed(content.prediction)},
          {"trade_offs", Parsed(content.trade_offs)},
          {"stages", Parsed(content.stages)},
          {"plan", Parsed(content.plan)}};
}

void AppendHistories(const std::vector<PageRun>& runs, char prefix, std::string& out) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].history.empty()) continue;
    out += fmt::format("<script type=\"text/plain\" id=\"{}\">{}</script>\n", HistoryId(prefix, i),
                       Base64(runs[i].history));
  }
}

/// The template with every {{NAME}} replaced.
std::string Filled(std::string_view text,
                   const std::vector<std::pair<std::string_view, std::string>>& values) {
  std::string out;
  while (true) {
    const std::size_t begin = text.find("{{");
    out += text.substr(0, begin);
    if (begin == std::string_view::npos) return out;
    const std::size_t end = text.find("}}", begin);
    const std::string_view name = text.substr(begin + 2, end - begin - 2);
    for (const auto& [key, value] : values) {
      if (key == name) out += value;
    }
    text.remove_prefix(end + 2);
  }
}

}  // namespace

std::string PageHtml(const PageContent& content) {
  std::string histories;
  AppendHistories(content.runs, kOwnPrefix, histories);
  if (content.baseline) AppendHistories(content.baseline->runs, kBaselinePrefix, histories);
  const std::string title = Printable(content.title);
  return Filled(WebPage(), {{"POLICY", SecurityPolicy()},
                            {"TITLE", EscapedHtml(title)},
                            {"STYLE", WebStyle()},
                            {"LICENCE", WebLicence()},
                            {"LIBRARY", WebLibrary()},
                            {"SCRIPT", WebScript()},
                            {"DATA", Harmless(Dump(Shown(Data(content)), kOneLine))},
                            {"HISTORIES", histories}});
}

}  // namespace plimsoll
