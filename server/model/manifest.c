/* The tensors of a model. */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/conf.h"
#include "common/map.h"
#include "common/tensor.h"
#include "server/model/model_parts.h"

/* As safetensors names them. */
static const struct {
    const char *name;
    psd_dtype dtype;
} dtypes[] = {
    {"F64", PSD_F64}, {"F32", PSD_F32}, {"F16", PSD_F16},        {"BF16", PSD_BF16},      {"I64", PSD_I64},
    {"I32", PSD_I32}, {"I16", PSD_I16}, {"I8", PSD_I8},          {"U8", PSD_U8},          {"U16", PSD_U16},
    {"U32", PSD_U32}, {"U64", PSD_U64}, {"F8_E4M3", PSD_F8E4M3}, {"F8_E5M2", PSD_F8E5M2}, {"BOOL", PSD_BOOL},
};

static bool find_dtype(const json_t *value, psd_dtype *out)
{
    const char *name = json_string_value(value);
    for (size_t i = 0; name != NULL && i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            *out = dtypes[i].dtype;
            return true;
        }
    }
    return false;
}

/* ---------------------------------------------------------------------------------------------- the builder */

static psd_status read_shape(model_builder *b, const char *name, const json_t *shape,
                             psd_model_tensor *tensor)
{
    if (!json_is_array(shape) || json_array_size(shape) > PSD_MAX_DIMS)
        return model_fail(b->why, PSD_ERR_FORMAT, b->path,
                          "tensor %.100s: its shape is not a list of at most %d sizes", name, PSD_MAX_DIMS);
    tensor->ndim = (int32_t)json_array_size(shape);
    for (int32_t d = 0; d < tensor->ndim; d++) {
        const json_t *size = json_array_get(shape, (size_t)d);
        if (!json_is_integer(size) || json_integer_value(size) < 0)
            return model_fail(b->why, PSD_ERR_FORMAT, b->path,
                              "tensor %.100s: dimension %d is not an integer of 0 or "
                              "more",
                              name, d);
        tensor->shape[d] = json_integer_value(size);
    }
    int64_t count = 0;
    if (!psd_shape_count(tensor->shape, tensor->ndim, tensor->dtype, &count) ||
        count > PSD_MODEL_BYTES / (int64_t)psd_dtype_bytes(tensor->dtype) ||
        b->model.bytes + count * (int64_t)psd_dtype_bytes(tensor->dtype) > PSD_MODEL_BYTES)
        return model_fail(b->why, PSD_ERR_LIMIT, b->path,
                          "tensor %.100s makes the model larger than 2^60 bytes", name);
    b->model.bytes += count * (int64_t)psd_dtype_bytes(tensor->dtype);
    return PSD_OK;
}

static bool grow(void **array, uint64_t *capacity, uint64_t needed, size_t size)
{
    uint64_t wanted = *capacity == 0 ? 256 : *capacity;
    while (wanted < needed)
        wanted *= 2;
    void *grown = wanted == *capacity ? *array : realloc(*array, wanted * size);
    if (grown == NULL)
        return false;
    *array = grown;
    *capacity = wanted;
    return true;
}

static bool make_room(model_builder *b, size_t name_bytes)
{
    uint64_t names = b->name_capacity, tensors = b->tensor_capacity, places = b->tensor_capacity;
    void *at = b->name_at, *list = b->model.tensors, *text = b->model.names;
    bool fine = grow(&at, &places, (uint64_t)b->model.count + 1, sizeof *b->name_at);
    b->name_at = at;
    fine = fine && grow(&list, &tensors, (uint64_t)b->model.count + 1, sizeof *b->model.tensors);
    b->model.tensors = list;
    fine = fine && grow(&text, &names, b->name_bytes + name_bytes + 1, 1);
    b->model.names = text;
    if (!fine)
        return false;
    b->tensor_capacity = tensors;
    b->name_capacity = (size_t)names;
    return true;
}

psd_status model_add(model_builder *b, const char *name, size_t name_bytes, const json_t *dtype,
                     const json_t *shape)
{
    psd_model_tensor tensor = {0};
    char echo[PSD_ECHO_BYTES];
    psd_echo(name, echo, sizeof echo);
    if (name_bytes == 0 || name_bytes >= PSD_TENSOR_NAME || strlen(name) != name_bytes)
        return model_fail(b->why, PSD_ERR_FORMAT, b->path,
                          "tensor \"%s\": a name has 1 to %d bytes, and no NUL", echo, PSD_TENSOR_NAME - 1);
    if (!find_dtype(dtype, &tensor.dtype))
        return model_fail(b->why, PSD_ERR_FORMAT, b->path,
                          "tensor %s: its dtype is none of F64 F32 F16 BF16 I64 I32 I16 "
                          "I8 U8 U16 U32 U64 F8_E4M3 F8_E5M2 BOOL",
                          echo);
    psd_status status = read_shape(b, echo, shape, &tensor);
    if (status != PSD_OK)
        return status;
    if (b->model.count >= PSD_MODEL_TENSORS)
        return model_fail(b->why, PSD_ERR_LIMIT, b->path, "has more than %d tensors", PSD_MODEL_TENSORS);
    if (!make_room(b, name_bytes))
        return model_fail(b->why, PSD_ERR_NOMEM, b->path, "no memory for its %u tensors", b->model.count);
    memcpy(b->model.names + b->name_bytes, name, name_bytes + 1);
    b->name_at[b->model.count] = b->name_bytes;
    b->name_bytes += name_bytes + 1;
    b->model.tensors[b->model.count++] = tensor;
    return PSD_OK;
}

