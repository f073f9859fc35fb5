#include "base/logging.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <new>

#include <unistd.h>

#include "base/mutex.h"

namespace lodestone {
namespace log_internal {

std::atomic<int> verbosity{0};

}  // namespace log_internal

namespace {

struct Settings {
  Mutex mutex;
  std::string component GUARDED_BY(mutex) = "lodestone";
  std::atomic<bool> as_text{isatty(STDERR_FILENO) == 1};
};

// Never destroyed: destructors of other globals may log.
Settings& GetSettings() {
  static Settings* const settings = new Settings();
  return *settings;
}

std::string Component() {
  Settings& settings = GetSettings();
  MutexLock lock(&settings.mutex);
  return settings.component;
}

std::string_view SeverityName(LogSeverity severity) {
  switch (severity) {
    case LogSeverity::kDebug:
      return "debug";
    case LogSeverity::kInfo:
      return "info";
    case LogSeverity::kWarning:
      return "warning";
    case LogSeverity::kError:
      return "error";
    case LogSeverity::kFatal:
      return "fatal";
  }
  return "unknown";
}

// "2026-01-31T12:00:00.123Z".
std::string FormatUtc(std::chrono::system_clock::time_point time) {
  const int64_t ms = std::chrono::floor<std::chrono::milliseconds>(time.time_since_epoch()).count();
  const time_t seconds = static_cast<time_t>(ms / 1000);
  tm utc = {};
  gmtime_r(&seconds, &utc);
  char text[64];
  std::snprintf(text, sizeof(text), "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", utc.tm_year + 1900,
                utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
                static_cast<int>(ms % 1000));
  return text;
}

// Length of the valid UTF-8 sequence at the start of `text`; 0 if there is none.
size_t Utf8SequenceLength(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  if (lead == 0xE0 && byte(1) < 0xA0) return 0;   // overlong
  if (lead == 0xED && byte(1) >= 0xA0) return 0;  // surrogate
  if (lead == 0xF0 && byte(1) < 0x90) return 0;   // overlong
  if (lead == 0xF4 && byte(1) >= 0x90) return 0;  // above U+10FFFF
  return length;
}

void AppendJsonAscii(char c, std::string* out) {
  switch (c) {
    case '"':
      *out += "\\\"";
      return;
    case '\\':
      *out += "\\\\";
      return;
    case '\n':
      *out += "\\n";
      return;
    case '\r':
      *out += "\\r";
      return;
    case '\t':
      *out += "\\t";
      return;
    default:
      break;
  }
  if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7F) {
    out->push_back(c);
    return;
  }
  char escape[8];
  std::snprintf(escape, sizeof(escape), "\\u%04x", static_cast<unsigned>(c));
  *out += escape;
}

void AppendJsonMember(std::string_view name, std::string_view value, std::string* out) {
  if (out->size() > 1) out->push_back(',');
  AppendJsonString(name, out);
  out->push_back(':');
  AppendJsonString(value, out);
}

// Nothing that a peer sent may steer the terminal.
std::string WithoutControlCodes(std::string_view text) {
  std::string clean(text);
  for (char& c : clean) {
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7F) c = '?';
  }
  return clean;
}

// As a JSON string unless it is one plain word.
std::string FieldForTerminal(std::string_view value) {
  std::string quoted;
  AppendJsonString(value, &quoted);
  const bool plain = quoted.size() == value.size() + 2 && value.find(' ') == value.npos;
  return plain ? std::string(value) : quoted;
}

void WriteToStderr(std::string_view line) {
  while (!line.empty()) {
    const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // nowhere left to report it
    line.remove_prefix(static_cast<size_t>(written));
  }
}

// From the root of the source tree, wherever the build was made.
std::string_view RootRelative(std::string_view path) {
  constexpr std::string_view kRoot = LODESTONE_SOURCE_ROOT;
  return path.starts_with(kRoot) ? path.substr(kRoot.size()) : path;
}

struct Record {
  LogSeverity severity;
  std::string_view at;  // "" below WARNING
  std::string_view message;
  const std::vector<LogField>& fields;
};

std::string FormatJson(const Record& record) {
  std::string line = "{";
  AppendJsonMember("ts", FormatUtc(std::chrono::system_clock::now()), &line);
  AppendJsonMember("level", SeverityName(record.severity), &line);
  AppendJsonMember("component", Component(), &line);
  AppendJsonMember("msg", record.message, &line);
  for (const LogField& field : record.fields) AppendJsonMember(field.name, field.value, &line);
  if (!record.at.empty()) AppendJsonMember("at", record.at, &line);
  line += "}\n";
  return line;
}

std::string FormatText(const Record& record) {
  std::string line = FormatUtc(std::chrono::system_clock::now()).substr(11, 12);
  line += " ";
  line += SeverityName(record.severity);
  line += " ";
  line += Component();
  line += ": ";
  line += WithoutControlCodes(record.message);
  for (const LogField& field : record.fields) {
    line += " ";
    line += field.name;
    line += "=";
    line += FieldForTerminal(field.value);
  }
  if (!record.at.empty()) {
    line += " (";
    line += record.at;
    line += ")";
  }
  line += "\n";
  return line;
}

}  // namespace

void SetLogging(LogOptions options) {
  Settings& settings = GetSettings();
  settings.as_text = options.format == LogFormat::kText ||
                     (options.format == LogFormat::kAuto && isatty(STDERR_FILENO) == 1);
  log_internal::verbosity = options.verbosity;
  MutexLock lock(&settings.mutex);
  settings.component = std::move(options.component);
}

LogFormat ParseLogFormat(std::string_view name) {
  if (name == "json") return LogFormat::kJson;
  if (name == "text") return LogFormat::kText;
  return LogFormat::kAuto;
}

void AppendJsonString(std::string_view text, std::string* out) {
  out->push_back('"');
  while (!text.empty()) {
    const size_t length = Utf8SequenceLength(text);
    if (length == 1) {
      AppendJsonAscii(text[0], out);
    } else if (length == 0) {
      *out += "\xEF\xBF\xBD";
    } else {
      out->append(text.substr(0, length));
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  out->push_back('"');
}

namespace log_internal {

void Message::Write() noexcept {
  if (written_) return;
  written_ = true;
  try {
    WriteWhole();
  } catch (const std::bad_alloc&) {
    return;
  }
}

void Message::WriteWhole() const {
  const std::string message = text_.str();
  std::string at;
  if (severity_ >= LogSeverity::kWarning) {
    at = std::string(RootRelative(file_)) + ":" + std::to_string(line_);
  }
  const Record record = {severity_, at, message, fields_};
  WriteToStderr(GetSettings().as_text ? FormatText(record) : FormatJson(record));
}

FatalMessage::~FatalMessage() {
  Write();
  std::abort();
}

int64_t Throttle::Take(double seconds) {
  const int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
  int64_t next = next_ns_.load(std::memory_order_relaxed);
  const int64_t following = now + static_cast<int64_t>(seconds * 1e9);
  if (now < next || !next_ns_.compare_exchange_strong(next, following)) {
    suppressed_.fetch_add(1, std::memory_order_relaxed);
    return -1;
  }
  return suppressed_.exchange(0);
}

std::ostream& operator<<(std::ostream& out, SuppressedNote note) {
  if (note.count > 0) out << "(" << note.count << " like this not shown) ";
  return out;
}

}  // namespace log_internal
}  // namespace lodestone
