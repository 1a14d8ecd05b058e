/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Connecting: accept, reject, private data, addresses, and requests that are not answered as they should be. */
#include "fi.h"

static size_t cm_data_size(fid_t fid)
{
	size_t most = 0, size = sizeof most;
	OK(fi_getopt(fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &most, &size));
	CHECK_EQ(size, sizeof most);
	CHECK(most >= 24 && most <= DATA_MAX); /* ofi_rxm needs as much */
	return most;
}

/* Sizes of private data: none, little, more, and as much as there is room for. */
static size_t data_size(size_t most, uint32_t i)
{
	static const size_t sizes[] = {0, 1, 17};
	return i < 3 ? sizes[i] : most;
}

/* A connection request's info has all that is needed to answer it. */
static void check_request(const struct node *n, const struct fi_info *r)
{
	CHECK(r->handle != NULL && r->handle->fclass == FI_CLASS_CONNREQ);
	CHECK(r->tx_attr && r->rx_attr && r->ep_attr && r->domain_attr && r->fabric_attr);
	CHECK_EQ(r->ep_attr->type, FI_EP_MSG);
	CHECK_EQ(r->addr_format, n->info->addr_format);
	CHECK_EQ(r->caps & (FI_MSG | FI_RMA), n->info->caps & (FI_MSG | FI_RMA));
	CHECK_EQ(r->mode, n->info->mode);
	CHECK_EQ(r->domain_attr->mr_mode, n->info->domain_attr->mr_mode);
	CHECK_EQ(strcmp(r->fabric_attr->name, n->info->fabric_attr->name), 0);
	CHECK_EQ(strcmp(r->domain_attr->name, n->info->domain_attr->name), 0);
	CHECK_EQ(strcmp(r->fabric_attr->prov_name, fi_provider()), 0);
	CHECK_EQ(r->fabric_attr->api_version, n->info->fabric_attr->api_version);
	CHECK_EQ(r->tx_attr->size, n->info->tx_attr->size);
	CHECK_EQ(r->rx_attr->size, n->info->rx_attr->size);
	if (is_gdrfab())
		CHECK(r->dest_addr != NULL && r->dest_addrlen > 0);
	struct fi_info *copy = fi_dupinfo(r);
	CHECK(copy->handle == r->handle);
	fi_freeinfo(copy);
}

/* --- accept and reject, with data both ways --- */

static void accepting(struct node *n)
{
	unsigned char data[DATA_MAX];
	struct event e;
	node_open(n);
	size_t most = cm_data_size(&n->pep->fid);
	barrier(n);
	for (uint32_t i = 0; i < 4; i++) {
		EVENT(n, FI_CONNREQ, n->pep, &e);
		check_request(n, e.info);
		CHECK_EQ(e.data_len, data_size(most, i));
		CHECK_FILLED("the data of connect", e.data, e.data_len, 0, i);
		struct fid_ep *ep = ep_new(n, e.info, &e);
		fill(data, sizeof data, 0, 100 + i);
		OK(fi_accept(ep, data, data_size(most, 3 - i)));
		EVENT(n, FI_CONNECTED, ep, NULL);
		barrier(n);
		CLOSE(ep);
		fi_freeinfo(e.info);
		barrier(n);
	}
	node_down(n);
}

static void connecting(struct node *n)
{
	unsigned char data[DATA_MAX + 1];
	struct event e;
	size_t most = 0;
	node_open(n);
	barrier(n);
	for (uint32_t i = 0; i < 4; i++) {
		struct fid_ep *ep = ep_new(n, n->info, &e);
		most = cm_data_size(&ep->fid);
		fill(data, sizeof data, 0, i);
		OK(fi_connect(ep, n->info->dest_addr, data, data_size(most, i)));
		memset(data, 0, sizeof data);
		EVENT(n, FI_CONNECTED, ep, &e);
		CHECK_EQ(e.data_len, data_size(most, 3 - i));
		CHECK_FILLED("the data of accept", e.data, e.data_len, 0, 100 + i);
		barrier(n);
		CLOSE(ep);
		barrier(n);
		/* The other side has closed too, but this side's endpoint no longer exists: no event may name it. */
		EQ_QUIET(n, 0);
	}
	/* More data than fits is refused before anything is sent. */
	struct fid_ep *ep = ep_new(n, n->info, NULL);
	int rc = fi_connect(ep, n->info->dest_addr, data, most + 1);
	CHECK_EQ(rc, -FI_EINVAL);
	CLOSE(ep);
	node_down(n);
}

