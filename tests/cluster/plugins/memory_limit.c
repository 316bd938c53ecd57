/* Gives a task a memory cgroup (v1) of its own with a limit, as ConstrainRAMSpace does on nodes where Slurm
 * may. For tasks that have MUSTER_TEST_MEMORY_LIMIT (bytes) in their environment. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <slurm/spank.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

SPANK_PLUGIN(test_memory_limit, 1)

static int put(const char* directory, const char* name, const char* text) {
  char path[256];
  snprintf(path, sizeof(path), "%s/%s", directory, name);
  const int fd = open(path, O_WRONLY | O_CLOEXEC);
  const int good = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
  if (!good) slurm_error("test_memory_limit: %s: %s", path, strerror(errno));
  if (fd >= 0) close(fd);
  return good ? 0 : -1;
}

static void name_of(char* directory, size_t size, int pid) {
  snprintf(directory, size, "/sys/fs/cgroup/memory/test-%d", pid);
}

int slurm_spank_task_init_privileged(spank_t spank, int argc, char* argv[]) {
  (void)argc, (void)argv;
  char limit[32], directory[64], pid[16];
  if (spank_getenv(spank, "MUSTER_TEST_MEMORY_LIMIT", limit, sizeof(limit)) != ESPANK_SUCCESS) return 0;
  snprintf(pid, sizeof(pid), "%d", (int)getpid());
  name_of(directory, sizeof(directory), (int)getpid());
  if (mkdir(directory, 0755) != 0) {
    slurm_error("test_memory_limit: %s: %s", directory, strerror(errno));
    return -1;
  }
  return put(directory, "memory.limit_in_bytes", limit) != 0 || put(directory, "cgroup.procs", pid) != 0 ? -1
                                                                                                         : 0;
}

int slurm_spank_task_exit(spank_t spank, int argc, char* argv[]) {
  (void)argc, (void)argv;
  char directory[64];
  pid_t pid = 0;
  if (spank_get_item(spank, S_TASK_PID, &pid) != ESPANK_SUCCESS) return 0;
  name_of(directory, sizeof(directory), (int)pid);
  rmdir(directory); /* most tasks have none */
  return 0;
}
