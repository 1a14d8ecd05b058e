/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Two processes that each open the provider and connect. */
#include "fi.h"
#include "process_pair.h"

/* --- opening --- */

struct fi_info *hints_new(const struct setup *setup)
{
	struct fi_info *hints = fi_allocinfo();
	CHECK(hints != NULL);
	hints->caps = setup->caps ? setup->caps : FI_MSG | FI_RMA;
	hints->mode = FI_RX_CQ_DATA;
	hints->ep_attr->type = FI_EP_MSG;
	hints->domain_attr->mr_mode = setup->no_mr_mode ? 0 : setup->mr_mode ? setup->mr_mode : KNOWN_MR_MODES;
	hints->domain_attr->threading = setup->threading;
	hints->domain_attr->data_progress = setup->progress;
	hints->domain_attr->control_progress = setup->progress;
	hints->tx_attr->size = setup->tx_size;
	hints->rx_attr->size = setup->rx_size;
	hints->tx_attr->rma_iov_limit = setup->rma_iov_limit;
	hints->tx_attr->op_flags = setup->tx_op_flags;
	hints->rx_attr->op_flags = setup->rx_op_flags;
	hints->fabric_attr->prov_name = strdup(fi_provider());
	return hints;
}

int provider_getinfo(const char *node, const char *service, uint64_t flags, struct fi_info *hints,
		     struct fi_info **info)
{
	*info = NULL;
	return fi_getinfo(fi_version(), node, service, flags, hints, info);
}

static int setup_getinfo(struct node *n, const char *node, uint64_t flags, struct fi_info *hints)
{
	return fi_getinfo(n->setup->version ? n->setup->version : fi_version(), node, NULL, flags, hints, &n->info);
}

/* --- the two processes --- */

/* The arguments of one side of a pair. */
struct pairing {
	const struct setup *setup;
	side_fn fn[TEST_SIDES];
	const void *arg;
};

static void run_side(enum test_side side, int oob, const void *arg)
{
	const struct pairing *p = arg;
	struct node n;
	memset(&n, 0, sizeof n);
	n.side = side;
	n.setup = p->setup;
	n.arg = p->arg;
	n.oob = oob;
	n.peer = test_oob_peer(oob);
	if (side == TEST_CLIENT) {
		/* The client may live in another network namespace, and then listens on an address there. */
		const char *node = test_enter_netns();
		if (node)
			setenv("TEST_NODE", node, 1);
	}
	p->fn[side](&n);
}

static const struct setup defaults;

void pair(const struct setup *setup, side_fn server, side_fn client, const void *arg)
{
	struct pairing p = {.setup = setup ? setup : &defaults, .arg = arg};
	p.fn[TEST_SERVER] = server;
	p.fn[TEST_CLIENT] = client;
	test_pair(run_side, p.setup->victim, &p);
}

void await_gone(struct node *n)
{
	test_await_gone(n->oob);
}

/* --- setting up --- */

static void open_objects(struct node *n)
{
	struct fi_eq_attr attr;
	memset(&attr, 0, sizeof attr);
	attr.wait_obj = n->setup->eq_wait ? n->setup->eq_wait : FI_WAIT_UNSPEC;
	attr.flags = FI_WRITE;
	CHECK(n->info->domain_attr && n->info->domain_attr->name && n->info->fabric_attr && n->info->fabric_attr->name);
	OK(fi_fabric(n->info->fabric_attr, &n->fabric, n));
	OK(fi_eq_open(n->fabric, &attr, &n->eq, n));
	OK(fi_domain(n->fabric, n->info, &n->domain, n));
	n->cq = cq_new(n, n->setup->format ? n->setup->format : FI_CQ_FORMAT_DATA, n->setup->cq_size,
		       n->setup->cq_wait);
}

static void listen_somewhere(struct node *n)
{
	struct fi_info *hints = hints_new(n->setup);
	/* FI_SOURCE needs a node to refer to. */
	int rc = setup_getinfo(n, node_name(), node_name() ? FI_SOURCE : 0, hints);
	if (rc)
		test_fail(__FILE__, __LINE__, "fi_getinfo for a listener is %s", test_number(rc));
	fi_freeinfo(hints);
	open_objects(n);
	n->pep = pep_new(n, n->info, n);
	n->format = n->info->addr_format;
	n->addrlen = sizeof n->addr;
	OK(fi_getname(&n->pep->fid, n->addr, &n->addrlen));
	CHECK(n->addrlen > 0 && n->addrlen <= sizeof n->addr);
}

