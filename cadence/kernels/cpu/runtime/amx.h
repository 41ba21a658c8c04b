/* The tile registers of AMX. */
#ifndef CADENCE_AMX_H
#define CADENCE_AMX_H

#include "runtime/common.h"

/* Shapes of the eight tiles. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} __attribute__((aligned(64))) TileShapes;

/* All of them 16 rows of 64 bytes. */
static const TileShapes whole_tiles = {
    .palette = 1, .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

/* Some compilers believe that the instruction reads less than 64 bytes. */
#define SHAPE_TILES(shapes)                               \
    {                                                     \
        const TileShapes *at = shapes;                    \
        __asm__ volatile("" : "+r"(at) : : "memory");     \
        _tile_loadconfig(at);                             \
    }

#endif
