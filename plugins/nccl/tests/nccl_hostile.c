/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A hostile peer: it speaks gdrfab and knows the plugin's protocol, but breaks its rules. In every case the
 * plugin's process lives, its call ends with an error that has a reason, and bytes are written only where they may
 * be.
 */
#include "nccl_raw.h"

#include <sys/socket.h>

/* The protocol of plugins/nccl, written a second time. */
enum { RECORDS = 64, EAGERS = 16, PLACE = 8192 + 64 };
enum { RECORD_CAME = 0, DATA_CAME = 1, EAGER_CAME = 2 };

struct record {
	uint32_t number, n, eagers_taken, reserved;
	struct {
		uint64_t addr, key, size;
		uint32_t tag, host;
	} offers[GROUP];
};

struct eager {
	uint32_t number, tag;
	uint64_t size;
	char body[48];
};

#define ROOM ((size_t)4096)
#define TAG 7

/* The hostile side's board and its connection. */
struct raw {
	struct mem board;
	struct remote to; /* the plugin's */
};

static void raw_board(struct node *n, struct raw *r)
{
	mem_new(n, &r->board, &memkinds[KIND_MEM_ALLOC], RECORDS * sizeof(struct record) + EAGERS * PLACE);
	memset(r->board.addr, 0, r->board.len);
	mem_register(n, &r->board, 0, r->board.len, ANY_ACCESS, 0);
}

static struct hello raw_hello(struct raw *r, const struct handle *h, bool answers)
{
	return hello_for(h, answers, (uintptr_t)r->board.addr, gdrfab_mr_key(r->board.mr));
}

/* Writes `bytes` to the plugin's board or to any other address, with this number as immediate data. */
static char out[2 * ROOM];

static void raw_post(struct node *n, const void *bytes, size_t len, uint64_t at, uint64_t key, uint32_t number)
{
	memcpy(out, bytes, len);
	POST(n->cq, gdrfab_writedata(n->ep, out, len, local_desc(n, out, len), number, 0, at, key, out));
}

/* Waits until the write has completed. The plugin's own writes, and its end, may come in between. */
static void raw_settle(struct node *n)
{
	done e;
	while (cq_next(n->cq, &e, 2000) == 1 && !(e.flags & GDRFAB_WRITE))
		;
}

static void raw_write(struct node *n, const void *bytes, size_t len, uint64_t at, uint64_t key, uint32_t number)
{
	raw_post(n, bytes, len, at, key, number);
	raw_settle(n);
}

static uint32_t word(uint32_t what, uint32_t place)
{
	return what << 30 | place;
}

/* --- a hostile connecting side --- */

struct dialer {
	const char *name;
	void (*attack)(struct node *n, struct raw *r);
	bool overruns; /* its bytes do arrive, because it may write this memory */
};

static void data_for_nobody(struct node *n, struct raw *r)
{
	raw_write(n, "x", 1, r->to.base, r->to.key, word(DATA_CAME, 31 * GROUP));
}

static void data_beyond(struct node *n, struct raw *r)
{
	raw_write(n, "x", 1, r->to.base, r->to.key, word(DATA_CAME, 0x3fffffff));
}

static void record_to_a_receiver(struct node *n, struct raw *r)
{
	raw_write(n, "x", 1, r->to.base, r->to.key, word(RECORD_CAME, 0));
}

static void unknown_word(struct node *n, struct raw *r)
{
	raw_write(n, "x", 1, r->to.base, r->to.key, 0xffffffff);
}

static void eager(struct node *n, struct raw *r, uint32_t place, uint32_t number, uint64_t size)
{
	struct eager e = {number, TAG, size, "hello"};
	uint64_t at = r->to.base + RECORDS * sizeof(struct record) + place % EAGERS * PLACE;
	raw_write(n, &e, sizeof e, at, r->to.key, word(EAGER_CAME, place));
}

static void eager_out_of_order(struct node *n, struct raw *r)
{
	eager(n, r, 3, 3, 5);
}

static void eager_beyond(struct node *n, struct raw *r)
{
	eager(n, r, 1000, 0, 5);
}

static void eager_of_another_number(struct node *n, struct raw *r)
{
	eager(n, r, 0, 77, 5);
}

static void eager_longer_than_its_room(struct node *n, struct raw *r)
{
	eager(n, r, 0, 0, ROOM + 1);
}

static void eager_without_end(struct node *n, struct raw *r)
{
	eager(n, r, 0, 0, UINT64_MAX);
}

