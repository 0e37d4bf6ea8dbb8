/* cards.c - the catalogue of GPUs that can be simulated.
 *
 * Memory is what cudaMemGetInfo reports as the total, to about 0.1 GiB; the H200's figures
 * were measured, the others are the published ones. The context's share was measured
 * nowhere: it is a usual size for a driver of the 580 series. Pure; thread-safe. */
#include <stdlib.h>
#include <string.h>

#include "simcuda.h"

#define MIB(n) ((uint64_t)(n) << 20)

static const ta_sc_card cards[] = {
    /* key, name, memory, cc, SMs, shared/SM, shared/block, L2 KiB, threads, blocks,
       clock, memory clock, bus, context */
    {"h200", "NVIDIA H200", MIB(143167), 9, 0, 132, 228, 227, 61440, 2048, 32, 1980, 3201,
     6144, 530},
    {"h100", "NVIDIA H100 80GB HBM3", MIB(81004), 9, 0, 132, 228, 227, 51200, 2048, 32,
     1980, 2619, 5120, 530},
    {"h100-pcie", "NVIDIA H100 PCIe", MIB(81009), 9, 0, 114, 228, 227, 51200, 2048, 32,
     1755, 1593, 5120, 530},
    {"h100-nvl", "NVIDIA H100 NVL", MIB(95320), 9, 0, 132, 228, 227, 61440, 2048, 32, 1785,
     2619, 6144, 530},
    {"gh200", "NVIDIA GH200 480GB", MIB(96768), 9, 0, 132, 228, 227, 61440, 2048, 32, 1980,
     2619, 6144, 530},
    {"b200", "NVIDIA B200", MIB(182642), 10, 0, 148, 228, 227, 129024, 2048, 32, 1965, 3996,
     8192, 640},
    {"a100-80g", "NVIDIA A100-SXM4-80GB", MIB(81050), 8, 0, 108, 164, 163, 40960, 2048, 32,
     1410, 1593, 5120, 430},
    {"a100-40g", "NVIDIA A100-SXM4-40GB", MIB(40339), 8, 0, 108, 164, 163, 40960, 2048, 32,
     1410, 1215, 5120, 430},
    {"a30", "NVIDIA A30", MIB(24060), 8, 0, 56, 164, 163, 24576, 2048, 32, 1440, 1215, 3072,
     400},
    {"a10g", "NVIDIA A10G", MIB(22503), 8, 6, 80, 100, 99, 6144, 1536, 16, 1710, 6251, 384,
     310},
    {"a10", "NVIDIA A10", MIB(22503), 8, 6, 72, 100, 99, 6144, 1536, 16, 1695, 6251, 384,
     310},
    {"a40", "NVIDIA A40", MIB(45457), 8, 6, 84, 100, 99, 6144, 1536, 16, 1740, 7251, 384,
     320},
    {"a6000", "NVIDIA RTX A6000", MIB(48567), 8, 6, 84, 100, 99, 6144, 1536, 16, 1800, 8001,
     384, 320},
    {"l4", "NVIDIA L4", MIB(22478), 8, 9, 58, 100, 99, 49152, 1536, 24, 2040, 6251, 192,
     310},
    {"l40s", "NVIDIA L40S", MIB(45466), 8, 9, 142, 100, 99, 98304, 1536, 24, 2520, 9001,
     384, 370},
    {"rtx6000-ada", "NVIDIA RTX 6000 Ada Generation", MIB(48520), 8, 9, 142, 100, 99, 98304,
     1536, 24, 2505, 10001, 384, 370},
    {"t4", "Tesla T4", MIB(14913), 7, 5, 40, 64, 64, 4096, 1024, 16, 1590, 5001, 256, 200},
    {"v100-16g", "Tesla V100-SXM2-16GB", MIB(16144), 7, 0, 80, 96, 96, 6144, 2048, 32, 1530,
     877, 4096, 310},
    {"v100-32g", "Tesla V100-SXM2-32GB", MIB(32494), 7, 0, 80, 96, 96, 6144, 2048, 32, 1530,
     877, 4096, 310},
    {"rtx2080ti", "NVIDIA GeForce RTX 2080 Ti", MIB(11004), 7, 5, 68, 64, 64, 5632, 1024,
     16, 1635, 7000, 352, 250},
    {"rtx3060", "NVIDIA GeForce RTX 3060", MIB(11937), 8, 6, 28, 100, 99, 2304, 1536, 16,
     1777, 7501, 192, 230},
    {"rtx3080", "NVIDIA GeForce RTX 3080", MIB(10001), 8, 6, 68, 100, 99, 5120, 1536, 16,
     1710, 9501, 320, 270},
    {"rtx3090", "NVIDIA GeForce RTX 3090", MIB(24121), 8, 6, 82, 100, 99, 6144, 1536, 16,
     1695, 9751, 384, 300},
    {"rtx4060ti-16g", "NVIDIA GeForce RTX 4060 Ti", MIB(15948), 8, 9, 34, 100, 99, 32768,
     1536, 24, 2580, 9001, 128, 240},
    {"rtx4070", "NVIDIA GeForce RTX 4070", MIB(11871), 8, 9, 46, 100, 99, 36864, 1536, 24,
     2505, 10501, 192, 260},
    {"rtx4080", "NVIDIA GeForce RTX 4080", MIB(15970), 8, 9, 76, 100, 99, 65536, 1536, 24,
     2505, 11201, 256, 300},
    {"rtx4090", "NVIDIA GeForce RTX 4090", MIB(24081), 8, 9, 128, 100, 99, 73728, 1536, 24,
     2520, 10501, 384, 370},
    {"rtx5070ti", "NVIDIA GeForce RTX 5070 Ti", MIB(15842), 12, 0, 70, 100, 99, 49152, 1536,
     24, 2452, 14001, 256, 340},
    {"rtx5080", "NVIDIA GeForce RTX 5080", MIB(15842), 12, 0, 84, 100, 99, 65536, 1536, 24,
     2617, 15001, 256, 360},
    {"rtx5090", "NVIDIA GeForce RTX 5090", MIB(32109), 12, 0, 170, 100, 99, 98304, 1536, 24,
     2407, 14001, 512, 430},
    {"h100-1g.10gb", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", MIB(9984), 9, 0, 16, 228, 227,
     6400, 2048, 32, 1980, 2619, 640, 200},
    {"h100-2g.20gb", "NVIDIA H100 80GB HBM3 MIG 2g.20gb", MIB(20096), 9, 0, 32, 228, 227,
     12800, 2048, 32, 1980, 2619, 1280, 260},
    {"h100-3g.40gb", "NVIDIA H100 80GB HBM3 MIG 3g.40gb", MIB(40320), 9, 0, 60, 228, 227,
     25600, 2048, 32, 1980, 2619, 2560, 350},
    {"a100-1g.5gb", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", MIB(4864), 8, 0, 14, 164, 163, 5120,
     2048, 32, 1410, 1215, 640, 170},
    {"a100-2g.10gb", "NVIDIA A100-SXM4-40GB MIG 2g.10gb", MIB(9856), 8, 0, 28, 164, 163,
     10240, 2048, 32, 1410, 1215, 1280, 220},
    {"a100-3g.20gb", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", MIB(19968), 8, 0, 42, 164, 163,
     20480, 2048, 32, 1410, 1215, 2560, 280},
};

/* Digits, perhaps with a fraction, then MiB, GiB, TiB or the unit without its B. */
static bool size_of(const char *text, uint64_t *bytes) {
    char *end;
    double value = strtod(text, &end);
    static const char *const units[] = {"KiB", "Ki", "MiB", "Mi", "GiB", "Gi", "TiB", "Ti"};
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

bool ta_sc_find_card(const char *text, ta_sc_card *card) {
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++) {
        if (strcmp(cards[i].key, text) != 0) continue;
        *card = cards[i];
        return true;
    }
    uint64_t bytes;
    if (!size_of(text, &bytes)) return false;
    *card = cards[1];
    card->key = "custom";
    card->name = "NVIDIA H100 of a size asked for";
    card->memory = bytes & ~(MIB(2) - 1);
    return card->memory != 0;
}

/* For the command line's list: the i-th card's key, name and memory. */
TA_EXPORT const char *ta_simcuda_card(int index, const char **name, uint64_t *memory) {
    if (index < 0 || (size_t)index >= sizeof cards / sizeof *cards) return NULL;
    if (name) *name = cards[index].name;
    if (memory) *memory = cards[index].memory;
    return cards[index].key;
}
