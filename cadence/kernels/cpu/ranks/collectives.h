/* Pieces that ranks compute together in; collectives.c says how. */
#ifndef CADENCE_COLLECTIVES_H
#define CADENCE_COLLECTIVES_H

#include "ranks/exchange.h"
#include "runtime/common.h"

#define APART 128 /* bytes: what different ranks write lies on different cache lines */

enum operation { SUM = 1, GATHER, PICK, LINES, PAIRS };

typedef struct {
    _Alignas(APART) Word arrived; /* pieces that this rank has arrived at */
    int64_t asked[2][2];          /* (operation, bytes) of the piece in each slot */
    _Alignas(APART) Word sleepers; /* that wait for this rank */
} RankState;

typedef struct {
    _Alignas(APART) Word aborted; /* 0 = no */
    int64_t num_ranks, slot_bytes;
    Connection *connections; /* [num_ranks], of memory that one rank has for itself; NULL = they share it */
    RankState ranks[];
} Shared;

/* The rank's slot of a piece, by the piece's number. */
char *slot_of(Shared *s, int64_t rank, uint64_t piece);

/* Where the rank writes its part of the next piece. */
char *own_slot(Shared *s, int64_t rank);

/* The rank's part, of so many bytes, is in its slot. -> the piece's number, when all are there; -1 = aborted */
int64_t meet(Shared *s, int64_t rank, enum operation operation, int64_t bytes);

#endif