/* Equal hashes of different names are told apart by trying the next hash. */
static psd_status check_unique(model_builder *b)
{
    psd_map names = {0};
    psd_status status = PSD_OK;
    for (uint32_t i = 0; i < b->model.count && status == PSD_OK; i++) {
        const char *name = b->model.tensors[i].name;
        uint64_t hash = psd_hash_text(name, 0);
        const psd_model_tensor *other = NULL;
        while ((other = psd_map_get(&names, hash)) != NULL && strcmp(other->name, name) != 0)
            hash++;
        if (other != NULL)
            status = model_fail(b->why, PSD_ERR_FORMAT, b->path, "has two tensors %.100s", name);
        else if (!psd_map_put(&names, hash, &b->model.tensors[i]))
            status = model_fail(b->why, PSD_ERR_NOMEM, b->path, "no memory for its %u names", b->model.count);
    }
    psd_map_free(&names);
    return status;
}

psd_status model_finish(model_builder *b, psd_status status, psd_model *out)
{
    for (uint32_t i = 0; i < b->model.count; i++)
        b->model.tensors[i].name = b->model.names + b->name_at[i];
    if (status == PSD_OK)
        status = check_unique(b);
    free(b->name_at);
    if (status == PSD_OK)
        *out = b->model;
    else
        psd_model_free(&b->model);
    return status;
}

/* ------------------------------------------------------------------------------------------------ manifests */

static psd_status add_manifest(model_builder *b, const json_t *tensors)
{
    psd_status status = PSD_OK;
    size_t i = 0;
    json_t *tensor = NULL;
    json_array_foreach(tensors, i, tensor)
    {
        const json_t *name = json_object_get(tensor, "name");
        if (!json_is_string(name))
            return model_fail(b->why, PSD_ERR_FORMAT, b->path, "tensor %zu of the list has no name", i);
        status = model_add(b, json_string_value(name), json_string_length(name),
                           json_object_get(tensor, "dtype"), json_object_get(tensor, "shape"));
        if (status != PSD_OK)
            return status;
    }
    return status;
}

/* ----------------------------------------------------------------------------------------------- safetensors */

/* A header of more bytes than this is refused; safetensors' own limit is 100 MB. */
#define LARGEST_HEADER (UINT64_C(100) << 20)

