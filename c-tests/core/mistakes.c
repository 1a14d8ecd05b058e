/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Common mistakes of programs: the info of another provider, a close too early, empty hints, the connection request of
 * another endpoint, a peer that has gone, a misspelt variable. Each is reported at once, with a text that names the mistake.
 */
#include "misuse.h"

#include <poll.h>

/* The text names both providers. */
#define NAMES_BOTH(call, err, one, other)                                                                              \
	do {                                                                                                           \
		MISUSE(call, err, one);                                                                                \
		if (!names(gdrfab_last_error(), other))                                                                \
			test_wrong(__FILE__, __LINE__, "%s: the words do not name \"%s\": %s", #call, other, gdrfab_last_error()); \
	} while (0)

/* An info of another provider than the one under test, connected or connectionless. */
static gdrfab_info *foreign_info(uint32_t ep_type)
{
	static char shm[] = "shm", tcp[] = "tcp";
	gdrfab_info *hints = gdrfab_dupinfo(NULL), *info = NULL;
	CHECK(hints != NULL);
	hints->ep_type = ep_type;
	if (ep_type == GDRFAB_EP_MSG)
		hints->prov_name = strcmp(provider(), "shm") == 0 ? tcp : shm;
	OK(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, hints, &info));
	hints->prov_name = NULL;
	gdrfab_freeinfo(hints);
	return info;
}

TEST(an_info_of_another_provider_opens_nothing)
{
	static const uint32_t types[] = {GDRFAB_EP_MSG, GDRFAB_EP_RDM};
	struct node n;
	skip_if_connectionless();
	node_alone(&n, NULL);
	int fds = test_count_fds();
	for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
		gdrfab_info *other = foreign_info(types[i]);
		gdrfab_domain *domain = MARKER(gdrfab_domain);
		gdrfab_ep *ep = MARKER(gdrfab_ep);
		gdrfab_pep *pep = MARKER(gdrfab_pep);
		NAMES_BOTH(gdrfab_domain_open(n.fabric, other, NULL, &domain), -EINVAL, other->prov_name, provider());
		NAMES_BOTH(gdrfab_ep_open(n.domain, other, NULL, &ep), -EINVAL, other->prov_name, provider());
		NAMES_BOTH(gdrfab_pep_open(n.fabric, other, NULL, &pep), -EINVAL, other->prov_name, provider());
		CHECK(domain == MARKER(gdrfab_domain) && ep == MARKER(gdrfab_ep) && pep == MARKER(gdrfab_pep));
		gdrfab_freeinfo(other);
	}
	CHECK_EQ(test_count_fds(), fds);
	node_close(&n);
}

TEST(an_info_of_another_fabric_or_domain_opens_nothing)
{
	static char elsewhere[] = "elsewhere";
	struct node n;
	node_alone(&n, NULL);
	gdrfab_info *info = gdrfab_dupinfo(n.info);
	gdrfab_domain *domain = NULL;
	gdrfab_ep *ep = NULL;
	gdrfab_pep *pep = NULL;
	char *own = info->fabric_name;
	info->fabric_name = elsewhere;
	NAMES_BOTH(gdrfab_domain_open(n.fabric, info, NULL, &domain), -EINVAL, elsewhere, own);
	NAMES_BOTH(gdrfab_ep_open(n.domain, info, NULL, &ep), -EINVAL, elsewhere, own);
	if (!connectionless(n.setup))
		NAMES_BOTH(gdrfab_pep_open(n.fabric, info, NULL, &pep), -EINVAL, elsewhere, own);
	info->fabric_name = own;
	own = info->domain_name;
	info->domain_name = elsewhere;
	NAMES_BOTH(gdrfab_ep_open(n.domain, info, NULL, &ep), -EINVAL, elsewhere, own);
	info->domain_name = own;
	OK(gdrfab_ep_open(n.domain, info, NULL, &ep));
	OK(gdrfab_ep_close(ep));
	gdrfab_freeinfo(info);
	node_close(&n);
}

/* --- closing --- */

