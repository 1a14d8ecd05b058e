/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* libfabric's ofi_rxm on top of the provider. Its thread sleeps on an event queue's descriptor, it passes on memory
 * that it has not accessed, and layers above it may drop an errno. */
#include "fi.h"

struct layer {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_ep *ep;
	struct fid_cq *cq;
	struct fid_av *av;
	fi_addr_t self;
};

static void layer_open(struct layer *l, enum fi_progress progress)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_UNSPEC};
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
	char name[128];
	size_t len = sizeof name;
	snprintf(name, sizeof name, "%s;ofi_rxm", fi_provider());
	/* A process sees only the providers that its environment names at the first call. */
	unsetenv("FI_PROVIDER");
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_MSG;
	hints->domain_attr->mr_mode = ~(FI_MR_BASIC | FI_MR_SCALABLE | FI_MR_LOCAL);
	hints->domain_attr->data_progress = progress;
	hints->fabric_attr->prov_name = strdup(name);
	int rc = fi_getinfo(FI_VERSION(1, 15), node_name() ? node_name() : "127.0.0.1", NULL, FI_SOURCE, hints, &l->info);
	skip_unless(rc == 0, "no ofi_rxm on top of it here");
	OK(fi_fabric(l->info->fabric_attr, &l->fabric, NULL));
	OK(fi_domain(l->fabric, l->info, &l->domain, NULL));
	OK(fi_endpoint(l->domain, l->info, &l->ep, NULL));
	OK(fi_cq_open(l->domain, &cq_attr, &l->cq, NULL));
	OK(fi_av_open(l->domain, &av_attr, &l->av, NULL));
	OK(fi_ep_bind(l->ep, &l->cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_ep_bind(l->ep, &l->av->fid, 0));
	OK(fi_enable(l->ep));
	OK(fi_getname(&l->ep->fid, name, &len));
	CHECK_EQ(fi_av_insert(l->av, name, 1, &l->self, 0, NULL), 1);
	fi_freeinfo(hints);
}

static void layer_close(struct layer *l)
{
	CLOSE(l->ep);
	CLOSE(l->av);
	CLOSE(l->cq);
	CLOSE(l->domain);
	CLOSE(l->fabric);
	fi_freeinfo(l->info);
}

/* Its thread sleeps on the event queue's descriptor, and is woken at the end by an event that the layer itself
 * writes. */
static void sleeps(const void *arg)
{
	static char from[16], to[16];
	for (int round = 0; round < test_count(20, 5); round++) {
		struct layer l;
		layer_open(&l, *(const enum fi_progress *)arg);
		for (int i = 0; i < 20; i++) {
			struct fi_cq_data_entry entry;
			uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
			ssize_t sent = -FI_EAGAIN;
			from[0] = (char)(i + 1);
			OK(fi_recv(l.ep, to, sizeof to, NULL, l.self, NULL));
			for (int ended = 0; ended < 2;) {
				if (test_now_ms() > until)
					test_fail(__FILE__, __LINE__, "round %d, message %d has not come", round, i);
				if (sent == -FI_EAGAIN)
					sent = fi_send(l.ep, from, sizeof from, NULL, l.self, NULL);
				CHECK(sent == 0 || sent == -FI_EAGAIN);
				ssize_t got = fi_cq_sread(l.cq, &entry, 1, NULL, sent == 0 ? 1000 : 1);
				CHECK(got == 1 || got == -FI_EAGAIN || got == -FI_EINTR);
				ended += got == 1;
			}
			CHECK_EQ(to[0], i + 1);
		}
		uint64_t before = test_now_ms();
		layer_close(&l);
		CHECK(test_now_ms() - before < (uint64_t)test_ms(3000));
	}
}

/* --- errors that layers drop --- */

/* If the memory after a layer's header cannot be read, there is an error entry, which each kind of reading finds.
 * Nothing else changes. */
static void unreadable_sender(struct node *n)
{
	static char head[8] = "a head", text[128];
	struct failure f;
	done entry;
	void *descs[3] = {NULL};
	node_up(n);
	struct fid *fids[] = {&n->cq->fid};
	void *desc = local_desc(n, head, sizeof head);
	descs[0] = descs[1] = descs[2] = desc;
	for (int i = 0; i < 4; i++) {
		struct iovec iov[] = {{head, 8}, {NULL, 8}, {NULL, 0}};
		OK(fi_sendv(n->ep, iov, desc ? descs : NULL, 2 + i % 2, 0, text + i));
		if (i == 0)
			CHECK_EQ(fi_cq_read(n->cq, &entry, 1), -FI_EAVAIL);
		if (i == 1)
			CHECK_EQ(fi_cq_sread(n->cq, &entry, 1, NULL, -1), -FI_EAVAIL);
		if (i == 2)
			CHECK_EQ(fi_trywait(n->fabric, fids, 1), -FI_EAGAIN);
		FAILED(n->cq, text + i, FI_EFAULT, &f);
		CHECK_EQ(f.entry.flags, FI_SEND | FI_MSG);
		CHECK(strstr(f.words, "iov[1]") != NULL);
		QUIET(n->cq, 1);
		/* A signal that ended no wait may end the next one early. */
		POST(n->cq, fi_send(n->ep, head, 8, desc, 0, head));
		DONE(n->cq, head, FI_SEND | FI_MSG, NULL);
	}
	/* Memory that no layer has put there is refused at once, like all other wrong arguments. */
	CHECK(fi_send(n->ep, NULL, 8, desc, 0, NULL) < 0);
	/* The entries need not be read before the endpoint is closed. */
	struct iovec iov[] = {{head, 8}, {NULL, 8}};
	OK(fi_sendv(n->ep, iov, desc ? descs : NULL, 2, 0, text));
	node_down(n);
}

static void unreadable_receiver(struct node *n)
{
	static char room[4][16];
	node_up(n);
	for (int i = 0; i < 4; i++)
		POST(n->cq, fi_recv(n->ep, room[i], 16, local_desc(n, room, sizeof room), 0, room[i]));
	for (int i = 0; i < 4; i++) {
		done entry;
		DONE(n->cq, room[i], FI_RECV | FI_MSG, &entry);
		CHECK_EQ(entry.len, 8);
	}
	node_down(n);
}

TEST(memory_that_cannot_be_read)
{
	static const struct setup setup = {.cq_wait = FI_WAIT_FD};
	skip_unless(is_gdrfab(), "reads it");
	pair(&setup, unreadable_receiver, unreadable_sender, NULL);
}

TEST_TABLE(layer)
{
	static const enum fi_progress ways[] = {FI_PROGRESS_MANUAL, FI_PROGRESS_AUTO};
	test_add("sleeps_through_a_layer", sleeps, &ways[0], 60);
	test_add("sleeps_through_a_layer_with_its_thread", sleeps, &ways[1], 60);
}
