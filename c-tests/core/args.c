/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Calls every function about objects, regions and connections wrongly: with NULL, with undefined numbers, in the wrong
 * order. Each returns an errno with a text that names the argument, leaves its outputs unchanged and no descriptor open.
 */
#include "misuse.h"

#include <sys/uio.h>

#define GARBAGE_FLAGS (1ull << 5 | 1ull << 62)

TEST(getinfo)
{
	static char large[4096];
	gdrfab_info *info = MARKER(gdrfab_info), hints;
	uint32_t version = gdrfab_version();
	memset(large, 'n', sizeof large - 1);
	MISUSE(gdrfab_getinfo(version, NULL, "a", 0, NULL, NULL), -EINVAL, "info");
	BAD_FLAGS(gdrfab_getinfo(version, NULL, "a", GARBAGE_FLAGS, NULL, &info));
	MISUSE_EITHER(gdrfab_getinfo(99u << 16, NULL, "a", 0, NULL, &info), -EINVAL, -ENOSYS, "version");
	MISUSE_EITHER(gdrfab_getinfo(version, NULL, large, 0, NULL, &info), -EINVAL, -ENODATA, "service");
	memset(&hints, 0, sizeof hints);
	MISUSE(gdrfab_getinfo(version, NULL, "a", 0, &hints, &info), -EINVAL, "hints");
	memset(&hints, 0xff, sizeof hints);
	hints.struct_size = sizeof hints;
	hints.next = NULL, hints.handle = NULL;
	hints.src_addr = hints.dest_addr = hints.prov_name = NULL;
	hints.fabric_name = hints.domain_name = hints.reason = NULL;
	MISUSE_EITHER(gdrfab_getinfo(version, NULL, "a", 0, &hints, &info), -ENODATA, -EINVAL, "");
	CHECK(info == MARKER(gdrfab_info));
}

TEST(opening)
{
	struct node n;
	node_alone(&n, NULL);
	int fds = test_count_fds();
	gdrfab_fabric *fabric = MARKER(gdrfab_fabric);
	gdrfab_domain *domain = MARKER(gdrfab_domain);
	gdrfab_ep *ep = MARKER(gdrfab_ep);
	gdrfab_pep *pep = MARKER(gdrfab_pep);
	gdrfab_info *bad = gdrfab_dupinfo(n.info);
	CHECK(bad != NULL);

	MISUSE(gdrfab_fabric_open(NULL, NULL, &fabric), -EINVAL, "info");
	MISUSE(gdrfab_fabric_open(n.info, NULL, NULL), -EINVAL, "fabric");
	MISUSE(gdrfab_domain_open(NULL, n.info, NULL, &domain), -EINVAL, "fabric");
	MISUSE(gdrfab_domain_open(n.fabric, NULL, NULL, &domain), -EINVAL, "info");
	MISUSE(gdrfab_domain_open(n.fabric, n.info, NULL, NULL), -EINVAL, "domain");
	MISUSE(gdrfab_ep_open(NULL, n.info, NULL, &ep), -EINVAL, "domain");
	MISUSE(gdrfab_ep_open(n.domain, NULL, NULL, &ep), -EINVAL, "info");
	MISUSE(gdrfab_ep_open(n.domain, n.info, NULL, NULL), -EINVAL, "ep");
	MISUSE(gdrfab_pep_open(NULL, n.info, NULL, &pep), -EINVAL, "fabric");
	MISUSE(gdrfab_pep_open(n.fabric, NULL, NULL, &pep), -EINVAL, "info");
	MISUSE(gdrfab_pep_open(n.fabric, n.info, NULL, NULL), -EINVAL, "pep");
	bad->struct_size = 0;
	MISUSE(gdrfab_fabric_open(bad, NULL, &fabric), -EINVAL, "info");
	MISUSE(gdrfab_domain_open(n.fabric, bad, NULL, &domain), -EINVAL, "info");
	MISUSE(gdrfab_ep_open(n.domain, bad, NULL, &ep), -EINVAL, "info");
	MISUSE(gdrfab_pep_open(n.fabric, bad, NULL, &pep), -EINVAL, "info");
	bad->struct_size = sizeof *bad;
	bad->ep_type = 77;
	MISUSE(gdrfab_ep_open(n.domain, bad, NULL, &ep), -EINVAL, "ep_type");
	bad->ep_type = n.info->ep_type;
	bad->threading = 77;
	MISUSE(gdrfab_domain_open(n.fabric, bad, NULL, &domain), -EINVAL, "threading");
	bad->threading = n.info->threading;
	bad->progress = 77;
	MISUSE(gdrfab_domain_open(n.fabric, bad, NULL, &domain), -EINVAL, "progress");
	if (!test_decided()) {
		CHECK(fabric == MARKER(gdrfab_fabric) && domain == MARKER(gdrfab_domain));
		CHECK(ep == MARKER(gdrfab_ep) && pep == MARKER(gdrfab_pep));
		CHECK_EQ(test_count_fds(), fds);
	}
	gdrfab_freeinfo(bad);

	MISUSE(gdrfab_fabric_close(NULL), -EINVAL, "fabric");
	MISUSE(gdrfab_domain_close(NULL), -EINVAL, "domain");
	MISUSE(gdrfab_ep_close(NULL), -EINVAL, "ep");
	MISUSE(gdrfab_pep_close(NULL), -EINVAL, "pep");
	MISUSE(gdrfab_cq_close(NULL), -EINVAL, "cq");
	MISUSE(gdrfab_eq_close(NULL), -EINVAL, "eq");
	MISUSE(gdrfab_cntr_close(NULL), -EINVAL, "cntr");
	MISUSE(gdrfab_mr_close(NULL), -EINVAL, "mr");
	node_close(&n);
}

