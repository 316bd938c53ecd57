/* muster.h is a C header: this file only has to compile, as strict C99, and to link against the shared library. */
#include "client/muster.h"

#include <string.h>

int main(void) {
  muster_handle* m = NULL;
  if (strcmp(muster_version(), "") == 0) return 1;
  /* Not started by Muster. */
  if (muster_open(&m) != MUSTER_E_NO_GANG || m != NULL) return 2;
  return strstr(muster_last_error(NULL), "MUSTER_GANG") != NULL ? 0 : 3;
}
