/* bins.h - the holes of one arena by size. Guarded by the arena's lock. */
#ifndef TA_BINS_H
#define TA_BINS_H

#include "types.h"

void ta_bins_init(ta_bins *bins);
void ta_bins_insert(ta_bins *bins, ta_hole *hole);
void ta_bins_remove(ta_bins *bins, ta_hole *hole);
/* A hole that is in them gets another place and size. */
void ta_bins_move(ta_bins *bins, ta_hole *hole, uint64_t addr, uint64_t size);
/* The smallest hole of at least `size` bytes, at the lowest address among equals; NULL. */
ta_hole *ta_bins_fit(const ta_bins *bins, uint64_t size);
/* The one after `hole` in (size, address) order; NULL. */
ta_hole *ta_bins_next(const ta_bins *bins, const ta_hole *hole);
bool ta_bins_check(const ta_bins *bins, char *text, size_t capacity);

#endif