TEST(queues_and_counters)
{
	struct node n;
	node_alone(&n, NULL);
	gdrfab_cq *cq = MARKER(gdrfab_cq);
	gdrfab_eq *eq = MARKER(gdrfab_eq);
	gdrfab_cntr *cntr = MARKER(gdrfab_cntr);
	gdrfab_cq_attr cq_good = {sizeof cq_good, 0, 0, 0, 0}, cq_bad;
	gdrfab_eq_attr eq_good = {sizeof eq_good, 0, 0, 0, 0}, eq_bad;
	gdrfab_cntr_attr cntr_good = {sizeof cntr_good, 0, 0, 0}, cntr_bad;

	MISUSE(gdrfab_cq_open(NULL, NULL, NULL, &cq), -EINVAL, "domain");
	MISUSE(gdrfab_cq_open(n.domain, NULL, NULL, NULL), -EINVAL, "cq");
	cq_bad = cq_good, cq_bad.flags = GARBAGE_FLAGS;
	BAD_FLAGS(gdrfab_cq_open(n.domain, &cq_bad, NULL, &cq));
	cq_bad = cq_good, cq_bad.format = 99;
	MISUSE(gdrfab_cq_open(n.domain, &cq_bad, NULL, &cq), -EINVAL, "format");
	cq_bad = cq_good, cq_bad.wait_obj = 1; /* FI_WAIT_UNSPEC, of which there is none */
	MISUSE(gdrfab_cq_open(n.domain, &cq_bad, NULL, &cq), -EINVAL, "wait_obj");
	cq_bad.wait_obj = 99;
	MISUSE_EITHER(gdrfab_cq_open(n.domain, &cq_bad, NULL, &cq), -EINVAL, -ENOSYS, "wait_obj");
	cq_bad = cq_good, cq_bad.size = SIZE_MAX;
	MISUSE_EITHER(gdrfab_cq_open(n.domain, &cq_bad, NULL, &cq), -EINVAL, -ENOMEM, "size");
	cq_bad.size = (size_t)1 << 62;
	MISUSE_EITHER(gdrfab_cq_open(n.domain, &cq_bad, NULL, &cq), -EINVAL, -ENOMEM, "size");

	MISUSE(gdrfab_eq_open(NULL, NULL, NULL, &eq), -EINVAL, "fabric");
	MISUSE(gdrfab_eq_open(n.fabric, NULL, NULL, NULL), -EINVAL, "eq");
	eq_bad = eq_good, eq_bad.flags = GARBAGE_FLAGS;
	BAD_FLAGS(gdrfab_eq_open(n.fabric, &eq_bad, NULL, &eq));
	eq_bad = eq_good, eq_bad.wait_obj = 99;
	MISUSE_EITHER(gdrfab_eq_open(n.fabric, &eq_bad, NULL, &eq), -EINVAL, -ENOSYS, "wait_obj");

	MISUSE(gdrfab_cntr_open(NULL, NULL, NULL, &cntr), -EINVAL, "domain");
	MISUSE(gdrfab_cntr_open(n.domain, NULL, NULL, NULL), -EINVAL, "cntr");
	cntr_bad = cntr_good, cntr_bad.flags = GARBAGE_FLAGS;
	BAD_FLAGS(gdrfab_cntr_open(n.domain, &cntr_bad, NULL, &cntr));
	cntr_bad = cntr_good, cntr_bad.wait_obj = 99;
	MISUSE_EITHER(gdrfab_cntr_open(n.domain, &cntr_bad, NULL, &cntr), -EINVAL, -ENOSYS, "wait_obj");
	CHECK(cq == MARKER(gdrfab_cq) && eq == MARKER(gdrfab_eq) && cntr == MARKER(gdrfab_cntr));
	node_close(&n);
}