static void busy(const char *file, int line, int rc, const char *const *open)
{
	if (rc != -EBUSY)
		test_fail(file, line, "%s, not -EBUSY%s", test_number(rc), test_words(rc));
	for (; *open; open++)
		if (!test_says(gdrfab_last_error(), *open))
			test_wrong(file, line, "the words do not name \"%s\": %s", *open, gdrfab_last_error());
}
#define BUSY(call, ...) busy(__FILE__, __LINE__, call, (const char *const[]){__VA_ARGS__, NULL})

TEST(a_close_that_is_refused_names_what_is_open)
{
	static char bytes[64];
	struct node n;
	node_alone(&n, NULL);
	gdrfab_ep *ep[2] = {NULL, NULL};
	gdrfab_cntr *cntr = NULL;
	gdrfab_mr *mr = NULL;
	gdrfab_eq *eq = NULL;
	void *memory = NULL;
	OK(gdrfab_ep_open(n.domain, n.info, NULL, &ep[0]));
	OK(gdrfab_ep_open(n.domain, n.info, NULL, &ep[1]));
	OK(gdrfab_cntr_open(n.domain, NULL, NULL, &cntr));
	OK(gdrfab_mr_reg(n.domain, bytes, sizeof bytes, ANY_ACCESS, 0, 1, 0, NULL, &mr));
	OK(gdrfab_mem_alloc(n.domain, GDRFAB_HMEM_SYSTEM, 0, 4096, 0, &memory));
	OK(gdrfab_eq_open(n.fabric, NULL, NULL, &eq));
	BUSY(gdrfab_domain_close(n.domain), "2 endpoints", "1 completion queue", "1 counter", "1 region", "1 allocation");
	BUSY(gdrfab_fabric_close(n.fabric), "1 domain", "2 event queues");
	OK(gdrfab_ep_close(ep[0]));
	OK(gdrfab_ep_close(ep[1]));
	OK(gdrfab_cntr_close(cntr));
	BUSY(gdrfab_domain_close(n.domain), "1 region", "1 allocation");
	if (test_says(gdrfab_last_error(), "endpoint"))
		test_wrong(__FILE__, __LINE__, "none is open: %s", gdrfab_last_error());
	OK(gdrfab_mr_close(mr));
	OK(gdrfab_mem_free(n.domain, memory));
	OK(gdrfab_eq_close(eq));
	node_close(&n);
}

/* --- hints --- */

static gdrfab_info *found(const gdrfab_info *hints)
{
	gdrfab_info *info = NULL;
	OK(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, hints, &info));
	return info;
}

/* No hints, hints of zeros and empty hints give the same candidates. */
TEST(hints_of_zeros_are_no_hints)
{
	static char bytes[2][64];
	gdrfab_info zeros = {.struct_size = sizeof zeros}, *empty = gdrfab_dupinfo(NULL);
	gdrfab_info *lists[3] = {found(NULL), found(&zeros), found(empty)};
	for (int i = 1; i < 3; i++) {
		gdrfab_info *a = lists[0], *b = lists[i];
		for (; a && b; a = a->next, b = b->next) {
			char text[2][1024];
			CHECK(gdrfab_tostr(a, GDRFAB_TYPE_INFO, text[0], sizeof text[0]) > 0);
			CHECK(gdrfab_tostr(b, GDRFAB_TYPE_INFO, text[1], sizeof text[1]) > 0);
			if (strcmp(text[0], text[1]) != 0)
				test_fail(__FILE__, __LINE__, "without hints:\n%swith those of zeros:\n%s", text[0], text[1]);
		}
		CHECK(!a && !b);
	}
	gdrfab_info *mine = provider_pick(lists[1]);
	gdrfab_fabric *fabric = NULL;
	gdrfab_domain *domain = NULL;
	gdrfab_mr *mr[2] = {NULL, NULL};
	OK(gdrfab_fabric_open(mine, NULL, &fabric));
	OK(gdrfab_domain_open(fabric, mine, NULL, &domain));
	for (int i = 0; i < 2; i++)
		OK(gdrfab_mr_reg(domain, bytes[i], sizeof bytes[i], REMOTE_ACCESS, 0, 0, 0, NULL, &mr[i]));
	for (int i = 0; i < 2; i++)
		OK(gdrfab_mr_close(mr[i]));
	OK(gdrfab_domain_close(domain));
	OK(gdrfab_fabric_close(fabric));
	for (int i = 0; i < 3; i++)
		gdrfab_freeinfo(lists[i]);
	gdrfab_freeinfo(empty);
}

