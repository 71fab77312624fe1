#include <math.h>
#include <stdio.h>

#include "server/psctl/print.h"

static json_t *cell_json(psd_cell_type type, const psd_cell *cell)
{
    switch (type) {
    case PSD_CELL_TEXT:
        return json_string(cell->text);
    case PSD_CELL_REAL:
        return isfinite(cell->real) ? json_real(cell->real) : json_null(); /* JSON has no infinity */
    case PSD_CELL_BOOL:
        return json_boolean(cell->integer != 0);
    case PSD_CELL_INT:
    case PSD_CELL_BYTES:
    case PSD_CELL_NS:
        break;
    }
    return cell->integer < 0 ? json_null() : json_integer(cell->integer);
}

static bool add_rows(json_t *array, const psd_msg_reply *reply, uint32_t limit)
{
    for (uint32_t r = 0; r < reply->row_count; r++) {
        if (limit != 0 && json_array_size(array) >= limit)
            return true;
        json_t *object = json_object();
        if (object == NULL)
            return false;
        const psd_cell *cells = reply->cells + (size_t)r * reply->column_count;
        for (uint32_t c = 0; c < reply->column_count; c++) {
            if (json_object_set_new(object, reply->columns[c].name,
                                    cell_json(reply->columns[c].type, &cells[c])) != 0) {
                json_decref(object);
                return false;
            }
        }
        if (json_array_append_new(array, object) != 0)
            return false;
    }
    return true;
}

json_t *psctl_json_rows(const psctl_answer *answer, uint32_t limit)
{
    json_t *array = json_array();
    bool fine = array != NULL;
    for (size_t i = 0; i < answer->count && fine; i++)
        fine = add_rows(array, &answer->pages[i]->msg.u.reply, limit);
    if (fine)
        return array;
    json_decref(array);
    return NULL;
}

bool psctl_print_json(const psctl_answer *answer, uint32_t limit)
{
    json_t *array = psctl_json_rows(answer, limit);
    bool fine = array != NULL && json_dumpf(array, stdout, JSON_COMPACT | JSON_REAL_PRECISION(17)) == 0;
    json_decref(array);
    putchar('\n');
    return fine;
}
