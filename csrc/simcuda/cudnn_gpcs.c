/* cudnn_gpcs.c - what the description of a card does not say: its GPCs.
 *
 * On Hopper and later the blocks of a cluster share a GPC. So how the SMs are spread over GPCs
 * decides how many clusters of a size run at once, and with that which kernels cuDNN's
 * heuristics choose, and into how many parts they divide the work, whose partial sums are in
 * the workspace. The library asks a real device for it; a description has no word for it and
 * counts as one GPC. Hence the lists for the two differ, and chiefly gradients of weights get
 * other workspaces. With the GPCs below, the plan that PyTorch takes has the GPU's workspace
 * for every convolution of the benchmarks' ResNet, but for 16 bytes of cuBLASLt's.
 *
 * The library keeps 24 integers in the descriptor, behind the versions of the card and of the
 * driver and before the card's name; newer ones also how many clusters of 1, 2, ... SMs fit.
 * They are put right there, and only where all that surrounds them is what was described (seen
 * so in 9.10, 9.19 and 9.24): a library of another layout is left alone. Called by cudnn_real.c
 * and cudnn_backend.c for a descriptor that was just finalized; thread-safe. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "cudnn_real.h"

enum { GPCS = 24, WORDS = 128, PHYSICAL = 8, WHOLE = 8 };

/* TPCs, of two SMs, by GPC. As one H200 has them, found by what its cuDNN asked for in 388
 * convolutions; chips with as many SMs differ in which TPCs are switched off. */
static const int measured_sms = 132;
static const int measured[PHYSICAL] = {8, 8, 8, 8, 8, 8, 8, 7};
static const int measured_alone = 3;

/* SMs by GPC, with sum(layout) = sms. A cluster has at most 16 SMs' room, and what a GPC has
 * beyond that counts as GPCs of one TPC each. */
static void lay_out(int sms, int32_t layout[GPCS])
{
    int tpcs = sms / 2, count = 0, alone = 0;
    for (int i = 0; i < PHYSICAL; i++) {
        int has = sms == measured_sms ? measured[i]
                                      : tpcs / PHYSICAL + (i < tpcs % PHYSICAL ? 1 : 0);
        int together = has < WHOLE ? has : WHOLE;
        alone += has - together;
        if (together) layout[count++] = 2 * together;
    }
    if (sms == measured_sms) alone = measured_alone;
    while (alone-- > 0 && count < GPCS) layout[count++] = 2;
}

/* A copy of memory that may end sooner than one looks. */
static bool look(const void *at, void *to, size_t size)
{
    int memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    if (memory < 0) return false;
    ssize_t got = pread(memory, to, size, (off_t)(uintptr_t)at);
    close(memory);
    return got == (ssize_t)size;
}

/* Where the integers stand, as an index of words, with how many numbers of clusters follow; 0:
 * nowhere. `one` is what was described: the SMs of one GPC. */
static size_t find(const int32_t *words, const ta_sc_card *card, int driver_version,
                   int one, size_t *clusters)
{
    size_t length = strlen(card->name) + 1;
    for (size_t i = 2; i < WORDS - GPCS; i++) {
        if (words[i] != one) continue;
        size_t before = words[i - 1] == 0 && i > 2 ? i - 3 : i - 2, at = i + 1;
        if (words[before] != card->major * 100 + card->minor * 10 ||
            words[before + 1] != driver_version)
            continue;
        while (at < i + GPCS && words[at] == 0) at++;
        if (at < i + GPCS) continue;
        *clusters = 0;
        while (at < WORDS && words[at] != 0 && words[at] == one / (int)(*clusters + 1)) {
            at++;
            ++*clusters;
        }
        while (at < WORDS && words[at] == 0) at++;
        if (at * sizeof *words + length <= WORDS * sizeof *words &&
            memcmp(&words[at], card->name, length) == 0)
            return i;
    }
    return 0;
}

bool ta_sc_tell_gpcs(void *device, const ta_sc_card *card, int driver_version)
{
    int32_t words[WORDS] = {0}, layout[GPCS] = {0}, *at = device;
    if (card->major != 9 && card->major != 10) return false;
    if (!look(device, words, sizeof words)) return false;
    size_t clusters = 0;
    size_t place =
        find(words, card, driver_version, card->major == 9 ? 18 : 20, &clusters);
    if (!place) return false;
    lay_out(card->sms, layout);
    memcpy(at + place, layout, sizeof layout);
    for (size_t k = 0; k < clusters; k++) {
        int32_t fit = 0;
        for (size_t i = 0; i < GPCS; i++) fit += layout[i] / (int32_t)(k + 1);
        at[place + GPCS + k] = fit;
    }
    return true;
}
