/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * info->rx_op_flags, the flags of receives that are posted by calls without flags, on every kind of endpoint: an entry in a
 * selective queue, several messages in one buffer. Calls with flags use only their own. Counters count all receives.
 */
#include "misuse.h"

enum { PLAIN, SILENT, PIECES, TOLD, CALLS, LEN = 8 };

struct variant {
	struct setup setup;
	char name[64];
};

static bool matches(const struct node *n)
{
	return (n->info->caps & GDRFAB_TAGGED) != 0;
}

static void sender(struct node *n)
{
	char out[LEN] = "message";
	node_up(n);
	void *desc = local_desc(n, out, LEN);
	for (int round = 0; round < 2; round++) {
		bool late = round == 1 && !waits_for_receive(n);
		if (!late)
			barrier(n);
		for (int i = 0; i < CALLS; i++) {
			POST(n->cq, gdrfab_send(n->ep, out, LEN, desc, PEER, out));
			DONE(n->cq, out, GDRFAB_SEND | GDRFAB_MSG, NULL);
		}
		for (uint64_t i = 0; matches(n) && i < CALLS; i++) {
			POST(n->cq, gdrfab_tsend(n->ep, out, LEN, desc, PEER, i, out));
			DONE(n->cq, out, GDRFAB_SEND | GDRFAB_TAGGED, NULL);
		}
		if (late)
			barrier(n);
		barrier(n);
	}
	node_down(n);
}

static void post(struct node *n, int call, bool tagged, char *at)
{
	struct iovec iov[2] = {{at, LEN / 2}, {at + LEN / 2, LEN / 2}}, whole = {at, LEN};
	void *array[2], **desc = local_descs(n, iov, 2, array), *one = local_desc(n, at, LEN);
	uint64_t tag = (uint64_t)call, flags = call == TOLD ? GDRFAB_COMPLETION : 0;
	gdrfab_msg msg = {.struct_size = sizeof msg, .msg_iov = &whole, .iov_count = 1, .addr = GDRFAB_ADDR_UNSPEC, .context = at};
	gdrfab_msg_tagged tmsg = {.struct_size = sizeof tmsg, .msg_iov = &whole, .iov_count = 1, .addr = GDRFAB_ADDR_UNSPEC};
	msg.desc = tmsg.desc = desc;
	tmsg.tag = tag, tmsg.context = at;
	switch (call) {
	case PLAIN:
		if (tagged)
			POST(n->cq, gdrfab_trecv(n->ep, at, LEN, one, GDRFAB_ADDR_UNSPEC, tag, 0, at));
		else
			POST(n->cq, gdrfab_recv(n->ep, at, LEN, one, GDRFAB_ADDR_UNSPEC, at));
		break;
	case PIECES:
		if (tagged)
			POST(n->cq, gdrfab_trecvv(n->ep, iov, desc, 2, GDRFAB_ADDR_UNSPEC, tag, 0, at));
		else
			POST(n->cq, gdrfab_recvv(n->ep, iov, desc, 2, GDRFAB_ADDR_UNSPEC, at));
		break;
	default:
		if (tagged)
			POST(n->cq, gdrfab_trecvmsg(n->ep, &tmsg, flags));
		else
			POST(n->cq, gdrfab_recvmsg(n->ep, &msg, flags));
	}
}

static void receiver(struct node *n)
{
	static char in[2][2][CALLS][LEN];
	node_up(n);
	const struct setup *s = n->setup;
	bool selective = s->cq_flags & GDRFAB_SELECTIVE_COMPLETION;
	bool plain = !selective || s->rx_op_flags & GDRFAB_COMPLETION;
	const bool entry[CALLS] = {plain, !selective, plain, true};
	int spaces = matches(n) ? 2 : 1;
	local_desc(n, in, sizeof in);
	for (int round = 0; round < 2; round++) {
		if (round == 1 && !waits_for_receive(n))
			barrier(n);
		for (int tagged = 0; tagged < spaces; tagged++)
			for (int call = 0; call < CALLS; call++)
				post(n, call, tagged, in[round][tagged][call]);
		if (round == 0 || waits_for_receive(n))
			barrier(n);
		for (int tagged = 0; tagged < spaces; tagged++)
			for (int call = 0; call < CALLS; call++)
				if (entry[call])
					DONE(n->cq, in[round][tagged][call], GDRFAB_RECV | (tagged ? GDRFAB_TAGGED : GDRFAB_MSG), NULL);
		if (s->counts_receives)
			OK(gdrfab_cntr_wait(n->received, (uint64_t)((round + 1) * spaces * CALLS), test_ms(10000)));
		for (int tagged = 0; tagged < spaces; tagged++)
			for (int call = 0; call < CALLS; call++)
				CHECK_EQ(memcmp(in[round][tagged][call], "message", LEN), 0);
		barrier(n);
	}
	QUIET(n->cq, 20);
	if (s->counts_receives)
		CHECK_EQ(gdrfab_cntr_read(n->received), (uint64_t)(2 * spaces * CALLS));
	node_down(n);
}

static void entries(const void *arg)
{
	pair(&((const struct variant *)arg)->setup, receiver, sender, NULL);
}

