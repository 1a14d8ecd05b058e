/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The floor: exposed memory is a shared mapping, a put is a store, a message is copied into a ring and out of it.
 * Options: nt = non-temporal stores from 1 MiB on. */
#include "bench.h"
#include "transport.h"
#include <stdatomic.h>

/* One message: sequence number and a short payload share a line; longer payloads lie in slots of `room`. */
#define LINES 1024
#define INLINE_MAX 48
#define ROOM (4u << 20)
#define POSTS 1024		/* receives that can be posted */
struct line {
	_Alignas(64) _Atomic uint64_t seq;
	uint64_t len;
	char data[INLINE_MAX];
};
struct ring {
	_Alignas(128) _Atomic uint64_t head;	/* consumed; returned lazily */
	_Alignas(128) struct line line[LINES];
	_Alignas(4096) char room[ROOM];
};

struct me {
	struct tp tp;
	char *peer;
	int done, nt;
	struct ring *tx, *rx;
	uint64_t sent, freed, taken, returned;
	size_t post[POSTS];
	uint64_t posted;
};
static char *region[2];
static struct ring *ring[2];

static const char *m_version(void)
{
	return "-";
}

static void m_setup(size_t bytes)
{
	for (int i = 0; i < 2; i++) {
		region[i] = mem_shared(bytes);
		ring[i] = mem_shared(sizeof *ring[i]);
	}
}

static struct tp *m_open(const struct tp_open *o)
{
	struct me *m = calloc(1, sizeof *m);
	char a = 0, b;

	m->tp.exposed = region[o->side];
	m->peer = region[!o->side];
	m->tp.source = mem_anon(o->bytes, 1);
	m->nt = has_opt(o->arg, "nt");
	m->tx = ring[o->side];
	m->rx = ring[!o->side];
	memset(m->tp.exposed, 0, o->bytes);	/* both sides touch every page: no fault is measured */
	memset(m->peer, 0, o->bytes);
	oob_swap(o->oob, &a, &b, 1);
	return &m->tp;
}

static int m_put(struct tp *t, size_t l, size_t r, size_t n)
{
	struct me *m = (void *)t;
	char *d = m->peer + r;
	const char *s = t->source + l;

	if (n > 8) {
		if (m->nt && n >= (1 << 20))
			nt_copy(d, s, n - 8);
		else
			memcpy(d, s, n - 8);
	}
	atomic_store_explicit((_Atomic uint64_t *)(void *)(d + n - 8), *(const uint64_t *)(const void *)(s + n - 8),
			      memory_order_release);
	m->done++;
	return 1;
}

static int m_get(struct tp *t, size_t l, size_t r, size_t n)
{
	struct me *m = (void *)t;

	if (m->nt && n >= (1 << 20))
		nt_copy(t->source + l, m->peer + r, n);
	else
		memcpy(t->source + l, m->peer + r, n);
	__asm__ volatile("" ::: "memory");
	m->done++;
	return 1;
}

static int m_list(struct tp *t, const struct tp_block *blocks, size_t count, size_t len, int reads)
{
	struct me *m = (void *)t;

	for (size_t i = 0; i < count; i++)
		(reads ? m_get : m_put)(t, blocks[i].loff * len, blocks[i].roff * len, len);
	m->done -= count - 1;
	return 1;
}

static int m_fadd(struct tp *t, size_t l, size_t r)
{
	struct me *m = (void *)t;

	*(uint64_t *)(void *)(t->source + l) = atomic_fetch_add((_Atomic uint64_t *)(void *)(m->peer + r), 1);
	m->done++;
	return 1;
}

/* messages of this length that fit the ring at once */
static uint64_t capacity(size_t n)
{
	return n <= INLINE_MAX ? LINES - 1 : n <= 4096 ? 64 : 2;
}

static char *slot(struct ring *r, uint64_t seq, size_t n)
{
	return n <= 4096 ? r->room + seq % 64 * 4096 : r->room + seq % 2 * (ROOM / 2);
}

static int m_send(struct tp *t, size_t off, size_t n)
{
	struct me *m = (void *)t;
	struct line *l = &m->tx->line[(m->sent + 1) % LINES];

	if (n > ROOM / 2)
		DIE("memfd: messages reach up to %u bytes", ROOM / 2);
	if (m->sent - m->freed >= capacity(n)) {
		m->freed = atomic_load_explicit(&m->tx->head, memory_order_acquire);
		if (m->sent - m->freed >= capacity(n))
			return 0;
	}
	m->sent++;
	memcpy(n <= INLINE_MAX ? l->data : slot(m->tx, m->sent, n), t->source + off, n);
	l->len = n;
	atomic_store_explicit(&l->seq, m->sent, memory_order_release);
	m->done++;
	return 1;
}

static int m_recv(struct tp *t, size_t off, size_t n)
{
	struct me *m = (void *)t;

	(void)n;
	if (m->posted - m->taken == POSTS)
		return 0;
	m->post[m->posted++ % POSTS] = off;
	return 1;
}

static void give_back(struct me *m)
{
	m->returned = m->taken;
	atomic_store_explicit(&m->rx->head, m->taken, memory_order_release);
}

static int m_progress(struct tp *t)
{
	struct me *m = (void *)t;
	int d = m->done;

	m->done = 0;
	while (m->taken < m->posted) {
		struct line *l = &m->rx->line[(m->taken + 1) % LINES];
		char *to = t->source + m->post[m->taken % POSTS];
		size_t n;

		if (atomic_load_explicit(&l->seq, memory_order_acquire) != m->taken + 1)
			break;
		n = l->len;
		m->taken++;
		memcpy(to, n <= INLINE_MAX ? l->data : slot(m->rx, m->taken, n), n);
		if (n > INLINE_MAX || m->taken % 64 == 0)
			give_back(m);
		t->received++;
	}
	if (m->returned != m->taken)
		give_back(m);
	return d;
}

static void m_flush(struct tp *t)
{
	(void)t;
	atomic_thread_fence(memory_order_seq_cst);
}

static void m_close(struct tp *t)
{
	free(t);
}

const struct tp_ops tp_memfd = {
	"memfd", "the floor: shared mapping, plain stores [nt]", m_version, m_setup, m_open, m_put, m_get,
	m_send, m_recv, m_list, m_fadd, m_progress, NULL, m_flush, m_close
};
