/* Where a list of calls stands that is made again and again. */
#ifndef CADENCE_PASSES_H
#define CADENCE_PASSES_H

#include <stdint.h>

typedef struct {
    int64_t now;    /* passes made before this one */
    int64_t enough; /* set by a call, after whose pass somebody should look */
} Passes;

#endif
