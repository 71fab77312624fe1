#include "worker/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/conf.h"
#include "worker/backend/backend.h"

/* The context's fields that the first psd.h had: a program built against it passes this size. */
#define CONFIG_BYTES_MIN (offsetof(psd_config, pool_limit) + sizeof(int64_t))

#define DEFAULT_JOIN_MS         INT64_C(60000)
#define DEFAULT_TIMEOUT_MS      INT64_C(600000)
#define DEFAULT_EAGER_BYTES     INT64_C(65536)
#define DEFAULT_REPORT_AFTER_MS 200
#define MOST_DEVICES            1024

/* Where complaints go while settings are read; the first one stays. */
typedef struct reader {
    char *why;
    size_t why_bytes;
    psd_status status;
} reader;

static void complain(reader *r, const char *source, const char *value, const char *expected)
{
    if (r->status != PSD_OK)
        return;
    char echo[PSD_ECHO_BYTES];
    snprintf(r->why, r->why_bytes, "%s is \"%s\"; %s", source, psd_echo(value, echo, sizeof echo), expected);
    r->status = PSD_ERR_INVAL;
}

/* The first of these variables that is set and not empty; NULL if none is. */
static const char *first_env(const char *const *names, const char **source)
{
    for (int i = 0; names[i] != NULL; i++) {
        const char *value = getenv(names[i]);
        if (value != NULL && value[0] != '\0') {
            *source = names[i];
            return value;
        }
    }
    return NULL;
}

/* From the first of these variables that is set: its name, or NULL and *out stays. */
static const char *take_number(reader *r, const char *const *names, int64_t min, int64_t max,
                               const char *expected, int64_t *out)
{
    const char *source = NULL;
    const char *value = first_env(names, &source);
    if (value != NULL && !psd_parse_i64(value, min, max, out))
        complain(r, source, value, expected);
    return source;
}

/* A text from the config's field, else from the variable, else the default. */
static void take_text(reader *r, const char *field, const char *given, const char *variable,
                      const char *fallback, char *out, size_t out_bytes)
{
    const char *source = field;
    const char *value = given;
    if (value == NULL || value[0] == '\0') {
        source = variable;
        value = getenv(variable);
    }
    if (value == NULL || value[0] == '\0')
        value = fallback;
    if (strlen(value) >= out_bytes) {
        complain(r, source, value, "it is too long");
        return;
    }
    memmove(out, value, strlen(value) + 1);
}

static void take_name(reader *r, const char *field, const char *given, const char *variable,
                      const char *fallback, char *out)
{
    take_text(r, field, given, variable, fallback, out, PSD_MAX_NAME);
    if (r->status == PSD_OK && !psd_name_valid(out))
        complain(r, given != NULL && given[0] != '\0' ? field : variable, out,
                 "a name has 1 to 63 of the characters A-Z a-z 0-9 . _ -");
}

/* host-pid-random: unique, so that two workers never claim each other's rank. */
static void make_name(const char *host, char *out)
{
    uint32_t noise = 0;
    if (getrandom(&noise, sizeof noise, 0) != (ssize_t)sizeof noise)
        noise = (uint32_t)getpid() * 2654435761u;
    snprintf(out, PSD_MAX_NAME, "%.32s-%ld-%08x", host, (long)getpid(), noise);
    for (char *c = out; *c != '\0'; c++) {
        char one[2] = {*c, '\0'};
        if (!psd_name_valid(one))
            *c = '-';
    }
}

static void read_host(char *out)
{
    if (gethostname(out, PSD_MAX_NAME) != 0 || out[0] == '\0')
        snprintf(out, PSD_MAX_NAME, "localhost");
    out[PSD_MAX_NAME - 1] = '\0';
    if (!psd_utf8_valid(out, strlen(out)))
        snprintf(out, PSD_MAX_NAME, "unnamed");
}

