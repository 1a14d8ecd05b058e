/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The ends of connections by gdrfab and by libfabric; see ends.h. */
#include "ends.h"

/* ---- gdrfab */

static void g_fabric(struct end *e, const char *service, uint64_t flags)
{
	gdrfab_info hints = {.struct_size = sizeof hints, .threading = GDRFAB_THREAD_DOMAIN};

	hints.prov_name = "shm";
	hints.mr_mode = GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY;
	OK(gdrfab_getinfo(GDRFAB_VERSION, NULL, service, flags, &hints, &e->gi));
	OK(gdrfab_fabric_open(e->gi, NULL, &e->gf));
	OK(gdrfab_eq_open(e->gf, NULL, NULL, &e->geq));
}

static struct place g_end(struct end *e, gdrfab_info *from)
{
	OK(gdrfab_domain_open(e->gf, from, NULL, &e->gd));
	OK(gdrfab_cq_open(e->gd, NULL, NULL, &e->gcq));
	OK(gdrfab_ep_open(e->gd, from, NULL, &e->gep));
	OK(gdrfab_ep_bind_cq(e->gep, e->gcq, GDRFAB_TRANSMIT | GDRFAB_RECV));
	OK(gdrfab_ep_bind_eq(e->gep, e->geq, 0));
	OK(gdrfab_ep_enable(e->gep));
	gdrfab_mr_dmabuf file = {.fd = e->file, .len = e->len, .base_addr = e->memory};
	struct iovec range = {e->memory, e->len};
	gdrfab_mr_attr attr = {.struct_size = sizeof attr, .iov_count = 1};
	attr.access = GDRFAB_READ | GDRFAB_WRITE | GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE;
	if (e->file >= 0) {
		attr.dmabuf = &file;
	} else {
		attr.mr_iov = &range;
		attr.iface = GDRFAB_HMEM_CUDA;
		attr.device = (uint64_t)e->device;
	}
	OK(gdrfab_mr_regattr(e->gd, &attr, e->file >= 0 ? GDRFAB_MR_DMABUF : 0, &e->gmr));
	for (int i = 0; e->file >= 0 && i < RECEIVES; i++)
		OK(gdrfab_recv(e->gep, e->memory + 64, 8, NULL, 0, NULL));
	return (struct place){(uintptr_t)e->memory, gdrfab_mr_key(e->gmr)};
}

void g_listen(struct end *e, const char *service)
{
	g_fabric(e, service, GDRFAB_SOURCE);
	OK(gdrfab_pep_open(e->gf, e->gi, NULL, &e->gpep));
	OK(gdrfab_pep_bind_eq(e->gpep, e->geq, 0));
	OK(gdrfab_pep_listen(e->gpep));
}

void g_connect(struct end *e, const char *service)
{
	struct place here;

	g_fabric(e, service, 0);
	here = g_end(e, e->gi);
	OK(gdrfab_ep_connect(e->gep, e->gi->dest_addr, e->gi->dest_addrlen, &here, sizeof here));
}

void g_event(struct end *e, uint32_t wanted, struct place *got, gdrfab_info **info)
{
	struct {
		gdrfab_eq_cm_entry entry;
		struct place place;
	} event;
	uint32_t kind = 0;

	memset(&event, 0, sizeof event);
	OK(gdrfab_eq_sread(e->geq, &kind, &event, sizeof event, -1, 0));
	if (kind != wanted) {
		fprintf(stderr, "event %u, not %u\n", kind, wanted);
		exit(1);
	}
	if (got)
		*got = event.place;
	if (info)
		*info = event.entry.info;
}

void g_accept(struct end *e)
{
	gdrfab_info *info;
	struct place here;

	g_event(e, GDRFAB_CONNREQ, &e->remote, &info);
	here = g_end(e, info);
	OK(gdrfab_ep_accept(e->gep, &here, sizeof here));
	gdrfab_freeinfo(info);
}

/* ---- libfabric */

static void f_fabric(struct end *e)
{
	struct fi_info *hints = fi_allocinfo();

	hints->fabric_attr->prov_name = strdup("gdrfab");
	hints->fabric_attr->name = strdup("shm");
	hints->ep_attr->type = FI_EP_MSG;
	hints->caps = FI_MSG | FI_RMA;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	if (e->file < 0) {
		hints->caps |= FI_HMEM;
		hints->domain_attr->mr_mode |= FI_MR_HMEM;
	}
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &e->fi));
	fi_freeinfo(hints);
	OK(fi_fabric(e->fi->fabric_attr, &e->ff, NULL));
	OK(fi_eq_open(e->ff, &(struct fi_eq_attr){.wait_obj = FI_WAIT_UNSPEC}, &e->feq, NULL));
}

