/* Test cases of the device simulator: each runs in processes of its own, one per rank, with an environment
 * and a deadline. Plain programs, so that they also run under ThreadSanitizer. */
#ifndef PSD_GPUSIM_CHECK_H
#define PSD_GPUSIM_CHECK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include <nccl.h>

#define CHECK_RANKS   8
#define CHECK_SECONDS 20 /* for one case; CASE_SECONDS */

/* What the processes of a case share; all zero at the start. */
typedef struct shared {
    ncclUniqueId id, other_id;
    atomic_int step[CHECK_RANKS]; /* how far a rank is, by its own count */
    atomic_int ready;
    char text[256];
} shared;

typedef struct check_case {
    const char *name;
    void (*run)(int rank, shared *s);
    int ranks;
    const char *env[4];          /* NAME=value */
    bool is_killed[CHECK_RANKS]; /* a rank that ends by SIGKILL */
} check_case;

int check_main(const char *program, const check_case *cases, size_t count);

/* Ends the process as failed. */
void check_failed(const char *file, int line, const char *text, long got, long wanted);

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            check_failed(__FILE__, __LINE__, #condition, 0, 0);                                              \
    } while (0)
#define CHECK_EQ(got, wanted)                                                                                \
    do {                                                                                                     \
        long got_ = (long)(got), wanted_ = (long)(wanted);                                                   \
        if (got_ != wanted_)                                                                                 \
            check_failed(__FILE__, __LINE__, #got " == " #wanted, got_, wanted_);                            \
    } while (0)
#define OK(call) CHECK_EQ(call, 0)

/* Waits for a rank to say that it has come to a step. */
void say_step(shared *s, int rank, int step);
void wait_step(shared *s, int rank, int step);

/* Still not complete after a while that is long for this machine and short for a test? */
bool stays_pending(cudaStream_t stream);
/* Waits (with the case's deadline) until it is complete; the stream's status. */
cudaError_t finish(cudaStream_t stream);

/* Waits until a communicator is no longer in progress; its state. */
ncclResult_t settle(ncclComm_t comm);
/* Is it in progress, and remains so for a while? */
bool stays_in_progress(ncclComm_t comm);

/* Communicators of a case's ranks on device `rank`; the id comes from rank 0. */
ncclComm_t make_comm(int rank, int ranks, shared *s, bool is_blocking);
void share_id(int rank, shared *s);
cudaStream_t make_stream(void);

/* Device memory with every byte set, and its bytes in host memory. */
void *device_bytes(size_t bytes, int value);
void *device_copy(const void *host, size_t bytes);
void read_back(void *host, const void *device, size_t bytes);
/* Is every byte this? */
bool all_bytes(const void *device, size_t bytes, int value);

#endif
