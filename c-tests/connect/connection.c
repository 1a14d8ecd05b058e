/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Connecting and disconnecting: private data both ways, refusals, timeouts, and the state after a close. */
#include "fab.h"

static void private_data(unsigned char *to, size_t len, uint32_t seed)
{
	fill(to, len, 0, seed);
}

/* --- accept and reject, with data both ways --- */

/* Lengths of private data: none, little, more, and the maximum. */
static size_t data_size(const struct node *n, uint32_t i)
{
	static const size_t sizes[] = {0, 1, 17};
	return i < 3 ? sizes[i] : n->info->cm_data_size;
}

static void accepting(struct node *n)
{
	unsigned char data[GDRFAB_CM_DATA_MAX];
	struct event e;
	node_open(n);
	node_listen(n);
	CHECK(n->info->cm_data_size > 17 && n->info->cm_data_size <= GDRFAB_CM_DATA_MAX);
	barrier(n);
	for (uint32_t i = 0; i < 4; i++) {
		EVENT(n->eq, GDRFAB_CONNREQ, n->pep, &e);
		CHECK(e.entry.context == n);
		CHECK_EQ(e.data_len, data_size(n, i));
		CHECK_FILLED("the data of connect", e.data, e.data_len, 0, i);
		n->request = e.entry.info;
		CHECK(n->request != NULL);
		if (!n->domain)
			node_domain(n, n->request);
		n->ep = ep_new(n, n->request, &e);
		private_data(data, sizeof data, 100 + i);
		OK(gdrfab_ep_accept(n->ep, data, data_size(n, 3 - i)));
		EVENT(n->eq, GDRFAB_CONNECTED, n->ep, NULL);
		barrier(n);
		OK(gdrfab_ep_close(n->ep));
		gdrfab_freeinfo(n->request);
		n->ep = NULL;
		n->request = NULL;
		barrier(n);
	}
	node_down(n);
}

static void connecting(struct node *n)
{
	unsigned char data[GDRFAB_CM_DATA_MAX];
	struct event e;
	node_open(n);
	CHECK(n->info->dest_addr != NULL);
	CHECK(n->info->dest_addrlen > 0);
	barrier(n);
	for (uint32_t i = 0; i < 4; i++) {
		n->ep = ep_new(n, n->info, &e);
		private_data(data, sizeof data, i);
		OK(gdrfab_ep_connect(n->ep, n->info->dest_addr, n->info->dest_addrlen, data, data_size(n, i)));
		memset(data, 0, sizeof data);
		EVENT(n->eq, GDRFAB_CONNECTED, n->ep, &e);
		CHECK(e.entry.context == &e);
		CHECK_EQ(e.data_len, data_size(n, 3 - i));
		char peer[GDRFAB_ADDR_MAX];
		size_t len = sizeof peer;
		OK(gdrfab_ep_getpeer(n->ep, peer, &len));
		CHECK(strcmp(n->info->prov_name, "shm") != 0 || strcmp(peer, n->info->dest_addr) == 0);
		CHECK_FILLED("the data of accept", e.data, e.data_len, 0, 100 + i);
		barrier(n);
		OK(gdrfab_ep_close(n->ep));
		n->ep = NULL;
		barrier(n);
	}
	/* Private data beyond the maximum is refused before the connection request is sent. */
	n->ep = ep_new(n, n->info, NULL);
	unsigned char much[GDRFAB_CM_DATA_MAX + 1] = {0};
	CHECK_EQ(gdrfab_ep_connect(n->ep, n->info->dest_addr, n->info->dest_addrlen, much, n->info->cm_data_size + 1),
		 -EINVAL);
	node_down(n);
}

TEST(accept_with_data)
{
	pair(NULL, accepting, connecting, NULL);
}

static void rejecting(struct node *n)
{
	unsigned char data[GDRFAB_CM_DATA_MAX];
	node_open(n);
	node_listen(n);
	barrier(n);
	for (uint32_t i = 0; i < 4; i++) {
		gdrfab_info *request = node_await_request(n);
		/* The address of the client. */
		CHECK(request->dest_addr && strncmp(request->dest_addr, n->info->prov_name, strlen(n->info->prov_name)) == 0);
		CHECK_EQ(request->dest_addrlen, strlen(request->dest_addr) + 1);
		CHECK(strcmp(request->dest_addr, n->info->dest_addr ? n->info->dest_addr : "") != 0);
		private_data(data, sizeof data, 200 + i);
		OK(gdrfab_pep_reject(n->pep, request->handle, data, data_size(n, i)));
		gdrfab_freeinfo(request);
		barrier(n);
	}
	node_down(n);
}

