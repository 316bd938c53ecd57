// How one knob is read and set on this host, and what all such ways are made of: programs, and files of /sys.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "net/roce/fabric_interfaces.h"

namespace muster::roce {

// A knob of one interface with one way to read it and one to set it.
struct Way {
  std::string via;
  std::string should;
  std::function<Result<std::string>()> read;
  std::string fix;              // what a person would type
  std::function<Status()> set;  // none: a person must
  bool at_reboot = false;       // what is set holds from the next one on
};

std::string LastLine(const std::string& text);
std::string Joined(const std::vector<std::string>& words);

// What a program has printed; an error: why it did not.
Result<std::string> Output(const Host& host, const std::vector<std::string>& words);
// Runs a program, for what it does.
std::function<Status()> Running(const Host& host, std::vector<std::string> words);

// A file of /sys, which takes a value whole or not at all.
Status WriteValue(const std::string& path, const std::string& value);
Result<std::string> ReadValue(const std::string& path);

// Several files, each with a value of its own.
struct FileValue {
  std::string name;  // what it is called in answers
  std::string path;
  std::string value;
};
Way OfFiles(const std::string& via, const std::vector<FileValue>& files);
bool AllThere(const std::vector<FileValue>& files);

// Why a port's driver does not say it.
Error ShowsNothing(const PhysicalPort& on);

}  // namespace muster::roce
