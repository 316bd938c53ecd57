#include "spank-plugin/supervisor/launcher.h"

#include <stdlib.h>
#include <string.h>

namespace muster::supervisor {
namespace {

constexpr char kBetweenCommands[] = ";&|()\n";
constexpr char kBetweenWords[] = " \t;&|()\n";

struct Word {
  const char* text = "";
  size_t size = 0;

  [[nodiscard]] bool Is(const char* other) const {
    return size == strlen(other) && strncmp(text, other, size) == 0;
  }
  [[nodiscard]] bool BeginsWith(const char* start) const {
    return size >= strlen(start) && strncmp(text, start, strlen(start)) == 0;
  }
  [[nodiscard]] bool EndsWith(const char* end) const {
    const size_t length = strlen(end);
    return size >= length && strncmp(text + size - length, end, length) == 0;
  }
  // Behind the last slash.
  [[nodiscard]] Word Name() const {
    size_t at = size;
    while (at > 0 && text[at - 1] != '/') --at;
    return {text + at, size - at};
  }
  // "--flag", whose value is the next word, if it has one.
  [[nodiscard]] bool IsOpenFlag() const { return BeginsWith("--") && memchr(text, '=', size) == nullptr; }
};

// Goes through the words of one command.
class Scan {
 public:
  void Take(Word word) {
    if (!over_) Look(word);
    last_ = word;
  }
  void EndCommand() {
    last_ = {};
    over_ = launcher_.name != nullptr;
  }
  [[nodiscard]] Launcher launcher() const { return launcher_; }

 private:
  void Look(Word word) {
    // What follows the program is its own.
    over_ = word.EndsWith(".py");
    if (launcher_.name != nullptr) return LookForProcesses(word);
    const Word name = word.Name();
    if (last_.Is("-m")) {
      if (word.Is("torch.distributed.run") || word.Is("torch.distributed.launch")) {
        launcher_.name = "python -m torch.distributed.run";
      } else if (word.Is("accelerate.commands.launch")) {
        launcher_.name = "accelerate launch";
      } else {
        over_ = true;
      }
    } else if (last_.Name().Is("accelerate") && word.Is("launch")) {
      launcher_.name = "accelerate launch";
    } else if (!last_.IsOpenFlag() && name.Is("torchrun")) {
      launcher_.name = "torchrun";
    } else if (!last_.IsOpenFlag() && name.Is("deepspeed")) {
      launcher_.name = "deepspeed";
    }
  }
  void LookForProcesses(Word word) {
    constexpr const char* kFlags[] = {"--nproc-per-node", "--nproc_per_node"};
    for (const char* flag : kFlags) {
      if (last_.Is(flag)) launcher_.processes = static_cast<unsigned>(strtoul(word.text, nullptr, 10));
      if (word.BeginsWith(flag) && word.size > strlen(flag) && word.text[strlen(flag)] == '=')
        launcher_.processes = static_cast<unsigned>(strtoul(word.text + strlen(flag) + 1, nullptr, 10));
    }
  }

  Launcher launcher_;
  Word last_;
  bool over_ = false;
};

// "-c", "-lc", "-ec": of a shell.
bool IsScriptFlag(Word word) {
  return word.size >= 2 && word.text[0] == '-' && word.text[1] != '-' && word.EndsWith("c");
}

void TakeScript(const char* script, Scan* scan) {
  for (const char* at = script; *at != '\0';) {
    if (strchr(kBetweenCommands, *at) != nullptr) scan->EndCommand();
    const size_t size = strcspn(at, kBetweenWords);
    if (size > 0) scan->Take({at, size});
    at += size > 0 ? size : 1;
  }
}

}  // namespace

Launcher LauncherIn(const char* const* arguments) {
  Scan scan;
  if (arguments == nullptr || arguments[0] == nullptr) return {};
  const Word program = Word{arguments[0], strlen(arguments[0])}.Name();
  const bool is_shell = program.Is("sh") || program.Is("bash") || program.Is("dash") || program.Is("zsh");
  for (size_t i = 0; arguments[i] != nullptr; ++i) {
    if (is_shell && i > 0 && IsScriptFlag({arguments[i - 1], strlen(arguments[i - 1])})) {
      TakeScript(arguments[i], &scan);
      break;  // then come the script's arguments
    }
    scan.Take({arguments[i], strlen(arguments[i])});
  }
  return scan.launcher();
}

}  // namespace muster::supervisor