TEST(binding_and_enabling)
{
	struct node n, other;
	node_alone(&n, NULL);
	node_alone(&other, NULL);
	gdrfab_ep *ep = NULL, *second = NULL;
	gdrfab_cntr *cntr = NULL;
	char byte = 0;
	void *desc = local_desc(&n, &byte, 1);
	OK(gdrfab_cntr_open(n.domain, NULL, NULL, &cntr));
	OK(gdrfab_ep_open(n.domain, n.info, NULL, &ep));
	const uint64_t both = GDRFAB_TRANSMIT | GDRFAB_RECV;

	MISUSE(gdrfab_ep_bind_cq(NULL, n.cq, both), -EINVAL, "ep");
	MISUSE(gdrfab_ep_bind_cq(ep, NULL, both), -EINVAL, "cq");
	BAD_FLAGS(gdrfab_ep_bind_cq(ep, n.cq, 0));
	BAD_FLAGS(gdrfab_ep_bind_cq(ep, n.cq, both | GARBAGE_FLAGS));
	MISUSE(gdrfab_ep_bind_cq(ep, other.cq, both), -EINVAL, "cq");
	MISUSE(gdrfab_ep_bind_eq(NULL, n.eq, 0), -EINVAL, "ep");
	MISUSE(gdrfab_ep_bind_eq(ep, NULL, 0), -EINVAL, "eq");
	BAD_FLAGS(gdrfab_ep_bind_eq(ep, n.eq, GARBAGE_FLAGS));
	MISUSE(gdrfab_ep_bind_cntr(NULL, cntr, GDRFAB_SEND), -EINVAL, "ep");
	MISUSE(gdrfab_ep_bind_cntr(ep, NULL, GDRFAB_SEND), -EINVAL, "cntr");
	BAD_FLAGS(gdrfab_ep_bind_cntr(ep, cntr, 0));
	BAD_FLAGS(gdrfab_ep_bind_cntr(ep, cntr, GARBAGE_FLAGS));
	BAD_FLAGS(gdrfab_ep_bind_cntr(ep, cntr, GDRFAB_REMOTE_READ | GARBAGE_FLAGS));
	MISUSE(gdrfab_ep_bind_cntr(ep, cntr, GDRFAB_REMOTE_READ), -EOPNOTSUPP, "cannot be counted");
	MISUSE(gdrfab_ep_bind_cntr(ep, cntr, GDRFAB_RECV | GDRFAB_REMOTE_READ), -EOPNOTSUPP, "GDRFAB_REMOTE_READ");

	MISUSE(gdrfab_ep_enable(NULL), -EINVAL, "ep");
	MISUSE(gdrfab_ep_enable(ep), -GDRFAB_ENOCQ, "");
	OK(gdrfab_ep_bind_cq(ep, n.cq, both));
	/* No call of the data path before the endpoint is enabled, and no transfer before it is connected. */
	MISUSE(gdrfab_recv(ep, &byte, 1, desc, 0, NULL), -GDRFAB_EOPBADSTATE, "");
	MISUSE_EITHER(gdrfab_send(ep, &byte, 1, desc, 0, NULL), -GDRFAB_EOPBADSTATE, -ENOTCONN, "");
	/* Without an event queue the result of connecting could not be reported. */
	OK(gdrfab_ep_open(n.domain, n.info, NULL, &second));
	OK(gdrfab_ep_bind_cq(second, n.cq, both));
	int enabled = gdrfab_ep_enable(second);
	MISUSE_EITHER(enabled, 0, -GDRFAB_ENOEQ, enabled ? "" : NULL);
	if (enabled == 0)
		MISUSE(gdrfab_ep_connect(second, n.info->dest_addr, n.info->dest_addrlen, NULL, 0), -GDRFAB_ENOEQ, "");
	OK(gdrfab_ep_close(second));
	OK(gdrfab_ep_bind_eq(ep, n.eq, 0));
	MISUSE(gdrfab_ep_connect(ep, n.info->dest_addr, n.info->dest_addrlen, NULL, 0), -GDRFAB_EOPBADSTATE, "");
	MISUSE(gdrfab_ep_connect_addr(ep, n.info->dest_addr, n.info->dest_addrlen), -GDRFAB_EOPBADSTATE, "");
	OK(gdrfab_ep_enable(ep));
	MISUSE(gdrfab_ep_enable(ep), -GDRFAB_EOPBADSTATE, "");
	MISUSE(gdrfab_send(ep, &byte, 1, desc, 0, NULL), -ENOTCONN, "");
	MISUSE(gdrfab_inject(ep, &byte, 1, 0), -ENOTCONN, "");
	MISUSE(gdrfab_write(ep, &byte, 1, desc, 0, 0, 0, NULL), -ENOTCONN, "");
	MISUSE(gdrfab_read(ep, &byte, 1, desc, 0, 0, 0, NULL), -ENOTCONN, "");
	MISUSE(gdrfab_inject_write(ep, &byte, 1, 0, 0, 0), -ENOTCONN, "");
	OK(gdrfab_recv(ep, &byte, 1, desc, 0, NULL));

	/* Objects in use cannot be closed. */
	MISUSE(gdrfab_cq_close(n.cq), -EBUSY, "");
	MISUSE(gdrfab_eq_close(n.eq), -EBUSY, "");
	MISUSE(gdrfab_domain_close(n.domain), -EBUSY, "");
	MISUSE(gdrfab_fabric_close(n.fabric), -EBUSY, "");
	OK(gdrfab_ep_close(ep));
	MISUSE(gdrfab_domain_close(n.domain), -EBUSY, "");
	OK(gdrfab_cntr_close(cntr));
	node_close(&other);
	CHECK_EQ(test_count_fds(), other.fds);
	FAILED(n.cq, NULL, ECANCELED, GDRFAB_PROV_CANCELED, NULL);
	node_close(&n);
}

