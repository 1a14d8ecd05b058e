/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A link between two hosts is cut without notice: deadlines still hold, the connection ends within GDRFAB_TCP_TIMEOUT_MS, and a
 * link that returns in time costs nothing. TEST_LINK names the network device to cut, in the server's network namespace;
 * tests/check-tcp.sh makes both.
 */
#include "fab.h"
#include "tcp_raw.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/wait.h>

#define LARGE ((size_t)4 * 1024 * 1024)
#define TIMEOUT 1500 /* ms: GDRFAB_TCP_TIMEOUT_MS */
#define DEADLINE 400

/* Waits until the link works again from the client's end: the kernel may take a second to notice. */
static void await_link(void)
{
	pid_t pid = test_fork(TEST_CLIENT);
	if (pid == 0) {
		int fd = open(getenv("TEST_CLIENT_NETNS"), O_RDONLY | O_CLOEXEC);
		uint64_t until = test_now_ms() + (uint64_t)test_ms(8000);
		CHECK(fd >= 0);
		CHECK_EQ(setns(fd, CLONE_NEWNET), 0);
		/* A refused connection shows that packets go both ways. */
		while (raw_connect("1") >= 0 || errno != ECONNREFUSED) {
			if (test_now_ms() > until)
				test_fail(__FILE__, __LINE__, "%s is out of reach: %s", node_name(), strerror(errno));
			test_sleep_ms(20);
		}
		_exit(0);
	}
	int status = 0;
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	test_child_ended(TEST_CLIENT, status);
}

static void may_cut(void)
{
	const char *link = getenv("TEST_LINK");
	skip_unless(path_known(PATH_SOCKET), "this is about links below sockets");
	if (!link || !*link || !getenv("TEST_CLIENT_NETNS"))
		test_skip("TEST_LINK and TEST_CLIENT_NETNS name no link that may be cut");
	/* The previous claim has cut the link and may have restored it just now. */
	if (system("ip link set dev \"$TEST_LINK\" up") != 0)
		test_fail(__FILE__, __LINE__, "TEST_LINK=%s cannot be set up", link);
	await_link();
}

/* A peer that does not answer counts as lost. */
static void lost(struct node *n, const void *context)
{
	struct failure f;
	done e;
	CHECK_EQ(cq_next(n->cq, &e, 10000), -1);
	cq_failure(__FILE__, __LINE__, n->cq, &f);
	CHECK(f.entry.op_context == context);
	if (f.entry.err != ECONNRESET || f.entry.prov_errno != GDRFAB_PROV_PEER_GONE || !f.words[0])
		test_fail(__FILE__, __LINE__, "%s, provider code %d, \"%s\"", test_number(-f.entry.err),
			  f.entry.prov_errno, f.words);
}

static void link_is(const char *state)
{
	char command[128];
	snprintf(command, sizeof command, "ip link set dev %s %s", getenv("TEST_LINK"), state);
	CHECK_EQ(system(command), 0);
}

/* The client: asks the server to cut the link, and reads the results. */
enum { CUT = 'c', MEND = 'm', END = 'e' };

static void ask(struct node *n, char what)
{
	oob_send(n, &what, 1);
	oob_recv(n, &what, 1);
	CHECK_EQ(what, 'k');
}

static void obey(struct node *n)
{
	for (char word = 0;;) {
		oob_recv(n, &word, 1);
		if (word == END)
			return;
		link_is(word == CUT ? "down" : "up");
		oob_send(n, "k", 1);
	}
}

static void target_begin(struct node *n, struct mem *m)
{
	node_up(n);
	mem_new(n, m, &memkinds[KIND_MALLOC], LARGE);
	memset(m->addr, 0, LARGE);
	mem_register(n, m, 0, LARGE, REMOTE_ACCESS, 0);
	mem_publish(n, m);
}

/* --- cut for good --- */

/* The operations under way when the link is cut. */
enum { MUCH, NOTHING, LATER, ASLEEP, FULL };
static const int states[] = {MUCH, NOTHING, LATER, ASLEEP, FULL};
/* With more endpoints than this, idle ones rest. */
#define FEW 4