static void rejected(struct node *n)
{
	char name[300], byte = 'x';
	node_open(n);
	barrier(n);
	for (uint32_t i = 0; i < 4; i++) {
		struct eq_failure f;
		n->ep = ep_new(n, n->info, n);
		OK(gdrfab_ep_connect(n->ep, n->info->dest_addr, n->info->dest_addrlen, "please", 6));
		EQ_FAILED(n->eq, n->ep, ECONNREFUSED, 10000, &f);
		CHECK_EQ(f.entry.prov_errno, GDRFAB_PROV_REJECTED);
		CHECK(f.entry.context == n);
		CHECK_EQ(f.entry.err_data_size, data_size(n, i));
		CHECK_FILLED("the data of reject", f.data, data_size(n, i), 0, 200 + i);
		const char *text = gdrfab_eq_strerror(n->eq, f.entry.prov_errno, NULL, name, sizeof name);
		CHECK(text && *text);
		/* A refused endpoint is not connected. */
		CHECK_EQ(gdrfab_send(n->ep, &byte, 1, local_desc(n, &byte, 1), 0, NULL), -ESHUTDOWN);
		OK(gdrfab_ep_close(n->ep));
		n->ep = NULL;
		barrier(n);
	}
	node_down(n);
}

TEST(reject_with_data)
{
	pair(NULL, rejecting, rejected, NULL);
}

TEST(nobody_listens)
{
	struct eq_failure f;
	struct node n;
	node_alone(&n, NULL);
	for (int i = 0; i < 3; i++) {
		n.ep = ep_new(&n, n.info, &n);
		OK(gdrfab_ep_connect(n.ep, n.info->dest_addr, n.info->dest_addrlen, NULL, 0));
		EQ_FAILED(n.eq, n.ep, ECONNREFUSED, 5000, &f);
		CHECK(f.entry.prov_errno != GDRFAB_PROV_REJECTED);
		f.data[sizeof f.data - 1] = 0;
		CHECK(f.data[0] != 0);
		if (!strstr((const char *)f.data, n.service))
			test_fail(__FILE__, __LINE__, "the words do not name \"%s\": %s", n.service,
				  (const char *)f.data);
		OK(gdrfab_ep_close(n.ep));
		n.ep = NULL;
	}
	node_close(&n);
}

/* A listener that never reads its events: the connecting side's wait is bounded. */
static void deaf(struct node *n)
{
	node_open(n);
	node_listen(n);
	n->idle = true;
	barrier(n);
	barrier(n);
	node_close(n);
}

static void impatient(struct node *n)
{
	node_open(n);
	barrier(n);
	n->ep = ep_new(n, n->info, NULL);
	uint64_t ns = 300000000, back = 0, before;
	size_t size = sizeof back;
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_CONNECT_TIMEOUT, &ns, sizeof ns));
	OK(gdrfab_ep_getopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_CONNECT_TIMEOUT, &back, &size));
	CHECK_EQ(back, ns);
	before = test_now_ms();
	OK(gdrfab_ep_connect(n->ep, n->info->dest_addr, n->info->dest_addrlen, NULL, 0));
	EQ_FAILED(n->eq, n->ep, ETIMEDOUT, 5000, NULL);
	CHECK(test_now_ms() - before >= 250);
	CHECK(test_now_ms() - before < (uint64_t)test_ms(3000));
	barrier(n);
	node_close(n);
}

TEST(connect_timeout)
{
	pair(NULL, deaf, impatient, NULL);
}

TEST(name_taken)
{
	gdrfab_pep *second = NULL;
	struct node n;
	node_alone(&n, NULL);
	n.side = TEST_SERVER;
	gdrfab_freeinfo(n.info);
	n.info = NULL;
	node_info(&n);
	CHECK(n.info->src_addr != NULL);
	node_listen(&n);
	int rc = gdrfab_pep_open(n.fabric, n.info, NULL, &second);
	if (rc == 0) {
		OK(gdrfab_pep_bind_eq(second, n.eq, 0));
		rc = gdrfab_pep_listen(second);
	}
	CHECK_EQ(rc, -EADDRINUSE);
	CHECK(strstr(gdrfab_last_error(), n.service) != NULL);
	if (second)
		OK(gdrfab_pep_close(second));
	/* After the close the name is free. */
	OK(gdrfab_pep_close(n.pep));
	n.pep = NULL;
	node_listen(&n);
	node_close(&n);
}

