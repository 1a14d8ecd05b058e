/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Claims about the tcp provider alone: the addresses that it listens on, both address families, and clients or servers that do
 * not speak the protocol, send nothing, or cannot be reached.
 */
#include "fab.h"
#include "tcp_raw.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

static void only_tcp(void)
{
	skip_unless(path_known(PATH_SOCKET), "this is about sockets");
}

/* --- listening addresses --- */

/* An IPv4 address of this machine that is not loopback, and its interface. */
static bool outside(char *address, size_t size, char *name, size_t name_size)
{
	struct ifaddrs *list = NULL;
	bool found = false;
	CHECK_EQ(getifaddrs(&list), 0);
	for (struct ifaddrs *i = list; i && !found; i = i->ifa_next) {
		if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || (i->ifa_flags & IFF_LOOPBACK) || !(i->ifa_flags & IFF_UP))
			continue;
		snprintf(name, name_size, "%s", i->ifa_name);
		found = getnameinfo(i->ifa_addr, sizeof(struct sockaddr_in), address, (socklen_t)size, NULL, 0,
				    NI_NUMERICHOST) == 0;
	}
	freeifaddrs(list);
	return found;
}

/* Opens a listener with or without a host name; returns its address. */
static void listen_at(struct node *n, const char *host, const char *service, char *name)
{
	size_t len = GDRFAB_ADDR_MAX;
	gdrfab_info *hints = hints_new(n->setup);
	static char tcp[] = "tcp";
	hints->prov_name = tcp;
	int rc = gdrfab_getinfo(GDRFAB_VERSION, host, service, GDRFAB_SOURCE, hints, &n->info);
	hints->prov_name = NULL;
	gdrfab_freeinfo(hints);
	OK(rc);
	OK(gdrfab_fabric_open(n->info, NULL, &n->fabric));
	OK(gdrfab_eq_open(n->fabric, NULL, NULL, &n->eq));
	OK(gdrfab_pep_open(n->fabric, n->info, NULL, &n->pep));
	OK(gdrfab_pep_bind_eq(n->pep, n->eq, 0));
	OK(gdrfab_pep_listen(n->pep));
	OK(gdrfab_pep_getname(n->pep, name, &len));
}

static void node_bare(struct node *n)
{
	static const struct setup defaults;
	memset(n, 0, sizeof *n);
	n->side = TEST_SERVER;
	n->setup = &defaults;
	n->oob = -1;
	n->fds = test_count_fds();
}

static unsigned port_of(const char *name)
{
	return (unsigned)strtoul(strrchr(name, ':') + 1, NULL, 10);
}

static int try_to_reach(const char *address, unsigned port)
{
	char service[16];
	setenv("TEST_NODE", address, 1);
	snprintf(service, sizeof service, "%u", port);
	int fd = raw_connect(service), error = errno;
	if (fd >= 0)
		close(fd);
	return fd >= 0 ? 0 : error;
}

#define BEGINS(text, with)                                                                                             \
	do {                                                                                                           \
		test_at(__FILE__, __LINE__);                                                                           \
		if (strncmp(text, with, strlen(with)) != 0)                                                            \
			test_fail(__FILE__, __LINE__, "\"%s\" does not begin with \"%s\"", text, with);                \
	} while (0)

