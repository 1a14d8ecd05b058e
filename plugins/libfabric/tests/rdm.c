/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Connectionless endpoints through libfabric: what programs ask for is offered and theirs to use, each alone in a process of
 * one or two endpoints. What such endpoints do is tested in c-tests; here it is that their calls are these.
 */
#include "fi.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_tagged.h>

#define TAG_CAPS (FI_MSG | FI_TAGGED | FI_RMA | FI_DIRECTED_RECV | FI_SOURCE | FI_MULTI_RECV)

static struct fi_info *rdm_hints(uint64_t caps)
{
	struct fi_info *hints = fi_allocinfo();
	CHECK(hints != NULL);
	skip_unless(is_gdrfab(), "has endpoints of its own kind");
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = caps;
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_PROV_KEY;
	hints->fabric_attr->prov_name = strdup("gdrfab");
	return hints;
}

/* An endpoint that reaches the others by their indexes. */
struct end {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_cq *cq;
	struct fid_av *av;
	struct fid_ep *ep;
	char name[256];
	size_t namelen;
};

static void end_open_with(struct end *e, struct fi_info *hints, enum fi_av_type type, uint64_t cq_flags)
{
	/* Open MPI's queues are as short. */
	struct fi_cq_attr cq_attr = {.size = 100, .format = FI_CQ_FORMAT_TAGGED};
	struct fi_av_attr av_attr = {.type = type, .count = 10};
	OK(fi_getinfo(FI_VERSION(1, 5), NULL, NULL, 0, hints, &e->info));
	CHECK_EQ(strcmp(e->info->fabric_attr->prov_name, "gdrfab"), 0);
	OK(fi_fabric(e->info->fabric_attr, &e->fabric, NULL));
	OK(fi_domain(e->fabric, e->info, &e->domain, NULL));
	OK(fi_cq_open(e->domain, &cq_attr, &e->cq, NULL));
	OK(fi_av_open(e->domain, &av_attr, &e->av, NULL));
	OK(fi_endpoint(e->domain, e->info, &e->ep, NULL));
	OK(fi_ep_bind(e->ep, &e->cq->fid, FI_TRANSMIT | FI_RECV | cq_flags));
	OK(fi_ep_bind(e->ep, &e->av->fid, 0));
	OK(fi_enable(e->ep));
	e->namelen = 0;
	CHECK_EQ(fi_getname(&e->ep->fid, NULL, &e->namelen), -FI_ETOOSMALL);
	CHECK(e->namelen > 0 && e->namelen <= sizeof e->name);
	OK(fi_getname(&e->ep->fid, e->name, &e->namelen));
}

static void end_open(struct end *e, uint64_t caps)
{
	struct fi_info *hints = rdm_hints(caps);
	end_open_with(e, hints, FI_AV_MAP, 0);
	fi_freeinfo(hints);
}

static void end_close(struct end *e)
{
	CLOSE(e->ep);
	CLOSE(e->av);
	CLOSE(e->cq);
	CLOSE(e->domain);
	CLOSE(e->fabric);
	fi_freeinfo(e->info);
}

static fi_addr_t knows(struct end *e, const struct end *other)
{
	fi_addr_t index = FI_ADDR_NOTAVAIL;
	CHECK_EQ(fi_av_insert(e->av, other->name, 1, &index, 0, NULL), 1);
	CHECK(index != FI_ADDR_NOTAVAIL);
	return index;
}

/* The next entry of e, while the other side is driven; NULL: an error entry is next. */
static struct fi_cq_tagged_entry *next(struct end *e, struct end *other, fi_addr_t *from)
{
	static struct fi_cq_tagged_entry entry;
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(10000); test_now_ms() < until;) {
		ssize_t n = fi_cq_readfrom(e->cq, &entry, 1, from);
		if (n == -FI_EAVAIL)
			return NULL;
		CHECK(n == 1 || n == -FI_EAGAIN);
		if (n == 1)
			return &entry;
		if (other != e)
			fi_cq_read(other->cq, NULL, 0);
	}
	test_fail(__FILE__, __LINE__, "no entry within 10 s");
}