static psd_status read_header(const char *path, char **out, size_t *bytes, int64_t *data_bytes,
                              const model_why *why)
{
    struct stat st;
    uint64_t length = 0;
    char *text = NULL;
    psd_status status = PSD_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return model_fail(why, errno == ENOENT ? PSD_ERR_NOT_FOUND : PSD_ERR_IO, path, "cannot be opened: %s",
                          strerror(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        status = model_fail(why, PSD_ERR_FORMAT, path, "is not a plain file");
        goto out;
    }
    if (pread(fd, &length, sizeof length, 0) != (ssize_t)sizeof length) {
        status = model_fail(why, PSD_ERR_FORMAT, path, "is not a safetensors file: it is too short");
        goto out;
    }
    length = le64toh(length);
    if (length > LARGEST_HEADER || length + sizeof length > (uint64_t)st.st_size) {
        status = model_fail(why, PSD_ERR_FORMAT, path,
                            "is not a safetensors file: its header would have %llu bytes, and "
                            "the file has %lld",
                            (unsigned long long)length, (long long)st.st_size);
        goto out;
    }
    text = malloc((size_t)length + 1);
    if (text == NULL)
        status = model_fail(why, PSD_ERR_NOMEM, path, "no memory for a header of %llu bytes",
                            (unsigned long long)length);
    else if (pread(fd, text, (size_t)length, (off_t)sizeof length) != (ssize_t)length)
        status = model_fail(why, PSD_ERR_IO, path, "its header cannot be read");
    if (status != PSD_OK) {
        free(text);
        goto out;
    }
    *out = text;
    *bytes = (size_t)length;
    *data_bytes = (int64_t)st.st_size - (int64_t)length - (int64_t)sizeof length;
out:
    close(fd);
    return status;
}

/* The offsets only have to be of the tensor's size and within the file; that they do not overlap matters to who reads
 * the data. */
static psd_status check_offsets(const model_builder *b, const char *path, const char *name,
                                const json_t *offsets, int64_t data_bytes)
{
    const psd_model_tensor *tensor = &b->model.tensors[b->model.count - 1];
    const json_t *lo = json_array_get(offsets, 0), *hi = json_array_get(offsets, 1);
    if (!json_is_integer(lo) || !json_is_integer(hi) || json_array_size(offsets) != 2)
        return model_fail(b->why, PSD_ERR_FORMAT, path, "tensor %.100s has no data_offsets", name);
    if (json_integer_value(lo) < 0 || json_integer_value(hi) > data_bytes ||
        json_integer_value(hi) - json_integer_value(lo) != psd_model_tensor_bytes(tensor))
        return model_fail(
            b->why, PSD_ERR_FORMAT, path,
            "tensor %.100s has the offsets %lld to %lld, its shape needs %lld bytes, and the file has %lld "
            "bytes of data",
            name, (long long)json_integer_value(lo), (long long)json_integer_value(hi),
            (long long)psd_model_tensor_bytes(tensor), (long long)data_bytes);
    return PSD_OK;
}

psd_status model_add_safetensors(model_builder *b, const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    int64_t data_bytes = 0;
    json_t *root = NULL;
    psd_status status = read_header(path, &text, &bytes, &data_bytes, b->why);
    if (status != PSD_OK)
        return status;
    status = model_parse(path, text, bytes, &root, b->why);
    if (status == PSD_OK) {
        const char *name = NULL;
        json_t *tensor = NULL;
        json_object_foreach(root, name, tensor)
        {
            if (strcmp(name, "__metadata__") == 0)
                continue;
            status = model_add(b, name, strlen(name), json_object_get(tensor, "dtype"),
                               json_object_get(tensor, "shape"));
            if (status == PSD_OK)
                status = check_offsets(b, path, name, json_object_get(tensor, "data_offsets"), data_bytes);
            if (status != PSD_OK)
                break;
        }
    }
    json_decref(root);
    free(text);
    return status;
}

/* ---------------------------------------------------------------------------------- Hugging Face's index file */

/* Each file of the map once, in the order of their names; files lie beside the index. */
static psd_status add_index(model_builder *b, const json_t *map)
{
    const char *slash = strrchr(b->path, '/');
    int directory = slash != NULL ? (int)(slash - b->path + 1) : 0;
    json_t *files = json_object();
    psd_status status =
        files == NULL ? model_fail(b->why, PSD_ERR_NOMEM, b->path, "no memory for its index") : PSD_OK;
    const char *tensor = NULL;
    json_t *file = NULL;
    json_object_foreach((json_t *)map, tensor, file)
    {
        const char *name = json_string_value(file);
        if (status != PSD_OK)
            break;
        if (name == NULL || name[0] == '\0' || strchr(name, '/') != NULL || strcmp(name, "..") == 0)
            status = model_fail(b->why, PSD_ERR_FORMAT, b->path,
                                "tensor %.100s is not in a file beside the index", tensor);
        else if (json_object_set_new(files, name, json_true()) != 0)
            status = model_fail(b->why, PSD_ERR_NOMEM, b->path, "no memory for its index");
    }
    const char *name = NULL;
    void *next = NULL;
    json_object_foreach_safe(files, next, name, file)
    {
        char path[4096];
        if (status != PSD_OK)
            break;
        int wrote = snprintf(path, sizeof path, "%.*s%s", directory, b->path, name);
        if (wrote < 0 || (size_t)wrote >= sizeof path)
            status = model_fail(b->why, PSD_ERR_FORMAT, b->path, "the path of %.100s is too long", name);
        else
            status = model_add_safetensors(b, path);
    }
    if (status == PSD_OK && b->model.count != json_object_size(map))
        status = model_fail(b->why, PSD_ERR_FORMAT, b->path, "names %zu tensors, and its files hold %u",
                            json_object_size(map), b->model.count);
    json_decref(files);
    return status;
}

static bool looks_like_json(const char *path)
{
    char first[64];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t got = fd < 0 ? 0 : read(fd, first, sizeof first);
    if (fd >= 0)
        close(fd);
    ssize_t at = 0;
    while (at < got && (first[at] == ' ' || first[at] == '\n' || first[at] == '\r' || first[at] == '\t'))
        at++;
    return got == 0 || (at < got && first[at] == '{');
}

psd_status model_read(const char *path, psd_model *out, const model_why *why)
{
    model_builder b = {.path = path, .why = why};
    char *text = NULL;
    size_t bytes = 0;
    json_t *root = NULL;
    if (!looks_like_json(path))
        return model_finish(&b, model_add_safetensors(&b, path), out);
    psd_status status = model_load_file(path, &text, &bytes, why);
    if (status == PSD_OK)
        status = model_parse(path, text, bytes, &root, why);
    free(text);
    if (status == PSD_OK && json_is_array(json_object_get(root, "tensors")))
        status = add_manifest(&b, json_object_get(root, "tensors"));
    else if (status == PSD_OK && json_is_object(json_object_get(root, "weight_map")))
        status = add_index(&b, json_object_get(root, "weight_map"));
    else if (status == PSD_OK)
        status = model_fail(why, PSD_ERR_FORMAT, path,
                            "is neither a manifest (\"tensors\") nor a Hugging Face index (\"weight_map\")");
    json_decref(root);
    return model_finish(&b, status, out);
}
