// Reads a log part by part: finds the openings of messages and of tables and the lines that tell
// memory, reads each with what stands around it, and brings them together.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "readers/error_text/collect.h"
#include "readers/error_text/job_facts.h"
#include "readers/error_text/surroundings.h"
#include "readers/log_lines/log_figures.h"
#include "readers/wordings/phrase_finder.h"
#include "readers/wordings/wordings.h"
#include "timeline/recording.h"

namespace plimsoll {

class LogReader {
 public:
  /// `file`: the name of the log.
  explicit LogReader(std::string file) : figures_(std::move(file)) {}

  /// Reads what begins in [begin, end) of the part. Parts follow one another in the log.
  void Read(const LogPart& part, std::size_t begin, std::size_t end);
  /// What was found, in the order of the log.
  Recording Finish() &&;

 private:
  /// Messages of one list of wordings.
  struct Search {
    MessageCollector collector = {};
    std::size_t last_end = 0;  // in the log
    std::optional<int> last_rank = {};
    int messages = 0;
  };

  bool ReadOpening(const LogPart& part, const PhraseFinder::Hit& hit, const Wording& wording,
                   Search& search);
  /// A phrase, and where those of its ends that mean something else begin.
  struct Finding {
    PhraseFinder::Hit hit;
    std::size_t other_begin = 0;  // of the one that is not of figures
    std::optional<std::size_t> vague = {};
    std::size_t vague_begin = 0;
  };

  static std::vector<Finding> FindIn(std::string_view text, std::size_t begin, std::size_t end);
  void ReadFinding(const LogPart& part, const FigurePart& figures, const Finding& finding);
  /// What was found is the opening of a message, the title of a table or a fact of the job.
  void ReadHit(const LogPart& part, PhraseFinder::Hit hit, const Finding& finding);
  void ReadTable(const LogPart& part, const PhraseFinder::Hit& hit);
  std::optional<OomMessage> ReadAt(const LogPart& part, const Wording& wording,
                                   const PhraseFinder::Hit& hit, std::optional<int> rank,
                                   std::size_t& end);
  std::size_t LineOf(const LogPart& part, std::size_t place);

  Search precise_;
  Search vague_;  // words that only say that memory ran out: for a log without any other
  JobFactReader facts_;
  LogFigures figures_;
  std::vector<MemorySummary> summaries_;
  std::size_t table_end_ = 0;
  Surroundings surroundings_;
  std::size_t openings_ = 0;
  std::size_t judged_ = 0;
  bool gave_up_ = false;
  // Lines are counted up to a place of the log.
  std::size_t counted_ = 0;
  std::size_t lines_ = 1;
};

}  // namespace plimsoll
