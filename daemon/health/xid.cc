// What NVIDIA's Xid numbers mean, after the public Xid catalogue (docs.nvidia.com, "Xid Errors"), in our words.
// kUser: most often a fault of the program that used the GPU. kHardware: the GPU, its links, firmware or driver need
// an operator, or a spare. kNeutral: either, or only news.
#include <algorithm>
#include <array>

#include "daemon/health/kernel_fact.h"

namespace muster {
namespace {

constexpr auto kUser = FactClass::kUser;
constexpr auto kHardware = FactClass::kHardware;
constexpr auto kNeutral = FactClass::kNeutral;

// By number.
constexpr std::array kXids = {
    XidMeaning{1, kNeutral, "invalid or corrupted command stream"},
    XidMeaning{2, kNeutral, "invalid or corrupted command stream"},
    XidMeaning{3, kNeutral, "invalid or corrupted command stream"},
    XidMeaning{4, kNeutral, "invalid or corrupted command stream"},
    XidMeaning{6, kNeutral, "invalid or corrupted command stream"},
    XidMeaning{7, kNeutral, "invalid or corrupted command stream address"},
    XidMeaning{8, kNeutral, "the GPU stopped processing"},
    XidMeaning{9, kHardware, "the driver programmed the GPU wrongly"},
    XidMeaning{11, kNeutral, "invalid or corrupted command stream"},
    XidMeaning{12, kHardware, "the driver failed to handle a GPU exception"},
    XidMeaning{13, kUser, "exception in a kernel of the program, such as an access out of bounds"},
    XidMeaning{16, kNeutral, "the display engine hung"},
    XidMeaning{18, kHardware, "bus mastering was switched off"},
    XidMeaning{19, kNeutral, "display engine error"},
    XidMeaning{25, kNeutral, "invalid or illegal command stream"},
    XidMeaning{27, kHardware, "internal graphics error"},
    XidMeaning{31, kUser, "memory page fault: the program used an address that is not mapped"},
    XidMeaning{32, kNeutral, "invalid or corrupted command stream, or a bus that damages data"},
    XidMeaning{37, kHardware, "driver error"},
    XidMeaning{38, kHardware, "driver firmware error"},
    XidMeaning{42, kNeutral, "video processor exception"},
    XidMeaning{43, kUser, "the program's channel was stopped after an error of its own"},
    XidMeaning{44, kHardware, "fault while switching contexts"},
    XidMeaning{45, kUser, "channels torn down because the program was aborted or had failed before"},
    XidMeaning{46, kHardware, "the GPU stopped processing"},
    XidMeaning{47, kNeutral, "video processor exception"},
    XidMeaning{48, kHardware, "double-bit memory error"},
    XidMeaning{54, kHardware, "auxiliary power is not connected"},
    XidMeaning{56, kNeutral, "display engine error"},
    XidMeaning{57, kHardware, "error in programming the memory interface"},
    XidMeaning{58, kHardware, "unstable memory interface"},
    XidMeaning{59, kHardware, "internal controller error"},
    XidMeaning{60, kNeutral, "video processor exception"},
    XidMeaning{61, kHardware, "internal controller stopped at a breakpoint"},
    XidMeaning{62, kHardware, "internal controller halted"},
    XidMeaning{63, kHardware, "a memory page was retired or a row is to be remapped"},
    XidMeaning{64, kHardware, "a memory page could not be retired or a row not be remapped"},
    XidMeaning{65, kNeutral, "video processor exception"},
    XidMeaning{66, kNeutral, "illegal access by the driver"},
    XidMeaning{67, kNeutral, "illegal access by the driver"},
    XidMeaning{68, kNeutral, "video decoder exception"},
    XidMeaning{69, kUser, "graphics engine class error: a command that the engine does not take"},
    XidMeaning{70, kNeutral, "copy engine 3 exception"},
    XidMeaning{71, kNeutral, "copy engine 4 exception"},
    XidMeaning{72, kNeutral, "copy engine 5 exception"},
    XidMeaning{73, kNeutral, "video encoder exception"},
    XidMeaning{74, kHardware, "NVLink error"},
    XidMeaning{78, kHardware, "a virtual GPU did not start"},
    XidMeaning{79, kHardware, "the GPU has fallen off the bus"},
    XidMeaning{80, kHardware, "data sent to the GPU was damaged on its way"},
    XidMeaning{82, kNeutral, "video image engine error"},
    XidMeaning{92, kHardware, "many single-bit memory errors"},
    XidMeaning{93, kNeutral, "the configuration memory is written to too often"},
    XidMeaning{94, kHardware, "uncorrectable memory error, contained: the program that used it must restart"},
    XidMeaning{95, kHardware, "uncorrectable memory error, not contained: the GPU needs a reset"},
    XidMeaning{96, kNeutral, "video decoder error"},
    XidMeaning{109, kNeutral, "a context switch took too long"},
    XidMeaning{110, kHardware, "security fault"},
    XidMeaning{111, kNeutral, "display bundle error"},
    XidMeaning{112, kNeutral, "display supervisor error"},
    XidMeaning{113, kNeutral, "display link error"},
    XidMeaning{114, kNeutral, "display head error"},
    XidMeaning{115, kNeutral, "display core notifier error"},
    XidMeaning{116, kNeutral, "display window notifier error"},
    XidMeaning{119, kHardware, "the GPU's system processor did not answer the driver"},
    XidMeaning{120, kHardware, "the GPU's system processor had an error"},
    XidMeaning{121, kNeutral, "error on the chip-to-chip link, corrected"},
    XidMeaning{122, kHardware, "the board's flash memory could not be read"},
    XidMeaning{123, kHardware, "the board's flash memory could not be written"},
    XidMeaning{124, kHardware, "the board's flash memory could not be erased"},
    XidMeaning{125, kHardware, "the board's configuration memory is damaged"},
    XidMeaning{136, kHardware, "a link could not be trained"},
    XidMeaning{137, kUser, "access to a peer GPU's memory that is not mapped or not allowed"},
    XidMeaning{140, kHardware, "uncorrected memory error: the GPU needs a reset"},
    XidMeaning{143, kHardware, "the GPU could not be initialised"},
    XidMeaning{144, kHardware, "NVLink error"},
    XidMeaning{145, kHardware, "NVLink error"},
    XidMeaning{146, kHardware, "NVLink error"},
    XidMeaning{147, kHardware, "NVLink error"},
    XidMeaning{148, kHardware, "NVLink error"},
    XidMeaning{149, kHardware, "NVLink error"},
    XidMeaning{150, kHardware, "NVLink error"},
    XidMeaning{154, kHardware, "the GPU needs what the line says before it can be used again"},
    XidMeaning{155, kHardware, "NVLink error, in software"},
    XidMeaning{156, kHardware, "resource retirement"},
    XidMeaning{157, kHardware, "resource retirement failed"},
    XidMeaning{158, kHardware, "the GPU did not answer in time and needs a reset"},
    XidMeaning{171, kHardware, "memory error in DRAM"},
    XidMeaning{172, kHardware, "memory error in SRAM"},
};

}  // namespace

const XidMeaning* FindXid(uint32_t number) {
  const auto* const found =
      std::find_if(kXids.begin(), kXids.end(), [&](const XidMeaning& one) { return one.number == number; });
  return found == kXids.end() ? nullptr : found;
}

}  // namespace muster
