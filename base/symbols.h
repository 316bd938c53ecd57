// Functions of libraries that are loaded at run time.
#pragma once

#include <dlfcn.h>

#include <string>

namespace muster {

// Looks functions up, and keeps the name of the first that is not there. `library`: a handle of dlopen's.
struct Symbols {
  void* library;
  std::string missing;

  template <typename Function>
  void operator()(const std::string& name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(library, name.c_str()));
    if (function == nullptr && missing.empty()) missing = name;
  }
};

}  // namespace muster
