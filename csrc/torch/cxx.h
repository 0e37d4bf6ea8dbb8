/* cxx.h - what libstdc++ lays out, where torch takes or gives it. */
#ifndef TA_CXX_H
#define TA_CXX_H

#include <stddef.h>

/* std::string: up to 15 characters stand in `local`, where `data` then points. */
typedef struct cxx_string {
    char *data;
    size_t length;
    union {
        char text[16];
        size_t capacity;
    } local;
} cxx_string;

#endif
