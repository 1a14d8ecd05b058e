/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Completion queues. gdrfab's entries have libfabric's layout, so they are read straight into the caller's buffer. */
#include "provider.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* C99 has no static assertion, so an array of negative size stands for one. */
#define IS_SO(name, condition) typedef char is_so_##name[(condition) ? 1 : -1]
#define SAME(field)                                                                                                    \
	IS_SO(field, offsetof(struct fi_cq_tagged_entry, field) == offsetof(gdrfab_cq_tagged_entry, field))
SAME(op_context);
SAME(flags);
SAME(len);
SAME(buf);
SAME(data);
SAME(tag);
IS_SO(all, sizeof(struct fi_cq_tagged_entry) == sizeof(gdrfab_cq_tagged_entry) &&
		   sizeof(struct fi_cq_data_entry) == sizeof(gdrfab_cq_data_entry) &&
		   sizeof(struct fi_cq_msg_entry) == sizeof(gdrfab_cq_msg_entry) &&
		   sizeof(struct fi_cq_entry) == sizeof(gdrfab_cq_entry));

/* ---- sends whose memory cannot be read */

struct unreadable {
	struct unreadable *next;
	void *context;
	uint64_t flags;
	size_t len;
	char words[256];
};

bool cq_add_unreadable(struct cq *q, void *context, uint64_t flags, size_t len, const char *words)
{
	struct unreadable *made = calloc(1, sizeof *made), **at = &q->lost;
	if (!made)
		return false;
	made->context = context;
	made->flags = flags;
	made->len = len;
	snprintf(made->words, sizeof made->words, "%s", words);
	pthread_mutex_lock(&q->lock);
	while (*at)
		at = &(*at)->next;
	__atomic_store_n(at, made, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&q->lock);
	gdrfab_cq_signal(q->it);
	return true;
}

/* The oldest such entry. NULL: another thread has taken it. */
static struct unreadable *take_unreadable(struct cq *q)
{
	struct unreadable *first;
	pthread_mutex_lock(&q->lock);
	first = q->lost;
	if (first)
		__atomic_store_n(&q->lost, first->next, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&q->lock);
	return first;
}

/* ---- reading */

static int cq_close(struct fid *fid)
{
	enter(((struct cq *)fid)->lib);
	struct cq *q = (struct cq *)fid;
	int result = told(gdrfab_cq_close(q->it), FI_LOG_CQ, "closing a completion queue");
	if (result < 0)
		return result;
	for (struct unreadable *lost; (lost = take_unreadable(q)) != NULL;)
		free(lost);
	pthread_mutex_destroy(&q->lock);
	free(q);
	return 0;
}

static int cq_control(struct fid *fid, int command, void *arg)
{
	enter(((struct cq *)fid)->lib);
	int fd = -1, result = gdrfab_cq_fd(((struct cq *)fid)->it, &fd);
	return wait_control(command, arg, result < 0 ? result : fd);
}

static ssize_t cq_read(struct fid_cq *cq, void *buf, size_t count)
{
	struct cq *q = (struct cq *)cq;
	return cq_has_unreadable(q) ? -FI_EAVAIL : gdrfab_cq_read(q->it, buf, count);
}

static ssize_t cq_readfrom(struct fid_cq *cq, void *buf, size_t count, fi_addr_t *src_addr)
{
	struct cq *q = (struct cq *)cq;
	return cq_has_unreadable(q) ? -FI_EAVAIL : gdrfab_cq_readfrom(q->it, buf, count, src_addr);
}

static ssize_t cq_sreadfrom(struct fid_cq *cq, void *buf, size_t count, fi_addr_t *src_addr, const void *cond, int timeout)
{
	(void)cond; /* number of entries to wait for; libfabric lets a provider return sooner */
	struct cq *q = (struct cq *)cq;
	ssize_t n = cq_has_unreadable(q) ? -FI_EAVAIL : gdrfab_cq_sreadfrom(q->it, buf, count, src_addr, timeout);
	return n == -FI_EAGAIN && cq_has_unreadable(q) ? -FI_EAVAIL : n;
}

static ssize_t cq_sread(struct fid_cq *cq, void *buf, size_t count, const void *cond, int timeout)
{
	return cq_sreadfrom(cq, buf, count, NULL, cond, timeout);
}

/* ---- error entries */

