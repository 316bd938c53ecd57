#include "client/libmuster/identity.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/muster.h"

namespace muster::client {
namespace {

bool ReadNumber(const char* text, uint64_t high, uint64_t* out) {
  if (text == nullptr || *text == '\0' || strlen(text) > 20) return false;
  uint64_t value = 0;
  for (; *text != '\0'; ++text) {
    if (*text < '0' || *text > '9') return false;
    if (__builtin_mul_overflow(value, uint64_t{10}, &value)) return false;
    if (__builtin_add_overflow(value, static_cast<uint64_t>(*text - '0'), &value)) return false;
  }
  *out = value;
  return value <= high;
}

int Nibble(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool ReadToken(const char* text, uint8_t (&token)[wire::kTokenBytes]) {
  if (text == nullptr || strlen(text) != 2 * sizeof(token)) return false;
  for (size_t i = 0; i < sizeof(token); ++i) {
    const int high = Nibble(text[2 * i]);
    const int low = Nibble(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    token[i] = static_cast<uint8_t>(high * 16 + low);
  }
  return true;
}

}  // namespace

int Identity::Read(char* error, size_t error_size) {
  const char* gang_text = getenv("MUSTER_GANG");
  if (gang_text == nullptr || *gang_text == '\0') {
    snprintf(
        error, error_size,
        "this process is in no gang: MUSTER_GANG is not set (was the job submitted with --gang? A step with "
        "a terminal, or of one task in a job of several nodes, needs its own srun --gang)");
    return MUSTER_E_NO_GANG;
  }
  const auto bad = [&](const char* variable) {
    snprintf(error, error_size,
             "%s is missing from the environment or malformed; Muster sets it for each member", variable);
    return MUSTER_E_INVALID;
  };
  if (strlen(gang_text) >= sizeof(gang)) return bad("MUSTER_GANG");
  strcpy(gang, gang_text);
  if (!ReadNumber(getenv("MUSTER_GENERATION"), UINT64_MAX, &generation)) return bad("MUSTER_GENERATION");
  uint64_t number = 0;
  // Where a gang has roles, RANK is the place among those who train together, or in a role; daemons of the first version
  // set it alone.
  const char* rank_variable = getenv("MUSTER_RANK") != nullptr ? "MUSTER_RANK" : "RANK";
  if (!ReadNumber(getenv(rank_variable), UINT32_MAX, &number)) return bad(rank_variable);
  rank = static_cast<uint32_t>(number);
  if (!ReadToken(getenv("MUSTER_TOKEN"), token)) return bad("MUSTER_TOKEN");
  const char* socket_text = getenv("MUSTER_SOCKET");
  if (socket_text == nullptr || *socket_text == '\0') socket_text = wire::kDefaultSocket;
  if (strlen(socket_text) >= sizeof(socket)) return bad("MUSTER_SOCKET");
  strcpy(socket, socket_text);
  return MUSTER_OK;
}

}  // namespace muster::client
