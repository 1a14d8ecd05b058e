/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Atomics. gdrfab's calls have libfabric's arguments, datatypes and operations. Operands are read during the call,
 * so operands in several pieces are gathered first. Results come later, so they must go to a single piece. */
#include "provider.h"

#include <string.h>

#define IT(ep) (((struct ep *)(ep))->it)

enum { BYTES_MAX = 1024 };
static const unsigned char sizes[ATOMIC_TYPES] = {1, 1, 2, 2, 4, 4, 8, 8, 4, 8};
/* Datatypes and operations that gdrfab has numbers for. The numbers are libfabric's. */
enum { TYPES = ATOMIC_TYPES, OPS = GDRFAB_MSWAP + 1 };

static bool named(enum fi_datatype datatype, enum fi_op op)
{
	return (unsigned)datatype < TYPES && (unsigned)op < OPS;
}

/* Changes the errno if libfabric knows the datatype or operation and gdrfab does not: it is unsupported, not
 * invalid. */
__attribute__((cold, noinline)) static ssize_t refused(struct fid_ep *ep, ssize_t result, enum fi_datatype datatype, enum fi_op op,
						       const char *call)
{
	data_refused(ep, result, call);
	return result == -FI_EINVAL && !named(datatype, op) ? -FI_EOPNOTSUPP : result;
}

static inline ssize_t said(struct fid_ep *ep, ssize_t result, enum fi_datatype datatype, enum fi_op op, const char *call)
{
	return __builtin_expect(result < 0, 0) ? refused(ep, result, datatype, op, call) : result;
}

/* ---- pieces */

#define WRONG(err, call, ...) (enter(((struct ep *)ep)->domain->fabric->lib), REFUSE(err, FI_LOG_EP_DATA, call ": " __VA_ARGS__))

/* Elements of one datatype in one piece of memory. */
struct piece {
	void *at;
	void *desc;
	size_t count;
};

/* Makes one piece of several by copying them into `room`, which holds the most elements that an operation can have.
 * A single piece is not copied. */
static int gather(struct fid_ep *ep, const struct fi_ioc *iov, void **desc, size_t pieces, size_t size, struct piece *to,
		  unsigned char *room)
{
	to->at = pieces == 1 && iov ? iov->addr : room;
	to->desc = pieces == 1 && desc ? desc[0] : NULL;
	to->count = pieces == 1 && iov ? iov->count : 0;
	if (pieces && !iov)
		return WRONG(FI_EINVAL, "fi_atomic", "iov: NULL\n");
	if (pieces > 1 && desc && ((struct ep *)ep)->domain->hmem)
		return WRONG(FI_EOPNOTSUPP, "fi_atomic", "iov: %zu pieces that may be device memory, must be one\n", pieces);
	for (size_t i = 0; pieces > 1 && i < pieces; i++) {
		if (iov[i].count > BYTES_MAX / size - to->count)
			return WRONG(FI_EMSGSIZE, "fi_atomic", "iov: more than %zu elements\n", BYTES_MAX / size);
		if (!iov[i].addr && iov[i].count)
			return WRONG(FI_EINVAL, "fi_atomic", "iov[%zu].addr: NULL\n", i);
		if (iov[i].count)
			memcpy(room + to->count * size, iov[i].addr, iov[i].count * size);
		to->count += iov[i].count;
	}
	return 0;
}

/* Makes one piece of several that follow each other in memory; any others are refused. */
static int join(struct fid_ep *ep, const struct fi_ioc *iov, void **desc, size_t pieces, size_t size, struct piece *to)
{
	if (!pieces || !iov)
		return WRONG(FI_EINVAL, "fi_fetch_atomic", "resultv: none\n");
	to->at = iov->addr;
	to->desc = desc ? desc[0] : NULL;
	to->count = iov->count;
	for (size_t i = 1; i < pieces; i++) {
		if ((char *)to->at + to->count * size != (char *)iov[i].addr)
			return WRONG(FI_EOPNOTSUPP, "fi_fetch_atomic", "resultv[%zu]: the fetched elements must be contiguous\n", i);
		to->count += iov[i].count;
	}
	return to->at ? 0 : WRONG(FI_EINVAL, "fi_fetch_atomic", "resultv[0].addr: NULL\n");
}