/* --- parting --- */

static void one_posted(struct node *n, char *buf, size_t len, int count)
{
	for (int i = 0; i < count; i++)
		POST(n->cq, gdrfab_recv(n->ep, buf, len, local_desc(n, buf, len), 0, buf + i));
}

static void all_failed(struct node *n, char *buf, int count, int err, int prov)
{
	/* The order of cancelled receives is not defined: each must end once. */
	unsigned seen = 0;
	for (int i = 0; i < count; i++) {
		struct failure f;
		done entry;
		CHECK_EQ(cq_next(n->cq, &entry, 10000), -1);
		cq_failure(__FILE__, __LINE__, n->cq, &f);
		if (!failure_is(&f.entry, err, prov))
			test_fail(__FILE__, __LINE__, "%s, provider code %d, \"%s\"; not %s, %d",
				  test_number(-f.entry.err), f.entry.prov_errno, f.words, test_number(-err), prov);
		CHECK((f.entry.flags & GDRFAB_RECV) != 0);
		ptrdiff_t at = (char *)f.entry.op_context - buf;
		CHECK(at >= 0 && at < count);
		CHECK_EQ(seen >> at & 1, 0);
		seen |= 1u << at;
	}
}

static void parts_first(struct node *n)
{
	static char buf[64];
	bool shutdown = n->arg != NULL;
	node_up(n);
	one_posted(n, buf, sizeof buf, 5);
	barrier(n);
	if (shutdown) {
		OK(gdrfab_ep_shutdown(n->ep, 0));
		all_failed(n, buf, 5, ECANCELED, GDRFAB_PROV_CANCELED);
		CHECK_EQ(gdrfab_send(n->ep, buf, 1, local_desc(n, buf, 1), 0, NULL), -ESHUTDOWN);
		OK(gdrfab_ep_close(n->ep));
	} else {
		OK(gdrfab_ep_close(n->ep));
		/* The queue outlives the endpoint, and keeps the endpoint's entries. */
		all_failed(n, buf, 5, ECANCELED, GDRFAB_PROV_CANCELED);
	}
	n->ep = NULL;
	barrier(n);
	node_down(n);
}

static void left_behind(struct node *n)
{
	static char buf[64];
	node_up(n);
	one_posted(n, buf, sizeof buf, 7);
	barrier(n);
	EVENT(n->eq, GDRFAB_SHUTDOWN, n->ep, NULL);
	all_failed(n, buf, 7, ECONNRESET, GDRFAB_PROV_PEER_GONE);
	CHECK_EQ(gdrfab_send(n->ep, buf, 1, local_desc(n, buf, 1), 0, NULL), -ESHUTDOWN);
	CHECK_EQ(gdrfab_recv(n->ep, buf, 1, local_desc(n, buf, 1), 0, NULL), -ESHUTDOWN);
	CHECK_EQ(gdrfab_write(n->ep, buf, 1, local_desc(n, buf, 1), 0, 0, 1, NULL), -ESHUTDOWN);
	CHECK_EQ(gdrfab_read(n->ep, buf, 1, local_desc(n, buf, 1), 0, 0, 1, NULL), -ESHUTDOWN);
	QUIET(n->cq, 5);
	barrier(n);
	node_down(n);
}

TEST(close_with_posted_receives)
{
	pair(NULL, parts_first, left_behind, NULL);
}

TEST(shutdown_with_posted_receives)
{
	pair(NULL, parts_first, left_behind, "shutdown");
}

/* Messages sent before a close arrive although the sender is gone. */
static void last_words(struct node *n)
{
	static char buf[20][64];
	node_up(n);
	meet_if_hasty(n);
	for (int i = 0; i < 20; i++) {
		memset(buf[i], i, sizeof buf[i]);
		POST(n->cq, gdrfab_send(n->ep, buf[i], sizeof buf[i], local_desc(n, buf[i], sizeof buf[i]), 0, NULL));
	}
	for (int i = 0; i < 20; i++)
		DONE(n->cq, NULL, GDRFAB_SEND, NULL);
	OK(gdrfab_ep_close(n->ep));
	n->ep = NULL;
	barrier(n);
	node_down(n);
}

