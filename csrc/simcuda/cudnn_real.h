/* cudnn_real.h - the real libcudnn, asked about a device that is only described. */
#ifndef TA_SC_CUDNN_REAL_H
#define TA_SC_CUDNN_REAL_H

#include "cudnn.h"

/* The real library's backend interface. */
typedef struct ta_sc_real_dnn {
    int (*create)(int type, void **descriptor);
    int (*destroy)(void *descriptor);
    int (*set)(void *descriptor, int name, int type, int64_t count, const void *values);
    int (*get)(void *descriptor, int name, int type, int64_t wanted, int64_t *count,
               void *values);
    int (*finalize)(void *descriptor);
    void (*last_error)(char *text, size_t size);
    void *device; /* finalized description of the simulated card */
} ta_sc_real_dnn;

/* NULL where the library is missing, older than 9.8, or refuses the description. Loaded at
 * the first call; thread-safe. */
const ta_sc_real_dnn *ta_sc_real_dnn_get(void);
/* The card as JSON, in the words of the library. Returns its length without the final 0, or
 * 0 where `size` is too small. */
size_t ta_sc_describe_card(const ta_sc_card *card, int driver_version, char *text,
                           size_t size);

/* Puts the card's GPCs into a finalized description of it (cudnn_gpcs.c). False where the
 * library does not keep them, or not where they were looked for. */
bool ta_sc_tell_gpcs(void *device, const ta_sc_card *card, int driver_version);

/* Gives a library of cuDNN a cuBLASLt that needs no GPU (cudnn_redirect.c). */
bool ta_sc_redirect_blas(void *library);

#endif
