// plugstack.conf: the plugins that Slurm loads, and Muster's line among them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace muster::cli {

inline constexpr char kPlugin[] = "spank_muster.so";
// The line that sites have (packaging/slurm/muster.conf).
inline constexpr char kPluginLine[] = "optional spank_muster.so";

// What a file says; nothing if it cannot be read, or is empty.
std::optional<std::string> ReadText(const std::string& path);

// The text of a plugstack.conf with Muster's line behind all others. A line that is there already keeps its arguments.
std::string WithPluginLine(std::string_view text);
// The same without Muster's line.
std::string WithoutPluginLine(std::string_view text);
// A file that this plugstack.conf includes and that names Muster's plugin; else "". `directory` is where relative names begin.
std::string IncludedPluginLine(std::string_view text, const std::string& directory);
// The plugin's path or name in Muster's line of this text; "" without one.
std::string PluginIn(std::string_view text);

// `key` of a slurm.conf, whatever the case of its letters; "" without one. Included files are not read.
std::string SlurmSetting(std::string_view text, std::string_view key);

}  // namespace muster::cli
