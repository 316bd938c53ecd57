/* libmuster: what a training program may say to Muster. C, stable ABI, no dependency but libc.
 *
 * A program in a gang opens a handle, restores the newest verified checkpoint, trains, and saves now and then. A save
 * copies into shared memory and returns: the trainer waits for Ceph only while both
 * of its buffers are still being written. Every member saves its own shard under the
 * same step; the checkpoint is committed when all shards are durable.
 *
 *   muster_handle* m;
 *   if (muster_open(&m) != MUSTER_OK) ...
 *   muster_restore* r;
 *   if (muster_restore_open(m, MUSTER_LATEST, &r) == MUSTER_OK) { muster_restore_get(r, "weights", w, sizeof w); ... }
 *   for (step = ...) {
 *     train();
 *     muster_wish wish;
 *     muster_step(m, step, &wish);
 *     if (wish.save || step % 100 == 0) {
 *       muster_save_begin(m, step, sizeof w); muster_save_add(m, "weights", NULL, w, sizeof w); muster_save_commit(m);
 *     }
 *     if (wish.exit) break;
 *   }
 *   muster_wait(m, MUSTER_LATEST, -1);
 *   muster_close(m);
 *
 * Thread-safety: a handle may be used from one thread at a time; different handles are independent. A forked process
 * cannot use its parent's handle (its calls give MUSTER_E_INVALID); it may close its copy. No signal's handling is
 * touched, and no thread outlives a call: large copies are made by several, which take no signal but those of faults
 * (MUSTER_COPY_THREADS in the environment says how many; else as many as there are CPUs for the process, four at most).
 * When musterd is restarted the library finds it again and hands over what was on its way: no save is lost as long as
 * the program calls in now and then. All calls but muster_step give up with MUSTER_E_UNREACHABLE when it has been away
 * for as long as its `reconnect` (30 s), and muster_open after 10 s.
 * Errors: every call returns MUSTER_OK or a negative muster_error; muster_last_error has the sentence.
 * "Since 0.N" is the version of the symbols, MUSTER_0.N in libmuster.so, and not a release of Muster. */
#ifndef MUSTER_H
#define MUSTER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MUSTER_API __attribute__((visibility("default")))
#else
#define MUSTER_API
#endif

typedef struct muster_handle muster_handle;
typedef struct muster_restore muster_restore;

enum muster_error {
  MUSTER_OK = 0,
  MUSTER_E_NO_GANG = -1,     /* not started by Muster: MUSTER_GANG is not in the environment */
  MUSTER_E_UNREACHABLE = -2, /* musterd does not answer on its socket */
  MUSTER_E_DENIED = -3,      /* another user's gang, or a process of an older generation */
  MUSTER_E_INVALID = -4,     /* bad argument: the sentence names it */
  MUSTER_E_NOT_FOUND = -5,   /* no such checkpoint, or no such name in it */
  MUSTER_E_CORRUPT = -6,   /* a checkpoint did not verify; Muster starts the gang again from the one before */
  MUSTER_E_TOO_LARGE = -7, /* above a limit of musterd's configuration */
  MUSTER_E_BUSY = -8, /* the staging buffers are still being written (only with muster_save_begin_nowait) */
  MUSTER_E_TIMEOUT = -9,
  MUSTER_E_STORE = -10, /* the store refused or did not answer; the checkpoint is not committed */
  MUSTER_E_NO_MEMORY = -11,
  MUSTER_E_PROTOCOL = -12, /* musterd and this library do not understand each other */
  MUSTER_E_DEVICE = -13    /* a GPU, or its driver, has failed: the sentence says what it says. Since 0.4 */
};

#define MUSTER_LATEST UINT64_MAX       /* in place of a step */
#define MUSTER_NAME_MAX 255            /* bytes of an entry's name */
#define MUSTER_META_MAX 4096           /* bytes of an entry's metadata */
#define MUSTER_DIMS_MAX 8              /* dimensions of a slice */
#define MUSTER_DTYPE_MAX 31            /* bytes of a slice's dtype */
#define MUSTER_SLICE_META_MAX 3072     /* bytes of a slice's metadata */
#define MUSTER_ANY_RANK UINT32_MAX     /* in place of a rank */
#define MUSTER_EXCHANGE_KEY_MAX 63     /* bytes of an exchange's key */
#define MUSTER_EXCHANGE_VALUE_MAX 4096 /* bytes that a member may give in an exchange */

