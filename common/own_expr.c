/* Own expressions, by recursive descent over the text: they are short, and depth is limited. */
#include <stdio.h>
#include <string.h>

#include "common/layout.h"

#define DEEPEST 32 /* nested parentheses */

typedef struct parser {
    const char *text; /* all of it, for sentences */
    const char *at;
    const psd_own_vars *vars; /* NULL: only the form is checked, and values mean nothing */
    int depth;
    bool failed;
    char *why;
    size_t why_bytes;
} parser;

static int64_t fail(parser *p, const char *what)
{
    if (!p->failed)
        (void)snprintf(p->why, p->why_bytes, "Own(%s): %s", p->text, what);
    p->failed = true;
    return 0;
}

static char peek(parser *p)
{
    while (*p->at == ' ' || *p->at == '\t')
        p->at++;
    return *p->at;
}

static int64_t number(parser *p)
{
    int64_t value = 0;
    for (; *p->at >= '0' && *p->at <= '9'; p->at++) {
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, *p->at - '0', &value))
            return fail(p, "a number is too large");
    }
    return value;
}

static int64_t variable(parser *p)
{
    size_t length = 0;
    while (p->at[length] >= 'a' && p->at[length] <= 'z')
        length++;
    const char *name = p->at;
    p->at += length;
    int64_t value = 0;
    if (length == 5 && memcmp(name, "layer", 5) == 0)
        value = p->vars != NULL ? p->vars->layer : 0;
    else if (length == 6 && memcmp(name, "expert", 6) == 0)
        value = p->vars != NULL ? p->vars->expert : 0;
    else if (length == 1 && *name == 'n')
        value = p->vars != NULL ? p->vars->n : 1;
    else
        return fail(p, "only layer, expert and n are known here");
    if (value < 0)
        return fail(p, length == 5 ? "the tensor's name has no number for layer"
                                   : "the tensor's name has no second number, for expert");
    return value;
}

static int64_t sum(parser *p);

static int64_t atom(parser *p)
{
    char c = peek(p);
    if (c >= '0' && c <= '9')
        return number(p);
    if (c >= 'a' && c <= 'z')
        return variable(p);
    if (c != '(')
        return fail(p, c == '\0' ? "a value is missing at its end" : "a value is missing");
    if (++p->depth > DEEPEST)
        return fail(p, "too many parentheses");
    p->at++;
    int64_t value = sum(p);
    if (!p->failed && peek(p) != ')')
        return fail(p, "a ) is missing");
    p->at++;
    p->depth--;
    return value;
}

static int64_t apply(parser *p, char op, int64_t a, int64_t b)
{
    int64_t value = 0;
    if (p->vars == NULL || p->failed)
        return 0;
    if ((op == '/' || op == '%') && b == 0)
        return fail(p, "division by zero");
    bool over = op == '+'   ? __builtin_add_overflow(a, b, &value)
                : op == '-' ? __builtin_sub_overflow(a, b, &value)
                : op == '*' ? __builtin_mul_overflow(a, b, &value)
                            : false;
    if (op == '/')
        value = a / b;
    else if (op == '%')
        value = a % b;
    if (over)
        return fail(p, "a result is too large");
    return value < 0 ? fail(p, "an intermediate result is negative") : value;
}

static int64_t product(parser *p)
{
    int64_t value = atom(p);
    for (char op = peek(p); !p->failed && (op == '*' || op == '/' || op == '%'); op = peek(p)) {
        p->at++;
        int64_t right = atom(p);
        value = apply(p, op, value, right);
    }
    return value;
}

static int64_t sum(parser *p)
{
    int64_t value = product(p);
    for (char op = peek(p); !p->failed && (op == '+' || op == '-'); op = peek(p)) {
        p->at++;
        int64_t right = product(p);
        value = apply(p, op, value, right);
    }
    return value;
}

static bool run(const char *text, const psd_own_vars *vars, int64_t *out, char *why, size_t why_bytes)
{
    parser p = {.text = text, .at = text, .vars = vars, .why = why, .why_bytes = why_bytes};
    int64_t value = sum(&p);
    if (!p.failed && peek(&p) != '\0')
        fail(&p, "there is something after its end");
    if (!p.failed)
        *out = value;
    return !p.failed;
}

bool psd_own_check(const char *text, char *why, size_t why_bytes)
{
    int64_t ignored = 0;
    return run(text, NULL, &ignored, why, why_bytes);
}

bool psd_own_value(const char *text, const psd_own_vars *vars, int64_t *out, char *why, size_t why_bytes)
{
    return run(text, vars, out, why, why_bytes);
}
