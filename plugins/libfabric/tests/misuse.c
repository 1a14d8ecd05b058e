/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Objects closed too early, bound wrongly, or used before they are ready: an error each time, and everything still
 * works. */
#include "fi.h"

#include <netinet/in.h>
#include <sys/mman.h>
#include <unistd.h>

static bool refused(ssize_t rc)
{
	return rc < 0 && rc != -FI_EAGAIN;
}

/* --- closing objects that others still use --- */

TEST(closed_too_early)
{
	struct node n;
	unsigned char *at = (unsigned char *)pages(4096);
	skip_unless(is_gdrfab(), "frees twice");
	node_alone(&n, NULL);
	n.ep = ep_new(&n, n.info, &n);
	struct fid_mr *mr = mr_new(&n, at, 4096, FI_REMOTE_WRITE);
	for (int i = 0; i < 2; i++) {
		WANT_EQ(fi_close(&n.fabric->fid), -FI_EBUSY);
		WANT_EQ(fi_close(&n.domain->fid), -FI_EBUSY);
		WANT_EQ(fi_close(&n.cq->fid), -FI_EBUSY);
		WANT_EQ(fi_close(&n.eq->fid), -FI_EBUSY);
	}
	CLOSE(n.ep);
	n.ep = NULL;
	WANT_EQ(fi_close(&n.domain->fid), -FI_EBUSY);
	WANT_EQ(fi_close(&n.eq->fid), -FI_EBUSY);
	CLOSE(mr);
	CLOSE(n.cq);
	CLOSE(n.domain);
	CLOSE(n.pep);
	WANT_EQ(fi_close(&n.fabric->fid), -FI_EBUSY);
	CLOSE(n.eq);
	CLOSE(n.fabric);
	fi_freeinfo(n.info);
	free(at);
}

/* --- binding --- */

TEST(wrong_bindings)
{
	struct node n, other;
	skip_unless(is_gdrfab(), "trusts its caller");
	node_alone(&n, NULL);
	node_alone(&other, NULL);
	struct fid_ep *ep = ep_bare(&n, n.info, NULL);
	struct fid_cq *second = cq_new(&n, FI_CQ_FORMAT_DATA, 0, FI_WAIT_NONE);
	/* No direction, and directions that do not exist. */
	CHECK(refused(fi_ep_bind(ep, &n.cq->fid, 0)));
	CHECK(refused(fi_ep_bind(ep, &n.cq->fid, FI_TRANSMIT | FI_RMA_EVENT)));
	CHECK(refused(fi_ep_bind(ep, &n.cq->fid, 1ull << 62)));
	/* An object that is no queue, and queues of another domain or fabric. */
	CHECK(refused(fi_ep_bind(ep, &n.domain->fid, 0)));
	CHECK(refused(fi_ep_bind(ep, &n.pep->fid, 0)));
	CHECK(refused(fi_ep_bind(ep, &ep->fid, 0)));
	CHECK(refused(fi_ep_bind(ep, &other.cq->fid, FI_TRANSMIT | FI_RECV)));
	CHECK(refused(fi_ep_bind(ep, &other.eq->fid, 0)));
	OK(fi_ep_bind(ep, &n.cq->fid, FI_TRANSMIT));
	CHECK(refused(fi_ep_bind(ep, &second->fid, FI_TRANSMIT)));
	OK(fi_ep_bind(ep, &second->fid, FI_RECV));
	CHECK(refused(fi_ep_bind(ep, &n.cq->fid, FI_RECV)));
	OK(fi_ep_bind(ep, &n.eq->fid, 0));
	CHECK(refused(fi_ep_bind(ep, &n.eq->fid, 0)));
	OK(fi_enable(ep));
	CHECK(refused(fi_ep_bind(ep, &n.cq->fid, FI_TRANSMIT)));
	WANT_EQ(fi_close(&second->fid), -FI_EBUSY);
	CLOSE(ep);
	CLOSE(second);
	struct fid_pep *pep = NULL;
	OK(fi_passive_ep(n.fabric, n.info, &pep, NULL));
	CHECK(refused(fi_pep_bind(pep, &n.cq->fid, 0)));
	CHECK(refused(fi_pep_bind(pep, &other.eq->fid, 0)));
	/* Without an event queue nothing could report requests. */
	CHECK(refused(fi_listen(pep)));
	OK(fi_pep_bind(pep, &n.eq->fid, 0));
	CHECK(refused(fi_pep_bind(pep, &n.eq->fid, 0)));
	OK(fi_listen(pep));
	CHECK(refused(fi_listen(pep)));
	CLOSE(pep);
	node_close(&other);
	node_close(&n);
}

