// In the place of what measures links: it floods its output, whatever it is asked.
#include <unistd.h>

int main() {
  constexpr char kText[] = "muster net test\n";
  while (write(STDOUT_FILENO, kText, sizeof(kText) - 1) > 0) {
  }
  return 0;
}
