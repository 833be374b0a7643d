#include "readers/sqlite/database.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <algorithm>

namespace plimsoll {
namespace {

constexpr std::size_t kHeader = 100;
/// Steps of SQLite's machine between two looks at the budget.
constexpr int kSteps = 1000;
/// Reading a row takes about one step a column. A damaged file can make SQLite walk the same pages
/// for ever, so the steps are limited by the size of the file.
constexpr std::uint64_t kFreeSteps = 200'000;
constexpr std::uint64_t kStepsPerByte = 20;
/// Long values take time as well, and rows can share the pages that hold them.
constexpr std::uint64_t kBytesPerStep = 1;
/// Names of kernels reach some kilobytes.
constexpr int kLongestValue = 1 << 20;

std::uint32_t BigEndian(std::string_view bytes, std::size_t at, std::size_t count) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < count; ++i) {
    value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  }
  return value;
}

/// What SQLite would put in words that help nobody.
std::optional<Error> CheckHeader(const Input& input, const std::string& again) {
  const std::string_view bytes = input.bytes();
  const auto fail = [&](std::string message, std::size_t at, std::string hint) {
    return Error{std::move(message), input.name(), at, std::move(hint)};
  };
  const std::string copy = "copy it again, or " + again;
  if (bytes.size() < kHeader) return fail("the database is cut off", bytes.size(), copy);
  if (bytes[18] == 2 || bytes[19] == 2) {
    return fail("the database keeps its newest rows in a second file (WAL mode)", 18,
                "run sqlite3 FILE 'PRAGMA journal_mode=DELETE' on it first");
  }
  const std::uint64_t stored = BigEndian(bytes, 16, 2);
  const std::uint64_t page = stored == 1 ? 65536 : stored;
  const std::uint64_t pages = BigEndian(bytes, 28, 4);
  // The count is valid only if the last writer knew of it, which these two tell.
  const bool counted = BigEndian(bytes, 24, 4) == BigEndian(bytes, 92, 4);
  if (counted && page * pages > bytes.size()) {
    return fail("the database is cut off", bytes.size(), copy);
  }
  return std::nullopt;
}

/// Only reading, and of the statements about the database only the one that lists columns.
int Authorise(void*, int action, const char* first, const char*, const char*, const char*) {
  if (action == SQLITE_SELECT || action == SQLITE_READ) return SQLITE_OK;
  const bool lists_columns = action == SQLITE_PRAGMA && std::string_view(first) == "table_xinfo";
  return lists_columns ? SQLITE_OK : SQLITE_DENY;
}

}  // namespace

Result<std::unique_ptr<Database>> Database::Open(const Input& input, std::string_view again) {
  if (auto error = CheckHeader(input, std::string(again))) return *error;
  std::unique_ptr<Database> database(new Database(input, again));
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_MEMORY | SQLITE_OPEN_NOMUTEX;
  if (const int code = sqlite3_open_v2(":memory:", &database->handle_, flags, nullptr);
      code != SQLITE_OK) {
    database->Fail(code);
    return *database->error_;
  }
  database->work_left_ = kFreeSteps + kStepsPerByte * input.bytes().size();
  database->Harden();
  // SQLite takes the bytes as writable but leaves them alone when they are marked read-only.
  auto* const bytes = reinterpret_cast<unsigned char*>(const_cast<char*>(input.bytes().data()));
  const auto size = static_cast<sqlite3_int64>(input.bytes().size());
  if (const int code = sqlite3_deserialize(database->handle_, "main", bytes, size, size,
                                           SQLITE_DESERIALIZE_READONLY);
      code != SQLITE_OK) {
    database->Fail(code);
    return *database->error_;
  }
  sqlite3_set_authorizer(database->handle_, Authorise, nullptr);
  return database;
}

Database::~Database() { sqlite3_close_v2(handle_); }