TEST(enable)
{
	struct node n;
	struct fid_ep *ep;
	node_alone(&n, NULL);
	ep = ep_bare(&n, n.info, NULL);
	CHECK(refused(fi_enable(ep)));
	OK(fi_ep_bind(ep, &n.eq->fid, 0));
	WANT_EQ(fi_enable(ep), -FI_ENOCQ);
	OK(fi_ep_bind(ep, &n.cq->fid, FI_TRANSMIT));
	/* With a queue for one direction only, either fi_enable() fails or each call of the other direction is
	 * refused. */
	int rc = fi_enable(ep);
	if (rc == 0) {
		unsigned char at[8] = {0};
		CHECK(refused(fi_recv(ep, at, 8, local_desc(&n, at, 8), 0, at)));
		local_forget_all(&n);
	} else {
		CHECK_EQ(rc, -FI_ENOCQ);
		OK(fi_ep_bind(ep, &n.cq->fid, FI_RECV));
		OK(fi_enable(ep));
	}
	CLOSE(ep);
	/* An endpoint that only sends needs no queue for receives. */
	struct fi_info *half = fi_dupinfo(n.info);
	half->caps = FI_MSG | FI_SEND;
	half->tx_attr->caps = FI_MSG | FI_SEND;
	half->rx_attr->caps = 0;
	ep = ep_bare(&n, half, NULL);
	OK(fi_ep_bind(ep, &n.eq->fid, 0));
	OK(fi_ep_bind(ep, &n.cq->fid, FI_TRANSMIT));
	rc = fi_enable(ep);
	CHECK(rc == 0 || rc == -FI_ENOCQ);
	CLOSE(ep);
	fi_freeinfo(half);
	node_close(&n);
}

/* --- operations too early --- */

static void no_operation(struct node *n, struct fid_ep *ep, int line)
{
	unsigned char at[64] = {0};
	struct iovec iov = {at, sizeof at};
	struct fi_rma_iov target = {0, sizeof at, 1};
	void *desc = local_desc(n, at, sizeof at);
	struct fi_msg msg = {&iov, desc ? &desc : NULL, 1, 0, at, 0};
	struct fi_msg_rma rma = {&iov, desc ? &desc : NULL, 1, 0, &target, 1, at, 0};
	ssize_t rc[] = {
		fi_send(ep, at, 64, desc, 0, at),
		fi_sendv(ep, &iov, msg.desc, 1, 0, at),
		fi_sendmsg(ep, &msg, FI_COMPLETION),
		fi_inject(ep, at, 8, 0),
		fi_senddata(ep, at, 64, desc, 1, 0, at),
		fi_injectdata(ep, at, 8, 1, 0),
		fi_read(ep, at, 64, desc, 0, 0, 1, at),
		fi_readv(ep, &iov, msg.desc, 1, 0, 0, 1, at),
		fi_readmsg(ep, &rma, FI_COMPLETION),
		fi_write(ep, at, 64, desc, 0, 0, 1, at),
		fi_writev(ep, &iov, msg.desc, 1, 0, 0, 1, at),
		fi_writemsg(ep, &rma, FI_COMPLETION),
		fi_inject_write(ep, at, 8, 0, 0, 1),
		fi_writedata(ep, at, 64, desc, 1, 0, 0, 1, at),
		fi_inject_writedata(ep, at, 8, 1, 0, 0, 1),
	};
	for (size_t i = 0; i < sizeof rc / sizeof rc[0]; i++)
		if (!refused(rc[i]))
			test_wrong(__FILE__, line, "operation %zu is %s", i, test_number(rc[i]));
	local_forget_all(n);
}

