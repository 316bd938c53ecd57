// Any bytes as a packet from musterd, and as an environment.
#include <stdint.h>

#include <string>

#include "spank-plugin/supervisor/supervisor_message.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using muster::supervisor::Message;
  using muster::supervisor::Parsed;
  const char* bytes = reinterpret_cast<const char*>(data);
  Message message;
  const char* why = nullptr;
  if (muster::supervisor::ParseMessage(data, size, &message, &why) == Parsed::kMessage) {
    // All of the text must be readable.
    const std::string text(message.text != nullptr ? message.text : "", message.text_size);
    if (text.size() > size) __builtin_trap();
  } else if (why == nullptr) {
    __builtin_trap();
  }
  (void)muster::supervisor::IsEnvironment(bytes, size);
  return 0;
}
