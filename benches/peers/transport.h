/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* One transport between two processes, as rmabench sees it. A back-end fills struct tp_ops; the benchmark bodies
 * are the same for all of them.
 *
 * Each side exposes `bytes` of memory (the peer puts there and gets from there) and owns `bytes` of source memory,
 * the local side of its own puts, gets, sends and receives. */
#ifndef TRANSPORT_H
#define TRANSPORT_H
#include <stddef.h>

struct tp {
	const struct tp_ops *ops;
	char *exposed;
	char *source;
	size_t bytes;
	long received;		/* messages that have arrived in a posted receive so far */
};

struct tp_block {
	size_t loff, roff;	/* in blocks */
};

struct tp_open {
	const char *arg;	/* options after the back-end's name, comma separated */
	int side;
	int oob;		/* connected stream socket */
	int msg;		/* 1: the run sends and receives messages; 0: it puts and gets */
	int sleeps;		/* 1: the run calls wait */
	int atomic;		/* 1: the run uses fadd */
	size_t bytes;
};

struct tp_ops {
	const char *name;
	const char *help;
	const char *(*version)(void);
	/* before the fork; NULL where there is nothing to share */
	void (*setup)(size_t bytes);
	struct tp *(*open)(const struct tp_open *o);
	/* post one transfer; 1 = posted, 0 = queue full: progress and retry */
	int (*put)(struct tp *, size_t loff, size_t roff, size_t len);
	int (*get)(struct tp *, size_t loff, size_t roff, size_t len);
	int (*send)(struct tp *, size_t off, size_t len);
	int (*recv)(struct tp *, size_t off, size_t len);	/* NULL together with send: no messages */
	/* one transfer of `count` blocks of `len` bytes each; NULL: not implemented for this library */
	int (*list)(struct tp *, const struct tp_block *blocks, size_t count, size_t len, int reads);
	/* adds 1 to 8 bytes of the peer's and fetches the old value; NULL: not implemented for this library */
	int (*fadd)(struct tp *, size_t loff, size_t roff);
	/* drive the transport; returns newly finished transfers of ours, not receives (tp->received) */
	int (*progress)(struct tp *);
	/* the same, asleep until something comes or `ms` have passed; NULL: not implemented for this library */
	int (*wait)(struct tp *, int ms);
	/* return once every posted put is visible in the peer's memory */
	void (*flush)(struct tp *);
	void (*close)(struct tp *);
};

extern const struct tp_ops tp_memfd, tp_cma, tp_gdrfab, tp_ofi, tp_ucp;

/* helpers in rmabench.c */
void oob_swap(int fd, const void *mine, void *theirs, size_t n);
int has_opt(const char *arg, const char *opt);
#endif
