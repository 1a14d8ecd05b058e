/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Addresses in fi_getinfo: nodes and services, socket addresses and text, of this side and of the other. */
#include "fi.h"

#include <arpa/inet.h>
#include <netinet/in.h>

static const struct setup plain;

static int ask(const char *node, const char *service, uint64_t flags, uint32_t format, struct fi_info **list)
{
	struct fi_info *hints = hints_new(&plain);
	hints->addr_format = format;
	int rc = provider_getinfo(node, service, flags, hints, list);
	fi_freeinfo(hints);
	return rc;
}

static int port_of(const void *addr)
{
	const struct sockaddr *sa = (const struct sockaddr *)addr;
	return sa->sa_family == AF_INET ? ntohs(((const struct sockaddr_in *)addr)->sin_port)
					: ntohs(((const struct sockaddr_in6 *)addr)->sin6_port);
}

static void check_sockaddr(const void *addr, size_t len, uint32_t format)
{
	CHECK(addr != NULL);
	int family = ((const struct sockaddr *)addr)->sa_family;
	if (family == AF_INET) {
		CHECK_EQ(len, sizeof(struct sockaddr_in));
		CHECK(format == FI_SOCKADDR_IN || format == FI_SOCKADDR);
	} else {
		CHECK_EQ(family, AF_INET6);
		CHECK_EQ(len, sizeof(struct sockaddr_in6));
		CHECK(format == FI_SOCKADDR_IN6 || format == FI_SOCKADDR);
	}
}

/* FI_SOURCE: node and service are this side's. Otherwise they are the other side's. */
TEST(service_of_either_side)
{
	struct fi_info *list;
	const char *node = node_name();
	OK(ask(node, "23456", FI_SOURCE, FI_FORMAT_UNSPEC, &list));
	for (struct fi_info *i = list; i; i = i->next) {
		check_sockaddr(i->src_addr, i->src_addrlen, i->addr_format);
		CHECK_EQ(port_of(i->src_addr), 23456);
		CHECK(i->dest_addr == NULL && i->dest_addrlen == 0);
	}
	fi_freeinfo(list);
	if (!node)
		return;
	OK(ask(node, "23456", 0, FI_FORMAT_UNSPEC, &list));
	for (struct fi_info *i = list; i; i = i->next) {
		check_sockaddr(i->dest_addr, i->dest_addrlen, i->addr_format);
		CHECK_EQ(port_of(i->dest_addr), 23456);
		if (i->src_addr)
			check_sockaddr(i->src_addr, i->src_addrlen, i->addr_format);
	}
	fi_freeinfo(list);
}

TEST(families)
{
	struct fi_info *list;
	skip_unless(!is_carried_by("shm") && !is_carried_by("verbs"), "has no address of each family");
	OK(ask("127.0.0.1", "23456", FI_SOURCE | FI_NUMERICHOST, FI_FORMAT_UNSPEC, &list));
	for (struct fi_info *i = list; i; i = i->next) {
		CHECK_EQ(i->addr_format, FI_SOCKADDR_IN);
		CHECK_EQ(((struct sockaddr_in *)i->src_addr)->sin_addr.s_addr, htonl(INADDR_LOOPBACK));
	}
	fi_freeinfo(list);
	OK(ask("127.0.0.1", "23456", FI_NUMERICHOST, FI_SOCKADDR_IN, &list));
	CHECK_EQ(((struct sockaddr_in *)list->dest_addr)->sin_addr.s_addr, htonl(INADDR_LOOPBACK));
	fi_freeinfo(list);
	OK(ask("127.0.0.1", "23456", FI_NUMERICHOST, FI_SOCKADDR, &list));
	CHECK_EQ(((struct sockaddr *)list->dest_addr)->sa_family, AF_INET);
	fi_freeinfo(list);
	if (is_gdrfab())
		CHECK_EQ(ask("127.0.0.1", "23456", FI_NUMERICHOST, FI_SOCKADDR_IN6, &list), -FI_ENODATA);
	CHECK_EQ(ask("not a host", "23456", FI_NUMERICHOST, FI_FORMAT_UNSPEC, &list), -FI_ENODATA);
	if (access("/proc/net/if_inet6", R_OK) == 0) {
		OK(ask("::1", "23456", FI_SOURCE | FI_NUMERICHOST, FI_FORMAT_UNSPEC, &list));
		for (struct fi_info *i = list; i; i = i->next) {
			CHECK_EQ(i->addr_format, FI_SOCKADDR_IN6);
			check_sockaddr(i->src_addr, i->src_addrlen, i->addr_format);
			CHECK_EQ(port_of(i->src_addr), 23456);
		}
		fi_freeinfo(list);
		if (is_gdrfab())
			CHECK_EQ(ask("::1", "23456", FI_NUMERICHOST, FI_SOCKADDR_IN, &list), -FI_ENODATA);
	}
}