TEST(accept_with_data)
{
	pair(NULL, accepting, connecting, NULL);
}

/* A peer that computes before it answers is late, not lost: the call waits for it. */
TEST_WITHIN(60, accept_that_is_late)
{
	struct node n;
	skip_unless(!test_count(0, 1), "waits 11 s");
	node_alone(&n, NULL);
	n.ep = ep_new(&n, n.info, NULL);
	OK(fi_connect(n.ep, n.addr, NULL, 0));
	struct fi_info *request = await_request(&n, n.pep);
	EQ_QUIET(&n, 11000);
	struct fid_ep *ep = ep_new(&n, request, NULL);
	OK(fi_accept(ep, NULL, 0));
	EVENT(&n, FI_CONNECTED, is_gdrfab() ? n.ep : ep, NULL);
	EVENT(&n, FI_CONNECTED, is_gdrfab() ? ep : n.ep, NULL);
	fi_freeinfo(request);
	CLOSE(ep);
	node_close(&n);
}

static void rejecting(struct node *n)
{
	unsigned char data[DATA_MAX];
	node_open(n);
	size_t most = cm_data_size(&n->pep->fid);
	barrier(n);
	for (uint32_t i = 0; i < 4; i++) {
		struct fi_info *request = await_request(n, n->pep);
		fill(data, sizeof data, 0, 200 + i);
		OK(fi_reject(n->pep, request->handle, data, data_size(most, i)));
		fi_freeinfo(request);
		barrier(n);
	}
	node_down(n);
}

static void rejected(struct node *n)
{
	char byte = 'x';
	node_open(n);
	barrier(n);
	for (uint32_t i = 0; i < 4; i++) {
		struct eq_failure f;
		struct fid_ep *ep = ep_new(n, n->info, n);
		size_t most = cm_data_size(&ep->fid);
		OK(fi_connect(ep, n->info->dest_addr, "please", 6));
		EQ_FAILED(n, ep, FI_ECONNREFUSED, 10000, &f);
		CHECK(f.entry.context == n || !is_gdrfab());
		CHECK_EQ(f.entry.err_data_size, data_size(most, i));
		CHECK_FILLED("the data of reject", f.data, data_size(most, i), 0, 200 + i);
		if (is_gdrfab()) {
			CHECK(f.words[0] != 0);
			/* A rejected endpoint is not connected. */
			CHECK(fi_send(ep, &byte, 1, local_desc(n, &byte, 1), 0, NULL) < 0);
		}
		local_forget_all(n);
		CLOSE(ep);
		barrier(n);
	}
	node_down(n);
}

TEST(reject_with_data)
{
	pair(NULL, rejecting, rejected, NULL);
}

/* A caller without a buffer gets err_data in the provider's own memory. */
static void rejected_without_room(struct node *n)
{
	struct fi_eq_err_entry e;
	uint32_t event;
	unsigned char room[256];
	ssize_t got;
	node_open(n);
	barrier(n);
	for (uint32_t i = 0; i < 4; i++) {
		struct fid_ep *ep = ep_new(n, n->info, n);
		size_t most = cm_data_size(&ep->fid), size = data_size(most, i);
		OK(fi_connect(ep, n->info->dest_addr, NULL, 0));
		while ((got = fi_eq_sread(n->eq, &event, room, sizeof room, test_ms(10000), 0)) == -FI_EINTR)
			;
		CHECK_EQ(got, -FI_EAVAIL);
		memset(&e, 0, sizeof e);
		memset(room, 0x5a, sizeof room);
		/* The last one has too small a buffer, and gets as much as fits. */
		if (i == 3) {
			e.err_data = room;
			e.err_data_size = 10;
		}
		CHECK_EQ(fi_eq_readerr(n->eq, &e, 0), (ssize_t)sizeof e);
		CHECK_EQ(e.err, FI_ECONNREFUSED);
		CHECK_EQ(e.err_data_size, i == 3 ? 10 : size);
		if (i == 3)
			CHECK(room[10] == 0x5a && e.err_data == room);
		CHECK_FILLED("the data of reject", e.err_data, e.err_data_size, 0, 200 + i);
		CLOSE(ep);
		barrier(n);
	}
	node_down(n);
}