TEST(operations_too_early)
{
	struct node n;
	unsigned char at[8] = {0};
	size_t len = 0;
	skip_unless(is_gdrfab(), "trusts its caller");
	node_alone(&n, NULL);
	struct fid_ep *ep = ep_bare(&n, n.info, NULL);
	no_operation(&n, ep, __LINE__);
	CHECK(refused(fi_recv(ep, at, 8, local_desc(&n, at, 8), 0, at)));
	CHECK(refused(fi_connect(ep, n.addr, NULL, 0)));
	CHECK(refused(fi_accept(ep, NULL, 0)));
	CHECK(refused(fi_shutdown(ep, 0)));
	CHECK(refused(fi_getpeer(ep, at, &len)));
	OK(fi_ep_bind(ep, &n.eq->fid, 0));
	OK(fi_ep_bind(ep, &n.cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(ep));
	no_operation(&n, ep, __LINE__);
	CHECK(refused(fi_accept(ep, NULL, 0)));
	CHECK(refused(fi_getpeer(ep, at, &len)));
	CHECK(refused(fi_connect(ep, NULL, NULL, 0)) || !n.info->dest_addr);
	CHECK(refused(fi_shutdown(ep, 0)));
	QUIET(n.cq, 20);
	EQ_QUIET(&n, 0);
	CLOSE(ep);
	node_close(&n);
}

/* --- infos with parts missing --- */

static void without(struct node *n, int part)
{
	struct fi_info *info = fi_dupinfo(n->info);
	struct fi_info whole = *info;
	char *name = info->domain_attr->name;
	struct fid_ep *ep = NULL;
	struct fid_pep *pep = NULL;
	struct fid_domain *domain = NULL;
	switch (part) {
	case 0: info->tx_attr = NULL; break;
	case 1: info->rx_attr = NULL; break;
	case 2: info->ep_attr = NULL; break;
	case 3: info->domain_attr = NULL; break;
	case 4: info->fabric_attr = NULL; break;
	case 5: info->src_addr = NULL, info->src_addrlen = 0; break;
	case 6: info->tx_attr = NULL, info->rx_attr = NULL, info->ep_attr = NULL; break;
	default: info->domain_attr->name = NULL; break;
	}
	/* It works, or it is refused. */
	if (fi_endpoint(n->domain, info, &ep, NULL) == 0)
		CLOSE(ep);
	if (fi_domain(n->fabric, info, &domain, NULL) == 0)
		CLOSE(domain);
	if (fi_passive_ep(n->fabric, info, &pep, NULL) == 0)
		CLOSE(pep);
	*info = whole;
	info->domain_attr->name = name;
	fi_freeinfo(info);
}

TEST(infos_with_parts_missing)
{
	struct node n;
	skip_unless(is_gdrfab(), "trusts its caller");
	node_alone(&n, NULL);
	for (int part = 0; part < 8; part++)
		without(&n, part);
	struct fid_ep *ep = NULL;
	CHECK(refused(fi_endpoint(n.domain, NULL, &ep, NULL)));
	node_close(&n);
}

/* An info of another domain, and sizes that were never offered. */
TEST(infos_that_do_not_fit)
{
	struct node n;
	struct fid_ep *ep = NULL;
	struct fid_domain *domain = NULL;
	skip_unless(is_gdrfab(), "trusts its caller");
	node_alone(&n, NULL);
	struct fi_info *info = fi_dupinfo(n.info);
	info->ep_attr->type = FI_EP_RDM;
	CHECK(refused(fi_endpoint(n.domain, info, &ep, NULL)));
	info->ep_attr->type = FI_EP_MSG;
	info->tx_attr->size = SIZE_MAX / 4;
	CHECK(refused(fi_endpoint(n.domain, info, &ep, NULL)));
	info->tx_attr->size = n.info->tx_attr->size;
	free(info->domain_attr->name);
	info->domain_attr->name = strdup("no-such-domain");
	CHECK(refused(fi_domain(n.fabric, info, &domain, NULL)));
	fi_freeinfo(info);
	node_close(&n);
}

/* --- queues --- */

TEST(queues_that_cannot_be)
{
	struct node n;
	struct fi_cq_attr attr;
	struct fid_cq *cq = NULL;
	skip_unless(is_gdrfab(), "trusts its caller");
	node_alone(&n, NULL);
	memset(&attr, 0, sizeof attr);
	attr.format = (enum fi_cq_format)77;
	CHECK(refused(fi_cq_open(n.domain, &attr, &cq, NULL)));
	attr.format = FI_CQ_FORMAT_DATA;
	attr.wait_obj = (enum fi_wait_obj)77;
	CHECK(refused(fi_cq_open(n.domain, &attr, &cq, NULL)));
	attr.wait_obj = FI_WAIT_NONE;
	attr.flags = 1ull << 62;
	CHECK(refused(fi_cq_open(n.domain, &attr, &cq, NULL)));
	attr.flags = 0;
	attr.size = SIZE_MAX / 2;
	CHECK(refused(fi_cq_open(n.domain, &attr, &cq, NULL)));
	CHECK(cq == NULL);
	/* As much as ofi_rxm asks for. */
	attr.size = 262144;
	OK(fi_cq_open(n.domain, &attr, &cq, NULL));
	CLOSE(cq);
	/* Without a format, and without attributes where that is allowed. */
	memset(&attr, 0, sizeof attr);
	OK(fi_cq_open(n.domain, &attr, &cq, NULL));
	done entry;
	CHECK_EQ(fi_cq_read(cq, &entry, 1), -FI_EAGAIN);
	struct fi_cq_err_entry e;
	memset(&e, 0, sizeof e);
	CHECK_EQ(fi_cq_readerr(cq, &e, 0), -FI_EAGAIN);
	CLOSE(cq);
	node_close(&n);
}

/* --- addresses --- */

/* No byte beyond an address is read. */
TEST(addresses_at_the_end_of_memory)
{
	struct node n;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	skip_unless(is_gdrfab(), "trusts its caller");
	node_alone(&n, NULL);
	char *memory = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED);
	OK(mprotect(memory + page, page, PROT_NONE));
	struct fid_pep *pep = NULL;
	OK(fi_passive_ep(n.fabric, n.info, &pep, NULL));
	for (int family = 0; family < 12; family++)
		for (size_t len = 0; len < 28; len++) {
			char *addr = memory + page - len;
			sa_family_t is = (sa_family_t)family;
			memset(addr, 0, len);
			memcpy(addr, &is, len < sizeof is ? len : sizeof is);
			if (len < sizeof(struct sockaddr_in) || family != AF_INET)
				CHECK(refused(fi_setname(&pep->fid, addr, len)));
		}
	CLOSE(pep);
	munmap(memory, 2 * page);
	node_close(&n);
}

