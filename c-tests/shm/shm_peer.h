/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* A hostile shm peer, written from docs/shm-format.md: it finds the library's shared mappings in its own process, and writes
 * there directly. */
#ifndef SHM_PEER_H
#define SHM_PEER_H

#include "fab.h"

#include <sys/mman.h>

/* From docs/shm-format.md: offsets in a segment, in a region table and in a slot; kinds of ring messages. */
enum {
	SEG_LINES = 8,
	SEG_RETURNED = 64,
	SEG_SLOTS = 1280,
	SEG_RING = 9472,
	SLOTS = 128,
	TABLE_REACH = 8,
	TABLE_FILES = 64,
	TABLE_EXTENTS = 524352,
	TABLE_ENTRIES = 1572928,
	FILES = 4096,
	EXTENTS = 32768,
	REGIONS = 262144,
};
enum { COOP = 5, STAGED_WRITE, STAGED_READ, COOP_LIST = 11 };

static const char no_sharing[] = "two processes share no memory of the library's";

#define AT(base, offset) ((uint64_t *)(void *)((base) + (offset)))

static inline uint64_t get(const uint64_t *at)
{
	return __atomic_load_n(at, __ATOMIC_SEQ_CST);
}

static inline void put(uint64_t *at, uint64_t value)
{
	__atomic_store_n(at, value, __ATOMIC_SEQ_CST);
}

/* The library's writable shared mappings in this process: segments, one of them the peer's, and the own region table. */
struct view {
	char *segment[8];
	int segments;
	char *table;
	char *peer, *own;
	uint64_t tail, lines; /* of the peer's ring */
};

static inline void look(struct view *v)
{
	char line[512], perms[8];
	unsigned long from, end;
	FILE *file = fopen("/proc/self/maps", "r");
	CHECK(file != NULL);
	memset(v, 0, sizeof *v);
	while (fgets(line, sizeof line, file)) {
		if (sscanf(line, "%lx-%lx %7s", &from, &end, perms) != 3 || perms[1] != 'w')
			continue;
		if (strstr(line, "memfd:gdrfab-ep") && v->segments < 8)
			v->segment[v->segments++] = (char *)from;
		if (strstr(line, "memfd:gdrfab-table"))
			v->table = (char *)from;
	}
	fclose(file);
	CHECK(v->segments == 2 && v->table);
}

/* Maps a whole ring; the library maps only the part that it uses. */
static inline char *whole_ring(char *segment, uint64_t lines)
{
	size_t bytes = (SEG_RING + lines * 64 + 4095) & ~(size_t)4095;
	char *whole = (char *)mremap(segment, 0, bytes, MREMAP_MAYMOVE);
	/* A memory checker refuses this call; the library has mapped the whole ring then. */
	return whole == MAP_FAILED ? segment : whole;
}

/* Finds the peer's segment: it contains this side's first message. */
static inline void find_peer(struct node *n, struct view *v)
{
	static char byte;
	POST(n->cq, gdrfab_send(n->ep, &byte, 1, NULL, 0, &byte));
	DONE(n->cq, &byte, GDRFAB_SEND, NULL);
	look(v);
	for (int i = 0; i < 2; i++)
		if ((get(AT(v->segment[i], SEG_RING)) & 0xffffff) == (1 | 1 << 16)) {
			v->peer = v->segment[i];
			v->own = v->segment[1 - i];
		}
	CHECK(v->peer != NULL);
	v->lines = get(AT(v->peer, SEG_LINES));
	v->peer = whole_ring(v->peer, v->lines);
	v->tail = 1;
}

/* Writes a message without bytes into the ring; false if the ring is full. */
static inline bool say(struct view *v, int kind, int flags, const uint64_t *words, int count)
{
	uint64_t lines = count > 7 ? 2 : 1;
	if (v->tail + lines - get(AT(v->peer, SEG_RETURNED)) > v->lines)
		return false;
	for (uint64_t k = lines; k-- > 0;) {
		uint64_t at = v->tail + k;
		char *line = v->peer + SEG_RING + at % v->lines * 64;
		for (int i = 0; i < 7 && (int)k * 7 + i < count; i++)
			put(AT(line, 8 + 8 * i), words[k * 7 + i]);
		uint64_t lap = (at / v->lines + 1) & 0xffff;
		put(AT(line, 0), k ? lap : lap | (uint64_t)kind << 16 | (uint64_t)flags << 24 | (uint64_t)count << 32);
	}
	v->tail += lines;
	return true;
}

/* The record in the own table of the file with this size; and all records. */
static inline char *record_of(struct view *v, uint64_t size)
{
	for (int i = 0; i < FILES; i++) {
		char *file = v->table + TABLE_FILES + 128 * i;
		if (get(AT(file, 0)) && get(AT(file, 8)) == size)
			return file;
	}
	test_fail(__FILE__, __LINE__, "no file of %llu bytes in the own table", (unsigned long long)size);
}

static inline void free_records(struct view *v)
{
	for (int i = 0; i < FILES; i++)
		put(AT(v->table, TABLE_FILES + 128 * i), 0);
}

/* Waits for one entry, a success or a failure, within the deadline. */
static inline void takes_entry(struct node *n)
{
	done e;
	struct failure f;
	int got = cq_next(n->cq, &e, 5000);
	CHECK(got != 0);
	if (got < 0)
		cq_failure(__FILE__, __LINE__, n->cq, &f);
}

#endif
