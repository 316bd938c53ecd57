/* Stands in for a container plugin such as pyxis: in task_init, before Muster's, it enters user and mount
 * namespaces of its own, in which /run (with musterd's socket) and /proc are something else. For tasks that
 * have MUSTER_TEST_NAMESPACE in their environment. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <slurm/spank.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <unistd.h>

SPANK_PLUGIN(test_mount_namespace, 1)

static int put(const char* path, const char* text) {
  const int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  const int good = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
  close(fd);
  return good ? 0 : -1;
}

static int fail(const char* what) {
  slurm_error("test_mount_namespace: %s: %s", what, strerror(errno));
  return -1;
}

int slurm_spank_task_init(spank_t spank, int argc, char* argv[]) {
  (void)argc, (void)argv;
  char text[64];
  if (spank_getenv(spank, "MUSTER_TEST_NAMESPACE", text, sizeof(text)) != ESPANK_SUCCESS) return 0;
  const unsigned uid = getuid(), gid = getgid();
  /* The user must own his /proc entries to map himself. */
  if (prctl(PR_SET_DUMPABLE, 1) != 0) return fail("dumpable");
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return fail("unshare");
  snprintf(text, sizeof(text), "%u %u 1", uid, uid);
  if (put("/proc/self/uid_map", text) != 0) return fail("uid_map");
  if (put("/proc/self/setgroups", "deny") != 0) return fail("setgroups");
  snprintf(text, sizeof(text), "%u %u 1", gid, gid);
  if (put("/proc/self/gid_map", text) != 0) return fail("gid_map");
  if (mount("inside", "/run", "tmpfs", 0, NULL) != 0) return fail("/run");
  if (mount("inside", "/proc", "tmpfs", 0, NULL) != 0) return fail("/proc");
  return 0;
}
