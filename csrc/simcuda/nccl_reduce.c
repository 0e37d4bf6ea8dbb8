/* nccl_reduce.c - sums, products, largest and smallest in NCCL's types, element by element.
 *
 * Called by nccl.c for contents small enough to be made. Integers wrap as on a GPU; floats
 * are computed in double and rounded toward zero where they are narrow. No state. */
#include <string.h>

#include "nccl.h"

enum { SUM, PROD, MAX, MIN, AVG };
enum { INT8, UINT8, INT32, UINT32, INT64, UINT64, HALF, FLOAT, DOUBLE, BFLOAT };

size_t ta_nccl_width(int type)
{
    /* the last two are the narrow floats of eight bits */
    static const unsigned char widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type >= 0 && type < (int)sizeof widths ? widths[type] : 4;
}

static uint64_t combine(uint64_t a, uint64_t b, int op, bool is_signed)
{
    bool less = is_signed ? (int64_t)a < (int64_t)b : a < b;
    switch (op) {
    case PROD:
        return a * b;
    case MAX:
        return less ? b : a;
    case MIN:
        return less ? a : b;
    default:
        return a + b;
    }
}

static double combine_floats(double a, double b, int op)
{
    switch (op) {
    case PROD:
        return a * b;
    case MAX:
        return a < b ? b : a;
    case MIN:
        return a < b ? a : b;
    default:
        return a + b;
    }
}

static float from_half(uint16_t half)
{
    uint32_t sign = (uint32_t)(half >> 15) << 31, exponent = half >> 10 & 31,
             fraction = half & 1023, bits;
    float value;
    if (exponent == 0) { /* zero, or without a leading one */
        value = (float)fraction / (float)(1 << 24);
        return sign ? -value : value;
    }
    bits = sign | (exponent == 31 ? 255u : exponent + 112u) << 23 | fraction << 13;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint16_t to_half(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t sign = bits >> 31 << 15, exponent = bits >> 23 & 255,
             fraction = bits >> 13 & 1023;
    if (exponent == 255) return (uint16_t)(sign | 31u << 10 | fraction);
    if (exponent > 142) return (uint16_t)(sign | 31u << 10); /* infinite */
    if (exponent < 113) {
        float size = value < 0 ? -value : value;
        return (uint16_t)(sign | (uint32_t)(size * (float)(1 << 24)));
    }
    return (uint16_t)(sign | (exponent - 112) << 10 | fraction);
}

static double load_float(const unsigned char *at, int type)
{
    uint16_t narrow;
    float single;
    double whole;
    switch (type) {
    case DOUBLE:
        memcpy(&whole, at, sizeof whole);
        return whole;
    case FLOAT:
        memcpy(&single, at, sizeof single);
        return (double)single;
    case HALF:
        memcpy(&narrow, at, sizeof narrow);
        return (double)from_half(narrow);
    default: {
        memcpy(&narrow, at, sizeof narrow);
        uint32_t bits = (uint32_t)narrow << 16;
        memcpy(&single, &bits, sizeof single);
        return (double)single;
    }
    }
}

static void store_float(unsigned char *at, int type, double value)
{
    float single = (float)value;
    uint16_t narrow;
    uint32_t bits;
    switch (type) {
    case DOUBLE:
        memcpy(at, &value, sizeof value);
        return;
    case FLOAT:
        memcpy(at, &single, sizeof single);
        return;
    case HALF:
        narrow = to_half(single);
        break;
    default:
        memcpy(&bits, &single, sizeof bits);
        narrow = (uint16_t)(bits >> 16);
    }
    memcpy(at, &narrow, sizeof narrow);
}

static uint64_t load_integer(const unsigned char *at, int type)
{
    int32_t word;
    uint64_t value;
    switch (type) {
    case INT8:
        return (uint64_t)(int64_t)(signed char)*at;
    case UINT8:
        return *at;
    case INT32:
        memcpy(&word, at, sizeof word);
        return (uint64_t)(int64_t)word;
    case UINT32:
        memcpy(&word, at, sizeof word);
        return (uint32_t)word;
    default:
        memcpy(&value, at, sizeof value);
        return value;
    }
}

static bool is_float(int type) { return type >= HALF && type <= BFLOAT; }
static bool is_signed(int type) { return type == INT8 || type == INT32 || type == INT64; }

void ta_nccl_reduce(void *into, const void *from, size_t count, int type, int op)
{
    if (type < 0 || type > BFLOAT) return; /* of eight bits: as this rank has it */
    size_t width = ta_nccl_width(type);
    unsigned char *to = into;
    const unsigned char *with = from;
    for (size_t i = 0; i < count; i++, to += width, with += width) {
        if (is_float(type)) {
            double a = load_float(to, type), b = load_float(with, type);
            store_float(to, type, combine_floats(a, b, op));
        } else { /* the low bytes come first */
            uint64_t a = load_integer(to, type), b = load_integer(with, type);
            uint64_t result = combine(a, b, op, is_signed(type));
            memcpy(to, &result, width);
        }
    }
}

void ta_nccl_scale(void *into, size_t count, int type, int times, int by)
{
    if (type < 0 || type > BFLOAT || times == by) return;
    size_t width = ta_nccl_width(type);
    unsigned char *to = into;
    for (size_t i = 0; i < count; i++, to += width) {
        if (is_float(type)) {
            store_float(to, type, load_float(to, type) * times / by);
            continue;
        }
        uint64_t a = load_integer(to, type) * (uint64_t)times;
        uint64_t result =
            is_signed(type) ? (uint64_t)((int64_t)a / by) : a / (uint64_t)by;
        memcpy(to, &result, width);
    }
}

bool ta_nccl_is_float(int type) { return is_float(type) || type > BFLOAT; }