TEST(who_names_no_address_gets_loopback)
{
	char name[GDRFAB_ADDR_MAX], second[GDRFAB_ADDR_MAX], address[64], device[64];
	struct node n, m;
	only_tcp();
	unsetenv("GDRFAB_TCP_IFACE");
	node_bare(&n);
	node_bare(&m);
	listen_at(&n, NULL, NULL, name);
	listen_at(&m, NULL, NULL, second);
	BEGINS(name, "tcp://127.0.0.1:");
	BEGINS(second, "tcp://127.0.0.1:");
	/* Without a service the kernel chooses a new port each time. */
	CHECK(port_of(name) > 0 && port_of(second) > 0);
	CHECK(port_of(name) != port_of(second));
	CHECK_EQ(try_to_reach("127.0.0.1", port_of(name)), 0);
	if (outside(address, sizeof address, device, sizeof device))
		CHECK_EQ(try_to_reach(address, port_of(name)), ECONNREFUSED);
	m.fds = test_count_fds();
	m.fds = n.fds;
	gdrfab_pep_close(m.pep), m.pep = NULL;
	gdrfab_eq_close(m.eq), m.eq = NULL;
	gdrfab_fabric_close(m.fabric), m.fabric = NULL;
	gdrfab_freeinfo(m.info);
	node_close(&n);
}

TEST(a_congestion_control_that_the_host_lacks_is_refused)
{
	static const struct setup plain = {0};
	gdrfab_info *hints = hints_new(&plain), *info = NULL;
	only_tcp();
	setenv("GDRFAB_TCP_CONGESTION", "nonsense", 1);
	CHECK(provider_getinfo(NULL, 0, hints, &info) < 0);
	gdrfab_freeinfo(hints);
	CHECK(test_says(gdrfab_last_error(), "GDRFAB_TCP_CONGESTION"));
	CHECK(test_says(gdrfab_last_error(), "nonsense"));
}

/* Names the address, or the interface that has it. */
static void listens_there_only(bool by_interface)
{
	char name[GDRFAB_ADDR_MAX], want[GDRFAB_ADDR_MAX], address[64], device[64];
	struct node n;
	only_tcp();
	if (!outside(address, sizeof address, device, sizeof device))
		test_skip("this machine has no interface but loopback");
	if (by_interface)
		setenv("GDRFAB_TCP_IFACE", device, 1);
	node_bare(&n);
	listen_at(&n, by_interface ? NULL : address, NULL, name);
	snprintf(want, sizeof want, "tcp://%s:", address);
	BEGINS(name, want);
	CHECK_EQ(try_to_reach(address, port_of(name)), 0);
	CHECK_EQ(try_to_reach("127.0.0.1", port_of(name)), ECONNREFUSED);
	node_close(&n);
}

TEST(an_address_is_where_it_listens)
{
	listens_there_only(false);
}

TEST(an_interface_is_where_it_listens)
{
	listens_there_only(true);
}

TEST(endpoints_of_an_interface_have_its_address)
{
	char name[GDRFAB_ADDR_MAX], want[GDRFAB_ADDR_MAX], address[64], device[64];
	size_t len = sizeof name;
	struct setup s = {.by_address = true};
	struct node n;
	only_tcp();
	if (!outside(address, sizeof address, device, sizeof device))
		test_skip("this machine has no interface but loopback");
	setenv("GDRFAB_TCP_IFACE", device, 1);
	node_alone(&n, &s);
	n.ep = ep_new(&n, n.info, NULL);
	OK(gdrfab_ep_getname(n.ep, name, &len));
	snprintf(want, sizeof want, "tcp://%s:", address);
	BEGINS(name, want);
	node_close(&n);
}

/* A missing interface is reported before anything listens. */
TEST(an_interface_that_does_not_exist_is_named)
{
	struct node n;
	only_tcp();
	setenv("GDRFAB_TCP_IFACE", "nosuch0", 1);
	node_bare(&n);
	gdrfab_info *hints = hints_new(n.setup);
	static char tcp[] = "tcp";
	hints->prov_name = tcp;
	int rc = gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, GDRFAB_SOURCE, hints, &n.info);
	hints->prov_name = NULL;
	gdrfab_freeinfo(hints);
	if (rc == 0) {
		OK(gdrfab_fabric_open(n.info, NULL, &n.fabric));
		OK(gdrfab_eq_open(n.fabric, NULL, NULL, &n.eq));
		rc = gdrfab_pep_open(n.fabric, n.info, NULL, &n.pep);
		if (rc == 0) {
			OK(gdrfab_pep_bind_eq(n.pep, n.eq, 0));
			rc = gdrfab_pep_listen(n.pep);
		}
	}
	CHECK(rc < 0);
	if (!test_says(gdrfab_last_error(), "nosuch0"))
		test_fail(__FILE__, __LINE__, "the words do not name the interface: %s", gdrfab_last_error());
	node_close(&n);
}

