/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Connectionless endpoints through libfabric: the requests of real programs are met and can be used, each tested
 * alone in a process of one or two endpoints.
 */
#include "fi_rdm.h"

#include <arpa/inet.h>
#include <netinet/in.h>

/* ---- offers */

/* Offers shm and tcp: MPIs want other hosts reached, which shm alone does not do. */
static void both(void)
{
	setenv("FI_GDRFAB_PROVIDERS", "shm,tcp", 1);
}

struct asker {
	const char *name;
	uint32_t version;
	uint64_t caps, mode, order, tx_flags, rx_flags;
	int mr_mode;
	enum fi_threading threading;
	enum fi_av_type av_type;
	size_t data_size;
	bool found;
};

/* The requests of MPIs and of NCCL's plugin, in turn. */
static const struct asker askers[] = {
	{.name = "asks_as_open_mpi", .version = FI_VERSION(1, 5),
	 .caps = FI_TAGGED | FI_DIRECTED_RECV | FI_LOCAL_COMM | FI_REMOTE_COMM, .mode = FI_CONTEXT | FI_CONTEXT2,
	 .order = FI_ORDER_SAS, .tx_flags = FI_COMPLETION, .rx_flags = FI_COMPLETION, .threading = FI_THREAD_DOMAIN,
	 .av_type = FI_AV_MAP, .data_size = 4, .found = true},
	{.name = "asks_as_open_mpi_with_threads", .version = FI_VERSION(1, 9),
	 .caps = FI_MSG | FI_TAGGED | FI_DIRECTED_RECV | FI_LOCAL_COMM | FI_REMOTE_COMM, .mode = FI_CONTEXT,
	 .order = FI_ORDER_SAS, .tx_flags = FI_COMPLETION, .rx_flags = FI_COMPLETION, .threading = FI_THREAD_SAFE,
	 .av_type = FI_AV_TABLE, .data_size = 4, .found = true},
	{.name = "asks_as_mpich", .version = FI_VERSION(1, 14),
	 .caps = FI_MSG | FI_TAGGED | FI_RMA | FI_MULTI_RECV | FI_DIRECTED_RECV, .order = FI_ORDER_SAS,
	 .tx_flags = FI_DELIVERY_COMPLETE | FI_COMPLETION, .rx_flags = FI_COMPLETION,
	 .mr_mode = FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | FI_MR_ALLOCATED, .threading = FI_THREAD_DOMAIN,
	 .av_type = FI_AV_TABLE, .data_size = 4, .found = true},
	{.name = "asks_as_nccls_plugin", .version = FI_VERSION(1, 17), .caps = FI_TAGGED | FI_MSG | FI_LOCAL_COMM | FI_REMOTE_COMM,
	 .mode = FI_CONTEXT, .order = FI_ORDER_SAS, .mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY,
	 .threading = FI_THREAD_SAFE, .data_size = 4, .found = true},
	{.name = "asks_as_btl_ofi", .version = FI_VERSION(1, 5), .caps = FI_RMA | FI_ATOMIC, .tx_flags = FI_DELIVERY_COMPLETE,
	 .mr_mode = FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | FI_MR_ALLOCATED, .av_type = FI_AV_MAP, .found = true},
	{.name = "asks_as_mpich_for_atomics", .version = FI_VERSION(1, 14),
	 .caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_MULTI_RECV,
	 .order = FI_ORDER_SAS | FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_WAW,
	 .tx_flags = FI_DELIVERY_COMPLETE | FI_COMPLETION, .mr_mode = FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | FI_MR_ALLOCATED,
	 .threading = FI_THREAD_DOMAIN, .av_type = FI_AV_TABLE, .data_size = 4, .found = true},
	{.name = "asks_for_what_is_not_there", .version = FI_VERSION(1, 17), .caps = FI_TAGGED | FI_MULTICAST},
};