static void find_listener(struct node *n)
{
	struct fi_info *hints = hints_new(n->setup);
	hints->addr_format = n->format;
	hints->dest_addr = malloc(n->addrlen);
	hints->dest_addrlen = n->addrlen;
	memcpy(hints->dest_addr, n->addr, n->addrlen);
	int rc = setup_getinfo(n, NULL, 0, hints);
	if (rc)
		test_fail(__FILE__, __LINE__, "fi_getinfo with the listener's address is %s", test_number(rc));
	fi_freeinfo(hints);
	CHECK_EQ(n->info->addr_format, n->format);
	CHECK(n->info->dest_addr && n->info->dest_addrlen >= n->addrlen);
}

void node_alone(struct node *n, const struct setup *setup)
{
	memset(n, 0, sizeof *n);
	n->side = TEST_SERVER;
	n->setup = setup ? setup : &defaults;
	n->oob = -1;
	listen_somewhere(n);
}

void node_open(struct node *n)
{
	if (n->side == TEST_SERVER) {
		listen_somewhere(n);
		oob_send(n, &n->format, sizeof n->format);
		oob_send(n, &n->addrlen, sizeof n->addrlen);
		oob_send(n, n->addr, n->addrlen);
	} else {
		oob_recv(n, &n->format, sizeof n->format);
		oob_recv(n, &n->addrlen, sizeof n->addrlen);
		oob_recv(n, n->addr, n->addrlen);
		find_listener(n);
		open_objects(n);
	}
}

void node_up(struct node *n)
{
	node_open(n);
	n->ep = node_connect(n, n);
}

struct fid_cq *cq_new(struct node *n, enum fi_cq_format format, size_t size, enum fi_wait_obj wait)
{
	struct fi_cq_attr attr;
	struct fid_cq *cq = NULL;
	memset(&attr, 0, sizeof attr);
	attr.size = size ? size : 1024;
	attr.format = format;
	attr.wait_obj = wait;
	OK(fi_cq_open(n->domain, &attr, &cq, n));
	return cq;
}

struct fid_ep *ep_bare(struct node *n, struct fi_info *info, void *context)
{
	struct fid_ep *ep = NULL;
	OK(fi_endpoint(n->domain, info, &ep, context));
	return ep;
}

struct fid_ep *ep_new(struct node *n, struct fi_info *info, void *context)
{
	struct fid_ep *ep = ep_bare(n, info, context);
	OK(fi_ep_bind(ep, &n->eq->fid, 0));
	OK(fi_ep_bind(ep, &n->cq->fid, FI_TRANSMIT | FI_RECV | n->setup->cq_flags));
	OK(fi_enable(ep));
	return ep;
}

struct fid_pep *pep_new(struct node *n, struct fi_info *info, void *context)
{
	struct fid_pep *pep = NULL;
	OK(fi_passive_ep(n->fabric, info, &pep, context));
	OK(fi_pep_bind(pep, &n->eq->fid, 0));
	OK(fi_listen(pep));
	return pep;
}

struct fi_info *await_request(struct node *n, const struct fid_pep *pep)
{
	struct event e;
	EVENT(n, FI_CONNREQ, pep, &e);
	CHECK(e.info && e.info->handle);
	return e.info;
}

struct fid_ep *node_connect(struct node *n, void *context)
{
	struct fid_ep *ep;
	if (n->side == TEST_SERVER) {
		struct fi_info *request = await_request(n, n->pep);
		ep = ep_new(n, request, context);
		fi_freeinfo(request);
		OK(fi_accept(ep, NULL, 0));
	} else {
		ep = ep_new(n, n->info, context);
		OK(fi_connect(ep, n->info->dest_addr, NULL, 0));
	}
	EVENT(n, FI_CONNECTED, ep, NULL);
	return ep;
}

void node_down(struct node *n)
{
	barrier(n);
	node_close(n);
}

void node_close(struct node *n)
{
	if (n->ep)
		CLOSE(n->ep);
	local_forget_all(n);
	if (n->pep)
		CLOSE(n->pep);
	CLOSE(n->cq);
	CLOSE(n->domain);
	CLOSE(n->eq);
	CLOSE(n->fabric);
	fi_freeinfo(n->info);
	int oob = n->oob;
	memset(n, 0, sizeof *n);
	n->oob = oob;
}