TEST(a_port_in_use_is_named)
{
	char service[16];
	gdrfab_pep *pep = NULL;
	struct node n;
	only_tcp();
	int fd = raw_listen(service, sizeof service, 1);
	node_bare(&n);
	snprintf(n.service, sizeof n.service, "%s", service);
	node_info(&n);
	OK(gdrfab_fabric_open(n.info, NULL, &n.fabric));
	OK(gdrfab_eq_open(n.fabric, NULL, NULL, &n.eq));
	int rc = gdrfab_pep_open(n.fabric, n.info, NULL, &pep);
	if (rc == 0) {
		OK(gdrfab_pep_bind_eq(pep, n.eq, 0));
		rc = gdrfab_pep_listen(pep);
	}
	CHECK_EQ(rc, -EADDRINUSE);
	CHECK(test_says(gdrfab_last_error(), service));
	if (pep)
		OK(gdrfab_pep_close(pep));
	close(fd);
	n.fds = test_count_fds();
	gdrfab_eq_close(n.eq), n.eq = NULL;
	gdrfab_fabric_close(n.fabric), n.fabric = NULL;
	gdrfab_freeinfo(n.info);
}

/* --- both families --- */

static void some_of_all(struct node *n)
{
	static unsigned char out[70000], in[70000], word[64];
	struct mem m;
	done e;
	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MALLOC], sizeof out);
	mem_register(n, &m, 0, sizeof out, REMOTE_ACCESS, 0);
	mem_publish(n, &m);
	struct remote to = mem_fetch(n);
	uint32_t mine = n->side, theirs = mine == TEST_SERVER ? TEST_CLIENT : TEST_SERVER;
	POST(n->cq, gdrfab_recv(n->ep, word, sizeof word, NULL, 0, word));
	barrier(n);
	fill(out, sizeof out, 0, mine);
	POST(n->cq, gdrfab_write(n->ep, out, sizeof out, NULL, 0, to.base, to.key, out));
	POST(n->cq, gdrfab_read(n->ep, in, sizeof in, NULL, 0, to.base, to.key, in));
	POST(n->cq, gdrfab_send(n->ep, out, sizeof word, NULL, 0, NULL));
	for (int i = 0; i < 4; i++)
		CHECK_EQ(cq_next(n->cq, &e, 10000), 1);
	barrier(n);
	CHECK_FILLED("what was written here", m.addr, sizeof out, 0, theirs);
	CHECK_FILLED("what was read back", in, sizeof in, 0, mine);
	CHECK_FILLED("what was sent", word, sizeof word, 0, theirs);
	barrier(n);
	mem_end(n, &m);
	node_down(n);
}

static bool has_v6(void)
{
	char service[16];
	struct sockaddr_in6 at;
	memset(&at, 0, sizeof at);
	at.sin6_family = AF_INET6;
	at.sin6_addr = in6addr_loopback;
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool there = fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0;
	(void)service;
	if (fd >= 0)
		close(fd);
	return there;
}

static void over_v6(const struct setup *s)
{
	only_tcp();
	if (!has_v6())
		test_skip("this machine has no ::1");
	setenv("TEST_NODE", "::1", 1);
	unsetenv("GDRFAB_TCP_IFACE");
	pair(s, some_of_all, some_of_all, NULL);
}

TEST(ipv6)
{
	over_v6(NULL);
}