static void hears_them(struct node *n)
{
	static char buf[20][64];
	node_up(n);
	for (int i = 0; i < 20; i++)
		POST(n->cq, gdrfab_recv(n->ep, buf[i], sizeof buf[i], local_desc(n, buf[i], sizeof buf[i]), 0, buf[i]));
	meet_if_hasty(n);
	for (int i = 0; i < 20; i++) {
		DONE(n->cq, buf[i], GDRFAB_RECV, NULL);
		CHECK_EQ(buf[i][63], i);
	}
	barrier(n);
	node_down(n);
}

TEST(completed_sends_arrive_before_a_close)
{
	pair(NULL, hears_them, last_words, NULL);
}

/* --- an answer that comes before the event queue was read --- */

struct haste {
	struct setup setup;
	bool sleeps;
};

/* soft-iWARP accepts before its queue pair listens to the socket: data that arrives in between stays there until more comes. */
static void skip_soft_iwarp(const struct node *n)
{
	if (strncmp(n->info->domain_name, "siw", 3) == 0)
		test_skip("soft-iWARP may leave what comes right after it accepts until more comes");
}

static void answering(struct node *n)
{
	const struct haste *haste = (const struct haste *)n->arg;
	node_open(n);
	skip_soft_iwarp(n);
	node_listen(n);
	for (int i = 0; i < test_count(12, 6); i++) {
		char in[8] = "", out[8] = "answer";
		barrier(n);
		gdrfab_info *request = node_await_request(n);
		if (!n->domain)
			node_domain(n, request);
		n->ep = ep_new(n, request, NULL);
		gdrfab_freeinfo(request);
		POST(n->cq, gdrfab_recv(n->ep, in, sizeof in, local_desc(n, in, sizeof in), 0, in));
		OK(gdrfab_ep_accept(n->ep, NULL, 0));
		done entry;
		uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
		ssize_t got;
		do
			got = haste->sleeps ? gdrfab_cq_sread(n->cq, &entry, 1, 1000) : gdrfab_cq_read(n->cq, &entry, 1);
		while (got == -EAGAIN && test_now_ms() < until);
		CHECK_EQ(got, 1);
		CHECK_EQ(gdrfab_send(n->ep, out, sizeof out, local_desc(n, out, sizeof out), 0, out), 0);
		DONE(n->cq, out, GDRFAB_SEND, NULL);
		EVENT(n->eq, GDRFAB_CONNECTED, n->ep, NULL);
		barrier(n);
		OK(gdrfab_ep_close(n->ep));
		n->ep = NULL;
		local_forget_all(n);
	}
	node_down(n);
}

static void asking(struct node *n)
{
	node_open(n);
	skip_soft_iwarp(n);
	for (int i = 0; i < test_count(12, 6); i++) {
		char in[8] = "", out[8] = "ask";
		barrier(n);
		n->ep = ep_new(n, n->info, NULL);
		POST(n->cq, gdrfab_recv(n->ep, in, sizeof in, local_desc(n, in, sizeof in), 0, in));
		OK(gdrfab_ep_connect(n->ep, n->info->dest_addr, n->info->dest_addrlen, NULL, 0));
		EVENT(n->eq, GDRFAB_CONNECTED, n->ep, NULL);
		POST(n->cq, gdrfab_send(n->ep, out, sizeof out, local_desc(n, out, sizeof out), 0, out));
		/* In any order: over shm the answer may come first. */
		for (int k = 0; k < 2; k++) {
			done entry;
			CHECK_EQ(cq_next(n->cq, &entry, 10000), 1);
			CHECK(entry.op_context == out || entry.op_context == in);
		}
		CHECK(strcmp(in, "answer") == 0);
		barrier(n);
		OK(gdrfab_ep_close(n->ep));
		n->ep = NULL;
		local_forget_all(n);
	}
	node_down(n);
}

static void what_came_can_be_answered(const void *arg)
{
	const struct haste *haste = (const struct haste *)arg;
	pair(&haste->setup, answering, asking, haste);
}

TEST_TABLE(per_haste)
{
	static struct haste all[4];
	static char names[4][64];
	for (int i = 0; i < 4; i++) {
		bool by_thread = i & 2;
		all[i].sleeps = i & 1;
		all[i].setup.progress = by_thread ? GDRFAB_PROGRESS_AUTO : 0;
		snprintf(names[i], sizeof names[i], "what_came_can_be_answered%s%s", by_thread ? "_auto" : "", all[i].sleeps ? "_asleep" : "");
		test_add(names[i], what_came_can_be_answered, &all[i], 30);
	}
}
