/* Layouts and layout pairs. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/conf.h"
#include "server/model/model_parts.h"

typedef struct reader {
    const char *path;
    const model_why *why;
    char whose[16]; /* "", "src: " or "dst: " */
} reader;

static psd_status fail(const reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static psd_status fail(const reader *r, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return model_fail(r->why, PSD_ERR_FORMAT, r->path, "%s%s", r->whose, text);
}

/* A key that is not known is a slip of the pen, and what was meant would silently keep its default. */
static psd_status check_keys(const reader *r, const json_t *object, const char *what,
                             const char *const *known)
{
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach((json_t *)object, key, value)
    {
        char echo[PSD_ECHO_BYTES];
        int i = 0;
        while (known[i] != NULL && strcmp(known[i], key) != 0)
            i++;
        if (known[i] == NULL)
            return fail(r, "%s has no \"%s\"", what, psd_echo(key, echo, sizeof echo));
    }
    return PSD_OK;
}

static psd_status read_name(const reader *r, const json_t *object, const char *key, char out[PSD_MAX_NAME])
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_string(value) || json_string_length(value) >= PSD_MAX_NAME ||
        strlen(json_string_value(value)) != json_string_length(value))
        return fail(r, "\"%s\" is not a text of at most %d bytes", key, PSD_MAX_NAME - 1);
    snprintf(out, PSD_MAX_NAME, "%s", json_string_value(value));
    return PSD_OK;
}

static psd_status read_mesh(const reader *r, const json_t *object, psd_layout *layout)
{
    const json_t *mesh = json_object_get(object, "mesh"), *first = json_object_get(object, "first_rank");
    const char *name = NULL;
    json_t *size = NULL;
    if (!json_is_object(mesh) || json_object_size(mesh) < 1 || json_object_size(mesh) > PSD_LAYOUT_AXES)
        return fail(r, "\"mesh\" is not an object of 1 to %d axes and their sizes", PSD_LAYOUT_AXES);
    json_object_foreach((json_t *)mesh, name, size) /* in the order in which they are written */
    {
        psd_layout_axis *axis = &layout->axes[layout->axis_count];
        char echo[PSD_ECHO_BYTES];
        if (strlen(name) >= sizeof axis->name)
            return fail(r, "axis \"%s\": a name has at most %d bytes", psd_echo(name, echo, sizeof echo),
                        PSD_MAX_NAME - 1);
        if (!json_is_integer(size) || json_integer_value(size) < 1 ||
            json_integer_value(size) > PSD_LAYOUT_RANKS)
            return fail(r, "axis %s: its size is not from 1 to %d", psd_echo(name, echo, sizeof echo),
                        PSD_LAYOUT_RANKS);
        snprintf(axis->name, sizeof axis->name, "%s", name);
        axis->size = (int32_t)json_integer_value(size);
        layout->axis_count++;
    }
    if (first != NULL && (!json_is_integer(first) || json_integer_value(first) < 0 ||
                          json_integer_value(first) >= PSD_LAYOUT_RANKS))
        return fail(r, "\"first_rank\" is not from 0 to %d", PSD_LAYOUT_RANKS - 1);
    layout->first_rank = (int32_t)json_integer_value(first);
    if (!psd_layout_finish(layout))
        return fail(r, "group %s has ranks beyond %d", layout->group, PSD_LAYOUT_RANKS - 1);
    return PSD_OK;
}