static void asks(const void *arg)
{
	const struct asker *a = arg;
	struct fi_info *hints, *info = NULL;
	both();
	hints = rdm_hints(a->caps);
	hints->mode = a->mode;
	hints->tx_attr->msg_order = hints->rx_attr->msg_order = a->order;
	hints->tx_attr->op_flags = a->tx_flags;
	hints->rx_attr->op_flags = a->rx_flags;
	hints->domain_attr->mr_mode = a->mr_mode;
	hints->domain_attr->threading = a->threading;
	hints->domain_attr->av_type = a->av_type;
	hints->domain_attr->cq_data_size = a->data_size;
	hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
	hints->ep_attr->mem_tag_format = 0xaaaaaaaaaaaaaaaau;
	CHECK_EQ(fi_getinfo(a->version, NULL, NULL, 0, hints, &info), a->found ? 0 : -FI_ENODATA);
	if (a->found) {
		CHECK_EQ(strcmp(info->fabric_attr->prov_name, "gdrfab"), 0);
		CHECK_EQ(info->caps & a->caps, a->caps);
		CHECK_EQ(info->mode & ~a->mode, 0);
		CHECK_EQ(info->tx_attr->msg_order & a->order, a->order);
		CHECK_EQ(info->domain_attr->mr_mode & ~a->mr_mode, 0);
		CHECK(info->domain_attr->cq_data_size >= 4);
		CHECK(info->tx_attr->inject_size >= 16);
	}
	fi_freeinfo(info);
	fi_freeinfo(hints);
}

TEST_TABLE(askers)
{
	for (size_t i = 0; i < sizeof askers / sizeof askers[0]; i++)
		test_add(askers[i].name, asks, &askers[i], 20);
}

/* A caller without hints is offered everything, and no layer above that would hide it. */
TEST(all_to_who_asks_nothing)
{
	struct fi_info *list, *at;
	uint64_t want = TAG_CAPS | FI_ATOMIC | FI_LOCAL_COMM | FI_REMOTE_COMM | FI_RMA_EVENT | FI_FENCE;
	skip_unless(is_gdrfab(), "has endpoints of its own kind");
	both();
	OK(fi_getinfo(FI_VERSION(1, 5), NULL, NULL, 0, NULL, &list));
	for (at = list; at; at = at->next) {
		CHECK(strcmp(at->fabric_attr->prov_name, "gdrfab;ofi_rxm") != 0);
		if (strcmp(at->fabric_attr->prov_name, "gdrfab") == 0 && at->ep_attr->type == FI_EP_RDM)
			break;
	}
	CHECK(at != NULL);
	CHECK_EQ(at->caps & want, want);
	CHECK_EQ(at->src_addrlen > 0 && at->src_addrlen <= 56, true);
	fi_freeinfo(list);
}

/* ---- names */

/* In each format an endpoint's name reaches it, and fi_av_lookup() returns it. */
static void names_as(const void *arg)
{
	struct end a, b;
	const uint32_t format = *(const uint32_t *)arg;
	struct fi_info *hints = rdm_hints(FI_MSG);
	char told[256];
	size_t len = sizeof told;
	const void *at;
	const char *text;
	fi_addr_t index[2];
	hints->addr_format = format;
	end_open_with(&a, hints, FI_AV_TABLE, 0);
	end_open_with(&b, hints, FI_AV_MAP, 0);
	fi_freeinfo(hints);
	if (format != FI_ADDR_STR)
		CHECK_EQ(a.namelen, b.namelen);
	CHECK_EQ(a.info->addr_format, b.info->addr_format);
	text = b.name;
	at = format == FI_ADDR_STR ? (const void *)&text : b.name;
	CHECK_EQ(fi_av_insert(a.av, at, 1, &index[0], 0, NULL), 1);
	CHECK_EQ(index[0], 0);
	OK(fi_av_lookup(a.av, 0, told, &len));
	CHECK_EQ(len, b.namelen);
	CHECK_EQ(memcmp(told, b.name, len), 0);
	len = sizeof told;
	CHECK(fi_av_straddr(a.av, b.name, told, &len) == told && strncmp(told, "rdm://", 6) == 0);
	OK(fi_recv(b.ep, told, sizeof told, NULL, FI_ADDR_UNSPEC, &b));
	OK(fi_send(a.ep, "hello", 6, NULL, index[0], &a));
	CHECK(end_next(&b, &a, NULL)->op_context == &b);
	CHECK(end_next(&a, &b, NULL)->op_context == &a);
	CHECK_EQ(strcmp(told, "hello"), 0);
	OK(fi_av_remove(a.av, index, 1, 0));
	CHECK(fi_send(a.ep, "hello", 6, NULL, index[0], &a) == -FI_EINVAL);
	CHECK(fi_av_remove(a.av, index, 1, 0) < 0);
	end_close(&a);
	end_close(&b);
}