static void check_coordinator(reader *r, const char *source, const char *endpoint)
{
    char host[192];
    uint16_t port = 0;
    if (!psd_parse_endpoint(endpoint, host, sizeof host, &port) || port == 0 || strcmp(host, "*") == 0)
        complain(r, source, endpoint, "give psd's address as tcp://host:port or tcp://[v6]:port");
}

static void read_coordinator(reader *r, const psd_config *config, psd_settings *out)
{
    const char *address = getenv("MASTER_ADDR");
    const char *port = getenv("MASTER_PORT");
    take_text(r, "config.coordinator", config->coordinator, "PSD_COORDINATOR", "", out->coordinator,
              sizeof out->coordinator);
    if (out->coordinator[0] != '\0') {
        bool is_given = config->coordinator != NULL && config->coordinator[0] != '\0';
        check_coordinator(r, is_given ? "config.coordinator" : "PSD_COORDINATOR", out->coordinator);
        return;
    }
    bool has_address = address != NULL && address[0] != '\0';
    bool has_port = port != NULL && port[0] != '\0';
    if (!has_address && !has_port) {
        snprintf(out->coordinator, sizeof out->coordinator, "tcp://127.0.0.1:5577");
        return;
    }
    if (!has_address || !has_port) {
        complain(r, has_port ? "MASTER_PORT" : "MASTER_ADDR", has_port ? port : address,
                 has_port ? "MASTER_ADDR is not set; set both to psd's address, or PSD_COORDINATOR"
                          : "MASTER_PORT is not set; set both to psd's address, or PSD_COORDINATOR");
        return;
    }
    int64_t number = 0;
    if (!psd_parse_i64(port, 1, 65535, &number))
        complain(r, "MASTER_PORT", port, "it is psd's port, 1 to 65535");
    bool bare_v6 = strchr(address, ':') != NULL && address[0] != '[';
    int used = snprintf(out->coordinator, sizeof out->coordinator, bare_v6 ? "tcp://[%s]:%d" : "tcp://%s:%d",
                        address, (int)number);
    if (used < 0 || (size_t)used >= sizeof out->coordinator)
        complain(r, "MASTER_ADDR", address, "it is too long");
    check_coordinator(r, "MASTER_ADDR:MASTER_PORT", out->coordinator);
}

/* A rank needs a world that it is in; forgetting to say how large that is, is the likeliest slip. */
static void check_rank(reader *r, const char *source, int64_t rank, int64_t world, bool has_world)
{
    char text[32], expected[160];
    if (rank >= -1 && rank < world)
        return;
    snprintf(text, sizeof text, "%lld", (long long)rank);
    if (has_world)
        snprintf(expected, sizeof expected, "with a world of %lld it is 0 to %lld, or -1 to let psd choose",
                 (long long)world, (long long)world - 1);
    else
        snprintf(expected, sizeof expected,
                 "WORLD_SIZE is not set, and the world then has 1 rank; set WORLD_SIZE or PSD_WORLD_SIZE "
                 "to the number of ranks");
    complain(r, source, text, expected);
}

static void read_place(reader *r, const psd_config *config, psd_settings *out)
{
    /* mpirun's before Slurm's: under it, in an allocation, Slurm's are those of what starts the ranks. */
    static const char *const world_names[] = {"PSD_WORLD_SIZE", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE",
                                              "SLURM_NTASKS", NULL};
    static const char *const rank_names[] = {
        "PSD_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX", NULL};
    static const char *const local_names[] = {"PSD_LOCAL_RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
                                              "SLURM_LOCALID", NULL};
    int64_t world = config->world_size != 0 ? config->world_size : 1;
    int64_t rank = config->rank;
    int64_t local = 0;
    bool has_world = config->world_size != 0;
    const char *rank_source = NULL;
    if (config->world_size == 0)
        has_world = take_number(r, world_names, 1, PSD_MAX_WORLD, "the number of ranks is 1 to 1048576",
                                &world) != NULL;
    if (config->rank == -1)
        rank_source =
            take_number(r, rank_names, -1, PSD_MAX_WORLD - 1, "a rank is 0 to the world size minus 1", &rank);
    out->local_rank_is_known =
        take_number(r, local_names, 0, PSD_MAX_WORLD - 1, "a local rank is 0 or more", &local) != NULL;
    char text[32];
    if (world < 1 || world > PSD_MAX_WORLD) {
        snprintf(text, sizeof text, "%lld", (long long)world);
        complain(r, "config.world_size", text, "the number of ranks is 1 to 1048576");
    }
    check_rank(r, rank_source != NULL ? rank_source : "config.rank", rank, world, has_world);
    out->rank = (int32_t)rank;
    out->world_size = (int32_t)world;
    out->local_rank = (int32_t)local;
}

