// LOG, VLOG and CHECK. Each record is one line on stderr: a JSON object with ts (RFC 3339, UTC,
// ms), level, component, msg, the fields given, and file:line ("at") from WARNING up; or text for
// people when stderr is a terminal.
//
//   LOG(INFO) << Field("request_id", id) << "adopted " << num_rows << " rows";
//   VLOG(1) << ...;                       // 1: per request, 2: per step; off by default
//   LOG_EVERY_SECONDS(WARNING, 5) << ...; // a fault that may repeat: at most one line per 5 s a
//   site CHECK(x > 0) << ...;  CHECK_EQ(a, b); // programmer errors: logs FATAL and aborts
//
// INFO is for state changes of the process or of a peer. Never log prompt text. Thread-safe; a
// record is written with one write(2), so lines of several processes do not mix.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lodestone {

enum class LogSeverity { kDebug, kInfo, kWarning, kError, kFatal };
enum class LogFormat { kAuto, kJson, kText };  // kAuto: text if stderr is a terminal

struct LogOptions {
  LogFormat format = LogFormat::kAuto;
  std::string component;  // "router", "prefill", ...
  int verbosity = 0;      // VLOG(n) is written for n <= verbosity
};

// Call once at the start of main; before it, records are written with the defaults.
void SetLogging(LogOptions options);

// "auto", "json" or "text"; anything else is kAuto.
LogFormat ParseLogFormat(std::string_view name);

// Appends `text` as a JSON string with quotes. Any bytes are allowed: what is not UTF-8 becomes
// U+FFFD, so the result is always valid JSON.
void AppendJsonString(std::string_view text, std::string* out);

// A named value of a record, kept apart from its text.
struct LogField {
  std::string name;
  std::string value;
};

template <typename T>
LogField Field(std::string_view name, const T& value) {
  std::ostringstream text;
  text << value;
  return LogField{std::string(name), std::move(text).str()};
}

namespace log_internal {

// One record; written by the destructor.
class Message {
 public:
  Message(LogSeverity severity, const char* file, int line)
      : severity_(severity), file_(file), line_(line) {}
  ~Message() { Write(); }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;

  Message& operator<<(LogField field) {
    fields_.push_back(std::move(field));
    return *this;
  }
  template <typename T>
  Message& operator<<(const T& value) {
    text_ << value;
    return *this;
  }

 protected:
  // A record that there is no memory for is lost.
  void Write() noexcept;

 private:
  void WriteWhole() const;

  const LogSeverity severity_;
  const char* const file_;
  const int line_;
  std::ostringstream text_;
  std::vector<LogField> fields_;
  bool written_ = false;
};

class FatalMessage : public Message {
 public:
  FatalMessage(const char* file, int line) : Message(LogSeverity::kFatal, file, line) {}
  [[noreturn]] ~FatalMessage();
};

extern std::atomic<int> verbosity;

// Of one LOG_EVERY_SECONDS site.
class Throttle {
 public:
  // -1 if a record was written less than `seconds` ago, else the number suppressed since.
  int64_t Take(double seconds);

 private:
  std::atomic<int64_t> next_ns_{0};
  std::atomic<int64_t> suppressed_{0};
};

// Prints "(12 like this not shown) " if count > 0.
struct SuppressedNote {
  int64_t count;
};
std::ostream& operator<<(std::ostream& out, SuppressedNote note);

template <typename A, typename B>
std::string CheckOpText(const char* expression, const A& a, const B& b) {
  std::ostringstream text;
  text << "CHECK failed: " << expression << " (" << a << " vs " << b << ") ";
  return std::move(text).str();
}

// Makes both branches of CHECK's ?: void.
struct Voidify {
  void operator&(const Message&) const {}
};

}  // namespace log_internal
}  // namespace lodestone

#undef LOG
#undef VLOG
#undef VLOG_IS_ON
#undef LOG_EVERY_SECONDS
#undef CHECK
#undef CHECK_EQ
#undef CHECK_NE
#undef CHECK_LT
#undef CHECK_LE
#undef CHECK_GT
#undef CHECK_GE
#undef DCHECK

#define LODESTONE_LOG_INFO \
  ::lodestone::log_internal::Message(::lodestone::LogSeverity::kInfo, __FILE__, __LINE__)
#define LODESTONE_LOG_WARNING \
  ::lodestone::log_internal::Message(::lodestone::LogSeverity::kWarning, __FILE__, __LINE__)
#define LODESTONE_LOG_ERROR \
  ::lodestone::log_internal::Message(::lodestone::LogSeverity::kError, __FILE__, __LINE__)
#define LODESTONE_LOG_FATAL ::lodestone::log_internal::FatalMessage(__FILE__, __LINE__)
#define LODESTONE_LOG_DEBUG \
  ::lodestone::log_internal::Message(::lodestone::LogSeverity::kDebug, __FILE__, __LINE__)

#define LOG(severity) LODESTONE_LOG_##severity

#define VLOG_IS_ON(level) \
  ((level) <= ::lodestone::log_internal::verbosity.load(std::memory_order_relaxed))
#define VLOG(level) \
  !VLOG_IS_ON(level) ? (void)0 : ::lodestone::log_internal::Voidify() & LODESTONE_LOG_DEBUG

#define LOG_EVERY_SECONDS(severity, seconds)                                          \
  for (int64_t lodestone_suppressed_ = []() -> ::lodestone::log_internal::Throttle& { \
         static ::lodestone::log_internal::Throttle throttle;                         \
         return throttle;                                                             \
       }()                                                                            \
                                                   .Take(seconds);                    \
       lodestone_suppressed_ >= 0; lodestone_suppressed_ = -1)                        \
    LOG(severity) << ::lodestone::log_internal::SuppressedNote { lodestone_suppressed_ }

#define CHECK(condition)                                                   \
  (condition) ? (void)0                                                    \
              : ::lodestone::log_internal::Voidify() & LODESTONE_LOG_FATAL \
                                                           << "CHECK failed: " #condition " "

#define LODESTONE_CHECK_OP(a, op, b)                  \
  ((a)op(b)) ? (void)0                                \
             : ::lodestone::log_internal::Voidify() & \
                   LODESTONE_LOG_FATAL                \
                       << ::lodestone::log_internal::CheckOpText(#a " " #op " " #b, (a), (b))
#define CHECK_EQ(a, b) LODESTONE_CHECK_OP(a, ==, b)
#define CHECK_NE(a, b) LODESTONE_CHECK_OP(a, !=, b)
#define CHECK_LT(a, b) LODESTONE_CHECK_OP(a, <, b)
#define CHECK_LE(a, b) LODESTONE_CHECK_OP(a, <=, b)
#define CHECK_GT(a, b) LODESTONE_CHECK_OP(a, >, b)
#define CHECK_GE(a, b) LODESTONE_CHECK_OP(a, >=, b)

#ifdef NDEBUG
#define DCHECK(condition) CHECK(true || (condition))
#else
#define DCHECK(condition) CHECK(condition)
#endif
