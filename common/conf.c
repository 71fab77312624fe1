#include "common/conf.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/psd_types.h"

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

bool psd_parse_i64(const char *text, int64_t min, int64_t max, int64_t *out)
{
    /* strtoll takes leading blanks and a plus; people do not write those here. */
    if (!is_digit(text[0]) && !(text[0] == '-' && is_digit(text[1])))
        return false;
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno != 0 || *end != '\0' || value < min || value > max)
        return false;
    *out = value;
    return true;
}

/* "12" or "1.25" into thousandths, cut after three decimals; returns where it ended, NULL if there is no
 * number. */
static const char *parse_thousandths(const char *text, int64_t *out)
{
    int64_t value = 0;
    if (!is_digit(*text))
        return NULL;
    for (; is_digit(*text); text++) {
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, *text - '0', &value))
            return NULL;
    }
    if (__builtin_mul_overflow(value, 1000, &value))
        return NULL;
    if (*text == '.') {
        if (!is_digit(*++text))
            return NULL;
        for (int64_t unit = 100; is_digit(*text); text++, unit /= 10) {
            if (__builtin_add_overflow(value, (*text - '0') * unit, &value))
                return NULL;
        }
    }
    *out = value;
    return text;
}

bool psd_number_is_huge(const char *text)
{
    enum { DIGITS = 13 }; /* of hours, milliseconds in 64 bits have as many */
    text += strspn(text, "0");
    return strspn(text, "0123456789") >= DIGITS;
}

/* value / 1000 * unit without overflow on the way. */
static bool scale(int64_t thousandths, int64_t unit, int64_t *out)
{
    int64_t whole;
    int64_t part;
    if (__builtin_mul_overflow(thousandths / 1000, unit, &whole) ||
        __builtin_mul_overflow(thousandths % 1000, unit, &part))
        return false;
    return !__builtin_add_overflow(whole, part / 1000, out);
}

bool psd_parse_bytes(const char *text, int64_t *out)
{
    static const char letters[] = "KMGTP";
    int64_t thousandths;
    int64_t unit = 1;
    const char *end = parse_thousandths(text, &thousandths);
    if (end == NULL)
        return false;
    for (int i = 0; letters[i] != '\0'; i++) {
        if (*end == letters[i] || *end == letters[i] + ('a' - 'A')) {
            unit = INT64_C(1) << (10 * (i + 1));
            end++;
            break;
        }
    }
    bool suffix = *end == '\0' || strcasecmp(end, "B") == 0 || (unit > 1 && strcasecmp(end, "iB") == 0);
    if (!suffix || (unit == 1 && thousandths % 1000 != 0))
        return false;
    return scale(thousandths, unit, out);
}

bool psd_parse_ms(const char *text, int64_t *out)
{
    static const struct {
        const char *name;
        int64_t ms;
    } units[] = {{"", 1}, {"ms", 1}, {"s", 1000}, {"m", 60000}, {"min", 60000}, {"h", 3600000}};
    int64_t thousandths;
    const char *end = parse_thousandths(text, &thousandths);
    if (end == NULL)
        return false;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strcmp(end, units[i].name) == 0)
            return scale(thousandths, units[i].ms, out);
    }
    return false;
}

bool psd_parse_endpoint(const char *text, char *host, size_t host_bytes, uint16_t *port)
{
    static const char scheme[] = "tcp://";
    if (strncmp(text, scheme, sizeof scheme - 1) != 0)
        return false;
    const char *name = text + sizeof scheme - 1;
    const char *colon = strrchr(name, ':');
    if (colon == NULL)
        return false;
    size_t bytes = (size_t)(colon - name);
    if (name[0] == '[') {
        if (bytes < 3 || colon[-1] != ']')
            return false;
        name++;
        bytes -= 2;
    } else if (memchr(name, ':', bytes) != NULL) {
        return false; /* an IPv6 address is written in brackets */
    }
    if (bytes == 0 || bytes >= host_bytes)
        return false;
    for (size_t i = 0; i < bytes; i++) {
        if ((unsigned char)name[i] <= ' ' || strchr("[]/@;\x7f", name[i]) != NULL)
            return false;
    }
    int64_t number = 0;
    if (strcmp(colon + 1, "*") != 0 && !psd_parse_i64(colon + 1, 0, UINT16_MAX, &number))
        return false;
    memcpy(host, name, bytes);
    host[bytes] = '\0';
    *port = (uint16_t)number;
    return true;
}

bool psd_name_valid(const char *text)
{
    size_t bytes = 0;
    for (; text[bytes] != '\0'; bytes++) {
        char c = text[bytes];
        bool ok = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || is_digit(c) || c == '.' || c == '_' ||
                  c == '-';
        if (!ok || bytes >= PSD_MAX_NAME - 1)
            return false;
    }
    return bytes > 0;
}

/* Length of the UTF-8 sequence at text, 0 if there is none: no overlong forms, surrogates or values above
 * U+10FFFF (table 3-7 of the Unicode standard). */