static void failed(struct end *e, int err, struct fi_cq_err_entry *entry)
{
	struct fi_cq_err_entry local;
	entry = entry ? entry : &local;
	memset(entry, 0, sizeof *entry);
	CHECK_EQ(fi_cq_readerr(e->cq, entry, 0), 1);
	CHECK_EQ(entry->err, err);
}

/* ---- what is offered */

/* MPIs want other hosts reached, which shm alone does not. */
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

/* What MPIs and NCCL's plugin ask for, in turn. */
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
	{.name = "asks_for_what_is_not_there", .version = FI_VERSION(1, 17), .caps = FI_TAGGED | FI_ATOMIC},
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

/* Who asks nothing learns of everything, and of no layer above that would hide it. */
TEST(all_to_who_asks_nothing)
{
	struct fi_info *list, *at;
	uint64_t want = TAG_CAPS | FI_LOCAL_COMM | FI_REMOTE_COMM | FI_RMA_EVENT | FI_FENCE;
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

/* In each format an endpoint's name leads to it, and the vector tells it again. */
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
	CHECK(next(&b, &a, NULL)->op_context == &b);
	CHECK(next(&a, &b, NULL)->op_context == &a);
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

/* Where a server listens is said by node and service, and that is all that its client knows. */
TEST(node_and_service)
{
	struct end server, client;
	struct fi_info *hints = rdm_hints(FI_TAGGED), *found;
	char service[16], text[8] = "";
	fi_addr_t index;
	struct sockaddr_in at;
	size_t len = sizeof at;
	/* A port that is free: another's. */
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
	CHECK(next(&server, &client, NULL) && next(&client, &server, NULL));
	CHECK_EQ(strcmp(text, "hello"), 0);
	end_close(&client);
	end_close(&server);
	fi_freeinfo(hints);
}

/* What is no name is refused alone, and told of. */
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
	/* Symmetric names: ports that follow each other. */
	CHECK_EQ(fi_av_insertsym(a.av, "127.0.0.1", 2, "7000", 2, NULL, 0, NULL), 4);
	size_t len = sizeof all;
	OK(fi_av_lookup(a.av, 5, all, &len));
	len = sizeof all[0];
	CHECK_EQ(strcmp(fi_av_straddr(a.av, all, all[2], &len), "rdm://127.0.0.2:7001"), 0);
	end_close(&a);
}

/* ---- tagged messages */

TEST(tags_sources_data)
{
	struct end a, b;
	struct fi_cq_tagged_entry *done;
	fi_addr_t from;
	char text[16];
	end_open(&a, TAG_CAPS);
	end_open(&b, TAG_CAPS);
	CHECK_EQ(knows(&a, &a), 0);
	CHECK_EQ(knows(&a, &b), 1);
	CHECK_EQ(knows(&b, &a), 0);
	OK(fi_trecv(b.ep, text, sizeof text, NULL, 0, 0x100, 0xff, &b));
	OK(fi_tinjectdata(a.ep, "data", 5, 99, 1, 0x1ab));
	OK(fi_tsend(a.ep, "wrong", 6, NULL, 1, 0x200, &a));
	done = next(&b, &a, &from);
	CHECK(done && done->op_context == &b && done->len == 5 && done->tag == 0x1ab && done->data == 99);
	CHECK_EQ(done->flags, FI_TAGGED | FI_RECV | FI_REMOTE_CQ_DATA);
	CHECK_EQ(from, 0);
	done = next(&a, &b, &from);
	CHECK(done && done->op_context == &a && from == FI_ADDR_NOTAVAIL);
	CHECK_EQ(done->flags, FI_TAGGED | FI_SEND);
	/* To oneself. */
	OK(fi_trecv(a.ep, text, sizeof text, NULL, 0, 7, 0, &b));
	OK(fi_tinject(a.ep, "self", 5, 0, 7));
	done = next(&a, &a, &from);
	CHECK(done && done->op_context == &b && from == 0 && strcmp(text, "self") == 0);
	end_close(&a);
	end_close(&b);
}

