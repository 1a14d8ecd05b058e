/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Tags on connected endpoints: discovery, connecting to endpoints with and without tags, private data, and the state after the
 * peer has gone. Matching itself is tested in rdm.c and rdm_match.c, over both kinds of endpoints.
 */
#include "misuse.h"

#include <signal.h>
#include <sys/socket.h>

static const struct setup tags = {.cq_format = GDRFAB_CQ_FORMAT_DATA, .caps = GDRFAB_MSG | GDRFAB_RMA | GDRFAB_TAGGED | GDRFAB_MULTI_RECV};
static const struct setup plain = {.caps = GDRFAB_MSG | GDRFAB_RMA};

static void skip_without_tags(void)
{
	gdrfab_info *hints = hints_new(&tags), *info = NULL;
	if (provider_getinfo(NULL, 0, hints, &info) == -ENODATA) {
		SAYS(gdrfab_last_error(), "TAGGED");
		gdrfab_freeinfo(hints);
		test_skip("no tagged messages on connected endpoints");
	}
	gdrfab_freeinfo(hints), gdrfab_freeinfo(info);
}

TEST(tags_come_to_who_asks)
{
	gdrfab_info *hints, *info = NULL;
	struct node n;
	skip_without_tags();
	hints = hints_new(&tags);
	CHECK_EQ(provider_getinfo("1", GDRFAB_SOURCE, hints, &info), 0);
	CHECK_EQ(info->ep_type, GDRFAB_EP_MSG);
	CHECK_EQ(info->caps, tags.caps);
	CHECK(info->cm_data_size < GDRFAB_CM_DATA_MAX);
	gdrfab_nic_attr nic = {.struct_size = sizeof nic};
	CHECK_EQ(gdrfab_info_nic(info, &nic), traits()->adapter ? 0 : -ENODATA);
	gdrfab_freeinfo(info);
	hints->caps = 0;
	CHECK_EQ(provider_getinfo("1", GDRFAB_SOURCE, hints, &info), 0);
	CHECK_EQ(info->caps & (GDRFAB_TAGGED | GDRFAB_MULTI_RECV), 0);
	gdrfab_freeinfo(info);
	/* A connected endpoint has a single source. */
	hints->caps = GDRFAB_TAGGED | GDRFAB_DIRECTED_RECV;
	CHECK_EQ(provider_getinfo("1", GDRFAB_SOURCE, hints, &info), -ENODATA);
	SAYS(gdrfab_last_error(), "DIRECTED_RECV");
	gdrfab_freeinfo(hints);
	node_alone(&n, &tags);
	gdrfab_ep *ep = NULL;
	gdrfab_av *av = NULL;
	hints = hints_new(&plain);
	CHECK_EQ(provider_getinfo("1", GDRFAB_SOURCE, hints, &info), 0);
	MISUSE(gdrfab_ep_open(n.domain, info, NULL, &ep), -EINVAL, "info->caps");
	OK(gdrfab_ep_open(n.domain, n.info, NULL, &ep));
	OK(gdrfab_av_open(n.domain, NULL, NULL, &av));
	MISUSE(gdrfab_ep_bind_av(ep, av, 0), -EINVAL, "GDRFAB_EP_RDM");
	OK(gdrfab_ep_close(ep));
	n.ep = ep_new(&n, n.info, &n);
	uint32_t retries = 3, set = 0;
	size_t len = sizeof set;
	CHECK_EQ(gdrfab_ep_setopt(n.ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_RNR_RETRY, &retries, sizeof retries),
		 traits()->adapter ? 0 : -ENOPROTOOPT);
	if (traits()->adapter) {
		OK(gdrfab_ep_getopt(n.ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_RNR_RETRY, &set, &len));
		CHECK_EQ(set, retries);
	}
	char byte = 0;
	MISUSE(gdrfab_tsend(n.ep, &byte, 1, NULL, 0, 1, &byte), -ENOTCONN, "not connected");
	MISUSE(gdrfab_ep_shutdown(n.ep, 0), -ENOTCONN, "not connected");
	OK(gdrfab_av_close(av));
	gdrfab_freeinfo(hints), gdrfab_freeinfo(info);
	node_close(&n);
}