/* Opens this member's connection to its node's musterd. The environment says which gang. */
MUSTER_API int muster_open(muster_handle** out);
/* Closes it. Saves in flight go on in musterd; use muster_wait first to know how they end. NULL is allowed. */
MUSTER_API void muster_close(muster_handle* m);

/* The last call's sentence, valid until the next call on this handle; with m == NULL that of the calling thread's last
 * failed muster_open. Never NULL. */
MUSTER_API const char* muster_last_error(const muster_handle* m);
/* "0.1.0" */
MUSTER_API const char* muster_version(void);

MUSTER_API uint32_t muster_rank(const muster_handle* m);
MUSTER_API uint32_t muster_world_size(const muster_handle* m);
MUSTER_API uint64_t muster_generation(const muster_handle* m);
/* The step that this generation starts from, MUSTER_LATEST when there is no checkpoint. The same on every member. */
MUSTER_API uint64_t muster_restore_step(const muster_handle* m);

/* What all members are asked to do at a step. */
typedef struct muster_wish {
  int save; /* 1: save this step */
  int exit; /* 1: exit, behind the save if there is one: Slurm is about to end the job */
  const char*
      reason; /* why, or "". Of an error its sentence. Valid until the next muster_step on this handle */
} muster_wish;

/* Says that this member has entered `step` (0 to 2^63 - 1), and fills in *wish (may be NULL): what all members are asked to do at
 * exactly this step. All that enter a step get the same answer, so they need not agree themselves; the same step again
 * gets the same answer again.
 * Call it for every step, where the step's own work is done and the wait for the other members begins (before the collective):
 * Muster learns from it how long a step takes, finds a gang that hangs, names the member that did not enter the step, and
 * marks members that are slower than the rest. In a phase without steps, a validation for example, call it now and then with the
 * same step: it says that the member goes on.
 * It writes to memory that musterd reads, and makes no system call. While a save is on its way, or musterd is away, it makes a few
 * hundred a second at most. It waits only at a step that is being agreed on at this moment, until this node hears of the others:
 * that takes a second at most, and longer only while the gang has no coordinator, or this node no musterd.
 * Steps go up, and all members enter the same ones: Muster asks for nothing at a step below the highest that this member has entered,
 * and of members that enter every tenth step only at one of those.
 * MUSTER_LATEST enters no step: a program without steps learns what is wanted now, a save until this member has saved.
 * Members may learn that at different times.
 * MUSTER_E_INVALID: no step, or a forked process. MUSTER_E_DENIED: the generation is over. MUSTER_E_UNREACHABLE: musterd went away
 * while it waited, and was away for its `reconnect`. The sentence is in *wish, and not in muster_last_error.
 * One thread at a time may call it, also while another thread is in another call on the handle. Since 0.6. */
MUSTER_API int muster_step(muster_handle* m, uint64_t step, muster_wish* wish);

/* Gives the other members `bytes` bytes under `key`, and waits until all muster_world_size members of this generation have
 * given theirs: addresses, identifiers, values to agree on. It is a barrier too. All members call it with the same keys in the
 * same order, each key once in a generation: 1 to MUSTER_EXCHANGE_KEY_MAX visible characters. It goes through musterd and needs no
 * port. timeout in milliseconds, -1: for ever.
 * MUSTER_E_TIMEOUT names members that have given nothing; what this member has given stands, and the same call again goes on
 * waiting. MUSTER_E_TOO_LARGE: more than MUSTER_EXCHANGE_VALUE_MAX bytes, or than 8 MiB by the number of members.
 * MUSTER_E_INVALID: the key was used before in this generation, or is none. MUSTER_E_BUSY: sixteen exchanges wait for other members.
 * MUSTER_E_DENIED: the generation is over. Since 0.5. */
MUSTER_API int muster_exchange(muster_handle* m, const char* key, const void* value, size_t bytes,
                               int timeout_ms);
/* What the member `rank` has given in the last muster_exchange, which was MUSTER_OK. It is read-only and lives until the next
 * muster_exchange on this handle, or its end. Since 0.5. */
MUSTER_API int muster_exchanged(muster_handle* m, uint32_t rank, const void** value, size_t* bytes);

