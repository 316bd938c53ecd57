#include "daemon/cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "daemon/cli/table.h"

namespace muster::cli {
namespace {

constexpr int kCells = 24;
constexpr auto kEvery = std::chrono::milliseconds(100);

}  // namespace

std::string ProgressLine(const std::string& label, uint64_t done, uint64_t total, double seconds) {
  const double part = total == 0 ? 1.0 : static_cast<double>(done) / static_cast<double>(total);
  const auto full = static_cast<size_t>(std::min(part, 1.0) * kCells);
  std::string line = fmt::format("{}  [{}{}]  {:.0f} %  {} of {}", label, std::string(full, '#'),
                                 std::string(kCells - full, '.'), part * 100, Bytes(done), Bytes(total));
  // The first second says nothing about the rest.
  if (seconds < 1.0 || done == 0) return line;
  const double speed = static_cast<double>(done) / seconds;
  return line + fmt::format("  {}/s  {:.0f} s left", Bytes(static_cast<uint64_t>(speed)),
                            static_cast<double>(total - std::min(done, total)) / speed);
}

Progress::Progress(std::string label, uint64_t total)
    : label_(std::move(label)), total_(total), shown_(::isatty(STDERR_FILENO) == 1) {
  if (shown_) Draw();
}

Progress::~Progress() {
  Finish();
}

void Progress::Add(uint64_t bytes) {
  done_ += bytes;
  if (shown_ && std::chrono::steady_clock::now() - drawn_ >= kEvery) Draw();
}

void Progress::Finish() {
  if (shown_) std::fputs("\r\033[K", stderr);
}

void Progress::Draw() {
  drawn_ = std::chrono::steady_clock::now();
  const std::chrono::duration<double> taken = drawn_ - begun_;
  std::fputs(("\r\033[K" + ProgressLine(label_, done_, total_, taken.count())).c_str(), stderr);
}

}  // namespace muster::cli