static psd_status read_rule(const reader *r, const psd_layout *layout, const json_t *object,
                            psd_layout_rule *rule)
{
    const json_t *match = json_object_get(object, "match"), *place = json_object_get(object, "place");
    char echo[PSD_ECHO_BYTES], why[512];
    const char *axis = NULL;
    json_t *value = NULL;
    psd_status status =
        check_keys(r, object, "a rule", (const char *const[]){"match", "place", "note", NULL});
    if (status != PSD_OK)
        return status;
    if (!json_is_string(match) || strlen(json_string_value(match)) != json_string_length(match))
        return fail(r, "a rule has no \"match\"");
    psd_echo(json_string_value(match), echo, sizeof echo);
    if (!json_is_object(place))
        return fail(r, "rule \"%s\" has no \"place\"", echo);
    json_object_foreach((json_t *)place, axis, value)
    {
        char named[PSD_ECHO_BYTES];
        int32_t a = 0;
        while (a < layout->axis_count && strcmp(layout->axes[a].name, axis) != 0)
            a++;
        psd_echo(axis, named, sizeof named);
        if (a == layout->axis_count)
            return fail(r, "rule \"%s\" names axis %s, and the mesh of group %s has none of that name", echo,
                        named, layout->group);
        if (!json_is_string(value))
            return fail(r, "rule \"%s\", axis %s: a placement is a text", echo, named);
        if (!psd_place_parse(json_string_value(value), &rule->place[a], why, sizeof why))
            return fail(r, "rule \"%s\", axis %s: %s", echo, named, why);
    }
    rule->match = strdup(json_string_value(match));
    return rule->match != NULL ? PSD_OK
                               : model_fail(r->why, PSD_ERR_NOMEM, r->path, "no memory for its rules");
}

static psd_status read_layout(const reader *r, const json_t *object, psd_layout *out)
{
    psd_layout layout = {0};
    const json_t *rules = json_object_get(object, "rules");
    if (!json_is_object(object))
        return fail(r, "a layout is an object with \"group\", \"mesh\" and \"rules\"");
    psd_status status =
        check_keys(r, object, "a layout",
                   (const char *const[]){"group", "first_rank", "mesh", "rules", "name", "note", NULL});
    if (status == PSD_OK)
        status = read_name(r, object, "group", layout.group);
    if (status == PSD_OK)
        status = read_mesh(r, object, &layout);
    if (status != PSD_OK)
        return status;
    if (!json_is_array(rules) || json_array_size(rules) < 1 || json_array_size(rules) > PSD_LAYOUT_RULES)
        return fail(r, "\"rules\" is not a list of 1 to %d rules", PSD_LAYOUT_RULES);
    layout.rules = calloc(json_array_size(rules), sizeof *layout.rules);
    if (layout.rules == NULL)
        return model_fail(r->why, PSD_ERR_NOMEM, r->path, "no memory for its rules");
    for (size_t i = 0; i < json_array_size(rules) && status == PSD_OK; i++) {
        layout.rule_count++;
        status = read_rule(r, &layout, json_array_get(rules, i), &layout.rules[i]);
    }
    if (status == PSD_OK)
        *out = layout;
    else
        psd_layout_free(&layout);
    return status;
}

static psd_status load(const char *path, json_t **out, const model_why *why)
{
    char *text = NULL;
    size_t bytes = 0;
    psd_status status = model_load_file(path, &text, &bytes, why);
    if (status == PSD_OK)
        status = model_parse(path, text, bytes, out, why);
    free(text);
    return status;
}

psd_status model_read_layout(const char *path, psd_layout *out, const model_why *why)
{
    const reader r = {.path = path, .why = why};
    json_t *root = NULL;
    psd_status status = load(path, &root, why);
    if (status == PSD_OK)
        status = read_layout(&r, root, out);
    json_decref(root);
    return status;
}

void model_pair_free(model_pair *pair)
{
    psd_layout_free(&pair->src);
    psd_layout_free(&pair->dst);
}

psd_status model_read_pair(const char *path, model_pair *out, const model_why *why)
{
    reader r = {.path = path, .why = why};
    model_pair pair = {0};
    json_t *root = NULL;
    psd_status status = load(path, &root, why);
    if (status == PSD_OK)
        status = check_keys(&r, root, "a pair",
                            (const char *const[]){"name", "manifest", "note", "src", "dst", NULL});
    if (status == PSD_OK && json_object_get(root, "name") != NULL)
        status = read_name(&r, root, "name", pair.name);
    if (status == PSD_OK && json_object_get(root, "manifest") != NULL)
        status = read_name(&r, root, "manifest", pair.manifest);
    if (status == PSD_OK) {
        snprintf(r.whose, sizeof r.whose, "src: ");
        status = read_layout(&r, json_object_get(root, "src"), &pair.src);
    }
    if (status == PSD_OK) {
        snprintf(r.whose, sizeof r.whose, "dst: ");
        status = read_layout(&r, json_object_get(root, "dst"), &pair.dst);
    }
    json_decref(root);
    if (status == PSD_OK)
        *out = pair;
    else
        model_pair_free(&pair);
    return status;
}
