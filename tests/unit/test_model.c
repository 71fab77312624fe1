/* Manifests, layouts, safetensors headers and indexes from files, most of them wrong. */
#include "server/model/model.h"

#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/psd_test.h"

static char text[2048];
static const model_why why = {text, sizeof text};

typedef struct folder {
    char path[64];
} folder;

static folder make_folder(void)
{
    folder f = {"/tmp/psd-test-model-XXXXXX"};
    cr_assert_neq(mkdtemp(f.path), NULL);
    return f;
}

static const char *file(const folder *f, const char *name, const void *data, size_t bytes)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", f->path, name);
    FILE *out = fopen(path, "w");
    cr_assert_neq(out, NULL);
    cr_assert_eq(fwrite(data, 1, bytes, out), bytes);
    fclose(out);
    return path;
}

static void remove_folder(const folder *f, const char *const *names)
{
    for (; *names != NULL; names++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s", f->path, *names);
        unlink(path);
    }
    cr_assert_eq(rmdir(f->path), 0);
}

/* ---------------------------------------------------------------------------------------------------- manifests */

PSD_TEST(model, reads_the_example)
{
    psd_model m;
    cr_assert_eq(model_read("tests/data/plan/model.json", &m, &why), PSD_OK, "%s", text);
    cr_assert_eq(m.count, 6);
    cr_assert_str_eq(m.tensors[1].name, "layers.0.up.weight");
    cr_assert_eq(m.tensors[1].dtype, PSD_BF16);
    cr_assert_eq(m.tensors[1].shape[1], 6);
    cr_assert_eq(m.tensors[5].ndim, 0);
    cr_assert_eq(m.bytes, 160 + 84 + 10 + 84 + 10 + 8);
    psd_model_free(&m);
}

PSD_TEST(model, wrong_manifests_name_file_tensor_and_rule)
{
    const struct {
        const char *json, *says;
    } cases[] = {
        {"", "near end of file"},
        {"{", "line 1"},
        {"{}", "neither a manifest"},
        {"{\"tensors\":[{}]}", "tensor 0 of the list has no name"},
        {"{\"tensors\":[{\"name\":\"\",\"dtype\":\"F32\",\"shape\":[1]}]}", "a name has 1 to"},
        {"{\"tensors\":[{\"name\":\"a\",\"dtype\":\"F33\",\"shape\":[1]}]}", "tensor a: its dtype"},
        {"{\"tensors\":[{\"name\":\"a\",\"dtype\":32,\"shape\":[1]}]}", "tensor a: its dtype"},
        {"{\"tensors\":[{\"name\":\"a\",\"dtype\":\"F32\"}]}", "tensor a: its shape is not a list"},
        {"{\"tensors\":[{\"name\":\"a\",\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1]}]}", "at most 8"},
        {"{\"tensors\":[{\"name\":\"a\",\"dtype\":\"F32\",\"shape\":[-1]}]}",
         "dimension 0 is not an integer of 0"},
        {"{\"tensors\":[{\"name\":\"a\",\"dtype\":\"F32\",\"shape\":[1.5]}]}",
         "dimension 0 is not an integer"},
        {"{\"tensors\":[{\"name\":\"a\",\"dtype\":\"F32\",\"shape\":[4611686018427387904,8]}]}",
         "larger than 2^60"},
        {"{\"tensors\":[{\"name\":\"a\",\"dtype\":\"I8\",\"shape\":[1000000000000000000]},"
         "{\"name\":\"b\",\"dtype\":\"I8\",\"shape\":[1000000000000000000]}]}",
         "tensor b makes the model larger"},
        {"{\"tensors\":[{\"name\":\"a\",\"dtype\":\"F32\",\"shape\":[1]},"
         "{\"name\":\"a\",\"dtype\":\"F32\",\"shape\":[1]}]}",
         "has two tensors a"},
        {"{\"weight_map\":{\"a\":\"../x.safetensors\"}}", "not in a file beside the index"},
        {"{\"weight_map\":{\"a\":\"none.safetensors\"}}", "cannot be opened"},
        {"{\"tensors\":[],\"tensors\":[]}", "duplicate"},
    };
    folder f = make_folder();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        psd_model m = {.count = 77};
        text[0] = '\0';
        cr_assert_lt(model_read(file(&f, "m.json", cases[i].json, strlen(cases[i].json)), &m, &why), PSD_OK,
                     "%s", cases[i].json);
        cr_assert_neq(strstr(text, cases[i].says), NULL, "%s: %s", cases[i].json, text);
        cr_assert_neq(strstr(text, "psd-test-model"), NULL, "names the file: %s", text);
        cr_assert_eq(m.count, 77);
    }
    remove_folder(&f, (const char *[]){"m.json", NULL});
}

