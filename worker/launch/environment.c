#include "worker/launch/environment.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/conf.h"

#define VARIABLE_BYTES 512

void psd_strings_free(psd_strings *strings)
{
    for (size_t i = 0; i < strings->count; i++)
        free(strings->items[i]);
    free(strings->items);
    *strings = (psd_strings){0};
}

/* Takes a malloc'ed string, or NULL for out of memory. */
static bool take(psd_strings *strings, char *item)
{
    if (item == NULL)
        return false;
    if (strings->count + 1 >= strings->capacity) {
        size_t capacity = strings->capacity == 0 ? 64 : strings->capacity * 2;
        char **grown = realloc(strings->items, capacity * sizeof(char *));
        if (grown == NULL) {
            free(item);
            return false;
        }
        strings->items = grown;
        strings->capacity = capacity;
    }
    strings->items[strings->count++] = item;
    strings->items[strings->count] = NULL;
    return true;
}

static bool set(psd_strings *strings, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static bool set(psd_strings *strings, const char *name, const char *format, ...)
{
    char text[VARIABLE_BYTES];
    va_list args;
    int length = snprintf(text, sizeof(text), "%s=", name);
    va_start(args, format);
    vsnprintf(text + length, sizeof(text) - (size_t)length, format, args);
    va_end(args);
    return take(strings, strdup(text));
}

/* The ranks of this host in blocks: the first world % hosts of them have one more. */
void psd_launch_place(const psd_launch_args *args, int32_t rank, psd_launch_rank *out)
{
    *out = (psd_launch_rank){.rank = rank, .local_rank = rank, .local_world = args->world};
    int32_t first = 0;
    for (int i = 0; i < args->app_count; i++) {
        if (rank < first + args->apps[i].ranks) {
            out->app = &args->apps[i];
            break;
        }
        first += args->apps[i].ranks;
    }
    int32_t start = 0;
    for (int i = 0; i < args->host_count; i++) {
        int32_t here = args->world / args->host_count + (i < args->world % args->host_count ? 1 : 0);
        if (rank < start + here) {
            out->host = args->hosts[i];
            out->local_rank = rank - start;
            out->local_world = here;
            break;
        }
        start += here;
    }
}

static bool rank_variables(const psd_launch_args *args, const psd_launch_rank *rank, psd_strings *out)
{
    char host[256];
    uint16_t port = 0;
    /* MASTER_ADDR and MASTER_PORT are psd's address, as libpsd reads them. Checked when the options were
     * parsed. */
    if (!psd_parse_endpoint(args->coordinator, host, sizeof(host), &port))
        return false;
    return set(out, "PSD_COORDINATOR", "%s", args->coordinator) && set(out, "PSD_JOB", "%s", args->job) &&
           set(out, "PSD_ROLE", "%s", rank->app->role == NULL ? "worker" : rank->app->role) &&
           set(out, "PSD_RANK", "%d", rank->rank) && set(out, "PSD_WORLD_SIZE", "%d", args->world) &&
           set(out, "PSD_LOCAL_RANK", "%d", rank->local_rank) && set(out, "RANK", "%d", rank->rank) &&
           set(out, "LOCAL_RANK", "%d", rank->local_rank) && set(out, "WORLD_SIZE", "%d", args->world) &&
           set(out, "LOCAL_WORLD_SIZE", "%d", rank->local_world) && set(out, "MASTER_ADDR", "%s", host) &&
           set(out, "MASTER_PORT", "%u", (unsigned)port);
}

static bool is_set(const psd_strings *strings, size_t count, const char *variable)
{
    size_t name = strcspn(variable, "=");
    for (size_t i = 0; i < count; i++)
        if (strncmp(strings->items[i], variable, name) == 0 && strings->items[i][name] == '=')
            return true;
    return false;
}

/* Adds what this process's environment has besides, if it begins with `prefix`. */
static bool inherit(psd_strings *out, const char *prefix)
{
    size_t own = out->count;
    for (char **variable = environ; *variable != NULL; variable++)
        if (strncmp(*variable, prefix, strlen(prefix)) == 0 && !is_set(out, own, *variable) &&
            !take(out, strdup(*variable)))
            return false;
    return true;
}

bool psd_launch_environment(const psd_launch_args *args, const psd_launch_rank *rank, psd_strings *out)
{
    *out = (psd_strings){0};
    if (rank_variables(args, rank, out) && inherit(out, ""))
        return true;
    psd_strings_free(out);
    return false;
}

/* Appends `word` in single quotes. The buffer grows. */
static bool append_quoted(char **text, size_t *length, const char *word)
{
    char *grown = realloc(*text, *length + 4 * strlen(word) + 4);
    if (grown == NULL)
        return false;
    *text = grown;
    char *at = grown + *length;
    if (*length > 0)
        *at++ = ' ';
    *at++ = '\'';
    for (; *word != '\0'; word++) {
        if (*word == '\'') {
            memcpy(at, "'\\''", 4);
            at += 4;
        } else {
            *at++ = *word;
        }
    }
    *at++ = '\'';
    *at = '\0';
    *length = (size_t)(at - grown);
    return true;
}

/* env 'PSD_RANK=0' ... 'program' 'argument' ... NULL: out of memory. */
static char *remote_command(const psd_launch_args *args, const psd_launch_rank *rank)
{
    psd_strings variables = {0};
    char *text = strdup("env");
    size_t length = 3;
    bool ok = text != NULL && rank_variables(args, rank, &variables) && inherit(&variables, "PSD_");
    for (size_t i = 0; i < variables.count && ok; i++)
        ok = append_quoted(&text, &length, variables.items[i]);
    for (char **word = rank->app->argv; *word != NULL && ok; word++)
        ok = append_quoted(&text, &length, *word);
    psd_strings_free(&variables);
    if (ok)
        return text;
    free(text);
    return NULL;
}

/* A word of the template with every `mark` replaced. Takes and frees `word`; NULL in, NULL out. */
static char *replace(char *word, const char *mark, const char *with)
{
    char *found = word == NULL ? NULL : strstr(word, mark);
    while (found != NULL) {
        size_t before = (size_t)(found - word);
        size_t bytes = strlen(word) - strlen(mark) + strlen(with) + 1;
        char *made = malloc(bytes);
        if (made != NULL)
            snprintf(made, bytes, "%.*s%s%s", (int)before, word, with, found + strlen(mark));
        free(word);
        word = made;
        found = word == NULL ? NULL : strstr(word + before + strlen(with), mark);
    }
    return word;
}

bool psd_launch_remote(const psd_launch_args *args, const psd_launch_rank *rank, psd_strings *out)
{
    *out = (psd_strings){0};
    char *rest = NULL;
    char *template = strdup(args->rsh);
    char *command = remote_command(args, rank);
    bool ok = template != NULL && command != NULL;
    for (char *word = ok ? strtok_r(template, " \t", &rest) : NULL; word != NULL && ok;
         word = strtok_r(NULL, " \t", &rest)) {
        /* The host first: what the command contains is not looked at. */
        char *filled = replace(strdup(word), "{host}", rank->host);
        ok = take(out, replace(filled, "{command}", command));
    }
    free(template);
    free(command);
    if (!ok)
        psd_strings_free(out);
    return ok;
}
