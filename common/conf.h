/* Parsing of what people write: numbers, sizes, durations, addresses. Every parser takes the whole string or
 * fails, and writes its result only when it succeeds. */
#ifndef PSD_COMMON_CONF_H
#define PSD_COMMON_CONF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool psd_parse_i64(const char *text, int64_t min, int64_t max, int64_t *out);
/* "65536", "64K", "1.5M", "2G", with powers of 1024 and an optional B or iB. */
bool psd_parse_bytes(const char *text, int64_t *out);
/* "250ms", "5s", "2m", "1h"; a bare number is milliseconds. */
bool psd_parse_ms(const char *text, int64_t *out);
/* For what a parser has refused: does it begin with a number that is beyond any use? */
bool psd_number_is_huge(const char *text);
// tcp://host:port, tcp://[v6]:port or tcp://*:port; port 0 to 65535, "*" also for the port (0).
bool psd_parse_endpoint(const char *text, char *host, size_t host_bytes, uint16_t *port);
/* 1 to PSD_MAX_NAME - 1 bytes of [A-Za-z0-9._-]: job, worker, role and table names. */
bool psd_name_valid(const char *text);
bool psd_utf8_valid(const char *text, size_t bytes);
/* Bytes before the first that is not UTF-8. */
size_t psd_utf8_prefix(const char *text, size_t bytes);

/* For people: "64 MiB", "1.5 s", "250 ms". Returns out. */
char *psd_format_bytes(int64_t bytes, char *out, size_t out_bytes);
char *psd_format_ns(int64_t ns, char *out, size_t out_bytes);

/* `text` for a sentence: bytes that are not UTF-8 and control characters as \xff, and "..." at the end where it does
 * not fit. Returns out. */
char *psd_echo(const char *text, char *out, size_t out_bytes);
#define PSD_ECHO_BYTES 104 /* for arguments and variables that are quoted */

/* What is wrong, after getopt_long has returned '?' or ':' (which the option string begins with) and left `optopt`;
 * `argument` is argv[optind - 1]. Long options have values below ' '. Returns out. */
char *psd_option_error(int result, int optopt_left, const char *argument, char *out, size_t out_bytes);

/* snprintf that appends at the end of `out`; cuts, never overflows. */
void psd_append(char *out, size_t out_bytes, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