/* A save: begin, add each entry, commit. begin waits while both staging buffers are in use (two saves behind); the
 * _nowait form returns MUSTER_E_BUSY instead. Where the job's memory limit, or the node, has no room for a second buffer, it
 * waits for the first; where there is none for the first, MUSTER_E_NO_MEMORY says why, here or when a save outgrows
 * `bytes_hint`. A checkpoint is made of all members' saves: one that a member has skipped
 * fails for the others once two newer ones are committed. When the store does not take the older of the two (it is full, or
 * does not answer), that one is given up for the new one: the newest two stay in memory until they are taken. `bytes_hint`
 * is the sum of the entries' sizes if known, else 0. add copies `bytes` bytes: the memory is the caller's again when it returns. `meta` (may be NULL) is kept with the
 * entry as it is, e.g. a dtype and shape. abort forgets the save.
 * Steps go up: one below the last save of this handle is MUSTER_E_INVALID, and so is one that is committed. The last step may
 * be saved again while it is not committed, because a member has failed: that waits until what was handed over of it has been
 * written (MUSTER_E_BUSY from the _nowait form). All members are to save it again then, with the same entries.
 * Names are 1 to MUSTER_NAME_MAX bytes without control characters, each once in a save. */
MUSTER_API int muster_save_begin(muster_handle* m, uint64_t step, size_t bytes_hint);
MUSTER_API int muster_save_begin_nowait(muster_handle* m, uint64_t step, size_t bytes_hint);
MUSTER_API int muster_save_add(muster_handle* m, const char* name, const char* meta, const void* data,
                               size_t bytes);
/* The same for one who puts the bytes there himself, straight from a file or a device: all `bytes` bytes at *data are to
 * be written before the next call on this handle that adds, commits or aborts. Since 0.3. */
MUSTER_API int muster_save_reserve(muster_handle* m, const char* name, const char* meta, size_t bytes,
                                   void** data);
/* The same for memory of an NVIDIA GPU: `data` is an address that CUDA knows (device, managed or pinned memory). The copy is
 * made on a stream of the library's own, after everything that `stream` (a cudaStream_t or CUstream; NULL: the legacy default
 * stream of the GPU that the memory is on) has been given so far and before what it is given later: work on that stream may
 * write the memory again, or free it. All else may when commit or abort returns: these, close, and whatever makes the save
 * outgrow `bytes_hint` wait for the copies, and so for what the stream was given before. The staging memory is registered
 * with the driver, and so pinned, at the first such call. The library uses the CUDA that the program has loaded; close the
 * handle before a GPU is reset.
 * MUSTER_E_INVALID: no CUDA in this process, no such memory, or a stream that is being captured; the save goes on.
 * MUSTER_E_DEVICE, here or from commit: the copy has failed, and the save is aborted. Since 0.4. */
MUSTER_API int muster_save_add_device(muster_handle* m, const char* name, const char* meta, const void* data,
                                      size_t bytes, void* stream);
/* commit hands the shard to musterd and returns. */
MUSTER_API int muster_save_commit(muster_handle* m);
MUSTER_API void muster_save_abort(muster_handle* m);

/* Waits until the save of `step` (MUSTER_LATEST: the newest one) is committed by all members. timeout in milliseconds,
 * -1: for ever. MUSTER_OK only when it is committed. */
MUSTER_API int muster_wait(muster_handle* m, uint64_t step, int timeout_ms);
/* Waits until this member's own shard of the save is durable: what is missing then is the other members'. Since 0.3. */
MUSTER_API int muster_wait_durable(muster_handle* m, uint64_t step, int timeout_ms);
/* The newest step known to be committed, MUSTER_LATEST when none is. Does not block. */
MUSTER_API uint64_t muster_committed(muster_handle* m);

/* Opens this member's shard of the checkpoint that the generation starts from (MUSTER_LATEST) or of `step`. All of it
 * has been verified when this returns MUSTER_OK. MUSTER_E_NOT_FOUND: there is none, start from the beginning.
 * MUSTER_E_STORE: what the generation starts from was removed.
 * MUSTER_E_INVALID when the checkpoint was saved by another number of members than the gang has now (an elastic gang,
 * --gang=min=N): no shard is this member's then; see muster_restore_open_shard. */
MUSTER_API int muster_restore_open(muster_handle* m, uint64_t step, muster_restore** out);
/* What the checkpoint that the generation starts from (MUSTER_LATEST) or that of `step` is: its step, and by how many
 * members it was saved, so how many shards it has. Either pointer may be NULL. Since 0.2. */
MUSTER_API int muster_restore_info(muster_handle* m, uint64_t step, uint64_t* found_step,
                                   uint32_t* world_size);
/* Opens the shard that the member `rank` (0 to world_size - 1 of muster_restore_info) saved, verified as one's own. A
 * program that goes on with more or fewer members reads the old members' shards one after the other, takes from each
 * what is its own now, and closes it. What was saved alike by all is in any of them. Since 0.2. */
