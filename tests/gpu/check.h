#pragma once

// The tests of this folder also run where GoogleTest is not installed: then this header gives the
// part of it that they use.
#if __has_include(<gtest/gtest.h>) && !defined(LODESTONE_NO_GTEST)
#include <gtest/gtest.h>
#else
#define LODESTONE_OWN_CHECKS

#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace testing {

struct TestCase {
  const char* suite;
  const char* name;
  void (*body)();
};
inline std::vector<TestCase>& AllTests() {
  static std::vector<TestCase> tests;
  return tests;
}
inline int Register(const char* suite, const char* name, void (*body)()) {
  AllTests().push_back({suite, name, body});
  return 0;
}
inline bool& CurrentTestFailed() {
  static bool failed = false;
  return failed;
}

// Prints the failure, with what was streamed into it, when it goes out of scope.
class Failure {
 public:
  Failure(const char* file, int line, const std::string& what) {
    CurrentTestFailed() = true;
    text_ << file << ":" << line << ": Failure: " << what << " ";
  }
  ~Failure() { std::cout << text_.str() << std::endl; }
  template <typename T>
  Failure& operator<<(const T& value) {
    text_ << value;
    return *this;
  }

 private:
  std::ostringstream text_;
};
struct Abandon {  // makes ASSERT_* return
  void operator=(const Failure&) const {}
};

template <typename A, typename B>
std::string Both(const char* a_text, const char* b_text, const A& a, const B& b) {
  std::ostringstream text;
  text << a_text << " = " << a << ", " << b_text << " = " << b;
  return text.str();
}

inline int RunAll(const std::string& filter) {
  int failures = 0;
  for (const TestCase& test : AllTests()) {
    const std::string name = std::string(test.suite) + "." + test.name;
    if (!name.starts_with(filter)) continue;
    CurrentTestFailed() = false;
    std::cout << "[ RUN      ] " << name << std::endl;
    test.body();
    std::cout << (CurrentTestFailed() ? "[  FAILED  ] " : "[       OK ] ") << name << " (0 ms)"
              << std::endl;
    failures += CurrentTestFailed();
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace testing

#define TEST(suite, name)                                  \
  static void suite##_##name();                            \
  static const int registered_##suite##_##name =           \
      ::testing::Register(#suite, #name, &suite##_##name); \
  static void suite##_##name()
#define CHECK_BOTH(a, op, b, tail) \
  if ((a)op(b)) {                  \
  } else                           \
    tail ::testing::Failure(__FILE__, __LINE__, ::testing::Both(#a, #b, (a), (b)))
#define EXPECT_EQ(a, b) CHECK_BOTH(a, ==, b, )
#define EXPECT_LE(a, b) CHECK_BOTH(a, <=, b, )
#define EXPECT_GT(a, b) CHECK_BOTH(a, >, b, )
#define ASSERT_EQ(a, b) CHECK_BOTH(a, ==, b, return ::testing::Abandon() =)
#define ASSERT_LE(a, b) CHECK_BOTH(a, <=, b, return ::testing::Abandon() =)
#define EXPECT_TRUE(a) CHECK_BOTH(static_cast<bool>(a), ==, true, )
#endif
