/* What a piece of an atom means: the compiler, the checker and whoever runs a plan read it the same way. */
#include "server/core/reshard.h"

/* The part of the range before the first whole row, whole rows, the part after
 * the last one, of which the two parts are ranges of one row of the dimension below. */
static int cut_boxes(const psd_box *box, int ndim, int d, int64_t lo, int64_t hi, psd_box *out)
{
    psd_box b = *box;
    int64_t row = 1;
    int count = 0;
    if (lo >= hi)
        return 0;
    for (int i = d + 1; i < ndim; i++)
        row *= box->hi[i] - box->lo[i];
    if (d >= ndim) {
        out[0] = b;
        return 1;
    }
    int64_t first = lo / row, last = hi / row;
    if (first == last) { /* within one row */
        b.lo[d] = box->lo[d] + first;
        b.hi[d] = b.lo[d] + 1;
        return cut_boxes(&b, ndim, d + 1, lo - first * row, hi - first * row, out);
    }
    if (lo % row != 0) {
        b.lo[d] = box->lo[d] + first;
        b.hi[d] = b.lo[d] + 1;
        count += cut_boxes(&b, ndim, d + 1, lo % row, row, out);
        first++;
    }
    if (first < last) {
        b = *box;
        b.lo[d] = box->lo[d] + first;
        b.hi[d] = box->lo[d] + last;
        out[count++] = b;
    }
    if (hi % row != 0) {
        b = *box;
        b.lo[d] = box->lo[d] + last;
        b.hi[d] = b.lo[d] + 1;
        count += cut_boxes(&b, ndim, d + 1, 0, hi % row, out + count);
    }
    return count;
}

int reshard_piece_boxes(const psd_box *box, int ndim, int64_t lo, int64_t hi, psd_box *out)
{
    return cut_boxes(box, ndim, 0, lo, hi, out);
}
