#include "net/roce/way.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/small_files.h"
#include "base/unique_fd.h"

namespace muster::roce {
namespace {

std::string Show(const std::vector<FileValue>& files,
                 const std::function<std::string(const FileValue&)>& value) {
  std::vector<std::string> parts;
  parts.reserve(files.size());
  for (const FileValue& file : files) parts.push_back(fmt::format("{} {}", file.name, value(file)));
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace

std::string LastLine(const std::string& text) {
  const auto lines = Words(text, "\n");
  return lines.empty() ? "" : lines.back();
}

std::string Joined(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, " "));
}

Result<std::string> Output(const Host& host, const std::vector<std::string>& words) {
  const auto ran = host.run(words);
  if (!ran) return ran.error();
  if (ran->code == 0) return ran->output;
  if (ran->code == kNoProgram) return Error{Errc::kNotFound, fmt::format("{} is not installed", words[0])};
  if (ran->code == kTooLong) return Error{Errc::kUnavailable, fmt::format("{} does not end", words[0])};
  const auto lines = Words(ran->output, "\n");
  // Where a driver refuses, dcb's first line says why; its last one is of an errno that nothing has set.
  const std::string said = lines.empty() ? "" : words[0] == "dcb" ? lines.front() : lines.back();
  return Error{Errc::kUnavailable, said.empty() ? fmt::format("{} ended with {}", words[0], ran->code)
                                                : fmt::format("{}: {}", words[0], said)};
}

std::function<Status()> Running(const Host& host, std::vector<std::string> words) {
  return [&host, words = std::move(words)]() -> Status {
    const auto output = Output(host, words);
    return output ? Status() : output.error();
  };
}

Status WriteValue(const std::string& path, const std::string& value) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_TRUNC));
  if (file.valid() && ::write(file.get(), value.data(), value.size()) == static_cast<ssize_t>(value.size()))
    return {};
  return Error{Errc::kDenied, fmt::format("{}: {}", path, std::strerror(errno))};
}

Result<std::string> ReadValue(const std::string& path) {
  const auto text = ReadSmallFile(path);
  if (!text) return Error{Errc::kUnavailable, fmt::format("{} cannot be read", path)};
  const auto words = Words(*text);
  return words.empty() ? std::string() : words[0];
}

Way OfFiles(const std::string& via, const std::vector<FileValue>& files) {
  std::vector<std::string> fixes;
  fixes.reserve(files.size());
  for (const FileValue& file : files) fixes.push_back(fmt::format("echo {} >{}", file.value, file.path));
  return {via, Show(files, [](const FileValue& file) { return file.value; }),
          [files]() -> Result<std::string> {
            Status good;
            std::string shown = Show(files, [&](const FileValue& file) {
              const auto value = ReadValue(file.path);
              if (!value) good = value.error();
              return value ? *value : "";
            });
            if (!good) return good.error();
            return shown;
          },
          fmt::format("{}", fmt::join(fixes, " && ")),
          [files]() -> Status {
            for (const FileValue& file : files) {
              const auto now = ReadValue(file.path);
              if (now && *now == file.value) continue;
              if (Status written = WriteValue(file.path, file.value); !written) return written;
            }
            return {};
          }};
}

bool AllThere(const std::vector<FileValue>& files) {
  return std::ranges::all_of(files,
                             [](const FileValue& file) { return ::access(file.path.c_str(), F_OK) == 0; });
}

Error ShowsNothing(const PhysicalPort& on) {
  return {Errc::kUnavailable, on.driver.empty()
                                  ? std::string("the interface has no driver that could show it")
                                  : fmt::format("the driver {} does not show it", on.driver)};
}

}  // namespace muster::roce
