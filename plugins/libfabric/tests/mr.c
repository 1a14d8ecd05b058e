/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Memory regions: the three calls that make them, keys, refused registrations, and a region's counter. */
#include "fi.h"

#define LEN 16384
#define REMOTE (FI_REMOTE_READ | FI_REMOTE_WRITE)
#define WRITTEN (FI_WRITE | FI_RMA)

/* From newer headers: with this flag mr_iov points to a struct mr_dmabuf. */
#define MR_DMABUF (1ull << 40)
struct mr_dmabuf {
	int fd;
	uint64_t offset;
	size_t len;
	void *base_addr;
};

/* --- each call makes a region that works --- */

enum { BY_REG, BY_REGV, BY_REGATTR, BY_REGATTR_SYSTEM, CALLS };

static struct fid_mr *made_by(struct node *n, int call, unsigned char *at, uint64_t key)
{
	struct iovec iov = {at, LEN};
	struct fi_mr_attr attr;
	struct fid_mr *mr = NULL;
	memset(&attr, 0, sizeof attr);
	attr.mr_iov = &iov;
	attr.iov_count = 1;
	attr.access = REMOTE;
	attr.requested_key = key;
	attr.context = at;
	attr.iface = FI_HMEM_SYSTEM;
	switch (call) {
	case BY_REG: OK(fi_mr_reg(n->domain, at, LEN, REMOTE, 0, key, 0, &mr, at)); break;
	case BY_REGV: OK(fi_mr_regv(n->domain, &iov, 1, REMOTE, 0, key, 0, &mr, at)); break;
	case BY_REGATTR: OK(fi_mr_regattr(n->domain, &attr, 0, &mr)); break;
	default: OK(fi_mr_regattr(n->domain, &attr, FI_HMEM_HOST_ALLOC, &mr)); break;
	}
	CHECK(mr->fid.fclass == FI_CLASS_MR && mr->fid.context == at);
	CHECK(fi_mr_key(mr) != FI_KEY_NOTAVAIL);
	if (!(n->info->domain_attr->mr_mode & FI_MR_PROV_KEY))
		CHECK_EQ(fi_mr_key(mr), key);
	return mr;
}

static void owner(struct node *n)
{
	unsigned char *at = (unsigned char *)pages(LEN);
	node_up(n);
	for (int call = 0; call < CALLS; call++) {
		struct fid_mr *mr = made_by(n, call, at, 0x1000u + (unsigned)call);
		memset(at, 0, LEN);
		mr_publish(n, mr, at, LEN);
		barrier(n);
		CHECK_FILLED("what was written", at + 100, 1000, 0, (uint32_t)call);
		CLOSE(mr);
	}
	free(at);
	node_down(n);
}

static void user(struct node *n)
{
	unsigned char at[1000], back[1000];
	node_up(n);
	for (int call = 0; call < CALLS; call++) {
		struct remote r = mr_fetch(n);
		fill(at, sizeof at, 0, (uint32_t)call);
		POST(n->cq, fi_write(n->ep, at, sizeof at, local_desc(n, at, sizeof at), 0, r.base + 100, r.key, at));
		DONE(n->cq, at, WRITTEN, NULL);
		POST(n->cq, fi_read(n->ep, back, sizeof back, local_desc(n, back, sizeof back), 0, r.base + 100, r.key,
				    back));
		DONE(n->cq, back, FI_READ | FI_RMA, NULL);
		CHECK_FILLED("what was read back", back, sizeof back, 0, (uint32_t)call);
		barrier(n);
	}
	node_down(n);
}

TEST(calls)
{
	pair(NULL, owner, user, NULL);
}

/* Without a mode the caller chooses keys, and addresses begin at 0. */
TEST(calls_without_a_mode)
{
	struct setup setup = {.no_mr_mode = true};
	skip_unless(!is_carried_by("verbs"), "an adapter gives keys and wants addresses");
	pair(&setup, owner, user, NULL);
}

