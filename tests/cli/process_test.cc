#include "cli/process.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "cli/cluster.h"

namespace lodestone {
namespace {

std::string TempPath(const std::string& name) { return ::testing::TempDir() + "/" + name; }

ProcessOptions Shell(const std::string& script, const std::string& name) {
  return {.argv = {"/bin/sh", "-c", script},
          .stdout_path = TempPath(name + ".out"),
          .stderr_path = TempPath(name + ".err")};
}

std::string WaitForExit(ChildProcess& child) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (std::chrono::steady_clock::now() < deadline) {
    if (const auto exit = child.PollExit()) return *exit;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return "still running";
}

std::string ReadAll(const std::string& path) {
  std::ifstream stream(path);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

TEST(ChildProcessTest, OutputGoesToFilesAndTheExitCodeIsReportedOnce) {
  auto child = ChildProcess::Start(Shell("echo out; echo err >&2; exit 3", "codes"));
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ(WaitForExit(*child), "exit code 3");
  EXPECT_FALSE(child->running());
  EXPECT_FALSE(child->PollExit().has_value());
  EXPECT_EQ(ReadAll(TempPath("codes.out")), "out\n");
  EXPECT_NE(ReadAll(TempPath("codes.err")).find("err"), std::string::npos);
}

TEST(ChildProcessTest, DeathBySignalNamesTheSignal) {
  auto child = ChildProcess::Start(Shell("exec sleep 60", "signals"));
  ASSERT_TRUE(child.ok());
  child->Signal(SIGKILL);
  EXPECT_EQ(WaitForExit(*child), "signal 9");
}

TEST(ChildProcessTest, MissingProgramIsNamed) {
  const auto child = ChildProcess::Start({.argv = {"/no/such/program"},
                                          .stdout_path = TempPath("none.out"),
                                          .stderr_path = TempPath("none.err")});
  ASSERT_FALSE(child.ok());
  EXPECT_NE(child.status().message().find("/no/such/program"), std::string::npos);
}

TEST(ChildProcessTest, DestructorEndsTheProcess) {
  pid_t pid = 0;
  {
    auto child = ChildProcess::Start(Shell("exec sleep 60", "ends"));
    ASSERT_TRUE(child.ok());
    pid = child->pid();
  }
  EXPECT_EQ(kill(pid, 0), -1);
}

TEST(ChildProcessTest, ChildDiesWithAParentThatIsKilled) {
  // The parent is a process that starts a grandchild and kills itself.
  int report[2];
  ASSERT_EQ(pipe(report), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    auto child = ChildProcess::Start(Shell("exec sleep 60", "orphan"));
    const pid_t pid = child.ok() ? child->pid() : -1;
    [[maybe_unused]] const ssize_t written = write(report[1], &pid, sizeof(pid));
    kill(getpid(), SIGKILL);
  }
  pid_t grandchild = 0;
  ASSERT_EQ(read(report[0], &grandchild, sizeof(grandchild)), ssize_t{sizeof(grandchild)});
  ASSERT_GT(grandchild, 0);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  const std::string stat = "/proc/" + std::to_string(grandchild) + "/stat";
  // Gone, or a zombie that nobody has waited for.
  const auto lives = [&] {
    const std::string text = ReadAll(stat);
    return !text.empty() && text.find(") Z") == std::string::npos;
  };
  while (lives() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_FALSE(lives());
  close(report[0]);
  close(report[1]);
}

TEST(LastLinesTest, ReturnsTheEndOfAFile) {
  const std::string path = TempPath("lines");
  std::ofstream(path) << "a\nb\nc\n";
  EXPECT_EQ(LastLines(path, 2), "b\nc\n");
  EXPECT_EQ(LastLines(path, 9), "a\nb\nc\n");
  EXPECT_EQ(LastLines(path + ".none", 2), "");
}

TEST(ParseListeningTest, TakesAWholeLineOnly) {
  const auto ports = ParseListening("listening http=1 grpc=2 metrics=3\n");
  ASSERT_TRUE(ports.has_value());
  EXPECT_EQ(ports->http, 1);
  EXPECT_EQ(ports->grpc, 2);
  EXPECT_EQ(ports->metrics, 3);
  EXPECT_FALSE(ParseListening("listening http=1 grpc=2").has_value());
  EXPECT_FALSE(ParseListening("loading\n").has_value());
}

}  // namespace
}  // namespace lodestone