TEST(a_key_that_is_taken_is_the_callers_choice)
{
	static char bytes[2][64];
	struct setup setup = {.given_keys = true};
	struct node n;
	skip_unless(!traits()->adapter, "its device chooses the keys");
	node_alone(&n, &setup);
	gdrfab_mr *mr = NULL, *second = NULL;
	OK(gdrfab_mr_reg(n.domain, bytes[0], sizeof bytes[0], REMOTE_ACCESS, 0, 7, 0, NULL, &mr));
	MISUSE(gdrfab_mr_reg(n.domain, bytes[1], sizeof bytes[1], REMOTE_ACCESS, 0, 7, 0, NULL, &second), -GDRFAB_ENOKEY, "requested_key");
	if (!connectionless(n.setup) && !names(gdrfab_last_error(), "GDRFAB_MR_PROV_KEY"))
		test_wrong(__FILE__, __LINE__, "the words do not say who chooses keys: %s", gdrfab_last_error());
	OK(gdrfab_mr_close(mr));
	node_close(&n);
}

/* --- words --- */

/* A text contains the description of its errno once, and never the number. */
static void once(const char *file, int line, int rc)
{
	char words[2048];
	snprintf(words, sizeof words, "%s", gdrfab_last_error());
	const char *general = gdrfab_strerror(rc), *first = strstr(words, general);
	if (rc >= 0)
		test_fail(file, line, "%s is no failure", test_number(rc));
	if (strstr(words, "os error") || !first || strstr(first + 1, general))
		test_wrong(file, line, "\"%s\" is not said once: %s", general, words);
}
#define ONCE(call) once(__FILE__, __LINE__, call)

TEST(the_words_of_an_errno_are_said_once)
{
	static char nowhere[] = "verbs", device[] = "no-such-device";
	gdrfab_info *info = NULL, *hints = gdrfab_dupinfo(NULL);
	/* The library reads the variable at its first use. */
	setenv("GDRFAB_TCP_KEY_FILE", "/nonexistent/key", 1);
	ONCE(gdrfab_getinfo(GDRFAB_VERSION, "another.host.invalid", NULL, 0, NULL, &info));
	hints->caps = GDRFAB_MSG | 1ull << 40;
	ONCE(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, hints, &info));
	hints->caps = 0;
	hints->domain_name = device;
	ONCE(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, hints, &info));
	hints->domain_name = NULL;
	hints->prov_name = nowhere;
	if (gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, hints, &info) == 0)
		gdrfab_freeinfo(info);
	else
		ONCE(-ENODATA);
	hints->prov_name = NULL;
	gdrfab_freeinfo(hints);
	static char tcp[] = "tcp";
	gdrfab_info by_tcp = {.struct_size = sizeof by_tcp, .prov_name = tcp};
	gdrfab_fabric *fabric = NULL;
	gdrfab_domain *domain = NULL;
	OK(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, &by_tcp, &info));
	OK(gdrfab_fabric_open(info, NULL, &fabric));
	ONCE(gdrfab_domain_open(fabric, info, NULL, &domain));
	OK(gdrfab_fabric_close(fabric));
	gdrfab_freeinfo(info);
}

/* --- requests --- */

static void two_doors(struct node *n)
{
	struct event e;
	gdrfab_pep *second = NULL;
	node_open(n);
	node_listen(n);
	gdrfab_info *own = gdrfab_dupinfo(n->info);
	own->src_addr = NULL;
	OK(gdrfab_pep_open(n->fabric, own, NULL, &second));
	OK(gdrfab_pep_bind_eq(second, n->eq, 0));
	barrier(n);
	EVENT(n->eq, GDRFAB_CONNREQ, n->pep, &e);
	MISUSE(gdrfab_pep_reject(second, e.entry.info->handle, NULL, 0), -EINVAL, "handle");
	OK(gdrfab_pep_reject(n->pep, e.entry.info->handle, NULL, 0));
	gdrfab_freeinfo(e.entry.info);
	gdrfab_freeinfo(own);
	OK(gdrfab_pep_close(second));
	barrier(n);
	node_close(n);
}