void Database::Harden() {
  sqlite3_db_config(handle_, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(handle_, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  sqlite3_db_config(handle_, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, nullptr);
  sqlite3_db_config(handle_, SQLITE_DBCONFIG_ENABLE_VIEW, 0, nullptr);
  sqlite3_db_config(handle_, SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 0, nullptr);
  sqlite3_exec(handle_, "PRAGMA trusted_schema=OFF", nullptr, nullptr, nullptr);
  sqlite3_exec(handle_, "PRAGMA cell_size_check=ON", nullptr, nullptr, nullptr);
  sqlite3_exec(handle_, "PRAGMA temp_store=MEMORY", nullptr, nullptr, nullptr);
  sqlite3_limit(handle_, SQLITE_LIMIT_LENGTH, kLongestValue);
  sqlite3_limit(handle_, SQLITE_LIMIT_SQL_LENGTH, 1 << 16);
  sqlite3_limit(handle_, SQLITE_LIMIT_COLUMN, 256);
  sqlite3_limit(handle_, SQLITE_LIMIT_EXPR_DEPTH, 32);
  sqlite3_limit(handle_, SQLITE_LIMIT_COMPOUND_SELECT, 2);
  sqlite3_limit(handle_, SQLITE_LIMIT_ATTACHED, 0);
  sqlite3_limit(handle_, SQLITE_LIMIT_TRIGGER_DEPTH, 1);
  sqlite3_limit(handle_, SQLITE_LIMIT_WORKER_THREADS, 0);
  sqlite3_progress_handler(handle_, kSteps, OnProgress, this);
}

int Database::OnProgress(void* self) {
  std::uint64_t& left = static_cast<Database*>(self)->work_left_;
  if (left < kSteps) return 1;  // interrupts
  left -= kSteps;
  return 0;
}

void Database::Fail(int code) {
  if (error_) return;
  std::string why = handle_ != nullptr ? sqlite3_errmsg(handle_) : sqlite3_errstr(code);
  if ((code & 0xff) == SQLITE_INTERRUPT) why = "it goes round in circles";
  // A message may quote the schema, which may hold anything.
  std::replace_if(
      why.begin(), why.end(), [](unsigned char c) { return c < ' ' || c > '~'; }, '?');
  error_ = Error{.message = fmt::format("the database cannot be read: {}", why.substr(0, 160)),
                 .file = input_.name(),
                 .hint = again_};
}

std::shared_ptr<sqlite3_stmt> Database::Prepare(const std::string& sql) {
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v2(handle_, sql.c_str(), -1, &statement, nullptr);
  std::shared_ptr<sqlite3_stmt> owner(statement, sqlite3_finalize);
  if (code == SQLITE_OK) return owner;
  Fail(code);
  return nullptr;
}

bool Database::HasTable(const std::string& name) {
  // Views and virtual tables have no root page.
  const auto statement =
      Prepare("SELECT 1 FROM sqlite_master WHERE type = 'table' AND rootpage > 0 AND name = ?1");
  if (!statement) return false;
  sqlite3_bind_text(statement.get(), 1, name.c_str(), -1, SQLITE_TRANSIENT);
  const int code = sqlite3_step(statement.get());
  if (code != SQLITE_ROW && code != SQLITE_DONE) Fail(code);
  return code == SQLITE_ROW;
}

/// Without generated columns: to read one is to run what the schema says, for as long as it likes.
/// Nobody who writes such files has any.
std::vector<std::string> Database::Columns(const std::string& table) {
  std::vector<std::string> columns;
  if (!HasTable(table)) return columns;
  const auto statement = Prepare(fmt::format("PRAGMA main.table_xinfo(\"{}\")", table));
  if (!statement) return columns;
  constexpr int kName = 1, kHidden = 6;
  int code = SQLITE_ROW;
  while ((code = sqlite3_step(statement.get())) == SQLITE_ROW) {
    if (sqlite3_column_int(statement.get(), kHidden) != 0) continue;
    const auto* const name =
        reinterpret_cast<const char*>(sqlite3_column_text(statement.get(), kName));
    columns.emplace_back(name != nullptr ? name : "");
  }
  if (code != SQLITE_DONE) Fail(code);
  return columns;
}

TableRows Database::Rows(const std::string& table, const std::vector<std::string>& columns) {
  TableRows rows;
  rows.database_ = this;
  const std::vector<std::string> present = Columns(table);
  std::string list;
  int next = 0;
  for (const std::string& column : columns) {
    const bool has = std::find(present.begin(), present.end(), column) != present.end();
    rows.place_.push_back(has ? next++ : -1);
    if (has) list += fmt::format("{}\"{}\"", list.empty() ? "" : ", ", column);
  }
  if (list.empty()) return rows;
  rows.owner_ = Prepare(fmt::format("SELECT {} FROM main.\"{}\"", list, table));
  rows.statement_ = rows.owner_.get();
  return rows;
}

bool Database::Charge(sqlite3_stmt* row) {
  std::uint64_t cost = 0;
  for (int i = 0; i < sqlite3_column_count(row); ++i) {
    const int type = sqlite3_column_type(row, i);
    if (type != SQLITE_TEXT && type != SQLITE_BLOB) continue;
    cost += static_cast<std::uint64_t>(sqlite3_column_bytes(row, i)) / kBytesPerStep;
  }
  if (cost > work_left_) return false;
  work_left_ -= cost;
  return true;
}

bool TableRows::Next() {
  if (statement_ == nullptr) return false;
  int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW && !database_->Charge(statement_)) code = SQLITE_INTERRUPT;
  if (code == SQLITE_ROW) return true;
  if (code != SQLITE_DONE) database_->Fail(code);
  statement_ = nullptr;
  return false;
}

std::optional<std::int64_t> TableRows::Integer(std::size_t column) const {
  const int place = place_[column];
  if (place < 0 || sqlite3_column_type(statement_, place) != SQLITE_INTEGER) return std::nullopt;
  return sqlite3_column_int64(statement_, place);
}

std::string_view TableRows::Text(std::size_t column) const {
  const int place = place_[column];
  if (place < 0 || sqlite3_column_type(statement_, place) != SQLITE_TEXT) return {};
  const auto* const text = reinterpret_cast<const char*>(sqlite3_column_text(statement_, place));
  if (text == nullptr) return {};
  return {text, static_cast<std::size_t>(sqlite3_column_bytes(statement_, place))};
}

}  // namespace plimsoll