/* Looks, claims, receives what is claimed, drops. */
TEST(peeks_and_claims)
{
	struct end a, b;
	struct fi_context claim;
	struct fi_cq_err_entry error;
	struct fi_cq_tagged_entry *done;
	char text[16];
	struct iovec iov = {text, sizeof text};
	struct fi_msg_tagged look = {.addr = FI_ADDR_UNSPEC, .tag = 3, .context = &claim};
	struct fi_msg_tagged take = {.msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .tag = 3, .context = &claim};
	end_open(&a, TAG_CAPS);
	end_open(&b, TAG_CAPS);
	CHECK_EQ(knows(&a, &b), 0);
	OK(fi_trecvmsg(b.ep, &look, FI_PEEK));
	CHECK(next(&b, &a, NULL) == NULL);
	failed(&b, FI_ENOMSG, &error);
	CHECK_EQ(error.tag, 3);
	OK(fi_tsend(a.ep, "first", 6, NULL, 0, 3, &a));
	OK(fi_tsend(a.ep, "second", 7, NULL, 0, 3, &a));
	CHECK(next(&a, &b, NULL) && next(&a, &b, NULL));
	for (bool came = false; !came;) {
		OK(fi_trecvmsg(b.ep, &look, FI_PEEK | FI_CLAIM));
		done = next(&b, &a, NULL);
		came = done != NULL;
		if (came)
			CHECK(done->len == 6 && done->tag == 3);
		else
			failed(&b, FI_ENOMSG, NULL);
	}
	/* Claimed is out of others' sight. */
	OK(fi_trecv(b.ep, text, sizeof text, NULL, FI_ADDR_UNSPEC, 3, 0, &b));
	done = next(&b, &a, NULL);
	CHECK(done && done->op_context == &b && strcmp(text, "second") == 0);
	OK(fi_trecvmsg(b.ep, &take, FI_CLAIM));
	done = next(&b, &a, NULL);
	CHECK(done && done->op_context == &claim && strcmp(text, "first") == 0);
	OK(fi_tsend(a.ep, "third", 6, NULL, 0, 3, &a));
	for (bool came = false; !came;) {
		OK(fi_trecvmsg(b.ep, &look, FI_PEEK | FI_DISCARD));
		came = next(&b, &a, NULL) != NULL;
		if (!came)
			failed(&b, FI_ENOMSG, NULL);
	}
	OK(fi_trecvmsg(b.ep, &look, FI_PEEK));
	CHECK(next(&b, &a, NULL) == NULL);
	failed(&b, FI_ENOMSG, NULL);
	end_close(&a);
	end_close(&b);
}

/* Too long, and taken back. */
TEST(cut_off_and_cancelled)
{
	struct end a, b;
	struct fi_cq_err_entry error;
	char text[4];
	end_open(&a, TAG_CAPS);
	end_open(&b, TAG_CAPS);
	CHECK_EQ(knows(&a, &b), 0);
	OK(fi_trecv(b.ep, text, sizeof text, NULL, FI_ADDR_UNSPEC, 1, 0, &b));
	OK(fi_tsend(a.ep, "longer", 7, NULL, 0, 1, &a));
	CHECK(next(&b, &a, NULL) == NULL);
	failed(&b, FI_ETRUNC, &error);
	CHECK(error.op_context == &b && error.len == 4 && error.olen == 3 && error.tag == 1);
	CHECK(next(&a, &b, NULL) != NULL);
	OK(fi_trecv(b.ep, text, sizeof text, NULL, FI_ADDR_UNSPEC, 1, 0, &b));
	OK(fi_cancel(&b.ep->fid, &b));
	CHECK(next(&b, &a, NULL) == NULL);
	failed(&b, FI_ECANCELED, &error);
	CHECK(error.op_context == &b);
	CHECK_EQ(fi_cancel(&b.ep->fid, &b), -FI_ENOENT);
	end_close(&a);
	end_close(&b);
}