TEST_TABLE(names)
{
	static const uint32_t formats[] = {FI_FORMAT_UNSPEC, FI_SOCKADDR_IN, FI_SOCKADDR, FI_ADDR_STR};
	static const char *const called[] = {"names", "names_of_ipv4", "names_of_sockets", "names_as_text"};
	for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
		test_add(called[i], names_as, &formats[i], 20);
}

/* Node and service say where a server listens, and its client knows nothing else. */
TEST(node_and_service)
{
	struct end server, client;
	struct fi_info *hints = rdm_hints(FI_TAGGED), *found;
	char service[16], text[8] = "";
	fi_addr_t index;
	struct sockaddr_in at;
	size_t len = sizeof at;
	/* Finds a free port by opening another endpoint. */
	hints->addr_format = FI_SOCKADDR_IN;
	end_open_with(&client, hints, FI_AV_TABLE, 0);
	OK(fi_getname(&client.ep->fid, &at, &len));
	snprintf(service, sizeof service, "%d", ntohs(at.sin_port));
	end_close(&client);
	hints->addr_format = FI_FORMAT_UNSPEC;
	OK(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", service, FI_SOURCE, hints, &found));
	hints->src_addr = found->src_addr;
	hints->src_addrlen = found->src_addrlen;
	hints->addr_format = found->addr_format;
	end_open_with(&server, hints, FI_AV_TABLE, 0);
	hints->src_addr = NULL;
	hints->src_addrlen = 0;
	hints->addr_format = FI_FORMAT_UNSPEC;
	fi_freeinfo(found);
	end_open_with(&client, hints, FI_AV_TABLE, 0);
	OK(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", service, 0, hints, &found));
	CHECK_EQ(fi_av_insert(client.av, found->dest_addr, 1, &index, 0, NULL), 1);
	CHECK_EQ(fi_av_insertsvc(client.av, "127.0.0.1", service, &index, 0, NULL), 1);
	CHECK_EQ(index, 1);
	fi_freeinfo(found);
	OK(fi_trecv(server.ep, text, sizeof text, NULL, FI_ADDR_UNSPEC, 5, 0, NULL));
	OK(fi_tsend(client.ep, "hello", 6, NULL, 0, 5, NULL));
	CHECK(end_next(&server, &client, NULL) && end_next(&client, &server, NULL));
	CHECK_EQ(strcmp(text, "hello"), 0);
	end_close(&client);
	end_close(&server);
	fi_freeinfo(hints);
}

/* An address that is no name is refused alone, and reported. */
TEST(names_that_are_none)
{
	struct end a;
	char all[3][64];
	int errors[3] = {-1, -1, -1};
	fi_addr_t index[3];
	end_open(&a, FI_MSG);
	CHECK(a.namelen <= sizeof all[0]);
	for (int i = 0; i < 3; i++)
		memcpy(&all[0][0] + (size_t)i * a.namelen, a.name, a.namelen);
	memset(&all[0][0] + a.namelen, 0x55, a.namelen);
	CHECK_EQ(fi_av_insert(a.av, all, 3, index, FI_SYNC_ERR, errors), 2);
	CHECK(errors[0] == 0 && errors[1] == FI_EINVAL && errors[2] == 0);
	CHECK(index[0] == 0 && index[1] == FI_ADDR_NOTAVAIL && index[2] == 1);
	CHECK(fi_av_insertsvc(a.av, "127.0.0.1", "no such service", index, 0, NULL) < 0);
	/* Symmetric names: consecutive ports. */
	CHECK_EQ(fi_av_insertsym(a.av, "127.0.0.1", 2, "7000", 2, NULL, 0, NULL), 4);
	size_t len = sizeof all;
	OK(fi_av_lookup(a.av, 5, all, &len));
	len = sizeof all[0];
	CHECK_EQ(strcmp(fi_av_straddr(a.av, all, all[2], &len), "rdm://127.0.0.2:7001"), 0);
	end_close(&a);
}

/* An address of no family, or of another than the vector's, is refused alone as well. Where lengths may differ, it
 * is taken to be as long as the one before; after a first such address the position of the next is unknown. */
TEST(addresses_that_are_none)
{
	static const struct act {
		uint32_t format;
		int bad;
		sa_family_t family;
		int inserted;
	} acts[] = {{FI_SOCKADDR_IN, 1, 0, 2}, {FI_SOCKADDR_IN, 0, AF_INET6, 2}, {FI_SOCKADDR, 1, 0, 2}, {FI_SOCKADDR, 0, 0, 0}};
	struct end a;
	end_open(&a, FI_MSG);
	for (size_t i = 0; i < sizeof acts / sizeof *acts; i++) {
		struct sockaddr_in all[3];
		int errors[3] = {-1, -1, -1};
		fi_addr_t index[3] = {77, 77, 77}, next = 0;
		struct fi_av_attr attr = {.type = FI_AV_TABLE};
		struct fid_domain *domain;
		struct fid_av *av;
		a.info->addr_format = acts[i].format;
		OK(fi_domain(a.fabric, a.info, &domain, NULL));
		OK(fi_av_open(domain, &attr, &av, NULL));
		memset(all, 0, sizeof all);
		for (int k = 0; k < 3; k++) {
			all[k].sin_family = k == acts[i].bad ? acts[i].family : AF_INET;
			all[k].sin_port = htons((uint16_t)(7000 + k));
			all[k].sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		}
		CHECK_EQ(fi_av_insert(av, all, 3, index, FI_SYNC_ERR, errors), acts[i].inserted);
		for (int k = 0; k < 3; k++) {
			bool good = acts[i].inserted && k != acts[i].bad;
			CHECK_EQ(errors[k], good ? 0 : EINVAL);
			CHECK_EQ(index[k], good ? next++ : FI_ADDR_NOTAVAIL);
		}
		CLOSE(av);
		CLOSE(domain);
	}
	end_close(&a);
}

TEST(what_there_is_not)
{
	struct end a;
	struct fid_ep *ep = NULL;
	struct fid_av *av = NULL;
	struct fid_cntr *cntr;
	struct fi_cntr_attr counts = {.events = FI_CNTR_EVENTS_COMP};
	struct fi_av_attr named = {.name = "name"}, many = {.rx_ctx_bits = 2}, late = {.flags = FI_EVENT};
	uint64_t one = 1;
	end_open(&a, TAG_CAPS);
	CHECK_EQ(end_knows(&a, &a), 0);
	CHECK_EQ(fi_av_open(a.domain, &named, &av, NULL), -FI_ENOSYS);
	CHECK_EQ(fi_av_open(a.domain, &many, &av, NULL), -FI_ENOSYS);
	CHECK_EQ(fi_av_open(a.domain, &late, &av, NULL), -FI_ENOSYS);
	CHECK_EQ(fi_scalable_ep(a.domain, a.info, &ep, NULL), -FI_ENOSYS);
	CHECK_EQ(fi_connect(a.ep, a.name, NULL, 0), -FI_ENOSYS);
	/* An index that names no endpoint. */
	CHECK_EQ(fi_tsend(a.ep, &one, 8, NULL, 77, 0, NULL), -FI_EINVAL);
	/* An endpoint without its vector, and objects in use. */
	OK(fi_endpoint(a.domain, a.info, &ep, NULL));
	OK(fi_cntr_open(a.domain, &counts, &cntr, NULL));
	CHECK_EQ(fi_ep_bind(ep, &cntr->fid, FI_REMOTE_WRITE), -FI_ENOSYS);
	CHECK_EQ(fi_ep_bind(ep, &cntr->fid, FI_REMOTE_READ | FI_REMOTE_WRITE), -FI_ENOSYS);
	CLOSE(ep);
	/* If peers may not read or write, there is nothing to count. */
	a.info->caps = FI_TAGGED;
	OK(fi_endpoint(a.domain, a.info, &ep, NULL));
	OK(fi_ep_bind(ep, &cntr->fid, FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE));
	OK(fi_ep_bind(ep, &cntr->fid, FI_REMOTE_WRITE));
	CLOSE(ep);
	CLOSE(cntr);
	OK(fi_endpoint(a.domain, a.info, &ep, NULL));
	OK(fi_ep_bind(ep, &a.cq->fid, FI_TRANSMIT | FI_RECV));
	CHECK(fi_enable(ep) < 0);
	CLOSE(ep);
	CHECK_EQ(fi_close(&a.av->fid), -FI_EBUSY);
	end_close(&a);
}