/* An operation whose operands are in pieces. Operands that the operation lacks are NULL. */
struct pieces {
	const struct fi_ioc *iov, *comparev, *resultv;
	void **desc, **compare_desc, **result_desc;
	size_t count, compare_count, result_count;
	bool compares, fetches;
	const struct fi_rma_ioc *target; /* NULL: as many elements as there are here, at at->rma_addr */
};

static ssize_t post(struct fid_ep *ep, const struct pieces *p, gdrfab_msg_atomic *m, const uint64_t *flags)
{
	struct piece operand = {.at = NULL}, compare = {.at = NULL}, result = {.at = NULL};
	unsigned char room[2][BYTES_MAX];
	enum fi_datatype type = (enum fi_datatype)m->datatype;
	enum fi_op op = (enum fi_op)m->op;
	bool reads = op == FI_ATOMIC_READ;
	size_t size;
	int rc = 0;
	if (!named(type, op))
		return WRONG(FI_EOPNOTSUPP, "fi_atomic", "datatype %d, op %d: not supported\n", (int)type, (int)op);
	size = sizes[type];
	if (!reads)
		rc = gather(ep, p->iov, p->desc, p->count, size, &operand, room[0]);
	if (rc == 0 && p->compares)
		rc = gather(ep, p->comparev, p->compare_desc, p->compare_count, size, &compare, room[1]);
	if (rc == 0 && p->fetches)
		rc = join(ep, p->resultv, p->result_desc, p->result_count, size, &result);
	if (rc < 0)
		return rc;
	m->struct_size = sizeof *m;
	m->count = p->target ? p->target->count : reads ? result.count : operand.count;
	if ((!reads && operand.count != m->count) || (p->compares && compare.count != m->count) ||
	    (p->fetches && result.count != m->count))
		return WRONG(FI_EINVAL, "fi_atomic", "the pieces have different numbers of elements\n");
	if (p->target) {
		m->rma_addr = p->target->addr;
		m->key = p->target->key;
	}
	if (flags) {
		m->buf = operand.at, m->compare = compare.at, m->result = result.at;
		m->desc = operand.desc, m->compare_desc = compare.desc, m->result_desc = result.desc;
		return said(ep, gdrfab_atomicmsg(IT(ep), m, *flags), type, op, "fi_atomicmsg");
	}
	if (p->compares)
		return said(ep,
			    gdrfab_compare_atomic(IT(ep), operand.at, m->count, operand.desc, compare.at, compare.desc, result.at,
						  result.desc, m->addr, m->rma_addr, m->key, m->datatype, m->op, m->context),
			    type, op, "fi_compare_atomicv");
	if (p->fetches)
		return said(ep,
			    gdrfab_fetch_atomic(IT(ep), operand.at, m->count, operand.desc, result.at, result.desc, m->addr, m->rma_addr,
						m->key, m->datatype, m->op, m->context),
			    type, op, "fi_fetch_atomicv");
	return said(ep,
		    gdrfab_atomic(IT(ep), operand.at, m->count, operand.desc, m->addr, m->rma_addr, m->key, m->datatype, m->op,
				  m->context),
		    type, op, "fi_atomicv");
}

static ssize_t post_msg(struct fid_ep *ep, struct pieces *p, const struct fi_msg_atomic *from, uint64_t flags)
{
	gdrfab_msg_atomic m = {.addr = from->addr, .datatype = from->datatype, .op = from->op, .context = from->context};
	if (from->rma_iov_count != 1 || !from->rma_iov)
		return WRONG(FI_EINVAL, "fi_atomicmsg", "rma_iov_count: %zu, must be 1\n", from->rma_iov_count);
	p->iov = from->msg_iov;
	p->desc = from->desc;
	p->count = from->iov_count;
	p->target = from->rma_iov;
	return post(ep, p, &m, &flags);
}

/* ---- calls */

static ssize_t atomic_write(struct fid_ep *ep, const void *buf, size_t count, void *desc, fi_addr_t dest_addr, uint64_t addr,
			    uint64_t key, enum fi_datatype datatype, enum fi_op op, void *context)
{
	return said(ep, gdrfab_atomic(IT(ep), buf, count, desc, dest_addr, addr, key, datatype, op, context), datatype, op, "fi_atomic");
}