TEST(no_such_node)
{
	struct fi_info *list;
	int rc = ask("no-such-host.invalid", "1", 0, FI_FORMAT_UNSPEC, &list);
	if (rc != -FI_ENODATA && is_gdrfab())
		test_fail(__FILE__, __LINE__, "an unknown host: %s, not -FI_ENODATA", test_number(rc));
	CHECK(rc < 0);
	rc = ask(node_name(), "no-such-service", FI_SOURCE, FI_FORMAT_UNSPEC, &list);
	CHECK(rc < 0);
	if (is_gdrfab())
		CHECK_EQ(rc, -FI_ENODATA);
}

/* Formats that no provider here supports. */
TEST(other_formats)
{
	struct fi_info *list;
	static const uint32_t none[] = {FI_SOCKADDR_IB, FI_ADDR_PSMX, FI_ADDR_EFA, FI_ADDR_CXI, 4711};
	for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
		CHECK_EQ(ask(NULL, NULL, 0, none[i], &list), -FI_ENODATA);
	if (is_carried_by("shm"))
		CHECK_EQ(ask(NULL, NULL, 0, FI_SOCKADDR_IN, &list), -FI_ENODATA);
}

/* If node and format mean an IP address, the answer is an address that a program can bind a socket to. */
TEST(addresses_of_sockets)
{
	static const char *const nodes[] = {"127.0.0.1", "::1"};
	static const uint32_t formats[] = {FI_SOCKADDR, FI_SOCKADDR_IN, FI_SOCKADDR_IN6};
	bool v6 = access("/proc/net/if_inet6", R_OK) == 0;
	for (size_t i = 0; i < 2; i++)
		for (size_t k = 0; k < 3; k++) {
			struct fi_info *list;
			int rc = ask(nodes[i], "0", FI_SOURCE, formats[k], &list);
			if (is_carried_by("shm"))
				CHECK_EQ(rc, -FI_ENODATA);
			if (is_carried_by("tcp") && (v6 || i == 0) && (k == 0 || k == i + 1))
				CHECK_EQ(rc, 0);
			if (rc)
				continue;
			for (struct fi_info *at = list; at; at = at->next) {
				int fd = socket(((struct sockaddr *)at->src_addr)->sa_family, SOCK_STREAM, 0);
				CHECK_EQ(bind(fd, (struct sockaddr *)at->src_addr, (socklen_t)at->src_addrlen), 0);
				close(fd);
			}
			fi_freeinfo(list);
		}
	/* A caller that takes shm's own address from an answer may ask with it. */
	if (is_carried_by("shm")) {
		struct fi_info *list, *again;
		char host[INET6_ADDRSTRLEN];
		OK(ask(NULL, "0", FI_SOURCE, FI_SOCKADDR_IN6, &list));
		CHECK(inet_ntop(AF_INET6, &((struct sockaddr_in6 *)list->src_addr)->sin6_addr, host, sizeof host));
		OK(ask(host, "0", FI_SOURCE, FI_SOCKADDR_IN6, &again));
		fi_freeinfo(again);
		fi_freeinfo(list);
	}
}

/* Addresses in the hints. */
TEST(addresses_in_hints)
{
	struct node n;
	struct fi_info *hints = hints_new(&plain), *list;
	node_alone(&n, NULL);
	hints->addr_format = n.format;
	hints->dest_addr = malloc(n.addrlen);
	memcpy(hints->dest_addr, n.addr, n.addrlen);
	hints->dest_addrlen = n.addrlen;
	OK(provider_getinfo(NULL, NULL, 0, hints, &list));
	for (struct fi_info *i = list; i; i = i->next) {
		CHECK_EQ(i->addr_format, n.format);
		CHECK_EQ(i->dest_addrlen, n.addrlen);
		CHECK_EQ(memcmp(i->dest_addr, n.addr, n.addrlen), 0);
	}
	fi_freeinfo(list);
	/* Both addresses. */
	hints->src_addr = malloc(n.addrlen);
	memcpy(hints->src_addr, n.addr, n.addrlen);
	((struct sockaddr_in6 *)hints->src_addr)->sin6_port = 0;
	hints->src_addrlen = n.addrlen;
	OK(provider_getinfo(NULL, NULL, 0, hints, &list));
	CHECK_EQ(list->dest_addrlen, n.addrlen);
	CHECK_EQ(memcmp(list->dest_addr, n.addr, n.addrlen), 0);
	if (is_gdrfab())
		CHECK_EQ(list->src_addrlen, n.addrlen);
	fi_freeinfo(list);
	/* Only this side's address. */
	free(hints->dest_addr);
	hints->dest_addr = NULL;
	hints->dest_addrlen = 0;
	OK(provider_getinfo(NULL, NULL, 0, hints, &list));
	CHECK(list->dest_addr == NULL);
	check_sockaddr(list->src_addr, list->src_addrlen, list->addr_format);
	fi_freeinfo(list);
	fi_freeinfo(hints);
	node_close(&n);
}

