/* An MPI as one of the systems that compare measures: mpirun starts RANKS of this. */
#include <mpi.h>

#include "tests/bench/rank.h"

static int run_ping_pong(const bench_call *call, int rank)
{
    int failed = MPI_SUCCESS;
    if (rank % 2 == 0)
        failed = MPI_Send(call->in, (int)call->count, MPI_FLOAT, call->peer, 1, MPI_COMM_WORLD);
    if (failed == MPI_SUCCESS)
        failed = MPI_Recv(call->out, (int)call->count, MPI_FLOAT, call->peer, 1, MPI_COMM_WORLD,
                          MPI_STATUS_IGNORE);
    if (failed == MPI_SUCCESS && rank % 2 != 0)
        failed = MPI_Send(call->in, (int)call->count, MPI_FLOAT, call->peer, 1, MPI_COMM_WORLD);
    return failed;
}

static int run(void *self, const bench_call *call)
{
    int rank = *(const int *)self, c = (int)call->count, failed = MPI_ERR_UNSUPPORTED_OPERATION;
    bool is_root = rank == call->root;
    const void *in = call->in;
    if (call->in_place && (call->kind != BENCH_REDUCE || is_root))
        in = MPI_IN_PLACE;
    switch (call->kind) {
    case BENCH_ALL_REDUCE:
        failed = MPI_Allreduce(in, call->out, c, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case BENCH_BROADCAST:
        failed = MPI_Bcast(call->out, c, MPI_FLOAT, call->root, MPI_COMM_WORLD);
        break;
    case BENCH_REDUCE:
        failed =
            MPI_Reduce(in, is_root ? call->out : NULL, c, MPI_FLOAT, MPI_SUM, call->root, MPI_COMM_WORLD);
        break;
    case BENCH_REDUCE_SCATTER:
        failed = MPI_Reduce_scatter_block(in, call->out, c, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case BENCH_ALL_GATHER:
        failed = MPI_Allgather(in, c, MPI_FLOAT, call->out, c, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case BENCH_ALL_TO_ALL:
        failed = MPI_Alltoall(in, c, MPI_FLOAT, call->out, c, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case BENCH_GATHER:
        failed = MPI_Gather(in, c, MPI_FLOAT, call->out, c, MPI_FLOAT, call->root, MPI_COMM_WORLD);
        break;
    case BENCH_SCATTER:
        failed = MPI_Scatter(in, c, MPI_FLOAT, call->out, c, MPI_FLOAT, call->root, MPI_COMM_WORLD);
        break;
    case BENCH_PING_PONG:
        failed = run_ping_pong(call, rank);
        break;
    case BENCH_BARRIER:
        failed = MPI_Barrier(MPI_COMM_WORLD);
        break;
    case BENCH_KINDS:
        break;
    }
    return failed;
}

static const char *error(void *self)
{
    (void)self;
    return "an MPI call failed"; /* MPI itself has said why, and ends the program unless told otherwise */
}

int main(int argc, char **argv)
{
    int rank = 0, ranks = 0;
    if (MPI_Init(&argc, &argv) != MPI_SUCCESS)
        return 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const uint32_t all = (UINT32_C(1) << BENCH_KINDS) - 1, broadcast = UINT32_C(1) << BENCH_BROADCAST;
    bench_system system = {.self = &rank,
                           .rank = rank,
                           .ranks = ranks,
                           .out_of_place = all & ~broadcast,
                           .in_place = broadcast | UINT32_C(1) << BENCH_ALL_REDUCE |
                                       UINT32_C(1) << BENCH_REDUCE | UINT32_C(1) << BENCH_REDUCE_SCATTER |
                                       UINT32_C(1) << BENCH_ALL_GATHER,
                           .scatters_to_front = true,
                           .run = run,
                           .error = error};
    int code = bench_rank_main(&system);
    MPI_Finalize();
    return code;
}