static void is_cut_off(struct node *n)
{
	static char in[64];
	struct mem m;
	target_begin(n, &m);
	POST(n->cq, gdrfab_recv(n->ep, in, sizeof in, NULL, 0, in));
	n->idle = *(const int *)n->arg == FULL;
	obey(n);
	n->idle = false;
	/* This side waits for a message, and learns in time that none will come. */
	lost(n, in);
	EVENT(n->eq, GDRFAB_SHUTDOWN, n->ep, NULL);
	link_is("up");
	barrier(n);
	mem_end(n, &m);
	node_close(n);
}

/* Sleeps on the queue's descriptor until an entry comes: only the library can find out that the peer is gone. */
static void await_readable(struct node *n)
{
	uint64_t until = test_now_ms() + (uint64_t)test_ms(8000);
	int fd = -1, rc = 0;
	OK(gdrfab_cq_fd(n->cq, &fd));
	struct pollfd p = {fd, POLLIN, 0};
	while ((rc = (int)gdrfab_cq_trywait(n->cq)) == 0) {
		CHECK_EQ(poll(&p, 1, test_ms(8000)), 1);
		CHECK(test_now_ms() < until);
	}
	CHECK_EQ(rc, -EAGAIN);
}

static void cuts_off(struct node *n)
{
	int state = *(const int *)n->arg;
	bool idle = state != MUCH;
	unsigned char *out = (unsigned char *)malloc(LARGE);
	static char in[64];
	gdrfab_ep *others[FEW + 1] = {NULL};
	node_up(n);
	struct remote to = mem_fetch(n);
	memset(out, 1, LARGE);
	uint64_t deadline = idle ? 0 : (uint64_t)test_ms(DEADLINE) * 1000000u, none = 0;
	POST(n->cq, gdrfab_recv(n->ep, in, sizeof in, NULL, 0, in));
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_DEADLINE, &deadline, sizeof deadline));
	size_t posted = 0, ended = 0, late = 0;
	while (!idle && posted < 4) {
		POST(n->cq, gdrfab_write(n->ep, out, LARGE, NULL, 0, to.base, to.key, out));
		posted++;
	}
	for (int i = 0; state == ASLEEP && i <= FEW; i++)
		others[i] = ep_new(n, n->info, NULL);
	if (state == FULL) {
		/* The peer receives nothing: its TCP window closes, and this side's kernel sends window probes. */
		for (; posted < 4; posted++)
			POST(n->cq, gdrfab_write(n->ep, out, LARGE, NULL, 0, to.base, to.key, out));
		QUIET(n->cq, 3 * TIMEOUT);
	}
	ask(n, CUT);
	uint64_t start = test_now_ms();
	if (state == LATER || state == ASLEEP) {
		POST(n->cq, gdrfab_write(n->ep, out, 8, NULL, 0, to.base, to.key, out));
		posted++;
	}
	if (state == ASLEEP)
		await_readable(n);
	/* Operations that were under way end by their deadline, before the connection ends. */
	while (!idle && posted - ended < 4)
		if (gdrfab_write(n->ep, out, LARGE, NULL, 0, to.base, to.key, out) == 0)
			posted++;
		else
			break;
	while (!idle && ended < posted) {
		done e;
		struct failure f;
		int next = cq_next(n->cq, &e, DEADLINE + 5000);
		CHECK(next != 0);
		if (next == -1) {
			cq_failure(__FILE__, __LINE__, n->cq, &f);
			CHECK(f.entry.op_context == out);
			CHECK_EQ(f.entry.err, ETIMEDOUT);
			CHECK_EQ(f.entry.prov_errno, GDRFAB_PROV_DEADLINE);
			late++;
		}
		ended++;
	}
	if (!idle) {
		CHECK(late > 0);
		CHECK(test_now_ms() - start < (uint64_t)test_ms(DEADLINE + 700));
	}
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_DEADLINE, &none, sizeof none));
	for (; ended < posted; ended++)
		lost(n, out);
	lost(n, in);
	EVENT(n->eq, GDRFAB_SHUTDOWN, n->ep, NULL);
	uint64_t took = test_now_ms() - start;
	fprintf(stderr, "     the connection ended %llu ms after its link was cut; GDRFAB_TCP_TIMEOUT_MS=%d\n",
		(unsigned long long)took, TIMEOUT);
	if (took > (uint64_t)test_ms(3 * TIMEOUT + 1000))
		test_fail(__FILE__, __LINE__, "the connection ended %llu ms after its link was cut",
			  (unsigned long long)took);
	for (int i = 0; others[i] && i <= FEW; i++)
		OK(gdrfab_ep_close(others[i]));
	oob_send(n, "e", 1);
	barrier(n);
	free(out);
	node_close(n);
}

