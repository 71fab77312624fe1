/* Fuzzes the wire code: any bytes either are refused with a sentence or decode into a message that encodes
 * again into a frame that decodes to the same frame, of the type and request that peeking tells. With
 * -DPSD_FUZZ_MAIN a plain main() runs the files named on the command line.
 *
 * A mutated frame seldom keeps its prefix, so half of the inputs (even length) get a good one put in front.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void die(const char *what)
{
    fprintf(stderr, "fuzz_wire: %s\n", what);
    abort();
}

static void check_stable(const psd_msg *msg)
{
    psd_wire_buffer first = {0};
    psd_wire_buffer second = {0};
    psd_msg_box *box = NULL;
    char why[256] = "";
    psd_status status = psd_wire_encode(msg, &first);
    if (status == PSD_ERR_LIMIT || status == PSD_ERR_NOMEM)
        goto done; /* minimal encodings are shorter than ours: the frame may have grown over the limit */
    if (status != PSD_OK)
        die("a decoded message does not encode");
    if (psd_wire_decode(first.data, first.bytes, &box, why, sizeof why) != PSD_OK)
        die(why);
    if (psd_wire_encode(&box->msg, &second) != PSD_OK)
        die("the second encoding failed");
    if (first.bytes != second.bytes || memcmp(first.data, second.data, first.bytes) != 0)
        die("the second encoding differs");
done:
    psd_msg_box_free(box);
    psd_wire_buffer_free(&first);
    psd_wire_buffer_free(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const uint8_t prefix[5] = {0x0d, 'p', 's', 'd', PSD_PROTOCOL_VERSION};
    size_t skip = bytes % 2 == 0 ? sizeof prefix : 0;
    psd_msg_box *box = NULL;
    char why[256] = "";
    uint8_t *frame = malloc(skip + bytes + 1);
    if (frame == NULL)
        return 0;
    memcpy(frame, prefix, skip);
    if (bytes > 0)
        memcpy(frame + skip, data, bytes);
    psd_msg_type type;
    uint64_t request;
    psd_status status = psd_wire_decode(frame, skip + bytes, &box, why, sizeof why);
    psd_wire_peek(frame, skip + bytes, &type, &request);
    if (status == PSD_OK && (type != box->msg.type || request != box->msg.request))
        die("peeking sees another message than decoding");
    if (status == PSD_OK)
        check_stable(&box->msg);
    else if (box != NULL || why[0] == '\0')
        die("a refusal without its sentence, or with a message");
    psd_msg_box_free(box);
    free(frame);
    return 0;
}

#ifdef PSD_FUZZ_MAIN
static int run_file(const char *path)
{
    static uint8_t data[PSD_MAX_FRAME + 16];
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        return 1;
    }
    size_t bytes = fread(data, 1, sizeof data, file);
    fclose(file);
    return LLVMFuzzerTestOneInput(data, bytes);
}

int main(int argc, char **argv)
{
    int failed = 0;
    for (int i = 1; i < argc; i++)
        failed |= run_file(argv[i]);
    printf("fuzz_wire: %d files\n", argc - 1);
    return failed;
}
#endif