/* A timeout from the config's field, else from the variable, else the default. */
static int64_t take_ms(reader *r, int64_t given, const char *variable, int64_t fallback)
{
    const char *value = getenv(variable);
    int64_t ms = fallback;
    if (given != 0)
        return given;
    if (value != NULL && value[0] != '\0' && !psd_parse_ms(value, &ms) && !psd_parse_i64(value, -1, -1, &ms))
        complain(r, variable, value,
                 psd_number_is_huge(value) ? "it is too large; -1 waits for ever"
                                           : "write milliseconds, or 30s, 5m; -1 waits for ever");
    return ms != 0 ? ms : fallback;
}

/* Half of what this process may use: of the machine, or of its control group if that is less. */
static int64_t half_of_memory(void)
{
    int64_t bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
    FILE *limit = fopen("/sys/fs/cgroup/memory.max", "re");
    long long group = 0;
    if (limit != NULL) {
        if (fscanf(limit, "%lld", &group) == 1 && group > 0 && group < bytes)
            bytes = group;
        fclose(limit);
    }
    return bytes > 0 ? bytes / 2 : INT64_C(1) << 30;
}

static void take_bytes(reader *r, const char *variable, int64_t *out)
{
    const char *value = getenv(variable);
    if (value != NULL && value[0] != '\0' && !psd_parse_bytes(value, out))
        complain(r, variable, value, "write bytes, or 64K, 1.5M, 2G");
}

static void read_memory(reader *r, const psd_config *config, psd_settings *out)
{
    out->eager_limit = DEFAULT_EAGER_BYTES;
    take_bytes(r, "PSD_EAGER_LIMIT", &out->eager_limit);
    out->pool_limit = config->pool_limit;
    if (config->pool_limit < 0) {
        char text[32];
        snprintf(text, sizeof text, "%lld", (long long)config->pool_limit);
        complain(r, "config.pool_limit", text, "it is bytes, or 0 for half of the memory");
    }
    if (out->pool_limit == 0)
        take_bytes(r, "PSD_POOL_LIMIT", &out->pool_limit);
    out->pool_limit_is_default = out->pool_limit == 0;
    if (out->pool_limit_is_default)
        out->pool_limit = half_of_memory();
}

static void read_recorder(reader *r, psd_settings *out)
{
    take_text(r, "", NULL, "PSD_RUN_DIR", "", out->run_dir, sizeof out->run_dir);
    const char *record = getenv("PSD_RECORD");
    out->record_off = record != NULL && strcmp(record, "off") == 0;
    if (record != NULL && record[0] != '\0' && !out->record_off && strcmp(record, "on") != 0)
        complain(r, "PSD_RECORD", record, "it is on or off");
}

/* What becomes of a wait that lasts. */
static void read_hang(reader *r, psd_settings *out)
{
    static const char *const after[] = {"PSD_REPORT_AFTER_MS", NULL};
    const char *policy = getenv("PSD_ON_HANG");
    out->report_after_ms = DEFAULT_REPORT_AFTER_MS;
    take_number(r, after, 1, INT32_MAX, "it is milliseconds, 1 or more", &out->report_after_ms);
    out->hang_report_only = policy != NULL && strcmp(policy, "report") == 0;
    if (policy != NULL && policy[0] != '\0' && !out->hang_report_only && strcmp(policy, "abort") != 0)
        complain(r, "PSD_ON_HANG", policy, "it is abort or report");
}

