#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "common/tensor.h"
#include "server/psctl/plan.h"

typedef struct exporter {
    const psctl_plan_result *r;
    FILE *out;
    uint32_t tensor; /* whose name and placements these are */
    char *name;      /* as JSON; NULL: of none yet */
    psd_place src[PSD_LAYOUT_AXES];
    psd_place dst[PSD_LAYOUT_AXES];
} exporter;

/* Bytes before the first element of `box` in a rank's row-major shard. */
static int64_t offset_in(const psd_box *box, const psd_box *shard, int32_t ndim, int64_t item)
{
    int64_t offset = 0, stride = item;
    for (int32_t d = ndim - 1; d >= 0; d--) {
        offset += (box->lo[d] - shard->lo[d]) * stride;
        stride *= shard->hi[d] - shard->lo[d];
    }
    return offset;
}

static bool take_tensor(exporter *e, uint32_t index)
{
    char why[256];
    const psd_model_tensor *tensor = &e->r->input.model->tensors[index];
    if (e->name != NULL && e->tensor == index)
        return true;
    free(e->name);
    json_t *text = json_string(tensor->name);
    e->name = text != NULL ? json_dumps(text, JSON_ENCODE_ANY) : NULL;
    json_decref(text);
    e->tensor = index;
    return e->name != NULL && psd_layout_place(e->r->input.src, tensor, e->src, why, sizeof why) &&
           psd_layout_place(e->r->input.dst, tensor, e->dst, why, sizeof why);
}

static bool write_step(exporter *e, const reshard_message *m, const psd_box *box)
{
    const psd_model_tensor *tensor = &e->r->input.model->tensors[e->tensor];
    const psd_layout *from = m->forwards ? e->r->input.dst : e->r->input.src;
    psd_box source, destination;
    int64_t bytes = (int64_t)psd_dtype_bytes(tensor->dtype);
    int64_t item = bytes;
    if (!psd_layout_box(from, m->forwards ? e->dst : e->src, tensor, m->src, &source) ||
        !psd_layout_box(e->r->input.dst, e->dst, tensor, m->dst, &destination))
        return false;
    fprintf(e->out, "{\"round\":%" PRIu32 ",\"src\":%" PRId32 ",\"dst\":%" PRId32 ",\"tensor\":%s,\"box\":[",
            m->round, m->src, m->dst, e->name);
    for (int32_t d = 0; d < tensor->ndim; d++) {
        fprintf(e->out, "%s[%" PRId64 ",%" PRId64 "]", d > 0 ? "," : "", box->lo[d], box->hi[d]);
        bytes *= box->hi[d] - box->lo[d];
    }
    fprintf(e->out,
            "],\"bytes\":%" PRId64 ",\"src_off\":%" PRId64 ",\"dst_off\":%" PRId64 ",\"from\":\"%s\"}\n",
            bytes, offset_in(box, &source, tensor->ndim, item),
            offset_in(box, &destination, tensor->ndim, item), m->forwards ? "dst" : "src");
    return true;
}

static bool write_message(exporter *e, const reshard_message *m)
{
    for (uint64_t i = m->first_piece; i < m->first_piece + m->piece_count; i++) {
        const reshard_piece *p = &e->r->plan.pieces[i];
        psd_box boxes[RESHARD_MOST_BOXES];
        if (!take_tensor(e, p->tensor))
            return false;
        int count = reshard_piece_boxes(&e->r->plan.atoms[p->atom].box,
                                        e->r->input.model->tensors[p->tensor].ndim, p->lo, p->hi, boxes);
        for (int b = 0; b < count; b++) {
            if (!write_step(e, m, &boxes[b]))
                return false;
        }
    }
    return !ferror(e->out);
}

static bool write_all(const psctl_plan_result *r, FILE *out)
{
    exporter e = {.r = r, .out = out};
    json_t *name = json_string(r->name);
    char *text = name != NULL ? json_dumps(name, JSON_ENCODE_ANY) : NULL;
    bool fine = text != NULL;
    if (fine)
        fprintf(out, "{\"plan\":{\"pair\":%s,\"forward\":%s}}\n", text, r->plan.forwards ? "true" : "false");
    for (uint64_t i = 0; i < r->plan.message_count && fine; i++)
        fine = write_message(&e, &r->plan.messages[i]);
    free(text);
    json_decref(name);
    free(e.name);
    return fine && fflush(out) == 0;
}

static bool complain(const char *path, int error)
{
    psctl_error("cannot write %s: %s", path, error != 0 ? strerror(error) : "the disk or pipe took no more");
    return false;
}

/* What is there and is no plain file (a pipe, a device) is written into; nothing is put in its place. */
static bool write_into(const psctl_plan_result *r, const char *path)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    FILE *out = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (out == NULL) {
        int error = errno;
        if (fd >= 0)
            close(fd);
        return complain(path, error);
    }
    errno = 0;
    bool fine = write_all(r, out);
    int error = errno;
    fine = fclose(out) == 0 && fine;
    return fine || complain(path, error);
}

/* The file appears whole or not at all. */
static bool replace(const psctl_plan_result *r, const char *path)
{
    char temporary[PATH_MAX + 32];
    int wrote = snprintf(temporary, sizeof temporary, "%s.%ld.part", path, (long)getpid());
    if (wrote < 0 || (size_t)wrote >= sizeof temporary)
        return complain(path, ENAMETOOLONG);
    FILE *out = fopen(temporary, "we");
    if (out == NULL)
        return complain(path, errno);
    errno = 0;
    bool fine = write_all(r, out);
    int error = errno;
    fine = fclose(out) == 0 && fine;
    if (fine && rename(temporary, path) == 0)
        return true;
    error = fine ? errno : error;
    (void)unlink(temporary);
    return complain(path, error);
}

bool psctl_plan_export(const psctl_plan_result *r, const char *path)
{
    struct stat st;
    char target[PATH_MAX];
    if (strcmp(path, "-") == 0) {
        errno = 0;
        return write_all(r, stdout) || complain("standard output", errno);
    }
    if (stat(path, &st) != 0)
        return replace(r, path);
    if (!S_ISREG(st.st_mode))
        return write_into(r, path);
    if (realpath(path, target) == NULL) /* a link stays a link */
        return complain(path, errno);
    return replace(r, target);
}