/* Descriptors may be passed, whether or not they are required. */
static void with_descriptors(struct node *n)
{
	unsigned char *at = (unsigned char *)pages(LEN), *back = (unsigned char *)pages(LEN);
	node_up(n);
	struct fid_mr *mr = mr_new(n, at, LEN, FI_SEND | FI_RECV | FI_READ | FI_WRITE);
	struct fid_mr *other = mr_new(n, back, LEN, FI_SEND | FI_RECV | FI_READ | FI_WRITE);
	fill(at, LEN, 0, (uint32_t)n->side);
	POST(n->cq, fi_recv(n->ep, back, LEN, fi_mr_desc(other), 0, back));
	barrier(n);
	POST(n->cq, fi_send(n->ep, at, LEN, fi_mr_desc(mr), 0, at));
	for (int i = 0; i < 2; i++) {
		done entry;
		CHECK_EQ(cq_next(n->cq, &entry, 10000), 1);
		CHECK_EQ(entry.flags, entry.op_context == at ? FI_SEND | FI_MSG : FI_RECV | FI_MSG);
	}
	CHECK_FILLED("what came", back, LEN, 0, (uint32_t)(n->side == TEST_SERVER ? TEST_CLIENT : TEST_SERVER));
	barrier(n);
	CLOSE(mr);
	CLOSE(other);
	free(at);
	free(back);
	node_down(n);
}

TEST(descriptors)
{
	pair(NULL, with_descriptors, with_descriptors, NULL);
}

/* --- keys --- */

TEST(keys)
{
	struct setup setup = {.mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_LOCAL};
	struct node n;
	struct fid_mr *mr[3] = {NULL, NULL, NULL};
	skip_unless(!is_carried_by("verbs"), "an adapter gives keys");
	unsigned char *at = (unsigned char *)pages(LEN);
	node_alone(&n, &setup);
	CHECK_EQ(n.info->domain_attr->mr_mode & FI_MR_PROV_KEY, 0);
	OK(fi_mr_reg(n.domain, at, LEN, REMOTE, 0, 17, 0, &mr[0], NULL));
	CHECK_EQ(fi_mr_key(mr[0]), 17);
	/* In use until it is closed. */
	CHECK_EQ(fi_mr_reg(n.domain, at, LEN, REMOTE, 0, 17, 0, &mr[1], NULL), -FI_ENOKEY);
	CHECK(mr[1] == NULL);
	OK(fi_mr_reg(n.domain, at, LEN, REMOTE, 0, UINT64_MAX - 1, 0, &mr[2], NULL));
	CHECK_EQ(fi_mr_key(mr[2]), UINT64_MAX - 1);
	CLOSE(mr[0]);
	OK(fi_mr_reg(n.domain, at, LEN, REMOTE, 0, 17, 0, &mr[1], NULL));
	CLOSE(mr[1]);
	CLOSE(mr[2]);
	free(at);
	node_close(&n);
}

TEST(given_keys)
{
	struct node n;
	enum { COUNT = 200 };
	struct fid_mr *mr[COUNT];
	unsigned char *at = (unsigned char *)pages(LEN);
	skip_unless(is_gdrfab(), "has no keys to give");
	node_alone(&n, NULL);
	skip_unless(n.info->domain_attr->mr_mode & FI_MR_PROV_KEY, "has no keys to give");
	/* The requested key is ignored, and no two keys are equal. */
	for (int i = 0; i < COUNT; i++) {
		OK(fi_mr_reg(n.domain, at, LEN, REMOTE, 0, 5, 0, &mr[i], NULL));
		for (int j = 0; j < i; j++)
			CHECK(fi_mr_key(mr[i]) != fi_mr_key(mr[j]));
	}
	for (int i = 0; i < COUNT; i++)
		CLOSE(mr[i]);
	free(at);
	node_close(&n);
}

/* --- refused registrations --- */