/* Endpoints with tags refuse addresses of endpoints without, and the other way round. */
TEST(exchanged_addresses_tell_of_tags)
{
	static struct setup exchanged;
	char name[GDRFAB_ADDR_MAX];
	size_t len = sizeof name;
	struct node n;
	skip_without_tags();
	exchanged = tags, exchanged.by_address = true;
	node_alone(&n, &exchanged);
	n.ep = ep_new(&n, n.info, &n);
	OK(gdrfab_ep_getname(n.ep, name, &len));
	MISUSE(gdrfab_ep_connect_addr(n.ep, name, len), -EINVAL, "own address");
	char other[GDRFAB_ADDR_MAX];
	size_t other_len = sizeof other;
	struct node untagged;
	node_alone(&untagged, &plain);
	untagged.ep = ep_new(&untagged, untagged.info, &untagged);
	OK(gdrfab_ep_getname(untagged.ep, other, &other_len));
	MISUSE(gdrfab_ep_connect_addr(untagged.ep, name, len), -EINVAL, "GDRFAB_TAGGED");
	MISUSE(gdrfab_ep_connect_addr(n.ep, other, other_len), -EINVAL, "GDRFAB_TAGGED");
	strcpy(name + strlen(name), "9");
	MISUSE(gdrfab_ep_connect_addr(n.ep, name, len + 1), -EINVAL, "version");
	node_close(&untagged);
	node_close(&n);
}

/* --- only one of the two sides has tags --- */

static void door(struct node *n)
{
	bool tagged = n->arg != NULL;
	struct event e;
	n->setup = tagged ? &tags : &plain;
	node_open(n);
	node_listen(n);
	barrier(n);
	if (!tagged) {
		/* A side without tags cannot see the difference, and may accept. */
		n->request = node_await_request(n);
		node_domain(n, n->request);
		n->ep = ep_new(n, n->request, n);
		OK(gdrfab_ep_accept(n->ep, NULL, 0));
		EVENT(n->eq, GDRFAB_CONNECTED, n->ep, &e);
		EVENT(n->eq, GDRFAB_SHUTDOWN, n->ep, &e);
	} else {
		/* Drives until the other side has its answer. */
		uint32_t event;
		char word;
		while (recv(n->oob, &word, 1, MSG_PEEK | MSG_DONTWAIT) < 0)
			CHECK_EQ(gdrfab_eq_sread(n->eq, &event, &e.entry, sizeof e.entry, 5, 0), -EAGAIN);
	}
	node_down(n);
}

static void knocks(struct node *n)
{
	struct eq_failure f;
	n->setup = n->arg ? &plain : &tags;
	node_open(n);
	barrier(n);
	n->ep = ep_new(n, n->info, n);
	OK(gdrfab_ep_connect(n->ep, n->info->dest_addr, n->info->dest_addrlen, "hello", 5));
	EQ_FAILED(n->eq, n->ep, n->arg ? ECONNREFUSED : EPROTO, 10000, &f);
	CHECK_EQ(f.entry.prov_errno, n->arg ? GDRFAB_PROV_REJECTED : GDRFAB_PROV_PEER_BROKE);
	f.data[f.entry.err_data_size < sizeof f.data ? f.entry.err_data_size : sizeof f.data - 1] = 0;
	if (n->arg)
		SAYS((char *)f.data, "GDRFAB_TAGGED");
	CHECK_EQ(gdrfab_send(n->ep, "x", 1, NULL, 0, NULL), -ESHUTDOWN);
	if (!n->arg)
		SAYS(gdrfab_last_error(), "GDRFAB_TAGGED");
	node_down(n);
}

TEST(a_listener_with_tags_rejects_who_has_none)
{
	skip_without_tags();
	pair(NULL, door, knocks, "");
}

TEST(a_listener_without_tags_is_left_by_who_has_some)
{
	skip_without_tags();
	pair(NULL, door, knocks, NULL);
}

/* --- a client that connects and sends nothing --- */

