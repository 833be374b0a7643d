// A SQLite file in memory, read as what it is: data from a stranger.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "files/input.h"

struct sqlite3;
struct sqlite3_stmt;

namespace plimsoll {

/// The rows of one table, in the order of the file (sorting in SQL may need temporary files).
class TableRows {
 public:
  /// False at the end, and when the rest cannot be read; then Database::error() says why.
  bool Next();
  /// The column's number; none if the table has no such column or the row has none there.
  std::optional<std::int64_t> Integer(std::size_t column) const;
  /// Valid until the next call of Next.
  std::string_view Text(std::size_t column) const;

 private:
  friend class Database;
  sqlite3_stmt* statement_ = nullptr;
  std::shared_ptr<sqlite3_stmt> owner_;
  class Database* database_ = nullptr;
  std::vector<int> place_;  // of each wanted column in the result, or -1
};

class Database {
 public:
  /// `again`: how such a file is made anew, for whoever has a damaged one.
  static Result<std::unique_ptr<Database>> Open(const Input& input, std::string_view again);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  /// An ordinary table: no view and no virtual table, so that reading it runs nothing else.
  bool HasTable(const std::string& name);
  /// The named columns of an ordinary table; those that it lacks read as missing.
  TableRows Rows(const std::string& table, const std::vector<std::string>& columns);

  /// The first thing that went wrong.
  const std::optional<Error>& error() const { return error_; }

 private:
  friend class TableRows;
  Database(const Input& input, std::string_view again) : input_(input), again_(again) {}
  void Harden();
  std::shared_ptr<sqlite3_stmt> Prepare(const std::string& sql);
  std::vector<std::string> Columns(const std::string& table);
  bool Charge(sqlite3_stmt* row);
  void Fail(int code);
  static int OnProgress(void* self);

  const Input& input_;
  const std::string again_;
  sqlite3* handle_ = nullptr;
  std::uint64_t work_left_ = 0;
  std::optional<Error> error_;
};

}  // namespace plimsoll
