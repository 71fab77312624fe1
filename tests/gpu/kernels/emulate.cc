/* kernels.cu compiled for the processor, with the part of CUDA's runtime that check_kernels needs. */
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "worker/backend/nccl/kernels.cu"

thread_local emulated_index threadIdx, blockIdx, blockDim, gridDim;

namespace {

/* Where the threads of a block wait for each other. */
struct meeting {
    std::mutex lock;
    std::condition_variable all_here;
    unsigned size = 0, here = 0;
    unsigned long round = 0;

    void wait()
    {
        std::unique_lock<std::mutex> hold(lock);
        unsigned long mine = round;
        if (++here == size) {
            here = 0;
            round++;
            all_here.notify_all();
        } else {
            all_here.wait(hold, [&] { return round != mine; });
        }
    }
};

meeting block;

} // namespace

void __syncthreads()
{
    block.wait();
}

/* One after the other. */
static void run_in_turn(unsigned blocks, unsigned threads, const std::function<void()> &body)
{
    blockDim.x = threads;
    gridDim.x = blocks;
    for (unsigned b = 0; b < blocks; b++) {
        blockIdx.x = b;
        for (unsigned t = 0; t < threads; t++) {
            threadIdx.x = t;
            body();
        }
    }
}

/* Threads that meet: one of the processor for each of a block, which runs all blocks, one after the other. */
void emulated_launch(unsigned blocks, unsigned threads, bool meets, const std::function<void()> &body)
{
    std::vector<std::thread> team;
    if (!meets)
        return run_in_turn(blocks, threads, body);
    block.size = threads;
    for (unsigned t = 0; t < threads; t++) {
        team.emplace_back([=, &body] {
            threadIdx.x = t;
            blockDim.x = threads;
            gridDim.x = blocks;
            for (unsigned b = 0; b < blocks; b++) {
                blockIdx.x = b;
                body();
                block.wait();
            }
        });
    }
    for (std::thread &one : team)
        one.join();
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return 0;
}

cudaError_t cudaSetDevice(int)
{
    return 0;
}

cudaError_t cudaGetLastError()
{
    return 0;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == 0 ? "no error" : "out of memory";
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    *out = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    return *out != nullptr ? 0 : 2;
}

cudaError_t cudaFree(void *memory)
{
    std::free(memory);
    return 0;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, int)
{
    std::memcpy(to, from, bytes);
    return 0;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int, cudaStream_t)
{
    std::memcpy(to, from, bytes);
    return 0;
}

cudaError_t cudaStreamSynchronize(cudaStream_t)
{
    return 0;
}