static void cut(int state)
{
	static const struct setup by_descriptor = {.cq_wait = GDRFAB_WAIT_FD};
	char text[16];
	may_cut();
	snprintf(text, sizeof text, "%d", TIMEOUT);
	setenv("GDRFAB_TCP_TIMEOUT_MS", text, 1);
	pair(&by_descriptor, is_cut_off, cuts_off, &states[state]);
}

TEST_WITHIN(40, cut_in_the_middle_of_a_transfer)
{
	cut(MUCH);
}

TEST_WITHIN(40, cut_while_nothing_moves)
{
	cut(NOTHING);
}

TEST_WITHIN(40, cut_before_something_is_sent)
{
	cut(LATER);
}

TEST_WITHIN(40, cut_before_something_is_sent_and_nobody_looks)
{
	cut(ASLEEP);
}

TEST_WITHIN(40, cut_while_the_peer_takes_nothing)
{
	setenv("GDRFAB_TCP_BUFFER", "65536", 1);
	cut(FULL);
}

/* --- cut for a moment --- */

static void is_written_to(struct node *n)
{
	struct mem m;
	target_begin(n, &m);
	obey(n);
	CHECK_FILLED("what came over a link that was gone for a moment", m.addr, LARGE, 0, 40);
	barrier(n);
	mem_end(n, &m);
	node_down(n);
}

static void writes_through(struct node *n)
{
	unsigned char *out = (unsigned char *)malloc(LARGE), *in = (unsigned char *)malloc(LARGE);
	node_up(n);
	struct remote to = mem_fetch(n);
	for (uint32_t round = 0; round <= 40; round++) {
		fill(out, LARGE, 0, round);
		POST(n->cq, gdrfab_write(n->ep, out, LARGE, NULL, 0, to.base, to.key, out));
		if (round % 10 == 5) {
			ask(n, CUT);
			test_sleep_ms(100);
			ask(n, MEND);
		}
		DONE(n->cq, out, GDRFAB_WRITE, NULL);
		if (round % 10 == 5) {
			POST(n->cq, gdrfab_read(n->ep, in, LARGE, NULL, 0, to.base, to.key, in));
			DONE(n->cq, in, GDRFAB_READ, NULL);
			CHECK_FILLED("read back", in, LARGE, 0, round);
		}
	}
	oob_send(n, "e", 1);
	barrier(n);
	free(out);
	free(in);
	node_down(n);
}

TEST_WITHIN(60, gone_for_a_moment)
{
	may_cut();
	pair(NULL, is_written_to, writes_through, NULL);
}

/* --- an address from which no packet comes back --- */

static void listens_in_vain(struct node *n)
{
	node_open(n);
	node_listen(n);
	barrier(n);
	obey(n);
	barrier(n);
	link_is("up");
	node_close(n);
}

static void connects_into_the_void(struct node *n)
{
	uint64_t ns = 600000000;
	node_open(n);
	barrier(n);
	ask(n, CUT);
	n->ep = ep_new(n, n->info, NULL);
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_CONNECT_TIMEOUT, &ns, sizeof ns));
	uint64_t start = test_now_ms();
	int rc = gdrfab_ep_connect(n->ep, n->info->dest_addr, n->info->dest_addrlen, NULL, 0);
	OK(rc);
	struct event e;
	uint32_t event = UINT32_MAX;
	ssize_t size = gdrfab_eq_sread(n->eq, &event, &e, sizeof e.entry + sizeof e.data, test_ms(8000), 0);
	CHECK_EQ(size, -GDRFAB_EAVAIL);
	struct eq_failure f;
	memset(&f, 0, sizeof f);
	f.entry.struct_size = sizeof f.entry;
	CHECK(gdrfab_eq_readerr(n->eq, &f.entry, 0) > 0);
	/* The kernel may report it before the time is over. */
	CHECK(f.entry.err == ETIMEDOUT || f.entry.err == EHOSTUNREACH || f.entry.err == ENETUNREACH);
	CHECK(test_now_ms() - start < (uint64_t)test_ms(3000));
	oob_send(n, "e", 1);
	barrier(n);
	node_close(n);
}

TEST_WITHIN(30, connect_over_a_cut_link)
{
	may_cut();
	pair(NULL, listens_in_vain, connects_into_the_void, NULL);
}