TEST(connecting)
{
	struct node n;
	static char much[GDRFAB_CM_DATA_MAX + 1], name[GDRFAB_ADDR_MAX];
	size_t len = sizeof name;
	gdrfab_pep *pep = NULL;
	node_alone(&n, NULL);
	n.ep = ep_new(&n, n.info, NULL);
	const char *to = n.info->dest_addr;
	size_t to_len = n.info->dest_addrlen;
	gdrfab_info *own = hints_new(n.setup), *listening = NULL;
	OK(provider_getinfo(n.service, GDRFAB_SOURCE, own, &listening));
	OK(gdrfab_pep_open(n.fabric, listening, NULL, &pep));

	MISUSE(gdrfab_ep_connect(NULL, to, to_len, NULL, 0), -EINVAL, "ep");
	MISUSE(gdrfab_ep_connect(n.ep, to, to_len, NULL, 5), -EINVAL, "param");
	MISUSE(gdrfab_ep_connect(n.ep, to, to_len, much, sizeof much), -EINVAL, "param");
	MISUSE(gdrfab_ep_connect(n.ep, to, to_len, much, SIZE_MAX), -EINVAL, "param");
	MISUSE(gdrfab_ep_connect_addr(NULL, to, to_len), -EINVAL, "ep");
	MISUSE(gdrfab_ep_accept(NULL, NULL, 0), -EINVAL, "ep");
	MISUSE_EITHER(gdrfab_ep_accept(n.ep, NULL, 0), -GDRFAB_EOPBADSTATE, -EINVAL, "");
	MISUSE(gdrfab_ep_accept(n.ep, NULL, 5), -EINVAL, "param");
	MISUSE(gdrfab_ep_shutdown(NULL, 0), -EINVAL, "ep");
	MISUSE(gdrfab_ep_shutdown(n.ep, 0), -ENOTCONN, "");
	BAD_FLAGS(gdrfab_ep_shutdown(n.ep, GARBAGE_FLAGS));
	MISUSE(gdrfab_ep_getname(NULL, name, &len), -EINVAL, "ep");
	MISUSE(gdrfab_ep_getname(n.ep, name, NULL), -EINVAL, "addrlen");
	MISUSE(gdrfab_ep_getname(n.ep, NULL, &len), -EINVAL, "addr");
	MISUSE(gdrfab_ep_getpeer(NULL, name, &len), -EINVAL, "ep");
	MISUSE(gdrfab_ep_getpeer(n.ep, name, &len), -ENOTCONN, "");
	CHECK_EQ(len, sizeof name);

	MISUSE(gdrfab_pep_listen(NULL), -EINVAL, "pep");
	MISUSE(gdrfab_pep_listen(pep), -GDRFAB_ENOEQ, "");
	MISUSE(gdrfab_pep_bind_eq(NULL, n.eq, 0), -EINVAL, "pep");
	MISUSE(gdrfab_pep_bind_eq(pep, NULL, 0), -EINVAL, "eq");
	BAD_FLAGS(gdrfab_pep_bind_eq(pep, n.eq, GARBAGE_FLAGS));
	OK(gdrfab_pep_bind_eq(pep, n.eq, 0));
	OK(gdrfab_pep_listen(pep));
	MISUSE(gdrfab_pep_getname(NULL, name, &len), -EINVAL, "pep");
	MISUSE(gdrfab_pep_getname(pep, NULL, &len), -EINVAL, "addr");
	MISUSE(gdrfab_pep_getname(pep, name, NULL), -EINVAL, "addrlen");
	MISUSE(gdrfab_pep_reject(NULL, NULL, NULL, 0), -EINVAL, "pep");
	MISUSE(gdrfab_pep_reject(pep, NULL, NULL, 0), -EINVAL, "handle");
	MISUSE(gdrfab_pep_reject(pep, NULL, much, sizeof much), -EINVAL, "");
	MISUSE(gdrfab_eq_close(n.eq), -EBUSY, "");
	OK(gdrfab_pep_close(pep));
	gdrfab_freeinfo(own);
	gdrfab_freeinfo(listening);
	node_close(&n);
}