static ssize_t atomic_writev(struct fid_ep *ep, const struct fi_ioc *iov, void **desc, size_t count, fi_addr_t dest_addr, uint64_t addr,
			     uint64_t key, enum fi_datatype datatype, enum fi_op op, void *context)
{
	const struct pieces p = {.iov = iov, .desc = desc, .count = count};
	gdrfab_msg_atomic m = {.addr = dest_addr, .rma_addr = addr, .key = key, .datatype = datatype, .op = op, .context = context};
	return post(ep, &p, &m, NULL);
}

static ssize_t atomic_writemsg(struct fid_ep *ep, const struct fi_msg_atomic *from, uint64_t flags)
{
	struct pieces p = {.iov = NULL};
	return post_msg(ep, &p, from, flags);
}

static ssize_t atomic_inject(struct fid_ep *ep, const void *buf, size_t count, fi_addr_t dest_addr, uint64_t addr, uint64_t key,
			     enum fi_datatype datatype, enum fi_op op)
{
	return said(ep, gdrfab_inject_atomic(IT(ep), buf, count, dest_addr, addr, key, datatype, op), datatype, op, "fi_inject_atomic");
}

static ssize_t atomic_readwrite(struct fid_ep *ep, const void *buf, size_t count, void *desc, void *result, void *result_desc,
				fi_addr_t dest_addr, uint64_t addr, uint64_t key, enum fi_datatype datatype, enum fi_op op, void *context)
{
	return said(ep,
		    gdrfab_fetch_atomic(IT(ep), buf, count, desc, result, result_desc, dest_addr, addr, key, datatype, op, context),
		    datatype, op, "fi_fetch_atomic");
}

static ssize_t atomic_readwritev(struct fid_ep *ep, const struct fi_ioc *iov, void **desc, size_t count, struct fi_ioc *resultv,
				 void **result_desc, size_t result_count, fi_addr_t dest_addr, uint64_t addr, uint64_t key,
				 enum fi_datatype datatype, enum fi_op op, void *context)
{
	const struct pieces p = {.iov = iov, .desc = desc, .count = count, .resultv = resultv, .result_desc = result_desc,
				 .result_count = result_count, .fetches = true};
	gdrfab_msg_atomic m = {.addr = dest_addr, .rma_addr = addr, .key = key, .datatype = datatype, .op = op, .context = context};
	return post(ep, &p, &m, NULL);
}

static ssize_t atomic_readwritemsg(struct fid_ep *ep, const struct fi_msg_atomic *from, struct fi_ioc *resultv, void **result_desc,
				   size_t result_count, uint64_t flags)
{
	struct pieces p = {.resultv = resultv, .result_desc = result_desc, .result_count = result_count, .fetches = true};
	return post_msg(ep, &p, from, flags);
}

static ssize_t atomic_compwrite(struct fid_ep *ep, const void *buf, size_t count, void *desc, const void *compare, void *compare_desc,
				void *result, void *result_desc, fi_addr_t dest_addr, uint64_t addr, uint64_t key,
				enum fi_datatype datatype, enum fi_op op, void *context)
{
	return said(ep,
		    gdrfab_compare_atomic(IT(ep), buf, count, desc, compare, compare_desc, result, result_desc, dest_addr, addr, key,
					  datatype, op, context),
		    datatype, op, "fi_compare_atomic");
}

static ssize_t atomic_compwritev(struct fid_ep *ep, const struct fi_ioc *iov, void **desc, size_t count, const struct fi_ioc *comparev,
				 void **compare_desc, size_t compare_count, struct fi_ioc *resultv, void **result_desc,
				 size_t result_count, fi_addr_t dest_addr, uint64_t addr, uint64_t key, enum fi_datatype datatype,
				 enum fi_op op, void *context)
{
	const struct pieces p = {iov, comparev, resultv, desc, compare_desc, result_desc, count, compare_count, result_count, true, true, NULL};
	gdrfab_msg_atomic m = {.addr = dest_addr, .rma_addr = addr, .key = key, .datatype = datatype, .op = op, .context = context};
	return post(ep, &p, &m, NULL);
}