static void named_v6(struct node *n)
{
	char name[GDRFAB_ADDR_MAX];
	size_t len = sizeof name;
	node_up(n);
	BEGINS(n->side == TEST_SERVER ? n->info->src_addr : n->info->dest_addr, "tcp://[::1]:");
	OK(gdrfab_ep_getname(n->ep, name, &len));
	BEGINS(name, "tcp://[::1]:");
	len = sizeof name;
	OK(gdrfab_ep_getpeer(n->ep, name, &len));
	BEGINS(name, "tcp://[::1]:");
	node_down(n);
}

TEST(names_over_ipv6)
{
	only_tcp();
	if (!has_v6())
		test_skip("this machine has no ::1");
	setenv("TEST_NODE", "::1", 1);
	unsetenv("GDRFAB_TCP_IFACE");
	pair(NULL, named_v6, named_v6, NULL);
}

/* --- endpoints that know each other's addresses --- */

TEST(a_token_opens_one_endpoint)
{
	struct setup s = {.by_address = true};
	char name[3][GDRFAB_ADDR_MAX];
	size_t len[3] = {GDRFAB_ADDR_MAX, GDRFAB_ADDR_MAX, GDRFAB_ADDR_MAX};
	struct node n;
	gdrfab_ep *ep[3];
	only_tcp();
	node_alone(&n, &s);
	for (int i = 0; i < 3; i++) {
		ep[i] = ep_new(&n, n.info, NULL);
		OK(gdrfab_ep_getname(ep[i], name[i], &len[i]));
		const char *token = strrchr(name[i], '/');
		CHECK(token && strlen(token) == 17);
		CHECK_EQ(strspn(token + 1, "0123456789abcdef"), 16);
	}
	CHECK(strcmp(strrchr(name[0], '/'), strrchr(name[1], '/')) != 0);
	/* One digit more or less: a guessed address is refused, and the endpoint still waits for its peer. */
	uint64_t ns = 2000000000;
	char wrong[GDRFAB_ADDR_MAX];
	memcpy(wrong, name[1], sizeof wrong);
	wrong[len[1] - 2] = wrong[len[1] - 2] == '0' ? '1' : '0';
	OK(gdrfab_ep_setopt(ep[2], GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_CONNECT_TIMEOUT, &ns, sizeof ns));
	int rc = gdrfab_ep_connect_addr(ep[2], wrong, len[1]);
	for (int i = 0; i < 2; i++)
		OK(gdrfab_ep_connect_addr(ep[i], name[!i], len[!i]));
	int connected = 0, refused = rc != 0;
	uint64_t until = test_now_ms() + (uint64_t)test_ms(6000);
	while ((connected < 2 || !refused) && test_now_ms() < until) {
		struct event e;
		uint32_t event = UINT32_MAX;
		ssize_t size = gdrfab_eq_sread(n.eq, &event, &e, sizeof e.entry + sizeof e.data, 100, 0);
		if (size == -GDRFAB_EAVAIL) {
			struct eq_failure f;
			memset(&f, 0, sizeof f);
			f.entry.struct_size = sizeof f.entry;
			CHECK(gdrfab_eq_readerr(n.eq, &f.entry, 0) > 0);
			CHECK(f.entry.object == ep[2]);
			CHECK_EITHER(f.entry.err, ECONNREFUSED, ETIMEDOUT);
			refused = 1;
		} else if (size > 0) {
			CHECK_EQ(event, GDRFAB_CONNECTED);
			CHECK(e.entry.object == ep[0] || e.entry.object == ep[1]);
			connected++;
		} else {
			CHECK_EQ(size, -EAGAIN);
		}
	}
	CHECK_EQ(connected, 2);
	CHECK(refused);
	for (int i = 0; i < 3; i++)
		OK(gdrfab_ep_close(ep[i]));
	node_close(&n);
}

/* --- peers that send nothing, or do not speak the protocol --- */