static void knocks(struct node *n)
{
	node_open(n);
	barrier(n);
	n->ep = ep_new(n, n->info, NULL);
	OK(gdrfab_ep_connect(n->ep, n->info->dest_addr, n->info->dest_addrlen, NULL, 0));
	barrier(n);
	node_close(n);
}

TEST(a_request_is_rejected_by_its_own_passive_endpoint)
{
	skip_if_connectionless();
	pair(NULL, two_doors, knocks, NULL);
}

enum answer { REJECTED, ACCEPTED, OPENED_BEFORE, ANSWERS };
#define KNOCKS 12

/* Answers requests of clients that have gone meanwhile. */
static void answers_late(struct node *n)
{
	node_open(n);
	node_listen(n);
	node_domain(n, n->info);
	barrier(n);
	for (int i = 0; i < KNOCKS; i++) {
		struct event e;
		enum answer how = (enum answer)(i % ANSWERS);
		gdrfab_ep *ep = NULL;
		EVENT(n->eq, GDRFAB_CONNREQ, n->pep, &e);
		if (how == OPENED_BEFORE)
			ep = ep_new(n, e.entry.info, NULL);
		barrier(n);
		barrier(n);
		if (how == REJECTED) {
			WANT_EQ(gdrfab_pep_reject(n->pep, e.entry.info->handle, "no", 2), 0);
		} else {
			if (!ep)
				ep = ep_new(n, e.entry.info, NULL);
			int rc = gdrfab_ep_accept(ep, "yes", 3);
			if (rc != 0)
				WANT_EQ(rc, -ECONNRESET);
			OK(gdrfab_ep_close(ep));
		}
		gdrfab_freeinfo(e.entry.info);
	}
	barrier(n);
	node_close(n);
}

static void goes_away(struct node *n)
{
	node_open(n);
	barrier(n);
	for (int i = 0; i < KNOCKS; i++) {
		char event[512];
		uint32_t what;
		gdrfab_ep *ep = ep_new(n, n->info, NULL);
		OK(gdrfab_ep_connect(ep, n->info->dest_addr, n->info->dest_addrlen, "p", 1));
		struct pollfd other = {n->oob, POLLIN, 0};
		while (poll(&other, 1, 0) == 0)
			gdrfab_eq_sread(n->eq, &what, event, sizeof event, 2, 0);
		barrier(n);
		OK(gdrfab_ep_close(ep));
		barrier(n);
	}
	barrier(n);
	node_close(n);
}

TEST(a_peer_that_is_gone_is_answered_as_the_header_says)
{
	skip_if_connectionless();
	skip_unless(!traits()->adapter, "rdma_cm tells of callers that go away only later");
	pair(NULL, answers_late, goes_away, NULL);
}

/* --- variables --- */

TEST(a_variable_with_a_slip_in_its_name_is_told_where_it_decides_security)
{
	static const struct {
		const char *name, *meant;
		int rc;
	} cases[] = {
		{"GDRFAB_TCP_KEYFILE", "GDRFAB_TCP_KEY_FILE", -EINVAL},
		{"GDRFAB_TCP_KEY", "GDRFAB_TCP_KEY_FILE", -EINVAL},
		{"GDRFAB_TCP_SECURTIY", "GDRFAB_TCP_SECURITY", -EINVAL},
		{"gdrfab_shm_users", "GDRFAB_SHM_USERS", -EINVAL},
		{"GDRFAB_SHM_USER", "GDRFAB_SHM_USERS", -EINVAL},
		{"GDRFAB_SPINUS", NULL, 0},
		{"GDRFAB_NCCL_KEY_FILE", NULL, 0},
		{"GDRFAB_NIXL_BORDER", NULL, 0},
		{"GDRFAB_SOMETHING_ELSE", NULL, 0},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		gdrfab_info *info = NULL;
		setenv(cases[i].name, "same", 1);
		int rc = gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, NULL, &info);
		if (rc != cases[i].rc)
			test_wrong(__FILE__, __LINE__, "%s: %s%s", cases[i].name, test_number(rc), test_words(rc));
		if (rc == 0)
			gdrfab_freeinfo(info);
		else if (!test_says(gdrfab_last_error(), cases[i].name) || !test_says(gdrfab_last_error(), cases[i].meant))
			test_wrong(__FILE__, __LINE__, "%s: %s", cases[i].name, gdrfab_last_error());
		/* An empty variable counts as not set. */
		setenv(cases[i].name, "", 1);
		OK(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, NULL, &info));
		gdrfab_freeinfo(info);
		unsetenv(cases[i].name);
	}
}

