/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Two ends of a connection, by gdrfab's own calls (g_) or by libfabric's over the provider (f_). Both are as alike
 * as possible, so that a benchmark can compare them.
 */
#ifndef ENDS_H
#define ENDS_H

#include <gdrfab.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RECEIVES = 16 };

#define OK(call)                                                                                                       \
	do {                                                                                                           \
		long result_ = (long)(call);                                                                           \
		if (result_ < 0) {                                                                                     \
			fprintf(stderr, "%s: %s (%s)\n", #call, fi_strerror((int)-result_), gdrfab_last_error());      \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

/* The other side's memory; sent as private data when connecting. */
struct place {
	uint64_t addr, key;
};

/* One end of a connection, by either library. */
struct end {
	char *memory;
	size_t len;
	int file;   /* the file of the memory, or -1 */
	int device; /* the CUDA device of the memory, if there is no file */
	struct place remote;
	gdrfab_fabric *gf;
	gdrfab_info *gi;
	gdrfab_eq *geq;
	gdrfab_domain *gd;
	gdrfab_cq *gcq;
	gdrfab_mr *gmr;
	gdrfab_ep *gep;
	gdrfab_pep *gpep;
	struct fid_fabric *ff;
	struct fi_info *fi;
	struct fid_eq *feq;
	struct fid_domain *fd;
	struct fid_cq *fcq;
	struct fid_mr *fmr;
	struct fid_ep *fep;
	struct fid_pep *fpep;
};

struct name {
	size_t len;
	char bytes[512];
};

/* Opens the listening side. The other side connects to the service, or to the name that f_listen() returns. */
void g_listen(struct end *e, const char *service);
void f_listen(struct end *e, struct name *name);

/* Opens the connecting side and sends the request. */
void g_connect(struct end *e, const char *service);
void f_connect(struct end *e, const struct name *name);

/* Waits for an event, which must be the wanted one, and returns the other side's private data and the event's info. */
void g_event(struct end *e, uint32_t wanted, struct place *got, gdrfab_info **info);
void f_event(struct end *e, uint32_t wanted, struct place *got, struct fi_info **info);

/* Waits for a request, opens an endpoint for it, and accepts. */
void g_accept(struct end *e);
void f_accept(struct end *e);

/* Prints the error and ends the program. */
void g_failed(gdrfab_cq *cq);
void f_failed(struct fid_cq *cq);

/* Takes the next completion. */
static inline void g_wait(gdrfab_cq *cq)
{
	gdrfab_cq_entry entry;
	ssize_t got;

	while ((got = gdrfab_cq_read(cq, &entry, 1)) == -EAGAIN)
		;
	if (got < 0)
		g_failed(cq);
}

static inline void f_wait(struct fid_cq *cq)
{
	struct fi_cq_entry entry;
	ssize_t got;

	while ((got = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN)
		;
	if (got < 0)
		f_failed(cq);
}

static inline double now(void) /* ns */
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

/* Sorts the values. */
double median(double *values, int n);

#endif
