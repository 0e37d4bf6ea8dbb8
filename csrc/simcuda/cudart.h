/* cudart.h - what the cudart_*.c files share. */
#ifndef TA_SC_CUDART_H
#define TA_SC_CUDART_H

#include "simcuda.h"

/* Keeps a failure as the thread's last error; returns the result. */
int ta_sc_note(int result);
/* An error's name as the runtime has it (0), as the driver has it (1), its text (2); NULL
 * for a code we do not know. */
const char *ta_sc_error(int code, int which);

/* Runtime functions that the driver's stand for too. */
int cudaGetLastError(void);
int cudaDriverGetVersion(int *version);
int cudaDeviceGetPCIBusId(char *text, int length, int device);
int cudaDeviceGetByPCIBusId(int *device, const char *text);
int cudaDeviceCanAccessPeer(int *can, int device, int peer);
int cudaDeviceGetP2PAttribute(int *value, int attribute, int device, int peer);
int cudaDeviceEnablePeerAccess(int peer, unsigned flags);
int cudaDeviceDisablePeerAccess(int peer);
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
int cudaDeviceGetLimit(size_t *value, int limit);
int cudaDeviceSetLimit(int limit, size_t value);
int cudaStreamGetCaptureInfo_v2(ta_stream s, int *status, uint64_t *id, void **graph,
                                const void **needs, size_t *count);
int cudaStreamGetCaptureInfo_v3(ta_stream s, int *status, uint64_t *id, void **graph,
                                const void **needs, const void **edges, size_t *count);

#endif
