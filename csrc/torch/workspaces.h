/* workspaces.h - the memory that torch keeps for cuBLAS. */
#ifndef TA_WORKSPACES_H
#define TA_WORKSPACES_H

#include <stdbool.h>
#include <stddef.h>

/* The addresses of torch's workspaces of cuBLAS and cuBLASLt, at most `capacity`; returns how
 * many there are, 0 where torch does not tell. Only where torch declares
 * cublas_handle_stream_to_workspace as a std::map of tuples of two pointers to a DataPtr, or
 * to a pair that begins with one; `locked`: a std::shared_mutex stands behind the map. What is
 * locked just then counts as none. */
size_t ta_torch_workspaces(bool locked, const void **addrs, size_t capacity);

#endif