static void data_longer_than_its_room(struct node *n, struct raw *r)
{
	static const char many[2 * ROOM];
	volatile const struct record *mine = (volatile const struct record *)(void *)r->board.addr;
	uint64_t until = test_now_ms() + (uint64_t)test_ms(5000);
	while (mine->n == 0 && test_now_ms() < until)
		gdrfab_cq_read(n->cq, NULL, 0);
	CHECK_EQ(mine->n, 1);
	CHECK_EQ(mine->offers[0].size, ROOM);
	raw_write(n, many, ROOM + 8, mine->offers[0].addr, mine->offers[0].key, word(DATA_CAME, 0));
}

static const struct dialer dialers[] = {
	{"data_for_nobody", data_for_nobody, false},
	{"data_beyond", data_beyond, false},
	{"record_to_a_receiver", record_to_a_receiver, false},
	{"unknown_word", unknown_word, false},
	{"eager_out_of_order", eager_out_of_order, false},
	{"eager_beyond", eager_beyond, false},
	{"eager_of_another_number", eager_of_another_number, false},
	{"eager_longer_than_its_room", eager_longer_than_its_room, false},
	{"eager_without_end", eager_without_end, false},
	{"data_longer_than_its_room", data_longer_than_its_room, true},
};

static void dials(struct node *n)
{
	const struct dialer *d = (const struct dialer *)n->arg;
	struct handle h;
	struct raw r;
	node_open(n);
	raw_board(n, &r);
	oob_recv(n, &h, sizeof h);
	struct hello hello = raw_hello(&r, &h, false), answer;
	CHECK(knock(n, &h, &hello, sizeof hello, &answer));
	r.to.base = answer.addr;
	r.to.key = answer.key;
	barrier(n);
	d->attack(n, &r);
	barrier(n);
	mem_unregister(&r.board);
	mem_end(n, &r.board);
	node_down(n);
}

/* The plugin's side: posts a receive, which ends with an error. */
static void receives(struct node *n)
{
	const struct dialer *d = (const struct dialer *)n->arg;
	struct handle h;
	struct buf b;
	void *listener;
	timeout_is("2");
	net_open();
	listener = listen_at(0, &h);
	oob_send(n, &h, sizeof h);
	void *comm = accept_from(listener);
	buf_new(n, &b, HOST_MEM, 2 * ROOM);
	buf_blank(&b);
	buf_reg(&b, comm);
	struct op op = recv_op(comm, &b, 0, ROOM, TAG);
	op_push(&op);
	barrier(n);
	log_forget();
	OP_FAILS(&op, test_ms(5000));
	CHECK(log_warnings()[0] != 0);
	if (!d->overruns)
		BUF_BLANK(&b, 0, 2 * ROOM);
	barrier(n);
	buf_dereg(&b);
	NET(net.close_recv(comm));
	buf_end(&b);
	/* Others can still connect. */
	struct link self = link_to_itself(&h, listener);
	link_down(&self);
	NET(net.close_listen(listener));
	barrier(n);
	net_close(n);
}

static void dialer(const void *arg)
{
	pair(NULL, receives, dials, arg);
}

/* --- a hostile accepting side --- */

struct lister {
	const char *name;
	struct record record;
	uint32_t place;
};

#define OFFER {{0, 0, ROOM, TAG, 1}}
static const struct lister listers[] = {
	{"record_of_another_number", {5, 1, 0, 0, OFFER}, 0},
	{"record_of_nothing", {0, 0, 0, 0, OFFER}, 0},
	{"record_of_nine", {0, 9, 0, 0, OFFER}, 0},
	{"record_without_end", {0, UINT32_MAX, 0, 0, OFFER}, 0},
	{"record_takes_what_was_not_sent", {0, 1, 9, 0, OFFER}, 0},
	{"record_out_of_order", {0, 1, 0, 0, OFFER}, 4},
	{"record_beyond", {0, 1, 0, 0, OFFER}, 0x3fffffff},
};