static size_t utf8_sequence(const unsigned char *text, size_t left)
{
    unsigned char first = text[0];
    unsigned char low = 0x80;
    unsigned char high = 0xbf;
    size_t bytes;
    if (first < 0x80)
        return 1;
    if (first >= 0xc2 && first <= 0xdf)
        bytes = 2;
    else if (first >= 0xe0 && first <= 0xef)
        bytes = 3;
    else if (first >= 0xf0 && first <= 0xf4)
        bytes = 4;
    else
        return 0;
    if (first == 0xe0)
        low = 0xa0;
    else if (first == 0xed)
        high = 0x9f;
    else if (first == 0xf0)
        low = 0x90;
    else if (first == 0xf4)
        high = 0x8f;
    if (bytes > left || text[1] < low || text[1] > high)
        return 0;
    for (size_t i = 2; i < bytes; i++) {
        if (text[i] < 0x80 || text[i] > 0xbf)
            return 0;
    }
    return bytes;
}

size_t psd_utf8_prefix(const char *text, size_t bytes)
{
    size_t at = 0;
    while (at < bytes) {
        size_t step = utf8_sequence((const unsigned char *)text + at, bytes - at);
        if (step == 0)
            break;
        at += step;
    }
    return at;
}

bool psd_utf8_valid(const char *text, size_t bytes)
{
    return psd_utf8_prefix(text, bytes) == bytes;
}

/* One character of psd_echo, at most four bytes long; *text moves on. */
static size_t echo_one(const char **text, char *out)
{
    const unsigned char *at = (const unsigned char *)*text;
    size_t bytes = utf8_sequence(at, strnlen(*text, 4));
    bool is_control = at[0] < ' ' || at[0] == 0x7f || (bytes == 2 && at[0] == 0xc2 && at[1] < 0xa0);
    if (bytes == 0 || is_control) {
        snprintf(out, 5, "\\x%02x", at[0]);
        *text += 1;
        return 4;
    }
    memcpy(out, at, bytes);
    *text += bytes;
    return bytes;
}

char *psd_echo(const char *text, char *out, size_t out_bytes)
{
    size_t used = 0;
    size_t fits = 0; /* where "..." can still go */
    out[0] = '\0';
    while (*text != '\0') {
        char one[5];
        size_t bytes = echo_one(&text, one);
        if (used + 4 <= out_bytes)
            fits = used;
        if (used + bytes >= out_bytes) {
            snprintf(out + fits, out_bytes - fits, "...");
            return out;
        }
        memcpy(out + used, one, bytes);
        used += bytes;
        out[used] = '\0';
    }
    return out;
}

char *psd_option_error(int result, int optopt_left, const char *argument, char *out, size_t out_bytes)
{
    const char letter[] = {'-', (char)optopt_left, '\0'};
    bool is_letter = optopt_left > ' ';
    char echo[PSD_ECHO_BYTES];
    psd_echo(is_letter && result == '?' ? letter : argument, echo, sizeof echo);
    const char *what = "is not an option";
    if (result == ':')
        what = "needs a value";
    else if (optopt_left != 0 && !is_letter)
        what = "takes no value";
    snprintf(out, out_bytes, "\"%s\" %s", echo, what);
    return out;
}

/* "1.5 unit", without a decimal where it would be 0. */
static char *format_tenths(double value, const char *unit, char *out, size_t out_bytes)
{
    char number[32];
    snprintf(number, sizeof number, "%.1f", value);
    size_t bytes = strlen(number);
    if (bytes > 2 && strcmp(number + bytes - 2, ".0") == 0)
        number[bytes - 2] = '\0';
    snprintf(out, out_bytes, "%s %s", number, unit);
    return out;
}

char *psd_format_bytes(int64_t bytes, char *out, size_t out_bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    size_t unit = 0;
    /* 1023.95 would be printed as 1024 of the smaller unit. */
    while ((value >= 1023.95 || value <= -1023.95) && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024;
        unit++;
    }
    return format_tenths(value, units[unit], out, out_bytes);
}

char *psd_format_ns(int64_t ns, char *out, size_t out_bytes)
{
    static const char *const units[] = {"ns", "us", "ms", "s"};
    double value = (double)ns;
    size_t unit = 0;
    while ((value >= 999.95 || value <= -999.95) && unit < 3) {
        value /= 1000;
        unit++;
    }
    int64_t seconds = ns / INT64_C(1000000000);
    if (seconds >= 3600)
        snprintf(out, out_bytes, "%" PRId64 "h %02" PRId64 "m", seconds / 3600, seconds / 60 % 60);
    else if (seconds >= 60)
        snprintf(out, out_bytes, "%" PRId64 "m %02" PRId64 "s", seconds / 60, seconds % 60);
    else
        format_tenths(value, units[unit], out, out_bytes);
    return out;
}

void psd_append(char *out, size_t out_bytes, const char *format, ...)
{
    size_t used = strnlen(out, out_bytes);
    if (used >= out_bytes)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(out + used, out_bytes - used, format, args);
    va_end(args);
}
