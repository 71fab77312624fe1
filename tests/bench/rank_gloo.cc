// Gloo, the library under torch.distributed on CPUs, as one of the systems that compare measures. Its TCP transport, on
// the loopback, is the one that Debian's build has. The ranks meet through files.
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/scatter.h>
#include <gloo/transport/tcp/device.h>

#include "tests/bench/rank.h"

namespace {

using Buffers = std::map<std::pair<void *, size_t>, std::unique_ptr<gloo::transport::UnboundBuffer>>;
using ReduceScatter = gloo::ReduceScatterHalvingDoubling<float>;

struct Rank {
  std::shared_ptr<gloo::rendezvous::Context> context;
  Buffers buffers; // registering one at each call would be measured, too
  std::map<std::pair<void *, size_t>, std::unique_ptr<ReduceScatter>> scatters;
  std::string error;
};

constexpr auto kSum = static_cast<void (*)(void *, const void *, const void *, size_t)>(&gloo::sum<float>);
constexpr int kTag = 7;

void ping_pong(Rank *r, const bench_call *call) {
  size_t bytes = call->count * sizeof(float);
  auto buffer = [&](float *data) {
    auto &slot = r->buffers[{data, bytes}];
    if (!slot) slot = r->context->createUnboundBuffer(data, bytes);
    return slot.get();
  };
  auto send = [&] {
    buffer(call->in)->send(call->peer, kTag);
    buffer(call->in)->waitSend();
  };
  bool leads = r->context->rank % 2 == 0;
  if (leads) send();
  buffer(call->out)->recv(call->peer, kTag);
  buffer(call->out)->waitRecv();
  if (!leads) send();
}

void all_reduce(Rank *r, const bench_call *call) {
  gloo::AllreduceOptions o(r->context);
  if (!call->in_place) o.setInput(call->in, call->count);
  o.setOutput(call->out, call->count);
  o.setReduceFunction(kSum);
  gloo::allreduce(o);
}

void broadcast(Rank *r, const bench_call *call) {
  gloo::BroadcastOptions o(r->context);
  o.setOutput(call->out, call->count);
  o.setRoot(call->root);
  gloo::broadcast(o);
}

void reduce(Rank *r, const bench_call *call) {
  gloo::ReduceOptions o(r->context);
  if (!call->in_place) o.setInput(call->in, call->count);
  o.setOutput(call->out, call->count); // scratch where it is not the root's
  o.setRoot(call->root);
  o.setReduceFunction(kSum);
  gloo::reduce(o);
}

// In place only; the result begins the buffer.
void reduce_scatter(Rank *r, const bench_call *call) {
  auto &slot = r->scatters[{call->in, call->count}];
  int ranks = r->context->size;
  if (!slot)
    slot.reset(new ReduceScatter(r->context, {call->in}, static_cast<int>(call->count) * ranks,
                                 std::vector<int>(static_cast<size_t>(ranks), static_cast<int>(call->count))));
  slot->run();
}

void all_gather(Rank *r, const bench_call *call) {
  gloo::AllgatherOptions o(r->context);
  if (!call->in_place) o.setInput(call->in, call->count);
  o.setOutput(call->out, call->count * static_cast<size_t>(r->context->size));
  gloo::allgather(o);
}

void all_to_all(Rank *r, const bench_call *call) {
  size_t whole = call->count * static_cast<size_t>(r->context->size);
  gloo::AlltoallOptions o(r->context);
  o.setInput(call->in, whole);
  o.setOutput(call->out, whole);
  gloo::alltoall(o);
}

void gather(Rank *r, const bench_call *call) {
  gloo::GatherOptions o(r->context);
  o.setInput(call->in, call->count);
  if (r->context->rank == call->root) o.setOutput(call->out, call->count * static_cast<size_t>(r->context->size));
  o.setRoot(call->root);
  gloo::gather(o);
}

void scatter(Rank *r, const bench_call *call) {
  gloo::ScatterOptions o(r->context);
  std::vector<float *> parts;
  for (size_t i = 0; i < static_cast<size_t>(r->context->size); i++) parts.push_back(call->in + i * call->count);
  if (r->context->rank == call->root) o.setInputs(parts, call->count);
  o.setOutput(call->out, call->count);
  o.setRoot(call->root);
  gloo::scatter(o);
}

int run(void *self, const bench_call *call) {
  auto *r = static_cast<Rank *>(self);
  static void (*const calls[BENCH_KINDS])(Rank *, const bench_call *) = {
      all_reduce, broadcast, reduce, reduce_scatter, all_gather, all_to_all, gather, scatter, ping_pong,
      [](Rank *rank, const bench_call *) {
        gloo::BarrierOptions o(rank->context);
        gloo::barrier(o);
      }};
  try {
    calls[call->kind](r, call);
    return 0;
  } catch (const std::exception &e) {
    r->error = e.what();
    return 1;
  }
}

const char *error(void *self) { return static_cast<Rank *>(self)->error.c_str(); }

int number(const char *name) {
  const char *text = std::getenv(name);
  return text ? std::atoi(text) : 0;
}

} // namespace

int main() {
  const char *store = std::getenv(BENCH_ENV_STORE);
  Rank r;
  gloo::transport::tcp::attr attr;
  attr.iface = "lo";
  try {
    auto device = gloo::transport::tcp::CreateDevice(attr);
    gloo::rendezvous::FileStore files(store ? store : "");
    r.context = std::make_shared<gloo::rendezvous::Context>(number(BENCH_ENV_RANK), number(BENCH_ENV_RANKS));
    r.context->connectFullMesh(files, device);
  } catch (const std::exception &e) {
    std::fprintf(stderr, "gloo: %s\n", e.what());
    return 1;
  }
  auto bit = [](bench_kind kind) { return UINT32_C(1) << kind; };
  bench_system system = {};
  system.self = &r;
  system.rank = r.context->rank;
  system.ranks = r.context->size;
  system.in_place = bit(BENCH_BROADCAST) | bit(BENCH_ALL_REDUCE) | bit(BENCH_REDUCE) | bit(BENCH_REDUCE_SCATTER) |
                    bit(BENCH_ALL_GATHER);
  system.out_of_place = ((UINT32_C(1) << BENCH_KINDS) - 1) & ~bit(BENCH_BROADCAST) & ~bit(BENCH_REDUCE_SCATTER);
  system.scatters_to_front = true;
  system.run = run;
  system.error = error;
  return bench_rank_main(&system);
}