/* Impossible lengths, of addresses that an application got from elsewhere. */
TEST(broken_addresses_in_hints)
{
	skip_unless(is_gdrfab(), "believes what it is given");
	for (size_t len = 0; len < sizeof(struct sockaddr_in6); len += 3) {
		struct fi_info *hints = hints_new(&plain), *list;
		hints->addr_format = FI_SOCKADDR_IN6;
		hints->dest_addr = calloc(1, len ? len : 1);
		if (len >= 2)
			((struct sockaddr *)hints->dest_addr)->sa_family = AF_INET6;
		hints->dest_addrlen = len;
		if (len)
			CHECK_EQ(provider_getinfo(NULL, NULL, 0, hints, &list), -FI_ENODATA);
		else if (provider_getinfo(NULL, NULL, 0, hints, &list) == 0)
			fi_freeinfo(list);
		fi_freeinfo(hints);
	}
	struct fi_info *hints = hints_new(&plain), *list;
	hints->addr_format = FI_SOCKADDR;
	struct sockaddr_in6 *sa = (struct sockaddr_in6 *)calloc(1, sizeof *sa);
	sa->sin6_family = AF_UNIX;
	hints->dest_addr = sa;
	hints->dest_addrlen = sizeof *sa;
	CHECK_EQ(provider_getinfo(NULL, NULL, 0, hints, &list), -FI_ENODATA);
	fi_freeinfo(hints);
}

/* --- text --- */

static const char *scheme(void)
{
	return is_carried_by("shm") ? "shm://" : is_carried_by("tcp") ? "tcp://" : "verbs://";
}

static void text_address(char *to, size_t size)
{
	if (is_carried_by("shm"))
		snprintf(to, size, "shm://fi-text-%d", (int)getpid());
	else
		snprintf(to, size, "%s%s:%d", scheme(), node_name(), 20000 + (int)getpid() % 10000);
}

static void text_server(struct node *n)
{
	char text[128], name[ADDR_MAX] = "";
	struct fi_info *hints = hints_new(n->setup);
	struct fi_eq_attr attr = {.wait_obj = FI_WAIT_UNSPEC};
	size_t len = sizeof name;
	text_address(text, sizeof text);
	hints->addr_format = FI_ADDR_STR;
	OK(provider_getinfo(text, NULL, FI_SOURCE, hints, &n->info));
	CHECK_EQ(n->info->addr_format, FI_ADDR_STR);
	CHECK_EQ(strncmp((char *)n->info->src_addr, scheme(), strlen(scheme())), 0);
	OK(fi_fabric(n->info->fabric_attr, &n->fabric, NULL));
	OK(fi_eq_open(n->fabric, &attr, &n->eq, NULL));
	OK(fi_domain(n->fabric, n->info, &n->domain, NULL));
	n->cq = cq_new(n, FI_CQ_FORMAT_DATA, 0, FI_WAIT_NONE);
	n->pep = pep_new(n, n->info, n);
	OK(fi_getname(&n->pep->fid, name, &len));
	CHECK(len <= sizeof name && memchr(name, 0, len) == name + len - 1);
	CHECK_EQ(strcmp(name, text), 0);
	oob_send(n, name, sizeof name);
	fi_freeinfo(hints);
	n->ep = node_connect(n, n);
	node_down(n);
}

static void text_client(struct node *n)
{
	char name[ADDR_MAX], peer[ADDR_MAX];
	struct fi_info *hints = hints_new(n->setup);
	struct fi_eq_attr attr = {.wait_obj = FI_WAIT_UNSPEC};
	size_t len = sizeof peer;
	oob_recv(n, name, sizeof name);
	hints->addr_format = FI_ADDR_STR;
	/* By the node's name, as a program prints it and receives it. */
	OK(provider_getinfo(name, NULL, 0, hints, &n->info));
	CHECK_EQ(n->info->addr_format, FI_ADDR_STR);
	CHECK_EQ(strcmp((char *)n->info->dest_addr, name), 0);
	CHECK_EQ(n->info->dest_addrlen, strlen(name) + 1);
	OK(fi_fabric(n->info->fabric_attr, &n->fabric, NULL));
	OK(fi_eq_open(n->fabric, &attr, &n->eq, NULL));
	OK(fi_domain(n->fabric, n->info, &n->domain, NULL));
	n->cq = cq_new(n, FI_CQ_FORMAT_DATA, 0, FI_WAIT_NONE);
	n->ep = node_connect(n, n);
	OK(fi_getpeer(n->ep, peer, &len));
	CHECK_EQ(strcmp(peer, name), 0);
	fi_freeinfo(hints);
	node_down(n);
}

TEST(text)
{
	skip_unless(is_gdrfab(), "has no addresses of text");
	pair(NULL, text_server, text_client, NULL);
}