static struct place f_end(struct end *e, struct fi_info *from)
{
	struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_CONTEXT};

	OK(fi_domain(e->ff, from, &e->fd, NULL));
	OK(fi_cq_open(e->fd, &attr, &e->fcq, NULL));
	OK(fi_endpoint(e->fd, from, &e->fep, NULL));
	OK(fi_ep_bind(e->fep, &e->fcq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_ep_bind(e->fep, &e->feq->fid, 0));
	OK(fi_enable(e->fep));
	/* fi_mr_dmabuf and FI_MR_DMABUF of versions from 1.20 on. */
	struct {
		int fd;
		uint64_t offset;
		size_t len;
		void *base_addr;
	} file = {e->file, 0, e->len, e->memory};
	struct iovec range = {e->memory, e->len};
	struct fi_mr_attr of = {.iov_count = 1, .access = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE};
	if (e->file >= 0) {
		of.mr_iov = (const void *)&file;
	} else {
		of.mr_iov = &range;
		of.iface = FI_HMEM_CUDA;
		of.device.cuda = e->device;
	}
	OK(fi_mr_regattr(e->fd, &of, e->file >= 0 ? 1ull << 40 : 0, &e->fmr));
	for (int i = 0; e->file >= 0 && i < RECEIVES; i++)
		OK(fi_recv(e->fep, e->memory + 64, 8, NULL, 0, NULL));
	return (struct place){(uintptr_t)e->memory, fi_mr_key(e->fmr)};
}

void f_listen(struct end *e, struct name *name)
{
	f_fabric(e);
	OK(fi_passive_ep(e->ff, e->fi, &e->fpep, NULL));
	OK(fi_pep_bind(e->fpep, &e->feq->fid, 0));
	OK(fi_listen(e->fpep));
	name->len = sizeof name->bytes;
	OK(fi_getname(&e->fpep->fid, name->bytes, &name->len));
}

void f_connect(struct end *e, const struct name *name)
{
	struct place here;

	f_fabric(e);
	here = f_end(e, e->fi);
	OK(fi_connect(e->fep, name->bytes, &here, sizeof here));
}

void f_event(struct end *e, uint32_t wanted, struct place *got, struct fi_info **info)
{
	union {
		struct fi_eq_cm_entry entry;
		char room[sizeof(struct fi_eq_cm_entry) + 256];
	} event;
	uint32_t kind = 0;

	memset(&event, 0, sizeof event);
	OK(fi_eq_sread(e->feq, &kind, &event, sizeof event, -1, 0));
	if (kind != wanted) {
		fprintf(stderr, "event %u, not %u\n", kind, wanted);
		exit(1);
	}
	if (got)
		memcpy(got, event.entry.data, sizeof *got);
	if (info)
		*info = event.entry.info;
}

void f_accept(struct end *e)
{
	struct fi_info *info;
	struct place here;

	f_event(e, FI_CONNREQ, &e->remote, &info);
	here = f_end(e, info);
	OK(fi_accept(e->fep, &here, sizeof here));
	fi_freeinfo(info);
}

/* ---- both */

void g_failed(gdrfab_cq *cq)
{
	gdrfab_cq_err_entry error = {.struct_size = sizeof error};
	char words[512];

	OK(gdrfab_cq_readerr(cq, &error, 0));
	gdrfab_cq_strerror(cq, error.prov_errno, NULL, words, sizeof words);
	fprintf(stderr, "an operation failed: %s\n", words);
	exit(1);
}

void f_failed(struct fid_cq *cq)
{
	struct fi_cq_err_entry error;
	char words[512];

	memset(&error, 0, sizeof error);
	OK(fi_cq_readerr(cq, &error, 0));
	fprintf(stderr, "an operation failed: %s\n", fi_cq_strerror(cq, error.prov_errno, NULL, words, sizeof words));
	exit(1);
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double median(double *values, int n)
{
	qsort(values, (size_t)n, sizeof *values, ascending);
	return values[n / 2];
}