static void read_backend(reader *r, const psd_config *config, psd_settings *out)
{
    take_text(r, "config.backend", config->backend, "PSD_BACKEND", "auto", out->backend, sizeof out->backend);
    take_text(r, "", NULL, "PSD_DATA_HOST", "", out->data_host, sizeof out->data_host);
    take_text(r, "", NULL, "PSD_HOST_TRANSPORT", "auto", out->transport, sizeof out->transport);
    if (r->status == PSD_OK && strcmp(out->transport, "auto") != 0 && strcmp(out->transport, "shm") != 0 &&
        strcmp(out->transport, "tcp") != 0)
        complain(r, "PSD_HOST_TRANSPORT", out->transport, "it is auto, shm or tcp");
    take_bytes(r, "PSD_HOST_RING", &out->ring_bytes);
    bool is_power = out->ring_bytes > 0 && (out->ring_bytes & (out->ring_bytes - 1)) == 0;
    if (out->ring_bytes != 0 &&
        (!is_power || out->ring_bytes < PSD_RING_BYTES_MIN || out->ring_bytes > PSD_RING_BYTES_MAX))
        complain(r, "PSD_HOST_RING", getenv("PSD_HOST_RING"), "it is a power of two from 4K to 1G");
    take_text(r, "", NULL, "PSD_DEVICE", "", out->device, sizeof out->device);
    int64_t device = 0;
    if (r->status == PSD_OK && out->device[0] != '\0' &&
        !psd_parse_i64(out->device, 0, MOST_DEVICES - 1, &device))
        complain(r, "PSD_DEVICE", out->device, "it is the index of a device of this host, 0 or more");
}

void psd_config_init(psd_config *config)
{
    if (config == NULL)
        return;
    memset(config, 0, sizeof *config);
    config->size = sizeof *config;
    config->rank = -1;
}

psd_status psd_settings_read(const psd_config *config, psd_settings *out, char *why, size_t why_bytes)
{
    psd_config given;
    psd_config_init(&given);
    if (config != NULL && (config->size < CONFIG_BYTES_MIN || config->size > sizeof given)) {
        snprintf(why, why_bytes,
                 "config.size is %zu, this library knows %zu; call psd_config_init, or build the program "
                 "against the psd.h of this library",
                 config->size, sizeof given);
        return PSD_ERR_INVAL;
    }
    if (config != NULL)
        memcpy(&given, config, config->size);

    reader r = {why, why_bytes, PSD_OK};
    psd_settings settings = {0};
    char unique[PSD_MAX_NAME];
    read_host(settings.host);
    make_name(settings.host, unique);
    read_coordinator(&r, &given, &settings);
    take_name(&r, "config.job", given.job, "PSD_JOB", "default", settings.job);
    take_name(&r, "config.name", given.name, "PSD_NAME", unique, settings.name);
    take_name(&r, "config.role", given.role, "PSD_ROLE", "worker", settings.role);
    read_place(&r, &given, &settings);
    settings.join_timeout_ms = take_ms(&r, given.join_timeout_ms, "PSD_JOIN_TIMEOUT_MS", DEFAULT_JOIN_MS);
    settings.timeout_ms = take_ms(&r, given.timeout_ms, "PSD_TIMEOUT_MS", DEFAULT_TIMEOUT_MS);
    read_memory(&r, &given, &settings);
    read_recorder(&r, &settings);
    read_hang(&r, &settings);
    read_backend(&r, &given, &settings);
    if (r.status == PSD_OK)
        *out = settings;
    return r.status;
}
