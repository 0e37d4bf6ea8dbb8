/* cards.c - the catalogue of GPUs that can be simulated.
 *
 * The table is generated: python/torcharena/rehearsal/cards.py says what the numbers are and
 * where they come from. Pure; thread-safe. */
#include <stdlib.h>
#include <string.h>

#include "simcuda.h"

#define MIB(n) ((uint64_t)(n) << 20)

static const ta_sc_card cards[] = {
#include "cards.inc"
};
enum { CARDS = sizeof cards / sizeof *cards };

static const ta_sc_card *card_of(const char *key, size_t length)
{
    for (size_t i = 0; i < CARDS; i++)
        if (strlen(cards[i].key) == length && !memcmp(cards[i].key, key, length))
            return &cards[i];
    return NULL;
}

/* Digits, perhaps with a fraction, then MiB, GiB, TiB or the unit without its B. */
static bool size_of(const char *text, uint64_t *bytes)
{
    char *end;
    double value = strtod(text, &end);
    static const char *const units[] = {"KiB", "Ki", "MiB", "Mi",
                                        "GiB", "Gi", "TiB", "Ti"};
    if (end == text || !(value > 0)) return false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(end, units[i]) != 0) continue;
        value *= (double)(UINT64_C(1) << (10 * (i / 2 + 1)));
        if (value >= 0x1p60) return false;
        *bytes = (uint64_t)value;
        return true;
    }
    return false;
}

bool ta_sc_find_card(const char *text, ta_sc_card *card)
{
    const char *colon = strchr(text, ':');
    size_t length = colon ? (size_t)(colon - text) : strlen(text);
    const ta_sc_card *known = card_of(text, length);
    if (known) *card = *known;
    if (known && !colon) return true;
    if (!known && colon) return false;
    uint64_t bytes;
    if (!size_of(known ? colon + 1 : text, &bytes)) return false;
    if (!known) {
        *card = *card_of("h100", 4);
        card->key = "custom";
        card->name = "NVIDIA H100 of a size asked for";
    }
    card->memory = bytes & ~(MIB(2) - 1);
    return card->memory != 0;
}

/* For the command line's list: the i-th card's key, name and memory. */
TA_EXPORT const char *ta_simcuda_card(int index, const char **name, uint64_t *memory)
{
    if (index < 0 || index >= CARDS) return NULL;
    if (name) *name = cards[index].name;
    if (memory) *memory = cards[index].memory;
    return cards[index].key;
}