#define REFUSED(call)                                                                                                  \
	do {                                                                                                           \
		test_at(__FILE__, __LINE__);                                                                           \
		struct fid_mr *none_ = NULL, **mr = &none_;                                                            \
		int rc_ = (call);                                                                                      \
		if (rc_ >= 0 || none_)                                                                                 \
			test_wrong(__FILE__, __LINE__, "%s is %d", #call, rc_);                                        \
	} while (0)

TEST(bad_arguments)
{
	struct node n;
	unsigned char *at = (unsigned char *)pages(LEN);
	struct iovec iov[600];
	struct fi_mr_attr attr;
	skip_unless(is_gdrfab(), "trusts its caller");
	node_alone(&n, NULL);
	size_t limit = n.info->domain_attr->mr_iov_limit;
	CHECK(limit >= 1 && limit < 599);
	for (int i = 0; i < 600; i++)
		iov[i] = (struct iovec){at + i, 1};
	REFUSED(fi_mr_reg(n.domain, NULL, 100, REMOTE, 0, 0, 0, mr, NULL));
	REFUSED(fi_mr_reg(n.domain, at, LEN, REMOTE, 4096, 0, 0, mr, NULL));
	REFUSED(fi_mr_reg(n.domain, at, LEN, REMOTE, 0, 0, 1ull << 57, mr, NULL));
	REFUSED(fi_mr_reg(n.domain, at, LEN, 1ull << 50, 0, 0, 0, mr, NULL));
	REFUSED(fi_mr_reg(n.domain, at, SIZE_MAX - 10, REMOTE, 0, 0, 0, mr, NULL));
	REFUSED(fi_mr_regv(n.domain, NULL, 1, REMOTE, 0, 0, 0, mr, NULL));
	REFUSED(fi_mr_regv(n.domain, iov, 0, REMOTE, 0, 0, 0, mr, NULL));
	REFUSED(fi_mr_regv(n.domain, iov, limit + 1, REMOTE, 0, 0, 0, mr, NULL));
	REFUSED(fi_mr_regattr(n.domain, NULL, 0, mr));
	memset(&attr, 0, sizeof attr);
	attr.access = REMOTE;
	REFUSED(fi_mr_regattr(n.domain, &attr, 0, mr));
	free(at);
	node_close(&n);
}

/* Device memory of an interface that is absent or unknown, and host memory named as a device's. */
TEST(absent_devices)
{
	struct node n;
	unsigned char *at = (unsigned char *)pages(LEN);
	struct iovec iov = {at, LEN};
	static const enum fi_hmem_iface ifaces[] = {FI_HMEM_CUDA, FI_HMEM_ROCR, FI_HMEM_ZE, FI_HMEM_NEURON,
						    FI_HMEM_SYNAPSEAI, (enum fi_hmem_iface)77};
	static const struct setup setup = {.caps = FI_MSG | FI_RMA | FI_HMEM, .mr_mode = KNOWN_MR_MODES | FI_MR_HMEM};
	struct fi_info *hints = hints_new(&setup), *list;
	skip_unless(is_gdrfab(), "does not look");
	skip_unless(provider_getinfo(NULL, NULL, 0, hints, &list) == 0, "no device here, nor a stand-in");
	fi_freeinfo(list);
	fi_freeinfo(hints);
	node_alone(&n, &setup);
	for (size_t i = 0; i < sizeof ifaces / sizeof ifaces[0]; i++) {
		struct fi_mr_attr attr;
		memset(&attr, 0, sizeof attr);
		attr.mr_iov = &iov;
		attr.iov_count = 1;
		attr.access = REMOTE;
		attr.iface = ifaces[i];
		REFUSED(fi_mr_regattr(n.domain, &attr, 0, mr));
		REFUSED(fi_mr_regattr(n.domain, &attr, FI_HMEM_DEVICE_ONLY, mr));
	}
	free(at);
	node_close(&n);
}

TEST(dmabuf)
{
	struct node n;
	struct mr_dmabuf file = {-1, 0, 4096, NULL};
	struct fi_mr_attr attr;
	skip_unless(is_gdrfab(), "does not know it");
	node_alone(&n, NULL);
	memset(&attr, 0, sizeof attr);
	attr.mr_iov = (const struct iovec *)(const void *)&file;
	attr.iov_count = 1;
	attr.access = REMOTE;
	/* Neither a regular file nor a dma-buf: in every version this is refused without harm. */
	REFUSED(fi_mr_regattr(n.domain, &attr, MR_DMABUF, mr));
	file.fd = dup(0);
	REFUSED(fi_mr_regattr(n.domain, &attr, MR_DMABUF, mr));
	file.offset = UINT64_MAX - 100;
	REFUSED(fi_mr_regattr(n.domain, &attr, MR_DMABUF, mr));
	attr.mr_iov = NULL;
	REFUSED(fi_mr_regattr(n.domain, &attr, MR_DMABUF, mr));
	close(file.fd);
	node_close(&n);
}

/* --- a region's counter --- */

enum { WRITES = 50 };

static void counting_owner(struct node *n)
{
	unsigned char *at = (unsigned char *)pages(LEN);
	struct fi_cntr_attr attr;
	struct fid_cntr *cntr = NULL;
	struct fid_mr *mr = NULL;
	memset(&attr, 0, sizeof attr);
	node_up(n);
	OK(fi_cntr_open(n->domain, &attr, &cntr, NULL));
	/* Neither mode is required: a region may have a counter however it was registered. */
	CHECK_EQ(n->info->domain_attr->mr_mode & (FI_MR_ENDPOINT | FI_MR_RMA_EVENT), 0);
	OK(fi_mr_reg(n->domain, at, LEN, REMOTE, 0, 99, *(const uint64_t *)n->arg, &mr, NULL));
	OK(fi_mr_bind(mr, &cntr->fid, FI_REMOTE_WRITE));
	/* A bound counter cannot be closed under its region. */
	CHECK_EQ(fi_close(&cntr->fid), -FI_EBUSY);
	mr_publish(n, mr, at, LEN);
	barrier(n);
	uint64_t until = test_now_ms() + (uint64_t)test_ms(5000);
	while (fi_cntr_read(cntr) < WRITES && test_now_ms() < until)
		drive(n);
	CHECK_EQ(fi_cntr_read(cntr), WRITES);
	CHECK_EQ(fi_cntr_readerr(cntr), 0);
	/* Counted writes have arrived. */
	CHECK_FILLED("what was written", at, WRITES * 8, 0, 1);
	barrier(n);
	test_sleep_ms(20);
	drive(n);
	CHECK_EQ(fi_cntr_read(cntr), WRITES);
	CLOSE(mr);
	CLOSE(cntr);
	free(at);
	node_down(n);
}

static void counted_writer(struct node *n)
{
	unsigned char at[WRITES * 8];
	node_up(n);
	struct remote r = mr_fetch(n);
	void *desc = local_desc(n, at, sizeof at);
	fill(at, sizeof at, 0, 1);
	for (size_t i = 0; i < WRITES; i++) {
		POST(n->cq, fi_write(n->ep, at + 8 * i, 8, desc, 0, r.base + 8 * i, r.key, at + i));
		DONE(n->cq, at + i, WRITTEN, NULL);
	}
	barrier(n);
	/* Reads are not counted as writes. */
	POST(n->cq, fi_read(n->ep, at, 8, desc, 0, r.base, r.key, at));
	DONE(n->cq, at, FI_READ | FI_RMA, NULL);
	barrier(n);
	node_down(n);
}

static void counter_of_a_region(const void *flags)
{
	struct setup setup = {.caps = FI_MSG | FI_RMA | FI_RMA_EVENT};
	skip_unless(is_gdrfab(), "has no counters");
	skip_unless(!is_carried_by("verbs"), "tells no events of regions");
	pair(&setup, counting_owner, counted_writer, flags);
}

TEST_TABLE(counters)
{
	static const uint64_t flags[] = {0, FI_RMA_EVENT};
	test_add("counter_of_a_region", counter_of_a_region, &flags[0], 20);
	test_add("counter_of_a_region_registered_for_it", counter_of_a_region, &flags[1], 20);
}
