/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Import of dma-bufs for soft-RoCE (drivers/infiniband/sw/rxe, Linux 6.12), which no kernel has. build-modules.sh
 * includes this file in rxe_verbs.c. Like the driver itself it moves data with the CPU, through the kernel mapping
 * that the dma-buf's exporter offers (vmap), since no device could do DMA. That mapping keeps the pages in place.
 *
 * Not covered: notice of moved or revoked buffers, buffers in I/O memory, begin and end of CPU access.
 */
#include <linux/dma-buf.h>
#include <linux/iosys-map.h>

MODULE_IMPORT_NS(DMA_BUF);

/*
 * The name of a device that refuses dma-bufs, as the driver without this file does. An array, so that a change while
 * it is read does no harm.
 */
static char rxe_no_dmabuf[IB_DEVICE_NAME_MAX];
module_param_string(no_dmabuf, rxe_no_dmabuf, sizeof(rxe_no_dmabuf), 0644);
MODULE_PARM_DESC(no_dmabuf, "name of a device that does not import dma-bufs");

struct rxe_dmabuf_mr {
	struct rxe_mr mr; /* first: the driver frees it by its address */
	struct dma_buf *dmabuf;
	struct iosys_map map;
};

static int rxe_dmabuf_map(struct rxe_dmabuf_mr *own, u64 offset, u64 length)
{
	unsigned long i, pages = (offset_in_page(offset) + length + PAGE_SIZE - 1) >> PAGE_SHIFT;
	struct page *page;
	void *at;
	int err;

	err = dma_buf_vmap_unlocked(own->dmabuf, &own->map);
	if (err)
		return err;
	err = own->map.is_iomem ? -EOPNOTSUPP : 0;
	at = own->map.vaddr + (offset & PAGE_MASK);
	for (i = 0; !err && i < pages; i++, at += PAGE_SIZE) {
		page = is_vmalloc_addr(at) ? vmalloc_to_page(at) : virt_to_page(at);
		err = page ? xa_err(xa_store(&own->mr.page_list, i, page, GFP_KERNEL)) : -EFAULT;
	}
	if (err)
		dma_buf_vunmap_unlocked(own->dmabuf, &own->map);
	return err;
}

static struct ib_mr *rxe_reg_dmabuf(struct ib_pd *ibpd, u64 offset, u64 length, u64 iova, int fd, int access,
				    struct uverbs_attr_bundle *attrs)
{
	struct rxe_dev *rxe = to_rdev(ibpd->device);
	struct rxe_pd *pd = to_rpd(ibpd);
	struct rxe_dmabuf_mr *own;
	struct dma_buf *dmabuf;
	u64 end;
	int err;

	if (sysfs_streq(rxe_no_dmabuf, dev_name(&ibpd->device->dev)) || (access & ~RXE_ACCESS_SUPPORTED_MR))
		return ERR_PTR(-EOPNOTSUPP);
	/* The kernel has checked that offset and iova agree within a page. */
	if (!length || check_add_overflow(offset, length, &end))
		return ERR_PTR(-EINVAL);

	dmabuf = dma_buf_get(fd);
	if (IS_ERR(dmabuf))
		return ERR_CAST(dmabuf);
	err = -EINVAL;
	if (end > dmabuf->size)
		goto put;
	err = -ENOMEM;
	own = kzalloc(sizeof(*own), GFP_KERNEL);
	if (!own)
		goto put;
	own->dmabuf = dmabuf;
	err = rxe_add_to_pool(&rxe->mr_pool, &own->mr);
	if (err)
		goto release;

	rxe_get(pd);
	own->mr.ibmr.pd = ibpd;
	own->mr.ibmr.device = ibpd->device;
	rxe_mr_init_dma(access, &own->mr); /* sets keys and page size; the rest differs */
	own->mr.state = RXE_MR_STATE_INVALID;
	own->mr.ibmr.type = IB_MR_TYPE_USER;
	own->mr.ibmr.iova = iova;
	own->mr.ibmr.length = length;
	xa_init(&own->mr.page_list);
	err = rxe_dmabuf_map(own, offset, length);
	if (err)
		goto cleanup;
	own->mr.state = RXE_MR_STATE_VALID;
	rxe_finalize(&own->mr);
	return &own->mr.ibmr;

cleanup:
	rxe_cleanup(&own->mr);
release:
	kfree(own);
put:
	dma_buf_put(dmabuf);
	return ERR_PTR(err);
}

static int rxe_dereg_any(struct ib_mr *ibmr, struct ib_udata *udata)
{
	struct rxe_mr *mr = to_rmr(ibmr);
	struct rxe_dmabuf_mr own = {};
	int err;

	/* A user's region without pinned user pages was made by this file. */
	if (ibmr->type == IB_MR_TYPE_USER && !mr->umem)
		own = *container_of(mr, struct rxe_dmabuf_mr, mr);
	err = rxe_dereg_mr(ibmr, udata);
	if (!err && own.dmabuf) {
		dma_buf_vunmap_unlocked(own.dmabuf, &own.map);
		dma_buf_put(own.dmabuf);
	}
	return err;
}

static const struct ib_device_ops rxe_dmabuf_ops = {
	.dereg_mr = rxe_dereg_any,
	.reg_user_mr_dmabuf = rxe_reg_dmabuf,
};