PSD_TEST(model, nesting_without_end_is_refused)
{
    size_t bytes = 8 << 20;
    char *deep = malloc(bytes);
    folder f = make_folder();
    psd_model m;
    memset(deep, '[', bytes);
    memcpy(deep, "{\"a\":", 5);
    cr_assert_eq(model_read(file(&f, "m.json", deep, bytes), &m, &why), PSD_ERR_FORMAT);
    cr_assert_neq(strstr(text, "depth"), NULL, "%s", text);
    free(deep);
    remove_folder(&f, (const char *[]){"m.json", NULL});
}

PSD_TEST(model, what_is_no_file_is_refused)
{
    psd_model m;
    cr_assert_eq(model_read("/nowhere/m.json", &m, &why), PSD_ERR_NOT_FOUND, "%s", text);
    cr_assert_lt(model_read("/tmp", &m, &why), PSD_OK, "%s", text);
    cr_assert_lt(model_read("/dev/zero", &m, &why), PSD_OK, "%s", text);
}

/* -------------------------------------------------------------------------------------------------- safetensors */

static const char *safetensors(const folder *f, const char *name, const char *header, uint64_t says,
                               size_t data)
{
    size_t bytes = strlen(header);
    char *all = calloc(1, 8 + bytes + data);
    uint64_t length = htole64(says);
    memcpy(all, &length, 8);
    memcpy(all + 8, header, bytes);
    const char *path = file(f, name, all, 8 + bytes + data);
    free(all);
    return path;
}

