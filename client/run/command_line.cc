#include "client/run/command_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <string_view>
#include <utility>

namespace muster::run {
namespace {

enum class Meaning { kIgnored, kRefused, kProcesses, kModule, kNoPython, kRunPath, kHelp };

struct Flag {
  std::string_view name;
  bool has_value;
  Meaning meaning;
  std::string_view why = "";  // it is refused
  bool by_variable = true;    // PET_NAME=VALUE gives it too
};

constexpr Flag kFlags[] = {
    {"nproc-per-node", true, Meaning::kProcesses},
    {"module", false, Meaning::kModule},
    {"no-python", false, Meaning::kNoPython},
    {"run-path", false, Meaning::kRunPath},
    {"help", false, Meaning::kHelp, "", false},
    // Slurm and Muster say who takes part and where rank 0 listens.
    {"nnodes", true, Meaning::kIgnored},
    {"node-rank", true, Meaning::kIgnored},
    {"standalone", false, Meaning::kIgnored},
    {"rdzv-backend", true, Meaning::kIgnored},
    {"rdzv-endpoint", true, Meaning::kIgnored},
    {"rdzv-id", true, Meaning::kIgnored},
    {"rdzv-conf", true, Meaning::kIgnored},
    {"master-addr", true, Meaning::kIgnored},
    {"master-port", true, Meaning::kIgnored},
    {"local-addr", true, Meaning::kIgnored},
    {"role", true, Meaning::kIgnored},
    // Muster watches the members and starts them again.
    {"max-restarts", true, Meaning::kIgnored},
    {"monitor-interval", true, Meaning::kIgnored},
    {"start-method", true, Meaning::kIgnored},
    {"signals-to-handle", true, Meaning::kIgnored},
    {"shutdown-timeout", true, Meaning::kIgnored},
    // Slurm's --output and --error have the members' output.
    {"log-dir", true, Meaning::kIgnored},
    {"redirects", true, Meaning::kIgnored},
    {"tee", true, Meaning::kIgnored},
    {"local-ranks-filter", true, Meaning::kIgnored},
    {"duplicate-stdout-filters", true, Meaning::kIgnored},
    {"duplicate-stderr-filters", true, Meaning::kIgnored},
    {"numa-binding", true, Meaning::kRefused, "Slurm binds tasks: use srun --cpu-bind and --mem-bind", false},
    {"virtual-local-rank", false, Meaning::kRefused, "the program chooses its GPU by LOCAL_RANK"},
    {"event-log-handler", true, Meaning::kRefused, "no launcher runs that could call it"},
    {"logs-specs", true, Meaning::kRefused, "no launcher runs that could call it", false},
};

struct Letter {
  char letter;
  std::string_view name;
};
constexpr Letter kLetters[] = {{'m', "module"}, {'r', "redirects"}, {'t', "tee"}, {'h', "help"}};

const Flag* Find(std::string_view name) {
  const auto* found = std::ranges::find(kFlags, name, &Flag::name);
  return found == std::end(kFlags) ? nullptr : found;
}

// How many letters are to be changed, added or taken away.
size_t Distance(std::string_view from, std::string_view to) {
  std::vector<size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < from.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < to.size(); ++j) {
      const size_t changed = diagonal + (from[i] == to[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::string_view Nearest(std::string_view name) {
  const auto distance = [&](const Flag& flag) {
    return !name.empty() && flag.name.starts_with(name) ? 0 : Distance(name, flag.name);
  };
  return std::ranges::min_element(kFlags, {}, distance)->name;
}

Error Wrong(std::string sentence) {
  return Error{Errc::kInvalid, std::move(sentence)};
}

// A word that begins a flag; a lone dash is a program, Python's standard input.
bool IsFlag(std::string_view word) {
  return word.size() > 1 && word[0] == '-';
}

// "--nproc_per_node=8", "-m", "-r3", "-t=3".
struct Given {
  std::string name;
  bool has_value = false;
  std::string value;
};
Given Read(const std::string& word) {
  Given given;
  const bool is_long = word.starts_with("--");
  const size_t name_at = is_long ? 2 : 1;
  const size_t name_end = is_long ? std::min(word.find('='), word.size()) : 2;
  given.name = word.substr(name_at, name_end - name_at);
  given.has_value = name_end < word.size();
  if (given.has_value) given.value = word.substr(name_end + (word[name_end] == '=' ? 1 : 0));
  if (is_long) {
    std::ranges::replace(given.name, '_', '-');
  } else if (const auto* letter = std::ranges::find(kLetters, word[1], &Letter::letter);
             letter != std::end(kLetters)) {
    given.name = letter->name;
  }
  return given;
}

bool IsNumber(std::string_view word) {
  return word.size() > 1 && word[0] == '-' && word[1] >= '0' && word[1] <= '9';
}

struct Flags {
  CommandLine line;
  bool module = false;
  bool run_path = false;

  // `shown`: how it was given.
  Status Take(const Flag& flag, const std::string& value, std::string_view shown) {
    switch (flag.meaning) {
      case Meaning::kIgnored:
        break;
      case Meaning::kRefused:
        return Wrong(fmt::format("{} cannot be had: {}", shown, flag.why));
      case Meaning::kProcesses:
        if (value.empty())
          return Wrong(fmt::format("{} has no value; a variable of the script may be empty", shown));
        line.processes = value;
        break;
      case Meaning::kModule:
        module = true;
        break;
      case Meaning::kNoPython:
        line.python = false;
        break;
      case Meaning::kRunPath:
        run_path = true;
        break;
      case Meaning::kHelp:
        line.help = true;
        break;
    }
    return {};
  }
};

// torchrun's flags are also given by variables: PET_NPROC_PER_NODE=8, PET_MODULE=1. The command line comes before them.
Status TakeVariables(const Variables& variables, Flags& flags) {
  for (const Flag& flag : kFlags) {
    if (!flag.by_variable) continue;
    std::string name = "PET_";
    for (const char c : flag.name) name += c == '-' ? '_' : static_cast<char>(c - 'a' + 'A');
    const char* const value = variables(name.c_str());
    if (value == nullptr) continue;
    if (!flag.has_value) {
      if (std::string_view(value) == "0") continue;
      if (std::string_view(value) != "1") return Wrong(fmt::format("{} is neither 0 nor 1", name));
    }
    if (Status taken = flags.Take(flag, value, name); !taken) return taken;
  }
  return {};
}

}  // namespace

Result<CommandLine> ReadCommandLine(const std::vector<std::string>& words, const Variables& variables) {
  Flags flags;
  if (Status taken = TakeVariables(variables, flags); !taken) return taken.error();
  size_t at = 0;
  for (; at < words.size() && IsFlag(words[at]); ++at) {
    const std::string& word = words[at];
    if (word == "--") {
      ++at;
      break;
    }
    Given given = Read(word);
    const std::string shown = word.substr(0, word.find('='));
    const Flag* flag = Find(given.name);
    if (flag == nullptr || (!flag->has_value && given.has_value)) {
      if (flag != nullptr) return Wrong(fmt::format("--{} takes no value", flag->name));
      return Wrong(fmt::format("torchrun has no flag {}; the nearest is --{}", shown, Nearest(given.name)));
    }
    if (flag->has_value && !given.has_value) {
      const bool missing = at + 1 == words.size() || (IsFlag(words[at + 1]) && !IsNumber(words[at + 1]));
      if (missing) return Wrong(fmt::format("{} has no value; a variable of the script may be empty", shown));
      given.value = words[++at];
    }
    if (Status taken = flags.Take(*flag, given.value, shown); !taken) return taken.error();
    if (flags.line.help) return flags.line;
  }
  CommandLine& line = flags.line;
  if (flags.run_path) line.python = true;
  if (flags.module && !line.python) return Wrong("--module and --no-python exclude each other");
  if (at == words.size()) return Wrong("there is no program to run: muster-run [torchrun's flags] train.py");
  if (flags.module && !flags.run_path) line.program.emplace_back("-m");
  line.program.insert(line.program.end(), words.begin() + static_cast<ptrdiff_t>(at), words.end());
  return line;
}

Status CheckProcesses(const std::string& processes, uint32_t tasks, const std::string& gpus) {
  if (processes.empty()) return {};
  const bool by_gpu = processes == "gpu" || processes == "auto";
  const std::string& text = by_gpu ? gpus : processes;
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number == 0) {
    return Wrong(fmt::format(
        "--nproc-per-node={} {}: write their number, and the same in #SBATCH --ntasks-per-node", processes,
        by_gpu ? "needs to know the job's GPUs on this node, which Slurm does not say"
               : "is no number of processes"));
  }
  if (number == tasks || (number == 1 && !by_gpu)) return {};
  return Wrong(
      fmt::format("--nproc-per-node={} means {} processes on this node, but the gang has {} task{} here, one "
                  "for each process: write #SBATCH --ntasks-per-node={}",
                  processes, number, tasks, tasks == 1 ? "" : "s", number));
}

std::string Usage() {
  std::string text =
      "Usage: srun --gang muster-run [torchrun's flags] train.py [arguments]\n\n"
      "Executes the program of a gang's member in the place of torchrun. A gang has one task for each "
      "process.\n";
  const auto list = [&](std::string_view title, auto wanted) {
    text += fmt::format("\n{}\n", title);
    for (const Flag& flag : kFlags) {
      if (!wanted(flag.meaning)) continue;
      std::string name = fmt::format("--{}", flag.name);
      for (const Letter& letter : kLetters)
        if (letter.name == flag.name) name = fmt::format("-{}, {}", letter.letter, name);
      text += fmt::format("  {}{}\n", name, flag.has_value ? " VALUE" : "");
    }
  };
  list("Flags that it follows:", [](Meaning m) { return m != Meaning::kIgnored && m != Meaning::kRefused; });
  list("Flags that Slurm and Muster answer:", [](Meaning m) { return m == Meaning::kIgnored; });
  list("Flags that it refuses:", [](Meaning m) { return m == Meaning::kRefused; });
  return text;
}

}  // namespace muster::run
