/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The two sides of a claim: see fab_node.h. */
#include "fab_node.h"
#include "fab_local.h"
#include "fab_provider.h"
#include "fab_wait.h"
#include "namespaces.h"
#include "process_pair.h"

#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>

/* --- the two processes --- */

/* Libraries of a provider open some descriptors once and keep them: opens these before descriptors are counted. */
static void settle(void)
{
	static const struct setup defaults;
	gdrfab_info *hints, *info = NULL;
	gdrfab_fabric *fabric = NULL;
	gdrfab_domain *domain = NULL;
	gdrfab_pep *pep = NULL;
	gdrfab_eq *eq = NULL;
	char service[64];
	if (!traits()->adapter)
		return;
	unique_service(service, sizeof service);
	hints = hints_new(&defaults);
	OK(provider_getinfo(service, GDRFAB_SOURCE, hints, &info));
	OK(gdrfab_fabric_open(info, NULL, &fabric));
	OK(gdrfab_eq_open(fabric, NULL, NULL, &eq));
	OK(gdrfab_domain_open(fabric, info, NULL, &domain));
	OK(gdrfab_pep_open(fabric, info, NULL, &pep));
	OK(gdrfab_pep_bind_eq(pep, eq, 0));
	OK(gdrfab_pep_listen(pep));
	OK(gdrfab_pep_close(pep));
	OK(gdrfab_domain_close(domain));
	OK(gdrfab_eq_close(eq));
	OK(gdrfab_fabric_close(fabric));
	gdrfab_freeinfo(info);
	gdrfab_freeinfo(hints);
}

/* The arguments of pair(), for its two processes. */
struct pairing {
	const struct setup *setup;
	side_fn fn[TEST_SIDES];
	const void *arg;
	char service[64];
};

static void run_side(enum test_side side, int oob, const void *arg)
{
	const struct pairing *p = (const struct pairing *)arg;
	struct node n;
	memset(&n, 0, sizeof n);
	n.side = side;
	n.setup = p->setup;
	n.arg = p->arg;
	n.oob = oob;
	snprintf(n.service, sizeof n.service, "%s", p->service);
	n.peer = test_oob_peer(oob);
	if (side == TEST_CLIENT) {
		/* A client in another network namespace listens at its own address. */
		const char *node = test_enter_netns();
		if (node)
			setenv("TEST_OWN_NODE", node, 1);
	}
	test_enter_namespaces(getenv(side == TEST_CLIENT ? "TEST_CLIENT_NAMESPACES" : "TEST_SERVER_NAMESPACES"));
	for (size_t i = 0; i < 2 && p->setup->env[side][i]; i++) {
		const char *item = p->setup->env[side][i], *value = strchr(item, '=');
		char name[64];
		CHECK(value && value - item < (ptrdiff_t)sizeof name);
		snprintf(name, sizeof name, "%.*s", (int)(value - item), item);
		set_variable(name, value + 1);
	}
	local_prepare();
	settle();
	n.fds = test_count_fds();
	p->fn[side](&n);
}

void pair(const struct setup *setup, side_fn server, side_fn client, const void *arg)
{
	static const struct setup defaults;
	struct pairing p = {.setup = setup ? setup : &defaults, .arg = arg};
	p.fn[TEST_SERVER] = server;
	p.fn[TEST_CLIENT] = client;
	unique_service(p.service, sizeof p.service);
	test_pair(run_side, p.setup->victim, &p);
}

/* The text of came_late(), or ""; shared by both sides. */
static char *late;
enum { LATE_LEN = 200 };

