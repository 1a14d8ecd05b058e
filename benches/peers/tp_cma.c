/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The floor for plain private memory: one process_vm_writev or process_vm_readv per transfer, nothing else. */
#include "bench.h"
#include "transport.h"
#include <sys/uio.h>

struct cma {
	struct tp tp;
	pid_t pid;
	char *peer;
	int done;
};
struct hello {
	pid_t pid;
	char *base;
};

static const char *c_version(void)
{
	return "-";
}

static struct tp *c_open(const struct tp_open *o)
{
	struct cma *c = calloc(1, sizeof *c);
	struct hello me = { .pid = getpid() }, you;

	me.base = c->tp.exposed = mem_anon(o->bytes, 1);
	c->tp.source = mem_anon(o->bytes, 1);
	oob_swap(o->oob, &me, &you, sizeof me);
	c->pid = you.pid;
	c->peer = you.base;
	return &c->tp;
}

static int c_put(struct tp *t, size_t l, size_t r, size_t n)
{
	struct cma *c = (void *)t;
	struct iovec lv = { t->source + l, n }, rv = { c->peer + r, n };

	if (process_vm_writev(c->pid, &lv, 1, &rv, 1, 0) != (ssize_t)n)
		DIE("process_vm_writev: %s", strerror(errno));
	c->done++;
	return 1;
}

static int c_get(struct tp *t, size_t l, size_t r, size_t n)
{
	struct cma *c = (void *)t;
	struct iovec lv = { t->source + l, n }, rv = { c->peer + r, n };

	if (process_vm_readv(c->pid, &lv, 1, &rv, 1, 0) != (ssize_t)n)
		DIE("process_vm_readv: %s", strerror(errno));
	c->done++;
	return 1;
}

static int c_list(struct tp *t, const struct tp_block *blocks, size_t count, size_t len, int reads)
{
	enum { MOST = 1024 };	/* the kernel's IOV_MAX */
	static struct iovec *lv, *rv;
	static size_t made;
	struct cma *c = (void *)t;

	if (!lv && (!(lv = calloc(count, sizeof *lv)) || !(rv = calloc(count, sizeof *rv))))
		DIE("no memory for %zu blocks", count);
	for (size_t i = 0; i < count && made != len; i++) {
		lv[i] = (struct iovec){ t->source + blocks[i].loff * len, len };
		rv[i] = (struct iovec){ c->peer + blocks[i].roff * len, len };
	}
	made = len;
	for (size_t from = 0; from < count; from += MOST) {
		size_t n = count - from < MOST ? count - from : MOST;

		if ((reads ? process_vm_readv : process_vm_writev)(c->pid, lv + from, n, rv + from, n, 0) !=
		    (ssize_t)(n * len))
			DIE("process_vm of %zu blocks: %s", n, strerror(errno));
	}
	c->done++;
	return 1;
}

static int c_progress(struct tp *t)
{
	struct cma *c = (void *)t;
	int d = c->done;

	c->done = 0;
	return d;
}

static void c_flush(struct tp *t)
{
	(void)t;	/* the call returned: the bytes are there */
}

static void c_close(struct tp *t)
{
	free(t);
}

const struct tp_ops tp_cma = {
	"cma", "the floor for private memory: process_vm_writev / readv", c_version, NULL, c_open, c_put, c_get,
	NULL, NULL, c_list, NULL, c_progress, NULL, c_flush, c_close
};