static void speaks(struct node *n)
{
	node_up(n);
	OK(gdrfab_tsend(n->ep, "welcome", 8, NULL, 0, 3, n));
	DONE(n->cq, n, GDRFAB_SEND | GDRFAB_TAGGED, NULL);
	barrier(n);
	node_down(n);
}

static void listens(struct node *n)
{
	char in[8];
	node_up(n);
	OK(gdrfab_trecv(n->ep, in, sizeof in, NULL, 0, 3, 0, in));
	DONE(n->cq, in, GDRFAB_RECV | GDRFAB_TAGGED, NULL);
	CHECK(memcmp(in, "welcome", 8) == 0);
	barrier(n);
	node_down(n);
}

TEST(who_accepts_speaks_first)
{
	skip_without_tags();
	for (int i = 0; i < (test_checked() ? 2 : test_count(20, 8)); i++)
		pair(&tags, speaks, listens, NULL);
}

/* --- after the peer has gone --- */

enum { LONG = 100000 };

static void stays(struct node *n)
{
	static char early[8], late[LONG], never[8];
	char words[256];
	struct failure f;
	done entry;
	node_up(n);
	OK(gdrfab_trecv(n->ep, never, 8, NULL, 0, 99, 0, never));
	OK(gdrfab_recv(n->ep, never, 8, NULL, 0, words));
	OK(gdrfab_tsend(n->ep, late, LONG, NULL, 0, 98, late));
	barrier(n);
	EVENT(n->eq, GDRFAB_SHUTDOWN, n->ep, NULL);
	/* Each operation ends once; the long message was not fetched. */
	int seen[3] = {0, 0, 0};
	for (int i = 0; i < 3; i++) {
		CHECK_EQ(cq_next(n->cq, &entry, 10000), -1);
		cq_failure(__FILE__, __LINE__, n->cq, &f);
		CHECK_EQ(f.entry.prov_errno, GDRFAB_PROV_PEER_GONE);
		seen[f.entry.op_context == never ? 0 : f.entry.op_context == words ? 1 : 2]++;
	}
	CHECK(seen[0] == 1 && seen[1] == 1 && seen[2] == 1);
	CHECK_EQ(gdrfab_tsend(n->ep, early, 8, NULL, 0, 1, NULL), -ESHUTDOWN);
	CHECK_EQ(gdrfab_trecv(n->ep, early, 8, NULL, 0, 7, 0, NULL), -ESHUTDOWN);
	/* Messages that had arrived can still be received. */
	OK(gdrfab_trecv(n->ep, early, 8, NULL, 0, 5, 0, early));
	DONE(n->cq, early, GDRFAB_RECV | GDRFAB_TAGGED, NULL);
	CHECK(memcmp(early, "farewell", 8) == 0);
	CHECK_EQ(gdrfab_trecv(n->ep, early, 8, NULL, 0, 5, 0, NULL), -ESHUTDOWN);
	QUIET(n->cq, 5);
	if (!n->arg)
		barrier(n);
	node_close(n);
}

static void goes(struct node *n)
{
	node_up(n);
	OK(gdrfab_tinject(n->ep, "farewell", 8, 0, 5));
	barrier(n);
	test_sleep_ms(20);
	if (n->arg)
		raise(SIGKILL);
	OK(gdrfab_ep_shutdown(n->ep, 0));
	MISUSE(gdrfab_ep_shutdown(n->ep, 0), -ESHUTDOWN, "over");
	CHECK_EQ(gdrfab_tsend(n->ep, "x", 1, NULL, 0, 1, NULL), -ESHUTDOWN);
	barrier(n);
	node_close(n);
}

TEST(the_peer_shuts_down)
{
	skip_without_tags();
	pair(&tags, stays, goes, NULL);
}

TEST(the_peer_of_exchanged_addresses_shuts_down)
{
	static struct setup exchanged;
	skip_without_tags();
	exchanged = tags, exchanged.by_address = true;
	pair(&exchanged, stays, goes, NULL);
}

TEST(the_peer_is_killed)
{
	static struct setup killed;
	skip_without_tags();
	killed = tags, killed.victim = TEST_CLIENT;
	pair(&killed, stays, goes, "");
}