MUSTER_API int muster_restore_open_shard(muster_handle* m, uint64_t step, uint32_t rank,
                                         muster_restore** out);
/* An open restore belongs to its handle's thread: its calls may write the handle's sentence, and closing takes it off the
 * handle's list. It may outlive the handle, and be closed by any thread then. */
MUSTER_API uint64_t muster_restore_open_step(const muster_restore* r);
/* Number of entries, and the i-th one. The pointers live as long as r; data is read-only. */
MUSTER_API size_t muster_restore_count(const muster_restore* r);
MUSTER_API int muster_restore_entry(const muster_restore* r, size_t i, const char** name, const char** meta,
                                    const void** data, size_t* bytes);
/* Copies the entry `name` into `data`; its size must be exactly `bytes`. */
MUSTER_API int muster_restore_get(muster_restore* r, const char* name, void* data, size_t bytes);
MUSTER_API void muster_restore_close(muster_restore* r);

/* Slices: named tensors of which each member saves its part and restores the part that it needs, whatever number of
 * members saved it. Since 0.3.
 *
 * A part of a tensor: of the whole's shape, where the part begins in it and how large it is, dimensions from the slowest
 * to the fastest (row by row). What is behind `dims` is not read. `dtype` is any name of 1 to MUSTER_DTYPE_MAX visible
 * characters ("float32"); a restore must name the same. No dimensions: one number. */
typedef struct muster_slice {
  const char* dtype;
  uint32_t element_bytes; /* at least 1 */
  uint32_t dims;          /* at most MUSTER_DIMS_MAX */
  uint64_t global_shape[MUSTER_DIMS_MAX];
  uint64_t offset[MUSTER_DIMS_MAX];
  uint64_t shape[MUSTER_DIMS_MAX];
} muster_slice;

/* Between muster_save_begin and muster_save_commit: adds `part` of the tensor `name`, `bytes` bytes row by row, as
 * muster_save_add adds an entry. Other members may save other parts, or the same; one member may save several parts
 * under one name (the entries of the second and later ones are named NAME#1, NAME#2...). `meta` (may be NULL) has up to
 * MUSTER_SLICE_META_MAX bytes. */
MUSTER_API int muster_save_add_slice(muster_handle* m, const char* name, const char* meta,
                                     const muster_slice* part, const void* data, size_t bytes);
/* The same for memory of an NVIDIA GPU: see muster_save_add_device. Since 0.4. */
MUSTER_API int muster_save_add_slice_device(muster_handle* m, const char* name, const char* meta,
                                            const muster_slice* part, const void* data, size_t bytes,
                                            void* stream);

/* Fills `into` (`bytes` bytes, row by row) with the part `want` of the tensor `name` of a step (MUSTER_LATEST: the one
 * that the generation starts from), taken from whatever members saved it. Only what is needed is read, and verified
 * first. MUSTER_E_NOT_FOUND names what nobody saved; MUSTER_E_INVALID: it was saved with another dtype or shape, or the
 * arguments contradict one another. After an error `into` may have been filled in part.
 * Call it with many parts at once where there are many: muster_restore_slices. */
MUSTER_API int muster_restore_slice(muster_handle* m, uint64_t step, const char* name,
                                    const muster_slice* want, void* into, size_t bytes);
typedef struct muster_slice_wanted {
  const char* name;
  void* into;
  size_t bytes;
  uint32_t
      first_rank; /* whose shard to look at first; MUSTER_ANY_RANK: this member's, or the one in its place */
  uint32_t reserved; /* 0 */
  muster_slice want;
} muster_slice_wanted;
MUSTER_API int muster_restore_slices(muster_handle* m, uint64_t step, const muster_slice_wanted* wanted,
                                     size_t count);
/* What the tensor `name` is: dtype, element_bytes, dims and global_shape, and as offset and shape the first part that is
 * met. `meta` is that part's. The texts live until the next call of a restore of slices on this handle. Either pointer may
 * be NULL. `first_rank` as in muster_slice_wanted. MUSTER_E_NOT_FOUND: nobody saved it (all members' shards have been
 * asked). */
MUSTER_API int muster_slice_info(muster_handle* m, uint64_t step, const char* name, uint32_t first_rank,
                                 muster_slice* out, const char** meta);

#ifdef __cplusplus
}
#endif
#endif /* MUSTER_H */
