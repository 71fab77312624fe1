/* psim: runs scenario files through the coordinator's core under virtual time and compares the traces they
 * hold.
 *
 *   psim [--update] FILE|FOLDER...   a scenario is text: "$ command" lines (see script.c), each followed by
 * its trace, indented; --update rewrites the traces psim --scale RANKS               joins that many ranks,
 * opens and closes 20 groups; fails over 100 MB
 */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim.h"

static char *read_all(const char *path)
{
    FILE *in = fopen(path, "r");
    if (in == NULL)
        return NULL;
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    for (int c = getc(in); out != NULL && c != EOF; c = getc(in))
        (void)putc(c, out);
    (void)fclose(in);
    if (out != NULL)
        (void)fclose(out);
    return text;
}

/* The scenario with the traces that the core gives now. */
static char *play(const char *scenario, bool *understood)
{
    char *text = NULL;
    size_t bytes = 0;
    char *script = strdup(scenario);
    FILE *out = open_memstream(&text, &bytes);
    sim *s = malloc(sizeof(*s));
    if (script == NULL || out == NULL || s == NULL || !sim_begin(s, out))
        abort();
    char *save = NULL;
    for (char *line = script; line != NULL; line = save) {
        save = strchr(line, '\n');
        if (save != NULL)
            *save++ = 0;
        if (save == NULL && line[0] == 0)
            break;
        if (line[0] == ' ')
            continue;
        (void)fprintf(out, "%s\n", line);
        if (line[0] == '$' && !script_run(s, line + 1)) {
            (void)fprintf(out, "  NOT UNDERSTOOD\n");
            *understood = false;
        }
    }
    sim_end(s);
    free(s);
    (void)fclose(out);
    free(script);
    return text;
}

static void show_difference(const char *path, const char *wanted, const char *got)
{
    int line = 1;
    size_t start = 0;
    size_t at = 0;
    for (; wanted[at] != 0 && wanted[at] == got[at]; at++)
        if (wanted[at] == '\n') {
            line++;
            start = at + 1;
        }
    (void)printf("FAIL %s: line %d differs (--update takes the new trace)\n  wanted: %.*s\n  got:    %.*s\n",
                 path, line, (int)strcspn(wanted + start, "\n"), wanted + start,
                 (int)strcspn(got + start, "\n"), got + start);
}

static bool run_file(const char *path, bool update)
{
    bool good = true;
    char *wanted = read_all(path);
    if (wanted == NULL) {
        (void)printf("FAIL %s: cannot be read\n", path);
        return false;
    }
    char *got = play(wanted, &good);
    if (!good || strstr(got, "THE REPLAY DIFFERS") != NULL) {
        (void)printf("FAIL %s: a command was not understood, or a replay differs:\n%s", path, got);
        good = false;
    } else if (update && strcmp(wanted, got) != 0) {
        FILE *out = fopen(path, "w");
        good = out != NULL && fputs(got, out) >= 0;
        if (out != NULL)
            good = fclose(out) == 0 && good;
        (void)printf("%s %s\n", good ? "wrote" : "FAIL cannot write", path);
    } else if (strcmp(wanted, got) != 0) {
        show_difference(path, wanted, got);
        good = false;
    } else {
        (void)printf("ok   %s\n", path);
    }
    free(wanted);
    free(got);
    return good;
}

static int is_scenario(const struct dirent *entry)
{
    size_t length = strlen(entry->d_name);
    return length > 4 && strcmp(entry->d_name + length - 4, ".txt") == 0;
}

/* A file, or the scenarios of a folder in the order of their names. */
static void run_path(const char *path, bool update, int *passed, int *failed)
{
    struct dirent **entries = NULL;
    int count = scandir(path, &entries, is_scenario, alphasort);
    if (count < 0) {
        *(run_file(path, update) ? passed : failed) += 1;
        return;
    }
    for (int i = 0; i < count; i++) {
        char file[4096];
        (void)snprintf(file, sizeof(file), "%s/%s", path, entries[i]->d_name);
        *(run_file(file, update) ? passed : failed) += 1;
        free(entries[i]);
    }
    free(entries);
}

int main(int argc, char **argv)
{
    bool update = false;
    int passed = 0;
    int failed = 0;
    if (argc == 3 && strcmp(argv[1], "--scale") == 0)
        return scale_run((uint32_t)strtoul(argv[2], NULL, 10));
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--update") == 0)
            update = true;
        else
            run_path(argv[i], update, &passed, &failed);
    }
    if (passed + failed == 0) {
        (void)fprintf(stderr, "usage: psim [--update] FILE|FOLDER... | psim --scale RANKS\n");
        return 2;
    }
    (void)printf("%d passed, %d failed\n", passed, failed);
    return failed == 0 ? 0 : 1;
}