TEST(regions)
{
	struct node n;
	node_alone(&n, NULL);
	static char buf[4096];
	struct iovec iov[2] = {{buf, 10}, {buf + 100, 10}}, hole[2] = {{buf, 10}, {NULL, 10}};
	struct iovec many[4096];
	gdrfab_mr *mr = MARKER(gdrfab_mr), *real = NULL;
	gdrfab_cntr *cntr = NULL;
	int fds = test_count_fds();
	const uint64_t a = REMOTE_ACCESS;
	for (int i = 0; i < 4096; i++)
		many[i] = iov[0];

	MISUSE(gdrfab_mr_reg(NULL, buf, 10, a, 0, 0, 0, NULL, &mr), -EINVAL, "domain");
	MISUSE(gdrfab_mr_reg(n.domain, NULL, 10, a, 0, 0, 0, NULL, &mr), -EINVAL, "buf");
	MISUSE(gdrfab_mr_reg(n.domain, buf, 0, a, 0, 0, 0, NULL, &mr), -EINVAL, "len");
	MISUSE(gdrfab_mr_reg(n.domain, buf, SIZE_MAX, a, 0, 0, 0, NULL, &mr), -EINVAL, "len");
	MISUSE(gdrfab_mr_reg(n.domain, buf, 10, 1ull << 60, 0, 0, 0, NULL, &mr), -EINVAL, "access");
	MISUSE(gdrfab_mr_reg(n.domain, buf, 10, a, 4096, 0, 0, NULL, &mr), -EINVAL, "offset");
	BAD_FLAGS(gdrfab_mr_reg(n.domain, buf, 10, a, 0, 0, GARBAGE_FLAGS, NULL, &mr));
	MISUSE(gdrfab_mr_reg(n.domain, buf, 10, a, 0, 0, 0, NULL, NULL), -EINVAL, "mr");
	MISUSE(gdrfab_mr_regv(NULL, iov, 2, a, 0, 0, 0, NULL, &mr), -EINVAL, "domain");
	MISUSE(gdrfab_mr_regv(n.domain, NULL, 2, a, 0, 0, 0, NULL, &mr), -EINVAL, "iov");
	MISUSE(gdrfab_mr_regv(n.domain, iov, 0, a, 0, 0, 0, NULL, &mr), -EINVAL, "count");
	MISUSE(gdrfab_mr_regv(n.domain, many, n.info->mr_iov_limit + 1, a, 0, 0, 0, NULL, &mr), -EINVAL, "count");
	MISUSE(gdrfab_mr_regv(n.domain, many, SIZE_MAX, a, 0, 0, 0, NULL, &mr), -EINVAL, "count");
	MISUSE(gdrfab_mr_regv(n.domain, hole, 2, a, 0, 0, 0, NULL, &mr), -EINVAL, "iov");

	struct mem file;
	mem_new(&n, &file, &memkinds[KIND_MEMFD], 4096);
	gdrfab_mr_dmabuf dmabuf = {file.fd, 0, 0, 4096, file.addr};
	gdrfab_mr_attr good, bad;
	memset(&good, 0, sizeof good);
	good.struct_size = sizeof good;
	good.mr_iov = iov;
	good.iov_count = 1;
	good.access = a;
	MISUSE(gdrfab_mr_regattr(NULL, &good, 0, &mr), -EINVAL, "domain");
	MISUSE(gdrfab_mr_regattr(n.domain, NULL, 0, &mr), -EINVAL, "attr");
	MISUSE(gdrfab_mr_regattr(n.domain, &good, 0, NULL), -EINVAL, "mr");
	BAD_FLAGS(gdrfab_mr_regattr(n.domain, &good, GARBAGE_FLAGS, &mr));
	bad = good, bad.mr_iov = NULL;
	MISUSE(gdrfab_mr_regattr(n.domain, &bad, 0, &mr), -EINVAL, "iov");
	bad = good, bad.iface = 99;
	MISUSE(gdrfab_mr_regattr(n.domain, &bad, 0, &mr), -EINVAL, "iface");
	bad = good, bad.iface = GDRFAB_HMEM_CUDA;
	/* Host addresses are refused as device memory, with or without the vendor's driver. */
	MISUSE_EITHER(gdrfab_mr_regattr(n.domain, &bad, 0, &mr), -ENOSYS, -EINVAL, "cuda");
	bad = good, bad.reserved = 1;
	MISUSE(gdrfab_mr_regattr(n.domain, &bad, 0, &mr), -EINVAL, "reserved");
	bad = good, bad.require = 1ull << 40;
	MISUSE(gdrfab_mr_regattr(n.domain, &bad, 0, &mr), -EINVAL, "require");
	bad = good, bad.forbid = 1ull << 40;
	MISUSE(gdrfab_mr_regattr(n.domain, &bad, 0, &mr), -EINVAL, "forbid");
	MISUSE(gdrfab_mr_regattr(n.domain, &good, GDRFAB_MR_DMABUF, &mr), -EINVAL, "dmabuf");
	bad = good, bad.mr_iov = NULL, bad.dmabuf = &dmabuf, bad.iov_count = 2;
	MISUSE(gdrfab_mr_regattr(n.domain, &bad, GDRFAB_MR_DMABUF, &mr), -EINVAL, "iov_count");
	bad.iov_count = 1, dmabuf.reserved = 1;
	MISUSE(gdrfab_mr_regattr(n.domain, &bad, GDRFAB_MR_DMABUF, &mr), -EINVAL, "reserved");
	mem_end(&n, &file);
	CHECK(mr == MARKER(gdrfab_mr));
	CHECK_EQ(test_count_fds(), fds);

	gdrfab_mr_info info;
	memset(&info, 0x5a, sizeof info);
	info.struct_size = sizeof info;
	OK(gdrfab_mr_reg(n.domain, buf, 10, a, 0, 0, 0, NULL, &real));
	OK(gdrfab_cntr_open(n.domain, NULL, NULL, &cntr));
	gdrfab_mr_key(NULL);
	CHECK(gdrfab_mr_desc(NULL) == NULL);
	MISUSE(gdrfab_mr_query(NULL, &info), -EINVAL, "mr");
	MISUSE(gdrfab_mr_query(real, NULL), -EINVAL, "info");
	CHECK_EQ(info.key, 0x5a5a5a5a5a5a5a5a);
	MISUSE(gdrfab_mr_explain(NULL, buf, sizeof buf), -EINVAL, "mr");
	MISUSE(gdrfab_mr_explain(real, NULL, 10), -EINVAL, "buf");
	MISUSE(gdrfab_mr_bind_cntr(NULL, cntr, GDRFAB_REMOTE_WRITE), -EINVAL, "mr");
	MISUSE(gdrfab_mr_bind_cntr(real, NULL, GDRFAB_REMOTE_WRITE), -EINVAL, "cntr");
	if (path_known(PATH_DIRECT) || path_known(PATH_SOCKET)) {
		BAD_FLAGS(gdrfab_mr_bind_cntr(real, cntr, 0));
		BAD_FLAGS(gdrfab_mr_bind_cntr(real, cntr, GARBAGE_FLAGS));
		OK(gdrfab_mr_bind_cntr(real, cntr, GDRFAB_REMOTE_WRITE));
		MISUSE(gdrfab_cntr_close(cntr), -EBUSY, "regions");
	} else {
		/* No region can be that large. */
		MISUSE(gdrfab_mr_bind_cntr(real, cntr, GDRFAB_REMOTE_WRITE), -EOPNOTSUPP, "");
	}
	MISUSE(gdrfab_domain_close(n.domain), -EBUSY, "");
	OK(gdrfab_mr_close(real));
	OK(gdrfab_cntr_close(cntr));

	void *addr = MARKER(void);
	MISUSE(gdrfab_mem_alloc(NULL, GDRFAB_HMEM_SYSTEM, 0, 4096, 0, &addr), -EINVAL, "domain");
	MISUSE(gdrfab_mem_alloc(n.domain, GDRFAB_HMEM_SYSTEM, 0, 0, 0, &addr), -EINVAL, "len");
	BAD_FLAGS(gdrfab_mem_alloc(n.domain, GDRFAB_HMEM_SYSTEM, 0, 4096, GARBAGE_FLAGS, &addr));
	MISUSE(gdrfab_mem_alloc(n.domain, GDRFAB_HMEM_SYSTEM, 0, 4096, 0, NULL), -EINVAL, "addr");
	MISUSE(gdrfab_mem_free(NULL, buf), -EINVAL, "domain");
	MISUSE(gdrfab_mem_free(n.domain, NULL), -EINVAL, "addr");
	MISUSE(gdrfab_mem_free(n.domain, buf), -EINVAL, "addr");
	CHECK(addr == MARKER(void));
	node_close(&n);
}
