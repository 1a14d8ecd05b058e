/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Memory regions. Descriptors and keys are gdrfab's own, so the data path passes them on unchanged. */
#include "provider.h"

#include <stdlib.h>

/* From libfabric versions newer than our headers: with this flag, fi_mr_attr begins with a pointer to a struct
 * mr_dmabuf. */
#define MR_DMABUF (1ull << 40)
struct mr_dmabuf {
	int fd;
	uint64_t offset;
	size_t len;
	void *base_addr;
};

/* Flags that are ignored: gdrfab finds out by itself where memory is, and libfabric's layers use 1<<60 and above
 * among themselves. */
#define MR_HINTS (FI_HMEM_DEVICE_ONLY | FI_HMEM_HOST_ALLOC | 0xfull << 60)

static int mr_close(struct fid *fid)
{
	enter(((struct mr *)fid)->lib);
	struct mr *mr = (struct mr *)fid;
	int result = told(gdrfab_mr_close(mr->it), FI_LOG_MR, "closing a region");
	if (result == 0)
		free(mr);
	return result;
}

static int mr_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
	enter(((struct mr *)fid)->lib);
	struct mr *mr = (struct mr *)fid;
	int result;
	switch (other->fclass) {
	case FI_CLASS_CNTR:
		result = told(gdrfab_mr_bind_cntr(mr->it, ((struct cntr *)other)->it, flags), FI_LOG_MR, "binding a counter to a region");
		/* The errno of providers whose regions have no counters. Clients go on without counters then. */
		return result == -FI_EOPNOTSUPP ? -FI_ENOSYS : result;
	case FI_CLASS_EP:
		/* Regions belong to domains. FI_MR_ENDPOINT may be requested nevertheless, and then has no effect. */
		return 0;
	default:
		return REFUSE(FI_EINVAL, FI_LOG_MR, "fi_mr_bind: neither a counter nor an endpoint\n");
	}
}

static int mr_control(struct fid *fid, int command, void *arg)
{
	(void)fid, (void)arg;
	return command == FI_ENABLE ? 0 : -FI_ENOSYS;
}

static struct fi_ops fid_ops = {
	.size = sizeof fid_ops,
	.close = mr_close,
	.bind = mr_bind,
	.control = mr_control,
	NO_FID_EXTRAS,
};

static int make(struct fid *fid, const gdrfab_mr_attr *attr, uint64_t flags, struct fid_mr **out)
{
	enter(((struct domain *)fid)->fabric->lib);
	struct domain *d = (struct domain *)fid;
	struct mr *mr = malloc(sizeof *mr);
	int result;
	if (!mr)
		return -FI_ENOMEM;
	result = gdrfab_mr_regattr(d->it, attr, flags & ~MR_HINTS, &mr->it);
	if (result < 0) {
		free(mr);
		/* Layers above drop the errno of wrong arguments, so these are logged as warnings. */
		if (result == -FI_EINVAL || result == -FI_EFAULT)
			WARN(FI_LOG_MR, "registering memory: %s\n", gdrfab_last_error());
		else
			told(result, FI_LOG_MR, "registering memory");
		return result;
	}
	mr->lib = caller;
	mr->mr.fid.fclass = FI_CLASS_MR;
	mr->mr.fid.context = attr->context;
	mr->mr.fid.ops = &fid_ops;
	mr->mr.mem_desc = gdrfab_mr_desc(mr->it);
	mr->mr.key = gdrfab_mr_key(mr->it);
	*out = &mr->mr;
	return 0;
}

static int mr_regv(struct fid *fid, const struct iovec *iov, size_t count, uint64_t access, uint64_t offset,
		   uint64_t requested_key, uint64_t flags, struct fid_mr **mr, void *context)
{
	gdrfab_mr_attr attr = {
		.struct_size = sizeof attr,
		.mr_iov = iov,
		.iov_count = count,
		.access = access,
		.offset = offset,
		.requested_key = requested_key,
		.context = context,
	};
	return make(fid, &attr, flags, mr);
}

static int mr_reg(struct fid *fid, const void *buf, size_t len, uint64_t access, uint64_t offset, uint64_t requested_key,
		  uint64_t flags, struct fid_mr **mr, void *context)
{
	struct iovec iov = {(void *)(uintptr_t)buf, len};
	return mr_regv(fid, &iov, 1, access, offset, requested_key, flags, mr, context);
}

/* The number of the device in gdrfab's count. */
static int device_of(const struct fi_mr_attr *from, uint64_t flags, uint64_t *device)
{
	gdrfab_hmem_place place = {.struct_size = sizeof place};
	*device = 0;
	switch (from->iface) {
	case FI_HMEM_CUDA:
		*device = (uint64_t)from->device.cuda;
		return 0;
	case FI_HMEM_NEURON:
		*device = (uint64_t)from->device.neuron;
		return 0;
	case FI_HMEM_SYNAPSEAI:
		*device = (uint64_t)from->device.synapseai;
		return 0;
	case FI_HMEM_ROCR: /* has no number before version 2.5 */
	case FI_HMEM_ZE:   /* has the number of a device of one driver */
		if (flags & MR_DMABUF || !from->mr_iov || from->iov_count == 0)
			return 0;
		if (gdrfab_hmem_detect(from->mr_iov->iov_base, 0, &place) == 0 && place.iface == (uint32_t)from->iface)
			*device = place.device;
		return 0;
	default:
		return 0;
	}
}

static int mr_regattr(struct fid *fid, const struct fi_mr_attr *from, uint64_t flags, struct fid_mr **mr)
{
	enter(((struct domain *)fid)->fabric->lib);
	gdrfab_mr_dmabuf file;
	gdrfab_mr_attr attr = {.struct_size = sizeof attr};
	int result;
	if (!from)
		return REFUSE(FI_EINVAL, FI_LOG_MR, "fi_mr_regattr: attr: NULL\n");
	attr.iov_count = from->iov_count;
	attr.access = from->access;
	attr.offset = from->offset;
	attr.requested_key = from->requested_key;
	attr.context = from->context;
	/* Without FI_HMEM, libfabric's manual says that iface and device are ignored, so they may hold any value. */
	if (((struct domain *)fid)->hmem) {
		attr.iface = (uint32_t)from->iface;
		result = device_of(from, flags, &attr.device);
		if (result < 0)
			return result;
	}
	if (flags & MR_DMABUF) {
		const struct mr_dmabuf *of = (const void *)from->mr_iov;
		if (!of)
			return REFUSE(FI_EINVAL, FI_LOG_MR, "fi_mr_regattr: attr->dmabuf: NULL\n");
		file = (gdrfab_mr_dmabuf){.fd = of->fd, .offset = of->offset, .len = of->len, .base_addr = of->base_addr};
		attr.dmabuf = &file;
	} else {
		attr.mr_iov = from->mr_iov;
	}
	return make(fid, &attr, flags, mr);
}

struct fi_ops_mr mr_ops = {
	.size = sizeof mr_ops,
	.reg = mr_reg,
	.regv = mr_regv,
	.regattr = mr_regattr,
};
