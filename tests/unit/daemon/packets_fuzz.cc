// A packet as musterd gets it from a user's process: the header, then what its type says.
#include <cstdlib>

#include "daemon/agent/packets.h"

namespace {

// Every byte that a reader gives must be in the packet.
void Touch(std::string_view text) {
  volatile char sum = 0;
  for (const char c : text) sum = static_cast<char>(sum + c);
}

void ReadAs(muster::wire::Type type, std::string_view packet) {
  namespace wire = muster::wire;
  switch (type) {
    case wire::Type::kSupervisorHello:
      if (const auto hello = muster::ReadSupervisorHello(packet)) {
        Touch(hello->node_list);
        Touch(hello->node_name);
        Touch(hello->options);
        Touch(hello->components);
        muster::GangJob job = muster::StepOf(*hello);
        if (muster::CompleteStep(hello->body, &job)) {
          if (job.hosts.size() > job.task_count || job.CandidateNodes().size() != job.hosts.size())
            std::abort();
          if (job.Key().size() > 100 || job.Id().size() > 64) std::abort();
          wire::SupervisorHello placed = hello->body;
          if (muster::PlaceInGang(job, job.hosts.front(), &placed) &&
              (placed.node_id >= job.hosts.size() || placed.task_id >= job.task_count))
            std::abort();
        }
      }
      break;
    case wire::Type::kLinksTested:
      if (const auto tested = muster::ReadLinksTested(packet)) Touch(tested->text);
      break;
    case wire::Type::kExited:
      if (const auto exited = muster::ReadExited(packet)) {
        Touch(exited->stderr_tail);
        for (const char c : exited->program) {
          if (c < 0x20 || c >= 0x7f) std::abort();
        }
      }
      break;
    case wire::Type::kClientHello:
      if (const auto hello = muster::ReadClientHello(packet)) Touch(hello->gang);
      break;
    case wire::Type::kExchange:
      if (const auto exchange = muster::ReadExchange(packet)) {
        Touch(exchange->key);
        Touch(exchange->value);
      }
      break;
    case wire::Type::kAskMissing:
      if (const auto ask = muster::ReadAskMissing(packet)) Touch(ask->key);
      break;
    case wire::Type::kWarm:
      (void)muster::ReadWarm(packet);
      break;
    case wire::Type::kExecuted:
      (void)muster::ReadPacket<wire::Executed>(packet);
      break;
    case wire::Type::kStopped:
      (void)muster::ReadPacket<wire::Stopped>(packet);
      break;
    case wire::Type::kExiting:
      (void)muster::ReadPacket<wire::Exiting>(packet);
      break;
    case wire::Type::kSignalled:
      (void)muster::ReadPacket<wire::Signalled>(packet);
      break;
    case wire::Type::kSave:
      (void)muster::ReadPacket<wire::Save>(packet);
      break;
    case wire::Type::kRestore:
      (void)muster::ReadPacket<wire::Restore>(packet);
      break;
    default:
      break;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view packet(reinterpret_cast<const char*>(data), size);
  muster::wire::Header header{};
  if (muster::wire::CheckHeader(packet.data(), packet.size(), &header) != muster::wire::Check::kOk) return 0;
  ReadAs(static_cast<muster::wire::Type>(header.type), packet);
  return 0;
}