TEST_TABLE(entries)
{
	static const char *const kinds[] = {"connected", "tagged", "connectionless"};
	static const char *const queues[] = {"every", "selective", "selective_by_default"};
	static struct variant all[3 * 3 * 2];
	for (int i = 0; i < 3 * 3 * 2; i++) {
		int kind = i / 6, queue = i / 2 % 3;
		struct variant *v = &all[i];
		if (kind == 1 && strcmp(provider(), "verbs") == 0)
			continue;
		/* Only a counter is written besides. */
		if (test_checked() && i % 2 == 0)
			continue;
		v->setup.tx_op_flags = GDRFAB_COMPLETION; /* done when sent */
		v->setup.rdm = kind == 2;
		v->setup.caps = GDRFAB_MSG | GDRFAB_RMA | (kind ? GDRFAB_TAGGED : 0);
		v->setup.cq_flags = queue ? GDRFAB_SELECTIVE_COMPLETION : 0;
		v->setup.rx_op_flags = queue == 2 ? GDRFAB_COMPLETION : 0;
		v->setup.counts_receives = i % 2;
		snprintf(v->name, sizeof v->name, "entries_%s_%s%s", kinds[kind], queues[queue], i % 2 ? "_counted" : "");
		test_add(v->name, entries, v, 20);
	}
}

/* --- several messages in one buffer --- */

static void sends_several(struct node *n)
{
	char out[LEN] = "message";
	node_up(n);
	barrier(n);
	for (int i = 0; i < 4; i++) {
		POST(n->cq, gdrfab_tsend(n->ep, out, LEN, NULL, PEER, 1, out));
		DONE(n->cq, out, GDRFAB_SEND | GDRFAB_TAGGED, NULL);
		POST(n->cq, gdrfab_send(n->ep, out, LEN, NULL, PEER, out));
		DONE(n->cq, out, GDRFAB_SEND | GDRFAB_MSG, NULL);
	}
	barrier(n);
	node_down(n);
}

static void receives_several(struct node *n)
{
	static char room[3 * LEN], last[LEN], in[4][4 * LEN];
	struct iovec iov = {last, LEN}, pieces[2] = {{room, LEN}, {room + LEN, LEN}};
	gdrfab_msg msg = {.struct_size = sizeof msg, .msg_iov = &iov, .iov_count = 1, .addr = GDRFAB_ADDR_UNSPEC, .context = last};
	done entry;
	size_t least = LEN;
	node_up(n);
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_MIN_MULTI_RECV, &least, sizeof least));
	MISUSE(gdrfab_recvv(n->ep, pieces, NULL, 2, GDRFAB_ADDR_UNSPEC, room), -EINVAL, "iov_count");
	OK(gdrfab_recv(n->ep, room, sizeof room, NULL, GDRFAB_ADDR_UNSPEC, room));
	/* Its own flags make this receive take one message. */
	OK(gdrfab_recvmsg(n->ep, &msg, GDRFAB_COMPLETION));
	for (int i = 0; i < 4; i++)
		OK(gdrfab_trecv(n->ep, in[i], sizeof in[i], NULL, GDRFAB_ADDR_UNSPEC, 1, 0, in[i]));
	barrier(n);
	for (int i = 0; i < 4; i++) {
		/* A tagged receive takes one message, however much room is left. */
		DONE(n->cq, in[i], GDRFAB_RECV | GDRFAB_TAGGED, &entry);
		CHECK_EQ(entry.flags & GDRFAB_MULTI_RECV, 0);
		DONE(n->cq, i < 3 ? room : last, GDRFAB_RECV | GDRFAB_MSG, &entry);
		CHECK_EQ(entry.flags & GDRFAB_MULTI_RECV, i == 2 ? GDRFAB_MULTI_RECV : 0);
		CHECK((char *)entry.buf == (i < 3 ? room + i * LEN : last) && memcmp(entry.buf, "message", LEN) == 0);
	}
	barrier(n);
	QUIET(n->cq, 20);
	node_down(n);
}

static void several(bool rdm)
{
	struct setup s = {.tx_op_flags = GDRFAB_COMPLETION, .rdm = rdm, .rx_op_flags = GDRFAB_MULTI_RECV | GDRFAB_COMPLETION};
	s.caps = GDRFAB_MSG | GDRFAB_RMA | GDRFAB_TAGGED | GDRFAB_MULTI_RECV;
	s.cq_flags = GDRFAB_SELECTIVE_COMPLETION;
	pair(&s, receives_several, sends_several, NULL);
}

TEST(several_messages_connectionless)
{
	several(true);
}

TEST(several_messages_tagged)
{
	if (strcmp(provider(), "verbs") == 0)
		test_skip("no tagged messages on connected endpoints");
	several(false);
}

/* --- refused flags --- */

TEST(an_endpoint_that_cannot_take_several_refuses_to_by_default)
{
	struct node n;
	gdrfab_info *info = NULL, *hints;
	gdrfab_ep *ep = NULL;
	node_alone(&n, NULL);
	hints = hints_new(n.setup);
	hints->caps &= ~GDRFAB_TAGGED;
	hints->rx_op_flags = GDRFAB_MULTI_RECV;
	CHECK_EQ(provider_getinfo(n.service, 0, hints, &info), -ENODATA);
	SAYS(gdrfab_last_error(), "hints->rx_op_flags");
	SAYS(gdrfab_last_error(), "MULTI_RECV");
	gdrfab_freeinfo(hints);
	if (!(n.info->caps & GDRFAB_TAGGED)) {
		n.info->rx_op_flags = GDRFAB_MULTI_RECV;
		MISUSE(gdrfab_ep_open(n.domain, n.info, NULL, &ep), -EINVAL, "rx_op_flags");
	}
	n.info->rx_op_flags = GDRFAB_DELIVERY_COMPLETE;
	MISUSE(gdrfab_ep_open(n.domain, n.info, NULL, &ep), -EINVAL, "rx_op_flags");
	CHECK(ep == NULL);
	node_close(&n);
}