static ssize_t cq_readerr(struct fid_cq *cq, struct fi_cq_err_entry *to, uint64_t flags)
{
	enter(((struct cq *)cq)->lib);
	struct cq *q = (struct cq *)cq;
	char words[sizeof q->words];
	gdrfab_cq_err_entry from = {.struct_size = sizeof from, .err_data = words, .err_data_size = sizeof words};
	ssize_t n;
	if (!to)
		return -FI_EINVAL;
	struct unreadable *lost = cq_has_unreadable(q) && !flags ? take_unreadable(q) : NULL;
	n = lost ? 1 : gdrfab_cq_readerr(q->it, &from, flags);
	if (n < 0)
		return n;
	if (lost) {
		from.op_context = lost->context;
		from.flags = lost->flags;
		from.olen = lost->len;
		from.err = FI_EFAULT;
		from.prov_errno = GDRFAB_PROV_FAULT;
		from.err_data_size = (size_t)snprintf(words, sizeof words, "%s", lost->words) + 1;
		free(lost);
	}
	/* When a peer closes, a connection's receives fail; libfabric's clients expect the errno that their own
	 * close would give. */
	if (!q->rdm && from.flags & FI_RECV && from.err == ECONNRESET)
		from.err = FI_ECANCELED;
	to->op_context = from.op_context;
	to->flags = from.flags;
	to->len = from.len;
	to->buf = from.buf;
	to->data = from.data;
	to->tag = from.tag;
	to->olen = from.olen;
	to->err = from.err;
	to->prov_errno = from.prov_errno;
	if (q->old) {
		memcpy(q->words, words, from.err_data_size);
		to->err_data = q->words;
	} else if (to->err_data && to->err_data_size) {
		if (to->err_data_size > from.err_data_size)
			to->err_data_size = from.err_data_size;
		memcpy(to->err_data, words, to->err_data_size);
		/* fi_cq_strerror() is given err_data without its length. */
		if (to->err_data_size)
			((char *)to->err_data)[to->err_data_size - 1] = '\0';
	} else {
		memcpy(q->words, words, from.err_data_size);
		to->err_data = q->words;
		to->err_data_size = from.err_data_size;
	}
	if (from.err != FI_ECANCELED)
		INFO(FI_LOG_CQ, "an operation failed: %s\n", words);
	return n;
}

static int cq_signal(struct fid_cq *cq)
{
	return gdrfab_cq_signal(((struct cq *)cq)->it);
}

static const char *cq_strerror(struct fid_cq *cq, int prov_errno, const void *err_data, char *buf, size_t len)
{
	return gdrfab_cq_strerror(((struct cq *)cq)->it, prov_errno, err_data, buf, len);
}

static struct fi_ops fid_ops = {
	.size = sizeof fid_ops,
	.close = cq_close,
	.bind = no_bind,
	.control = cq_control,
	NO_FID_EXTRAS,
};

static struct fi_ops_cq ops = {
	.size = sizeof ops,
	.read = cq_read,
	.readfrom = cq_readfrom,
	.readerr = cq_readerr,
	.sread = cq_sread,
	.sreadfrom = cq_sreadfrom,
	.signal = cq_signal,
	.strerror = cq_strerror,
};

int cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq, void *context)
{
	enter(((struct domain *)domain)->fabric->lib);
	static const uint32_t formats[] = {
		[FI_CQ_FORMAT_UNSPEC] = GDRFAB_CQ_FORMAT_CONTEXT, [FI_CQ_FORMAT_CONTEXT] = GDRFAB_CQ_FORMAT_CONTEXT,
		[FI_CQ_FORMAT_MSG] = GDRFAB_CQ_FORMAT_MSG,	  [FI_CQ_FORMAT_DATA] = GDRFAB_CQ_FORMAT_DATA,
		[FI_CQ_FORMAT_TAGGED] = GDRFAB_CQ_FORMAT_TAGGED,
	};
	gdrfab_cq_attr to = {.struct_size = sizeof to, .format = GDRFAB_CQ_FORMAT_CONTEXT};
	struct cq *q;
	int result = 0;
	if (attr) {
		if ((unsigned)attr->format > FI_CQ_FORMAT_TAGGED)
			return REFUSE(FI_ENOSYS, FI_LOG_CQ, "fi_cq_open: attr->format: %d\n", (int)attr->format);
		/* FI_AFFINITY concerns the processor that takes interrupts, which does not matter to a polled queue. */
		if (attr->flags & ~FI_AFFINITY)
			return REFUSE(FI_EBADFLAGS, FI_LOG_CQ, "fi_cq_open: attr->flags: %#llx\n",
				      (unsigned long long)attr->flags);
		to.format = formats[attr->format];
		to.size = attr->size;
		result = wait_object(attr->wait_obj, &to.wait_obj);
	}
	if (result < 0)
		return result;
	q = calloc(1, sizeof *q);
	if (!q)
		return -FI_ENOMEM;
	result = told(gdrfab_cq_open(((struct domain *)domain)->it, &to, NULL, &q->it), FI_LOG_CQ, "opening a completion queue");
	if (result < 0) {
		free(q);
		return result;
	}
	pthread_mutex_init(&q->lock, NULL);
	q->lib = caller;
	q->rdm = ((struct domain *)domain)->fabric->kind == KIND_RDM;
	q->old = FI_VERSION_LT(((struct domain *)domain)->fabric->fabric.api_version, FI_VERSION(1, 5));
	q->cq.fid.fclass = FI_CLASS_CQ;
	q->cq.fid.context = context;
	q->cq.fid.ops = &fid_ops;
	q->cq.ops = &ops;
	*cq = &q->cq;
	return 0;
}