static ssize_t atomic_compwritemsg(struct fid_ep *ep, const struct fi_msg_atomic *from, const struct fi_ioc *comparev, void **compare_desc,
				   size_t compare_count, struct fi_ioc *resultv, void **result_desc, size_t result_count, uint64_t flags)
{
	struct pieces p = {NULL, comparev, resultv, NULL, compare_desc, result_desc, 0, compare_count, result_count, true, true, NULL};
	return post_msg(ep, &p, from, flags);
}

/* ---- support for datatypes and operations */

static int (*const asks[])(gdrfab_ep *ep, uint32_t datatype, uint32_t op, size_t *count) = {
	gdrfab_atomicvalid,
	gdrfab_fetch_atomicvalid,
	gdrfab_compare_atomicvalid,
};

/* Asks gdrfab without a line in the log: callers try all combinations. */
static int valid(gdrfab_ep *ep, int form, enum fi_datatype datatype, enum fi_op op, size_t *count)
{
	return named(datatype, op) ? asks[form](ep, datatype, op, count) : -FI_EOPNOTSUPP;
}

static int atomic_writevalid(struct fid_ep *ep, enum fi_datatype datatype, enum fi_op op, size_t *count)
{
	return valid(IT(ep), 0, datatype, op, count);
}

static int atomic_readwritevalid(struct fid_ep *ep, enum fi_datatype datatype, enum fi_op op, size_t *count)
{
	return valid(IT(ep), 1, datatype, op, count);
}

static int atomic_compwritevalid(struct fid_ep *ep, enum fi_datatype datatype, enum fi_op op, size_t *count)
{
	return valid(IT(ep), 2, datatype, op, count);
}

/* Asks gdrfab, once, for all that endpoints of this domain support. gdrfab answers for an endpoint, so one is opened
 * for that. */
static int learn(struct domain *d)
{
	gdrfab_ep *ep;
	int result = gdrfab_ep_open(d->it, d->info, NULL, &ep);
	if (result < 0)
		return told(result, FI_LOG_DOMAIN, "an endpoint to ask for its atomics");
	for (int form = 0; form < ATOMIC_FORMS; form++)
		for (int type = 0; type < TYPES; type++)
			for (int op = 0; op < OPS; op++)
				if (valid(ep, form, (enum fi_datatype)type, (enum fi_op)op, &d->atomics.count[type]) == 0)
					d->atomics.ops[form][type] |= 1u << op;
	d->atomics.known = true;
	return told(gdrfab_ep_close(ep), FI_LOG_DOMAIN, "closing it");
}

int atomic_query(struct fid_domain *domain, enum fi_datatype datatype, enum fi_op op, struct fi_atomic_attr *attr, uint64_t flags)
{
	struct domain *d = (struct domain *)domain;
	int form = flags == FI_FETCH_ATOMIC ? 1 : flags == FI_COMPARE_ATOMIC ? 2 : 0, result = 0;
	enter(d->fabric->lib);
	if (form == 0 && flags)
		return REFUSE(FI_EBADFLAGS, FI_LOG_DOMAIN, "fi_query_atomic: flags: 0x%llx, must be FI_FETCH_ATOMIC or FI_COMPARE_ATOMIC\n",
			      (unsigned long long)flags);
	pthread_mutex_lock(&d->fabric->lock);
	if (!d->atomics.known)
		result = learn(d);
	pthread_mutex_unlock(&d->fabric->lock);
	if (result < 0)
		return result;
	if (!named(datatype, op) || !(d->atomics.ops[form][datatype] & 1u << op))
		return -FI_EOPNOTSUPP;
	if (attr) {
		attr->count = d->atomics.count[datatype];
		attr->size = sizes[datatype];
	}
	return 0;
}

struct fi_ops_atomic atomic_ops = {
	.size = sizeof atomic_ops,
	.write = atomic_write,
	.writev = atomic_writev,
	.writemsg = atomic_writemsg,
	.inject = atomic_inject,
	.readwrite = atomic_readwrite,
	.readwritev = atomic_readwritev,
	.readwritemsg = atomic_readwritemsg,
	.compwrite = atomic_compwrite,
	.compwritev = atomic_compwritev,
	.compwritemsg = atomic_compwritemsg,
	.writevalid = atomic_writevalid,
	.readwritevalid = atomic_readwritevalid,
	.compwritevalid = atomic_compwritevalid,
};