TEST(reject_without_room)
{
	skip_unless(is_gdrfab(), "keeps the data in another way");
	pair(NULL, rejecting, rejected_without_room, NULL);
}

/* --- no listener --- */

TEST(nobody_listens)
{
	struct eq_failure f;
	struct node n;
	node_alone(&n, NULL);
	/* At an address where nothing listens any more. */
	CLOSE(n.pep);
	n.pep = NULL;
	for (int i = 0; i < 3; i++) {
		n.ep = ep_new(&n, n.info, &n);
		OK(fi_connect(n.ep, n.addr, NULL, 0));
		EQ_FAILED(&n, n.ep, FI_ECONNREFUSED, 5000, &f);
		if (is_gdrfab()) {
			CHECK(f.entry.context == &n);
			CHECK(f.words[0] != 0);
		}
		CLOSE(n.ep);
		n.ep = NULL;
	}
	node_close(&n);
}

/* --- names --- */

static void check_name(fid_t fid, int (*get)(fid_t, void *, size_t *), const void *want, size_t want_len)
{
	unsigned char name[ADDR_MAX];
	size_t len = sizeof name;
	OK(get(fid, name, &len));
	CHECK(len > 0 && len <= sizeof name);
	if (want) {
		CHECK_EQ(len, want_len);
		CHECK_EQ(memcmp(name, want, len), 0);
	}
	/* Too small a buffer: the needed length is returned, and no byte beyond the buffer is written. */
	size_t needed = len;
	memset(name, 0x5a, sizeof name);
	len = 4;
	CHECK_EQ(get(fid, name, &len), -FI_ETOOSMALL);
	CHECK_EQ(len, needed);
	CHECK_EQ(name[4], 0x5a);
	len = 0;
	CHECK_EQ(get(fid, is_gdrfab() ? NULL : name, &len), -FI_ETOOSMALL);
	CHECK_EQ(len, needed);
}

static int get_peer(fid_t fid, void *addr, size_t *len)
{
	return fi_getpeer((struct fid_ep *)fid, addr, len);
}

static void named(struct node *n)
{
	unsigned char name[ADDR_MAX];
	size_t len = sizeof name;
	node_up(n);
	if (n->pep)
		check_name(&n->pep->fid, fi_getname, n->addr, n->addrlen);
	check_name(&n->ep->fid, fi_getname, NULL, 0);
	if (n->side == TEST_CLIENT && is_gdrfab()) {
		check_name(&n->ep->fid, get_peer, n->addr, n->addrlen);
	} else {
		check_name(&n->ep->fid, get_peer, NULL, 0);
	}
	/* Each side's own name is the name that its peer sees, except over shm, where the connecting side has no address. */
	OK(fi_getname(&n->ep->fid, name, &len));
	node_down(n);
}

TEST(names)
{
	pair(NULL, named, named, NULL);
}

/* A passive endpoint takes the address that it is given, and after it listens no other. */
TEST(setname)
{
	struct node n;
	unsigned char name[ADDR_MAX];
	size_t len = sizeof name;
	node_alone(&n, NULL);
	CLOSE(n.pep);
	n.pep = NULL;
	struct fid_pep *pep = NULL;
	OK(fi_passive_ep(n.fabric, n.info, &pep, NULL));
	OK(fi_pep_bind(pep, &n.eq->fid, 0));
	/* The address that was in use before. */
	OK(fi_setname(&pep->fid, n.addr, n.addrlen));
	OK(fi_listen(pep));
	OK(fi_getname(&pep->fid, name, &len));
	CHECK_EQ(len, n.addrlen);
	CHECK_EQ(memcmp(name, n.addr, len), 0);
	if (is_gdrfab()) {
		CHECK(fi_setname(&pep->fid, n.addr, n.addrlen) < 0);
		CHECK(fi_setname(&pep->fid, n.addr, 3) < 0);
		CHECK(fi_setname(&pep->fid, NULL, 0) < 0);
	}
	/* No other endpoint may have it. */
	struct fid_pep *second = NULL;
	OK(fi_passive_ep(n.fabric, n.info, &second, NULL));
	OK(fi_pep_bind(second, &n.eq->fid, 0));
	int rc = fi_setname(&second->fid, n.addr, n.addrlen);
	if (rc == 0)
		rc = fi_listen(second);
	CHECK_EQ(rc, -FI_EADDRINUSE);
	CLOSE(second);
	CLOSE(pep);
	node_close(&n);
}