/* One buffer for many messages, by a flag of the call's, or of the endpoint's. */
static void multi(const void *arg)
{
	const bool by_default = arg != NULL;
	static char room[4096];
	struct end a, b;
	struct fi_info *hints = rdm_hints(FI_MSG | FI_MULTI_RECV);
	size_t least = 1000, len = sizeof least;
	struct iovec iov = {room, sizeof room};
	struct fi_msg msg = {.msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = &b};
	char *at = room;
	hints->rx_attr->op_flags = by_default ? FI_MULTI_RECV : 0;
	end_open_with(&b, hints, FI_AV_TABLE, 0);
	hints->rx_attr->op_flags = 0;
	end_open_with(&a, hints, FI_AV_TABLE, 0);
	fi_freeinfo(hints);
	CHECK_EQ(knows(&a, &b), 0);
	OK(fi_setopt(&b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, len));
	least = 0;
	OK(fi_getopt(&b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, &len));
	CHECK_EQ(least, 1000);
	if (by_default)
		OK(fi_recv(b.ep, room, sizeof room, NULL, FI_ADDR_UNSPEC, &b));
	else
		OK(fi_recvmsg(b.ep, &msg, FI_MULTI_RECV));
	for (int i = 0; i < 4; i++) {
		char out[900];
		memset(out, 'a' + i, sizeof out);
		OK(fi_send(a.ep, out, sizeof out, NULL, 0, &a));
		struct fi_cq_tagged_entry *done = next(&b, &a, NULL);
		CHECK(done && done->op_context == &b && done->len == 900);
		CHECK((char *)done->buf >= at && (char *)done->buf + 900 <= room + sizeof room);
		CHECK(memcmp(done->buf, out, sizeof out) == 0);
		at = (char *)done->buf + 900;
		CHECK_EQ(done->flags & FI_MULTI_RECV, room + sizeof room - at < 1000 ? FI_MULTI_RECV : 0);
		CHECK(next(&a, &b, NULL) != NULL);
	}
	end_close(&a);
	end_close(&b);
}

TEST(many_messages_in_one_buffer)
{
	multi(NULL);
}

TEST(many_messages_by_default)
{
	multi("");
}

/* Entries only for whom they are asked: receives by the endpoint's flags, as Open MPI has it. */
TEST(selective_entries)
{
	struct end a, b;
	struct fi_info *hints = rdm_hints(FI_TAGGED | FI_MSG);
	char text[2][8];
	hints->tx_attr->op_flags = hints->rx_attr->op_flags = FI_COMPLETION;
	end_open_with(&b, hints, FI_AV_MAP, FI_SELECTIVE_COMPLETION);
	hints->tx_attr->op_flags = 0;
	end_open_with(&a, hints, FI_AV_MAP, FI_SELECTIVE_COMPLETION);
	fi_freeinfo(hints);
	CHECK_EQ(knows(&a, &b), 0);
	OK(fi_trecv(b.ep, text[0], 8, NULL, FI_ADDR_UNSPEC, 1, 0, text[0]));
	OK(fi_recv(b.ep, text[1], 8, NULL, FI_ADDR_UNSPEC, text[1]));
	OK(fi_tsend(a.ep, "one", 4, NULL, 0, 1, &a));
	CHECK(next(&b, &a, NULL)->op_context == text[0]);
	OK(fi_send(a.ep, "two", 4, NULL, 0, &a));
	CHECK(next(&b, &a, NULL)->op_context == text[1]);
	CHECK_EQ(fi_cq_read(a.cq, text, 1), -FI_EAGAIN);
	end_close(&a);
	end_close(&b);
}