/* --- operations that the peer refuses, and late ones --- */

static void gives_a_region(struct node *n)
{
	struct mem m;
	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MEM_ALLOC], 4096);
	mem_register(n, &m, 0, 4096, GDRFAB_REMOTE_READ, 0);
	mem_publish(n, &m);
	barrier(n);
	mem_end(n, &m);
	node_close(n);
}

/* The text names key and address, and the length if it is wrong. */
static void says_what(struct node *n, const char *what, void *context, uint64_t key, uint64_t addr, size_t len)
{
	done e;
	struct failure f;
	char hex[2][32], decimal[32];
	CHECK_EQ(cq_next(n->cq, &e, 10000), -1);
	cq_failure(__FILE__, __LINE__, n->cq, &f);
	CHECK(f.entry.op_context == context);
	snprintf(hex[0], sizeof hex[0], "%#llx", (unsigned long long)key);
	snprintf(hex[1], sizeof hex[1], "%#llx", (unsigned long long)addr);
	snprintf(decimal, sizeof decimal, "+%zu", len);
	if (!test_says(f.words, hex[0]) || (len && (!test_says(f.words, hex[1]) || !test_says(f.words, decimal))))
		test_wrong(__FILE__, __LINE__, "%s: the words name not key %s, address %s, length %s: %s", what, hex[0], hex[1], decimal,
			   f.words);
}

static void is_refused(struct node *n)
{
	static char bytes[8192];
	node_up(n);
	struct remote r = mem_fetch(n);
	POST(n->cq, gdrfab_read(n->ep, bytes, 64, NULL, PEER, r.base, wrong_key(r.key), &r));
	says_what(n, "a wrong key", &r, wrong_key(r.key), 0, 0);
	POST(n->cq, gdrfab_read(n->ep, bytes, sizeof bytes, NULL, PEER, r.base + 8, r.key, &r));
	says_what(n, "out of bounds", &r, r.key, r.base + 8, sizeof bytes);
	POST(n->cq, gdrfab_write(n->ep, bytes, 64, NULL, PEER, r.base, r.key, &r));
	says_what(n, "no right", &r, r.key, 0, 0);
	barrier(n);
	node_close(n);
}

TEST(what_the_peer_refuses_is_named)
{
	skip_unless(traits()->survives_failures, "a failure ends the connection");
	skip_if_connectionless();
	pair(NULL, gives_a_region, is_refused, NULL);
}

static void does_nothing(struct node *n)
{
	struct mem m;
	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MEM_ALLOC], 4096);
	mem_register(n, &m, 0, 4096, REMOTE_ACCESS, helped_path());
	mem_publish(n, &m);
	barrier(n);
	n->idle = true;
	barrier(n);
	mem_end(n, &m);
	node_close(n);
}

static void asks_in_vain(struct node *n)
{
	static char bytes[4096];
	struct failure f;
	uint64_t ns = 200000000;
	node_up(n);
	struct remote r = mem_fetch(n);
	barrier(n);
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_DEADLINE, &ns, sizeof ns));
	POST(n->cq, gdrfab_read(n->ep, bytes, sizeof bytes, NULL, PEER, r.base, r.key, bytes));
	done e;
	CHECK_EQ(cq_next(n->cq, &e, 10000), -1);
	cq_failure(__FILE__, __LINE__, n->cq, &f);
	CHECK_EQ(f.entry.err, ETIMEDOUT);
	if (!test_says(f.words, "progress"))
		test_wrong(__FILE__, __LINE__, "the words do not name the target's progress: %s", f.words);
	barrier(n);
	node_close(n);
}

TEST(a_target_without_progress_is_named_at_the_deadline)
{
	skip_unless(!traits()->adapter && helped_path() != 0, "a card needs no progress of the target");
	skip_if_connectionless();
	pair(NULL, does_nothing, asks_in_vain, NULL);
}