/* --- options --- */

TEST(options)
{
	struct node n;
	size_t value = 0, size = sizeof value;
	node_alone(&n, NULL);
	struct fid_ep *ep = ep_bare(&n, n.info, NULL);
	OK(fi_getopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &value, &size));
	CHECK(value > 0 && size == sizeof value);
	if (is_gdrfab()) {
		size = 2;
		CHECK_EQ(fi_getopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &value, &size), -FI_ETOOSMALL);
		CHECK_EQ(size, sizeof value);
		size = sizeof value;
		CHECK(refused(fi_getopt(&ep->fid, FI_OPT_ENDPOINT, 4711, &value, &size)));
		CHECK(refused(fi_getopt(&ep->fid, 4711, FI_OPT_CM_DATA_SIZE, &value, &size)));
		CHECK_EQ(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, 4711, &value, sizeof value), -FI_ENOPROTOOPT);
		CHECK(refused(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &value, sizeof value)));
		/* An option of ofi_rxm's for other providers. */
		CHECK_EQ(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, (int)(FI_PROV_SPECIFIC | 7), &value, sizeof value),
			 -FI_ENOPROTOOPT);
		/* FI_OPT_CUDA_API_PERMITTED and FI_OPT_SHARED_MEMORY_PERMITTED, which older headers lack: any byte
		 * but 0 means yes. */
		for (int option = 10; option <= 11; option++)
			for (int byte = 1; byte < 256; byte++) {
				unsigned char yes = (unsigned char)byte;
				OK(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, option, &yes, sizeof yes));
			}
	}
	CLOSE(ep);
	node_close(&n);
}