PSD_TEST(model, reads_headers_of_safetensors_and_an_index_of_them)
{
    static const char one[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                              "\"a\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
                              "\"b\":{\"dtype\":\"F8_E4M3\",\"shape\":[4],\"data_offsets\":[12,16]}}";
    static const char two[] = "{\"c\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]}}";
    static const char index[] = "{\"metadata\":{\"total_size\":24},\"weight_map\":{\"a\":\"1.safetensors\","
                                "\"c\":\"2.safetensors\",\"b\":\"1.safetensors\"}}";
    folder f = make_folder();
    psd_model m;
    cr_assert_eq(model_read(safetensors(&f, "1.safetensors", one, strlen(one), 16), &m, &why), PSD_OK, "%s",
                 text);
    cr_assert_eq(m.count, 2);
    cr_assert_eq(m.tensors[1].dtype, PSD_F8E4M3);
    psd_model_free(&m);
    safetensors(&f, "2.safetensors", two, strlen(two), 8);
    cr_assert_eq(model_read(file(&f, "i.json", index, strlen(index)), &m, &why), PSD_OK, "%s", text);
    cr_assert_eq(m.count, 3);
    cr_assert_eq(m.bytes, 24);
    psd_model_free(&m);
    static const char fewer[] = "{\"weight_map\":{\"a\":\"1.safetensors\"}}";
    cr_assert_eq(model_read(file(&f, "i.json", fewer, strlen(fewer)), &m, &why), PSD_ERR_FORMAT);
    cr_assert_neq(strstr(text, "names 1 tensors, and its files hold 2"), NULL, "%s", text);
    remove_folder(&f, (const char *[]){"1.safetensors", "2.safetensors", "i.json", NULL});
}

PSD_TEST(model, wrong_safetensors_are_refused)
{
    const struct {
        const char *header;
        int64_t more; /* than the header has, said in front of it */
        size_t data;
        const char *says;
    } cases[] = {
        {"{}", 1, 0, "its header would have 3 bytes"},
        {"{}", INT64_MAX / 2, 0, "its header would have"},
        {"{}", -3, 0, "its header would have"},
        {"[]", 0, 0, "is not a JSON object"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 0, 7,
         "the file has 7 bytes of data"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 0, 8, "its shape needs 8 bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 0, 8, "offsets -8 to 0"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 0, 8, "no data_offsets"},
        {"{\"a\":7}", 0, 8, "tensor a: its dtype"},
    };
    folder f = make_folder();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        psd_model m = {.count = 77};
        uint64_t says = (uint64_t)((int64_t)strlen(cases[i].header) + cases[i].more);
        const char *path = safetensors(&f, "x", cases[i].header, says, cases[i].data);
        cr_assert_lt(model_read(path, &m, &why), PSD_OK, "%s", cases[i].header);
        cr_assert_neq(strstr(text, cases[i].says), NULL, "%s: %s", cases[i].header, text);
        cr_assert_eq(m.count, 77);
    }
    remove_folder(&f, (const char *[]){"x", NULL});
}

/* ------------------------------------------------------------------------------------------------------ layouts */

PSD_TEST(model, reads_the_example_pair)
{
    model_pair p;
    cr_assert_eq(model_read_pair("tests/data/plan/pair.json", &p, &why), PSD_OK, "%s", text);
    cr_assert_str_eq(p.name, "example");
    cr_assert_eq(p.src.ranks, 4);
    cr_assert_str_eq(p.src.axes[0].name, "pp", "axes are in the order in which they are written");
    cr_assert_eq(p.src.axes[0].stride, 2);
    cr_assert_eq(p.dst.first_rank, 3);
    cr_assert_eq(p.dst.rules[0].place[1].kind, PSD_PLACE_SHARD);
    cr_assert_eq(p.dst.rules[0].place[0].kind, PSD_PLACE_REPLICATE);
    model_pair_free(&p);
}

PSD_TEST(model, wrong_layouts_name_group_rule_and_axis)
{
    const struct {
        const char *json, *says;
    } cases[] = {
        {"{\"mesh\":{\"x\":2},\"rules\":[]}", "\"group\" is not a text"},
        {"{\"group\":\"g\",\"first_rnk\":4,\"mesh\":{\"x\":2}}", "a layout has no \"first_rnk\""},
        {"{\"group\":\"g\",\"mesh\":{\"x\":2},\"rules\":[{\"match\":\"*\",\"places\":{}}]}",
         "a rule has no \"places\""},
        {"{\"group\":\"g\",\"rules\":[]}", "\"mesh\" is not an object"},
        {"{\"group\":\"g\",\"mesh\":{}}", "1 to 8 axes"},
        {"{\"group\":\"g\",\"mesh\":{\"x\":0}}", "axis x: its size is not from 1"},
        {"{\"group\":\"g\",\"mesh\":{\"x\":\"2\"}}", "axis x: its size is not from 1"},
        {"{\"group\":\"g\",\"mesh\":{\"x\":1024,\"y\":1024,\"z\":2},\"rules\":[{}]}",
         "group g has ranks beyond"},
        {"{\"group\":\"g\",\"first_rank\":-1,\"mesh\":{\"x\":2}}", "\"first_rank\" is not from 0"},
        {"{\"group\":\"g\",\"first_rank\":1048575,\"mesh\":{\"x\":2}}", "group g has ranks beyond"},
        {"{\"group\":\"g\",\"mesh\":{\"x\":2},\"rules\":[]}", "\"rules\" is not a list of 1"},
        {"{\"group\":\"g\",\"mesh\":{\"x\":2},\"rules\":[{}]}", "a rule has no \"match\""},
        {"{\"group\":\"g\",\"mesh\":{\"x\":2},\"rules\":[{\"match\":\"*\"}]}", "rule \"*\" has no \"place\""},
        {"{\"group\":\"g\",\"mesh\":{\"x\":2},\"rules\":[{\"match\":\"*\",\"place\":{\"y\":\"Shard(0)\"}}]}",
         "names axis y, and the mesh of group g has none"},
        {"{\"group\":\"g\",\"mesh\":{\"x\":2},\"rules\":[{\"match\":\"*\",\"place\":{\"x\":3}}]}",
         "axis x: a placement is a text"},
        {"{\"group\":\"g\",\"mesh\":{\"x\":2},\"rules\":[{\"match\":\"*\",\"place\":{\"x\":\"Shard\"}}]}",
         "\"Shard\" is not a placement"},
        {"{\"group\":\"g\",\"mesh\":{\"x\":2},\"rules\":[{\"match\":\"*\",\"place\":{\"x\":\"Own(layers)\"}}]"
         "}",
         "only layer, expert and n"},
        {"{\"group\":\"g\",\"mesh\":{\"x\":2,\"x\":2},\"rules\":[]}", "duplicate"},
        {"{\"group\":\"g\",\"mesh\":{\"a\":1,\"b\":1,\"c\":1,\"d\":1,\"e\":1,\"f\":1,\"g\":1,\"h\":1,\"i\":1}"
         "}",
         "1 to 8 axes"},
    };
    folder f = make_folder();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        psd_layout l;
        cr_assert_lt(model_read_layout(file(&f, "l.json", cases[i].json, strlen(cases[i].json)), &l, &why),
                     PSD_OK, "%s", cases[i].json);
        cr_assert_neq(strstr(text, cases[i].says), NULL, "%s: %s", cases[i].json, text);
    }
    static const char half[] =
        "{\"src\":{\"group\":\"g\",\"mesh\":{\"x\":2},\"rules\":[{\"match\":\"*\",\"place\":{}}]}}";
    model_pair p;
    cr_assert_lt(model_read_pair(file(&f, "l.json", half, strlen(half)), &p, &why), PSD_OK);
    cr_assert_neq(strstr(text, "dst: a layout is an object"), NULL, "%s", text);
    remove_folder(&f, (const char *[]){"l.json", NULL});
}