/* --- requests that are not answered as they should be --- */

static void unanswering(struct node *n)
{
	node_open(n);
	barrier(n);
	struct fi_info *request = await_request(n, n->pep);
	/* The passive endpoint closes before it has answered. */
	CLOSE(n->pep);
	n->pep = NULL;
	barrier(n);
	fi_freeinfo(request);
	node_down(n);
}

static void unanswered(struct node *n)
{
	struct eq_failure f;
	node_open(n);
	barrier(n);
	struct fid_ep *ep = ep_new(n, n->info, n);
	OK(fi_connect(ep, n->info->dest_addr, NULL, 0));
	barrier(n);
	if (is_gdrfab())
		EQ_FAILED(n, ep, FI_ECONNREFUSED, 5000, &f);
	CLOSE(ep);
	node_down(n);
}

TEST(listener_closes_with_a_request)
{
	pair(NULL, unanswering, unanswered, NULL);
}

static void twice(struct node *n)
{
	node_open(n);
	barrier(n);
	struct fi_info *request = await_request(n, n->pep);
	OK(fi_reject(n->pep, request->handle, NULL, 0));
	/* An answered request is refused when used again, for an answer and for opening an endpoint. */
	CHECK(fi_reject(n->pep, request->handle, NULL, 0) < 0);
	struct fid_ep *ep = NULL;
	int rc = fi_endpoint(n->domain, request, &ep, NULL);
	if (rc == 0) {
		OK(fi_ep_bind(ep, &n->eq->fid, 0));
		OK(fi_ep_bind(ep, &n->cq->fid, FI_TRANSMIT | FI_RECV));
		rc = fi_enable(ep);
		if (rc == 0)
			rc = fi_accept(ep, NULL, 0);
		CLOSE(ep);
	}
	CHECK(rc < 0);
	fi_freeinfo(request);
	/* The same with an accepted request. */
	request = await_request(n, n->pep);
	/* Another listener does not have this request; asking it does not lose the request. */
	struct fid_pep *other = NULL;
	OK(fi_passive_ep(n->fabric, n->info, &other, NULL));
	CHECK(fi_reject(other, request->handle, NULL, 0) < 0);
	CLOSE(other);
	n->ep = ep_new(n, request, n);
	OK(fi_accept(n->ep, NULL, 0));
	CHECK(fi_accept(n->ep, NULL, 0) < 0);
	EVENT(n, FI_CONNECTED, n->ep, NULL);
	CHECK(fi_reject(n->pep, request->handle, NULL, 0) < 0);
	CHECK(fi_accept(n->ep, NULL, 0) < 0);
	CHECK(fi_connect(n->ep, n->addr, NULL, 0) < 0);
	fi_freeinfo(request);
	EQ_QUIET(n, 20);
	node_down(n);
}

static void asking_twice(struct node *n)
{
	node_open(n);
	barrier(n);
	n->ep = ep_new(n, n->info, n);
	OK(fi_connect(n->ep, n->info->dest_addr, NULL, 0));
	EQ_FAILED(n, n->ep, FI_ECONNREFUSED, 10000, NULL);
	CLOSE(n->ep);
	n->ep = ep_new(n, n->info, n);
	OK(fi_connect(n->ep, n->info->dest_addr, NULL, 0));
	EVENT(n, FI_CONNECTED, n->ep, NULL);
	CHECK(fi_connect(n->ep, n->info->dest_addr, NULL, 0) < 0);
	EQ_QUIET(n, 20);
	node_down(n);
}

