#include "worker/backend/host/copy.h"

#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>

#define LINE 64

void copy_beyond_cache(void *to, const void *from, size_t bytes)
{
    unsigned char *out = to;
    const unsigned char *in = from;
    size_t head = (LINE - (uintptr_t)out % LINE) % LINE;
    if (head > bytes)
        head = bytes;
    memcpy(out, in, head);
    out += head;
    in += head;
    bytes -= head;
    for (; bytes >= LINE; bytes -= LINE, out += LINE, in += LINE) {
        __m128i a = _mm_loadu_si128((const __m128i *)(const void *)in);
        __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(in + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(in + 32));
        __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(in + 48));
        _mm_stream_si128((__m128i *)(void *)out, a);
        _mm_stream_si128((__m128i *)(void *)(out + 16), b);
        _mm_stream_si128((__m128i *)(void *)(out + 32), c);
        _mm_stream_si128((__m128i *)(void *)(out + 48), d);
    }
    /* Streaming stores are not ordered by a later release store. */
    _mm_sfence();
    memcpy(out, in, bytes);
}
#else
void copy_beyond_cache(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}
#endif