static void connects_in_vain(const char *service, int err, int ms, const char *word)
{
	struct eq_failure f;
	struct node n;
	uint64_t ns = (uint64_t)ms * 1000000u;
	node_alone(&n, NULL);
	gdrfab_freeinfo(n.info);
	snprintf(n.service, sizeof n.service, "%s", service);
	node_info(&n);
	n.ep = ep_new(&n, n.info, NULL);
	OK(gdrfab_ep_setopt(n.ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_CONNECT_TIMEOUT, &ns, sizeof ns));
	uint64_t start = test_now_ms();
	OK(gdrfab_ep_connect(n.ep, n.info->dest_addr, n.info->dest_addrlen, NULL, 0));
	EQ_FAILED(n.eq, n.ep, err, 8000, &f);
	uint64_t took = test_now_ms() - start;
	if (err == ETIMEDOUT && (took + 2 < (uint64_t)ms || took > (uint64_t)(ms + test_ms(2000))))
		test_fail(__FILE__, __LINE__, "the time limit of %d ms ran out after %llu", ms, (unsigned long long)took);
	f.data[sizeof f.data - 1] = 0;
	if (!test_says((const char *)f.data, service) || !test_says((const char *)f.data, word))
		test_fail(__FILE__, __LINE__, "the words name not both %s and \"%s\": %s", service, word,
			  (const char *)f.data);
	OK(gdrfab_ep_close(n.ep));
	n.ep = NULL;
	node_close(&n);
}

TEST(a_port_where_nobody_listens)
{
	char service[16];
	only_tcp();
	int fd = raw_listen(service, sizeof service, 1);
	close(fd);
	connects_in_vain(service, ECONNREFUSED, 5000, "");
}

/* No answer to the connection request: the queue of the listening socket is full. */
TEST(a_black_hole)
{
	char service[16];
	int fds[4], fd;
	only_tcp();
	fd = raw_listen(service, sizeof service, 0);
	/* The queue has room for one connection; further ones hang, as the endpoint's will. */
	fds[0] = raw_connect(service);
	CHECK(fds[0] >= 0);
	connects_in_vain(service, ETIMEDOUT, 700, "in time");
	close(fds[0]);
	close(fd);
}

/* A server that accepts the connection and sends nothing. */
TEST(a_listener_that_says_nothing)
{
	char service[16];
	only_tcp();
	int fd = raw_listen(service, sizeof service, 8);
	connects_in_vain(service, ETIMEDOUT, 500, "in time");
	close(fd);
}

/* Another service: its bytes are no CHALLENGE. */
static void another_says(const void *what, size_t len, int err)
{
	char service[16];
	int fd = raw_listen(service, sizeof service, 8);
	fflush(NULL);
	pid_t pid = test_fork(TEST_SERVER);
	if (pid == 0) {
		char rest[4096];
		int peer = accept(fd, NULL, NULL);
		CHECK(peer >= 0);
		raw_send(peer, what, len);
		shutdown(peer, SHUT_WR);
		while (recv(peer, rest, sizeof rest, 0) > 0)
			;
		_exit(0);
	}
	connects_in_vain(service, err, 5000, "");
	close(fd);
}

TEST(another_service_answers)
{
	static const char text[] = "HTTP/1.1 400 Bad Request\r\nContent-Length: 200\r\n\r\n<html>There is no such page here,"
				   " whatever you may have said.</html>\r\n";
	only_tcp();
	another_says(text, sizeof text, EPROTO);
}

TEST(a_service_of_another_version_answers)
{
	unsigned char challenge[RAW_HELLO];
	only_tcp();
	raw_hello(challenge, 3);
	raw_put(challenge + 8, 0, 4);
	raw_put(challenge + 14, RAW_VERSION, 2);
	another_says(challenge, sizeof challenge, EPROTONOSUPPORT);
}

TEST(a_service_that_ends_at_once)
{
	only_tcp();
	another_says("", 0, ECONNREFUSED);
}