static void takes(struct node *n)
{
	const struct lister *l = (const struct lister *)n->arg;
	struct handle h = {{0}};
	uint32_t magic = MAGIC;
	size_t size = HANDLE_SECRET - 8 - HANDLE_ADDRESS;
	struct raw r;
	struct hello theirs;
	node_open(n);
	node_listen(n);
	memcpy(h.bytes, &magic, sizeof magic);
	memset(h.bytes + HANDLE_SECRET, 7, 16);
	OK(gdrfab_pep_getname(n->pep, h.bytes + HANDLE_ADDRESS, &size));
	oob_send(n, &h, sizeof h);

	struct event in;
	EVENT(n->eq, GDRFAB_CONNREQ, n->pep, &in);
	CHECK_EQ(in.data_len, sizeof theirs);
	memcpy(&theirs, in.data, sizeof theirs);
	CHECK_EQ(theirs.magic, MAGIC);
	node_domain(n, in.entry.info);
	raw_board(n, &r);
	struct hello mine = raw_hello(&r, &h, true);
	mine.nonce = theirs.nonce;
	hello_prove(&mine, &h);
	n->ep = ep_new(n, in.entry.info, NULL);
	OK(gdrfab_ep_accept(n->ep, &mine, sizeof mine));
	gdrfab_freeinfo(in.entry.info);
	EVENT(n->eq, GDRFAB_CONNECTED, n->ep, NULL);
	r.to.base = theirs.addr;
	r.to.key = theirs.key;

	struct record good_one = {0, 1, 0, 0, OFFER};
	barrier(n);
	if (l) {
		raw_write(n, &l->record, sizeof l->record, r.to.base + l->place % RECORDS * sizeof(struct record), r.to.key,
			  word(RECORD_CAME, l->place));
	} else {
		/* A good record that becomes a bad one after it was announced. */
		good_one.offers[0].addr = (uintptr_t)r.board.addr;
		good_one.offers[0].key = gdrfab_mr_key(r.board.mr);
		raw_post(n, &good_one, sizeof good_one, r.to.base, r.to.key, word(RECORD_CAME, 0));
		barrier(n);
		raw_settle(n);
		barrier(n);
		good_one.n = UINT32_MAX;
		good_one.offers[0].size = 1;
		POST(n->cq, gdrfab_write(n->ep, &good_one, sizeof good_one, local_desc(n, &good_one, sizeof good_one), 0,
					 r.to.base, r.to.key, &good_one));
		DONE(n->cq, &good_one, GDRFAB_WRITE, NULL);
		barrier(n);
		done e;
		CHECK_EQ(cq_next(n->cq, &e, test_ms(5000)), 1);
		CHECK_EQ(e.len, ROOM);
	}
	barrier(n);
	mem_unregister(&r.board);
	mem_end(n, &r.board);
	node_down(n);
}

/* Tries for a while, and until the other side is at the next barrier, because its writes may need this side's calls. */
static void not_for(struct node *n, struct op *op, bool meets)
{
	char word;
	uint64_t until = test_now_ms() + (uint64_t)test_ms(100);
	while (test_now_ms() < until || (meets && recv(n->oob, &word, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN))
		CHECK(!op_post(op));
}

static void sends(struct node *n)
{
	struct handle h;
	struct buf b;
	setenv("GDRFAB_NCCL_EAGER", "0", 1);
	timeout_is("2");
	net_open();
	oob_recv(n, &h, sizeof h);
	void *comm = connect_to(0, &h);
	buf_new(n, &b, HOST_MEM, 2 * ROOM);
	buf_reg(&b, comm);
	barrier(n);
	if (n->arg) {
		struct op op = send_op(comm, &b, 0, ROOM, TAG);
		log_forget();
		OP_FAILS(&op, test_ms(5000));
		CHECK(log_warnings()[0] != 0);
	} else {
		struct op other = send_op(comm, &b, 0, ROOM, TAG + 1), op = send_op(comm, &b, 0, ROOM, TAG);
		barrier(n);
		/* Sees the record, and that it is not for this tag. Then the record changes. */
		not_for(n, &other, true);
		barrier(n);
		not_for(n, &other, true);
		barrier(n);
		op_finish(&op);
		not_for(n, &other, false);
	}
	barrier(n);
	buf_dereg(&b);
	NET(net.close_send(comm));
	buf_end(&b);
	barrier(n);
	net_close(n);
}

static void lister(const void *arg)
{
	pair(NULL, takes, sends, arg);
}

TEST_TABLE(hostile)
{
	if (nccl_absent())
		return;
	for (size_t i = 0; i < sizeof dialers / sizeof dialers[0]; i++)
		test_add(dialers[i].name, dialer, &dialers[i], 30);
	for (size_t i = 0; i < sizeof listers / sizeof listers[0]; i++)
		test_add(listers[i].name, lister, &listers[i], 30);
	test_add("record_changed_after_it_came", lister, NULL, 30);
}