/* RMA, and counters of it. */
TEST(writes_and_reads_with_counters)
{
	struct end a, b;
	struct fid_cntr *cntr;
	struct fid_mr *mr;
	struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP};
	static char target[4096];
	char text[8] = "", back[8] = "";
	struct fi_cq_tagged_entry *done;
	struct fi_info *hints = rdm_hints(FI_MSG | FI_RMA);
	end_open(&b, FI_MSG | FI_RMA);
	end_open_with(&a, hints, FI_AV_TABLE, 0);
	fi_freeinfo(hints);
	CHECK_EQ(knows(&a, &b), 0);
	OK(fi_mr_reg(b.domain, target, sizeof target, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, FI_RMA_EVENT, &mr, NULL));
	OK(fi_cntr_open(b.domain, &attr, &cntr, NULL));
	OK(fi_mr_bind(mr, &cntr->fid, FI_REMOTE_WRITE));
	OK(fi_mr_enable(mr));
	strcpy(text, "hello");
	OK(fi_write(a.ep, text, 6, NULL, 0, (uintptr_t)target, fi_mr_key(mr), &a));
	done = next(&a, &b, NULL);
	CHECK(done && done->op_context == &a && done->flags == (FI_RMA | FI_WRITE));
	OK(fi_read(a.ep, back, 6, NULL, 0, (uintptr_t)target, fi_mr_key(mr), &b));
	done = next(&a, &b, NULL);
	CHECK(done && done->op_context == &b && strcmp(back, "hello") == 0);
	OK(fi_inject_writedata(a.ep, text, 6, 17, 0, (uintptr_t)target, fi_mr_key(mr)));
	done = next(&b, &a, NULL);
	CHECK(done && done->data == 17 && done->flags & FI_REMOTE_WRITE);
	for (uint64_t until = test_now_ms() + 10000; fi_cntr_read(cntr) < 2 && test_now_ms() < until;)
		fi_cq_read(a.cq, NULL, 0);
	CHECK_EQ(fi_cntr_read(cntr), 2);
	CLOSE(mr);
	CLOSE(cntr);
	end_close(&a);
	end_close(&b);
}

TEST(what_there_is_not)
{
	struct end a;
	struct fid_ep *ep = NULL;
	struct fid_av *av = NULL;
	struct fi_av_attr named = {.name = "name"}, many = {.rx_ctx_bits = 2}, late = {.flags = FI_EVENT};
	size_t count = 0;
	uint64_t one = 1;
	end_open(&a, TAG_CAPS);
	CHECK_EQ(knows(&a, &a), 0);
	CHECK_EQ(fi_av_open(a.domain, &named, &av, NULL), -FI_ENOSYS);
	CHECK_EQ(fi_av_open(a.domain, &many, &av, NULL), -FI_ENOSYS);
	CHECK_EQ(fi_av_open(a.domain, &late, &av, NULL), -FI_ENOSYS);
	CHECK_EQ(fi_scalable_ep(a.domain, a.info, &ep, NULL), -FI_ENOSYS);
	CHECK_EQ(fi_connect(a.ep, a.name, NULL, 0), -FI_ENOSYS);
	CHECK_EQ(fi_atomic(a.ep, &one, 1, NULL, 0, 0, 0, FI_UINT64, FI_SUM, NULL), -FI_ENOSYS);
	CHECK_EQ(fi_atomicvalid(a.ep, FI_UINT64, FI_SUM, &count), -FI_EOPNOTSUPP);
	/* An index that names nobody. */
	CHECK_EQ(fi_tsend(a.ep, &one, 8, NULL, 77, 0, NULL), -FI_EINVAL);
	/* An endpoint without its vector, and objects in use. */
	OK(fi_endpoint(a.domain, a.info, &ep, NULL));
	OK(fi_ep_bind(ep, &a.cq->fid, FI_TRANSMIT | FI_RECV));
	CHECK(fi_enable(ep) < 0);
	CLOSE(ep);
	CHECK_EQ(fi_close(&a.av->fid), -FI_EBUSY);
	end_close(&a);
}