TEST(answered_twice)
{
	skip_unless(is_gdrfab(), "trusts its caller");
	pair(NULL, twice, asking_twice, NULL);
}

/* --- an address that a connecting endpoint takes over from a passive one --- */

static void called(struct node *n)
{
	unsigned char from[ADDR_MAX], peer[ADDR_MAX];
	size_t len = 0, peer_len = sizeof peer;
	node_open(n);
	oob_recv(n, &len, sizeof len);
	oob_recv(n, from, len);
	struct fi_info *request = await_request(n, n->pep);
	CHECK(request->dest_addrlen == len && memcmp(request->dest_addr, from, len) == 0);
	n->ep = ep_new(n, request, NULL);
	fi_freeinfo(request);
	OK(fi_accept(n->ep, NULL, 0));
	EVENT(n, FI_CONNECTED, n->ep, NULL);
	OK(fi_getpeer(n->ep, peer, &peer_len));
	CHECK(peer_len == len && memcmp(peer, from, len) == 0);
	/* An accepted endpoint has its listener's address. */
	peer_len = sizeof peer;
	OK(fi_getname(&n->ep->fid, peer, &peer_len));
	CHECK(peer_len == n->addrlen && memcmp(peer, n->addr, peer_len) == 0);
	node_down(n);
}

static void calls_from(struct node *n)
{
	unsigned char name[ADDR_MAX];
	size_t len = sizeof name;
	struct fi_info *hints = hints_new(n->setup), *own, *info;
	struct fid_pep *pep;
	struct fid_ep *second;
	node_open(n);
	hints->addr_format = n->format;
	OK(provider_getinfo(node_name(), NULL, FI_SOURCE, hints, &own));
	OK(fi_passive_ep(n->fabric, own, &pep, NULL));
	OK(fi_getname(&pep->fid, name, &len));
	oob_send(n, &len, sizeof len);
	oob_send(n, name, len);
	hints->handle = &pep->fid;
	hints->dest_addr = malloc(n->addrlen);
	hints->dest_addrlen = n->addrlen;
	memcpy(hints->dest_addr, n->addr, n->addrlen);
	OK(provider_getinfo(NULL, NULL, 0, hints, &info));
	CHECK(info->handle == &pep->fid);
	n->ep = ep_new(n, info, NULL);
	if (is_gdrfab()) {
		/* It has one address to give, and cannot listen after that. */
		CHECK(fi_endpoint(n->domain, info, &second, NULL) < 0);
		CHECK(fi_listen(pep) < 0);
		CHECK(fi_getname(&pep->fid, name, &len) < 0);
	}
	CLOSE(pep);
	/* The object is closed. */
	if (is_gdrfab())
		CHECK(fi_endpoint(n->domain, info, &second, NULL) < 0);
	check_name(&n->ep->fid, fi_getname, name, len);
	OK(fi_connect(n->ep, n->addr, NULL, 0));
	EVENT(n, FI_CONNECTED, n->ep, NULL);
	check_name(&n->ep->fid, fi_getname, name, len);
	fi_freeinfo(info);
	fi_freeinfo(own);
	fi_freeinfo(hints);
	node_down(n);
}

TEST(address_of_a_passive_endpoint)
{
	skip_unless(!is_carried_by("shm") && !is_carried_by("verbs"), "connects from no address");
	pair(NULL, called, calls_from, NULL);
}

/* A provider without such addresses reports that, and the passive endpoint stays as it was. */
TEST(address_that_is_not_given)
{
	struct node n;
	struct fid_ep *ep;
	skip_unless(is_gdrfab(), "trusts its caller");
	node_alone(&n, NULL);
	struct fi_info *info = fi_dupinfo(n.info);
	info->handle = &n.pep->fid;
	CHECK(fi_endpoint(n.domain, info, &ep, NULL) < 0);
	CHECK(fi_getname(&n.pep->fid, n.addr, &n.addrlen) == 0);
	info->handle = &n.cq->fid;
	CHECK(fi_endpoint(n.domain, info, &ep, NULL) < 0);
	fi_freeinfo(info);
	node_close(&n);
}