void pair_in_time(const struct setup *setup, side_fn server, side_fn client, const void *arg)
{
	late = (char *)mmap(NULL, LATE_LEN, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(late != MAP_FAILED);
	for (int i = 0; i < 3; i++) {
		*late = 0;
		pair(setup, server, client, arg);
		if (!*late)
			return;
		fprintf(stderr, "     late: %s\n", late);
	}
	test_fail(__FILE__, __LINE__, "three times out of three: %s", late);
}

void came_late(const char *format, ...)
{
	va_list list;
	va_start(list, format);
	vsnprintf(late, LATE_LEN, format, list);
	va_end(list);
}

void oob_send(struct node *n, const void *data, size_t len)
{
	test_oob_send(n->oob, data, len);
}

static void drive(void *of)
{
	gdrfab_cq_read(((struct node *)of)->cq, NULL, 0);
}

static test_drive_fn drives(const struct node *n)
{
	return n->idle || !n->cq ? NULL : drive;
}

void oob_recv(struct node *n, void *data, size_t len)
{
	test_oob_recv(n->oob, data, len, drives(n), n);
}

void barrier(struct node *n)
{
	test_barrier(n->oob, drives(n), n);
}

void meet_if_hasty(struct node *n)
{
	if (!waits_for_receive(n))
		barrier(n);
}

void await_gone(struct node *n)
{
	test_await_gone(n->oob);
}

void peer_stop(struct node *n)
{
	if (kill(n->peer, SIGSTOP) < 0)
		test_fail(__FILE__, __LINE__, "kill: %s", strerror(errno));
	while (test_process_state(n->peer) != 'T')
		test_sleep_ms(1);
}

void peer_continue(struct node *n)
{
	kill(n->peer, SIGCONT);
}

void peer_kill(struct node *n)
{
	if (kill(n->peer, SIGKILL) < 0 && errno != ESRCH)
		test_fail(__FILE__, __LINE__, "kill: %s", strerror(errno));
	await_gone(n);
}

/* --- opening and connecting --- */

/* With TEST_RDM=1 the claims that are not about connections run on connectionless endpoints. */
bool connectionless(const struct setup *setup)
{
	return setup->rdm || getenv("TEST_RDM");
}

void skip_if_connectionless(void)
{
	if (getenv("TEST_RDM"))
		test_skip("about connections");
}

gdrfab_info *hints_new(const struct setup *setup)
{
	gdrfab_info *hints = gdrfab_dupinfo(NULL);
	CHECK(hints != NULL);
	hints->caps = setup->caps ? setup->caps : GDRFAB_MSG | GDRFAB_RMA;
	/* TEST_TAGGED=1: the claims must also hold for endpoints with tags. */
	if (getenv("TEST_TAGGED") && !connectionless(setup))
		hints->caps |= GDRFAB_TAGGED;
	if (getenv("TEST_RDM"))
		hints->caps |= GDRFAB_DIRECTED_RECV;
	hints->ep_type = connectionless(setup) ? GDRFAB_EP_RDM : GDRFAB_EP_MSG;
	hints->mr_mode = GDRFAB_MR_LOCAL;
	hints->mr_mode |= setup->offsets ? 0 : GDRFAB_MR_VIRT_ADDR;
	hints->mr_mode |= setup->given_keys ? 0 : GDRFAB_MR_PROV_KEY;
	hints->progress = setup->progress;
	/* TEST_THREADING=domain: the processes have one thread, so they can promise this. */
	const char *threading = getenv("TEST_THREADING");
	hints->threading = setup->threading;
	if (!hints->threading && threading && strcmp(threading, "domain") == 0)
		hints->threading = GDRFAB_THREAD_DOMAIN;
	/* TEST_COMP_ORDER=strict: the claims must also hold with entries in the order of posting. */
	const char *order = getenv("TEST_COMP_ORDER");
	hints->comp_order = setup->comp_order;
	if (order && strcmp(order, "strict") == 0)
		hints->comp_order = GDRFAB_ORDER_STRICT;
	hints->tx_op_flags = setup->tx_op_flags ? setup->tx_op_flags : GDRFAB_COMPLETION | traits()->delivery;
	hints->rx_op_flags = setup->rx_op_flags;
	return hints;
}

void node_info(struct node *n)
{
	gdrfab_info *hints = hints_new(n->setup);
	const char *key = n->setup->key[n->side];
	skip_unless(!connectionless(n->setup) || !traits()->adapter, "no connectionless endpoints");
	hints->auth_key = key;
	hints->auth_key_size = key ? strlen(key) : 0;
	const char *service = connectionless(n->setup) ? NULL : n->service;
	int rc = provider_getinfo(service, n->side == TEST_SERVER || connectionless(n->setup) ? GDRFAB_SOURCE : 0, hints, &n->info);
	/* The key belongs to the claim: gdrfab_freeinfo() must not free it. */
	hints->auth_key = NULL;
	hints->auth_key_size = 0;
	/* A provider may lack the options of an unusual setup. */
	if (rc == -ENODATA) {
		skip_unless(!traits()->adapter || !n->setup->given_keys, "keys cannot be requested");
		skip_unless(!traits()->adapter || !n->setup->offsets, "remote addresses are virtual");
	}
	CHECK_EQ(rc, 0);
	gdrfab_freeinfo(hints);
	CHECK(n->info != NULL);
}

gdrfab_cq *cq_new(struct node *n, uint32_t format, size_t size, uint32_t wait)
{
	gdrfab_cq_attr attr = {sizeof attr, size ? size : 1024, 0, format, wait};
	gdrfab_cq *cq = NULL;
	OK(gdrfab_cq_open(n->domain, &attr, NULL, &cq));
	CHECK(cq != NULL);
	return cq;
}

void node_domain(struct node *n, const gdrfab_info *info)
{
	const struct setup *s = n->setup;
	OK(gdrfab_domain_open(n->fabric, info, n, &n->domain));
	n->cq = cq_new(n, s->cq_format ? s->cq_format : GDRFAB_CQ_FORMAT_DATA, s->cq_size, s->cq_wait);
}

void node_open(struct node *n)
{
	node_info(n);
	skip_unless(!n->setup->by_address || by_address_too(n), "no connection by exchanged addresses over iWARP");
	OK(gdrfab_fabric_open(n->info, n, &n->fabric));
	gdrfab_eq_attr attr = {sizeof attr, 0, 0, GDRFAB_WAIT_NONE, 0};
	OK(gdrfab_eq_open(n->fabric, &attr, n, &n->eq));
	if (n->side == TEST_CLIENT || n->setup->by_address || connectionless(n->setup))
		node_domain(n, n->info);
}

void node_alone(struct node *n, const struct setup *setup)
{
	static const struct setup defaults;
	memset(n, 0, sizeof *n);
	n->side = TEST_CLIENT;
	n->setup = setup ? setup : &defaults;
	n->oob = -1;
	unique_service(n->service, sizeof n->service);
	local_prepare();
	settle();
	n->fds = test_count_fds();
	node_open(n);
}

gdrfab_ep *ep_new(struct node *n, const gdrfab_info *info, void *context)
{
	gdrfab_ep *ep = NULL;
	OK(gdrfab_ep_open(n->domain, info, context, &ep));
	CHECK(ep != NULL);
	OK(gdrfab_ep_bind_cq(ep, n->cq, GDRFAB_TRANSMIT | GDRFAB_RECV | n->setup->cq_flags));
	if (n->setup->counts_receives) {
		OK(gdrfab_cntr_open(n->domain, NULL, NULL, &n->received));
		OK(gdrfab_ep_bind_cntr(ep, n->received, GDRFAB_RECV));
	}
	if (n->av)
		OK(gdrfab_ep_bind_av(ep, n->av, 0));
	else
		OK(gdrfab_ep_bind_eq(ep, n->eq, 0));
	uint32_t streams = n->setup->tcp_streams[n->side];
	if (streams)
		OK(gdrfab_ep_setopt(ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_TCP_STREAMS, &streams, sizeof streams));
	const char *rails = n->setup->rails[n->side];
	if (rails)
		OK(gdrfab_ep_setopt(ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_RAILS, rails, strlen(rails)));
	OK(gdrfab_ep_enable(ep));
	if (n->setup->deadline_ms) {
		uint64_t ns = n->setup->deadline_ms * 1000000u;
		OK(gdrfab_ep_setopt(ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_DEADLINE, &ns, sizeof ns));
		OK(gdrfab_ep_setopt(ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_RECV_DEADLINE, &ns, sizeof ns));
	}
	return ep;
}

void node_listen(struct node *n)
{
	OK(gdrfab_pep_open(n->fabric, n->info, n, &n->pep));
	OK(gdrfab_pep_bind_eq(n->pep, n->eq, 0));
	OK(gdrfab_pep_listen(n->pep));
}

gdrfab_info *node_await_request(struct node *n)
{
	struct event e;
	EVENT(n->eq, GDRFAB_CONNREQ, n->pep, &e);
	CHECK(e.entry.info != NULL);
	CHECK(e.entry.info->handle != NULL);
	return e.entry.info;
}

void node_connect(struct node *n)
{
	n->ep = ep_new(n, n->info, n);
	OK(gdrfab_ep_connect(n->ep, n->info->dest_addr, n->info->dest_addrlen, NULL, 0));
	EVENT(n->eq, GDRFAB_CONNECTED, n->ep, NULL);
}

void node_accept(struct node *n)
{
	gdrfab_freeinfo(n->request);
	n->request = node_await_request(n);
	if (!n->domain)
		node_domain(n, n->request);
	n->ep = ep_new(n, n->request, n);
	OK(gdrfab_ep_accept(n->ep, NULL, 0));
	EVENT(n->eq, GDRFAB_CONNECTED, n->ep, NULL);
}

void ep_connect_by_address(struct node *n, gdrfab_ep *ep)
{
	struct {
		size_t len;
		char text[GDRFAB_ADDR_MAX];
	} mine, theirs;
	memset(&mine, 0, sizeof mine);
	mine.len = sizeof mine.text;
	OK(gdrfab_ep_getname(ep, mine.text, &mine.len));
	oob_send(n, &mine, sizeof mine);
	oob_recv(n, &theirs, sizeof theirs);
	OK(gdrfab_ep_connect_addr(ep, theirs.text, theirs.len));
	EVENT(n->eq, GDRFAB_CONNECTED, ep, NULL);
}

/* Opens connectionless endpoints and exchanges their names. No connection is made yet. */
static void exchange_names(struct node *n)
{
	unsigned char names[PEER + 1][GDRFAB_NAME_LEN];
	size_t len = sizeof names[0];
	OK(gdrfab_av_open(n->domain, NULL, NULL, &n->av));
	n->ep = ep_new(n, n->info, n);
	OK(gdrfab_ep_getname(n->ep, names[0], &len));
	oob_send(n, names[0], len);
	oob_recv(n, names[PEER], len);
	CHECK_EQ(gdrfab_av_insert(n->av, names, PEER + 1, NULL, 0, NULL), PEER + 1);
}

void node_meet(struct node *n)
{
	if (connectionless(n->setup)) {
		exchange_names(n);
	} else if (n->setup->by_address) {
		n->ep = ep_new(n, n->info, n);
		ep_connect_by_address(n, n->ep);
	} else if (n->side == TEST_SERVER) {
		if (!n->pep)
			node_listen(n);
		barrier(n);
		node_accept(n);
	} else {
		barrier(n);
		node_connect(n);
	}
	barrier(n);
}

void node_reach(struct node *n)
{
	char byte[2] = "r";
	struct iovec in = {byte, 1}, out = {byte + 1, 1};
	gdrfab_msg recv = {.struct_size = sizeof recv, .msg_iov = &in, .iov_count = 1, .addr = PEER, .timeout_ns = UINT64_MAX}, send = recv;
	done entry;
	if (!connectionless(n->setup))
		return;
	send.msg_iov = &out;
	POST(n->cq, gdrfab_recvmsg(n->ep, &recv, GDRFAB_COMPLETION));
	POST(n->cq, gdrfab_sendmsg(n->ep, &send, GDRFAB_COMPLETION));
	CHECK_EQ(cq_next(n->cq, &entry, 10000), 1);
	CHECK_EQ(cq_next(n->cq, &entry, 10000), 1);
	barrier(n);
}

void node_up(struct node *n)
{
	node_open(n);
	node_meet(n);
}

void recover(struct node *n)
{
	if (traits()->survives_failures)
		return;
	EVENT(n->eq, GDRFAB_SHUTDOWN, n->ep, NULL);
	OK(gdrfab_ep_close(n->ep));
	n->ep = NULL;
	/* Takes the entries of operations that were flushed. */
	for (;;) {
		gdrfab_cq_data_entry entry;
		struct failure f;
		ssize_t got = gdrfab_cq_read(n->cq, &entry, 1);
		if (got == -EAGAIN)
			break;
		if (got == -GDRFAB_EAVAIL)
			cq_failure(__FILE__, __LINE__, n->cq, &f);
	}
	node_meet(n);
}

void lead_recovery(struct node *n)
{
	char again = 'r';
	if (traits()->survives_failures)
		return;
	oob_send(n, &again, 1);
	recover(n);
}

void lead_no_more(struct node *n)
{
	char end = 'e';
	oob_send(n, &end, 1);
}

void follow_recovery(struct node *n)
{
	char word;
	for (oob_recv(n, &word, 1); word == 'r'; oob_recv(n, &word, 1)) {
		recover(n);
		data_room(n);
	}
	CHECK_EQ(word, 'e');
}

void node_close(struct node *n)
{
	if (n->ep)
		OK(gdrfab_ep_close(n->ep));
	if (n->av)
		OK(gdrfab_av_close(n->av));
	if (n->cq)
		OK(gdrfab_cq_close(n->cq));
	if (n->received)
		OK(gdrfab_cntr_close(n->received));
	local_forget_all(n);
	if (n->domain)
		OK(gdrfab_domain_close(n->domain));
	if (n->pep)
		OK(gdrfab_pep_close(n->pep));
	if (n->eq)
		OK(gdrfab_eq_close(n->eq));
	if (n->fabric)
		OK(gdrfab_fabric_close(n->fabric));
	gdrfab_freeinfo(n->request);
	gdrfab_freeinfo(n->info);
	n->ep = NULL, n->av = NULL, n->cq = NULL, n->received = NULL, n->domain = NULL, n->pep = NULL, n->eq = NULL, n->fabric = NULL;
	n->info = n->request = NULL;
	/* A real driver keeps descriptors, even if only the memory of a peer made the library open it. */
	if (n->drivers || getenv("TEST_REAL"))
		return;
	/* A thread of the library that is ending may hold a descriptor a moment longer. */
	uint64_t until = test_now_ms() + (uint64_t)test_ms(2000);
	while (test_count_fds() != n->fds && test_now_ms() < until)
		test_sleep_ms(2);
	if (test_count_fds() != n->fds)
		test_list_fds();
	CHECK_EQ(test_count_fds(), n->fds);
}

void node_down(struct node *n)
{
	barrier(n);
	node_close(n);
}
