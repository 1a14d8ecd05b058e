/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Claims about connectionless endpoints: see fab_rdm.h. */
#include "fab_provider.h"
#include "fab_rdm.h"
#include "namespaces.h"

#include <glob.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>

void (*rdm_bind)(struct self *s);
void (*rdm_unbound)(void);
void (*rdm_after)(void);
bool rdm_meets_none, rdm_cards_alone;

void *context_of(uintptr_t context)
{
	return (void *)context;
}

void drive(struct self *s)
{
	for (;;) {
		gdrfab_cq_tagged_entry entries[16];
		uint64_t from[16];
		ssize_t n = gdrfab_cq_readfrom(s->cq, entries, 16, from);
		if (n == -EAGAIN)
			return;
		if (n == -GDRFAB_EAVAIL) {
			CHECK(s->lost_count < 64);
			gdrfab_cq_err_entry *e = &s->lost[s->lost_count].entry;
			memset(e, 0, sizeof *e);
			e->struct_size = sizeof *e;
			e->err_data = s->lost[s->lost_count].words, e->err_data_size = sizeof s->lost[0].words;
			CHECK_EQ(gdrfab_cq_readerr(s->cq, e, 0), 1);
			s->lost_count++;
			continue;
		}
		CHECK(n > 0 && s->kept_count + n <= 4096);
		for (ssize_t i = 0; i < n; i++)
			s->kept[s->kept_count].entry = entries[i], s->kept[s->kept_count++].from = from[i];
	}
}

gdrfab_cq_tagged_entry await(struct self *s, uintptr_t context, uint64_t *from)
{
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(WAIT_MS); test_now_ms() < until;) {
		for (int i = 0; i < s->kept_count; i++) {
			if (s->kept[i].entry.op_context != context_of(context))
				continue;
			gdrfab_cq_tagged_entry entry = s->kept[i].entry;
			if (from && s->connected)
				CHECK_EQ(s->kept[i].from, GDRFAB_ADDR_NOTAVAIL);
			if (from)
				*from = s->connected ? (uint64_t)(1 - s->rank) : s->kept[i].from;
			s->kept[i] = s->kept[--s->kept_count];
			return entry;
		}
		for (int i = 0; i < s->lost_count; i++)
			if (s->lost[i].entry.op_context == context_of(context))
				test_fail(__FILE__, __LINE__, "operation %zu failed: %s", (size_t)context, s->lost[i].words);
		drive(s);
	}
	test_fail(__FILE__, __LINE__, "no entry of operation %zu", (size_t)context);
}

gdrfab_cq_err_entry await_failure(struct self *s, uintptr_t context, char words[256])
{
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(WAIT_MS); test_now_ms() < until; drive(s)) {
		for (int i = 0; i < s->lost_count; i++) {
			if (s->lost[i].entry.op_context != context_of(context))
				continue;
			gdrfab_cq_err_entry entry = s->lost[i].entry;
			if (s->connected && entry.src_addr == GDRFAB_ADDR_NOTAVAIL)
				entry.src_addr = (uint64_t)(1 - s->rank);
			snprintf(words, 256, "%s", s->lost[i].words);
			s->lost[i] = s->lost[--s->lost_count];
			return entry;
		}
	}
	test_fail(__FILE__, __LINE__, "operation %zu did not fail", (size_t)context);
}

/* A barrier of `count` processes; `count` is smaller than all once rank 1 was killed. */
static void meet_of(struct self *s, int count)
{
	int *here = &s->w->met[s->meetings++];
	__atomic_fetch_add(here, 1, __ATOMIC_SEQ_CST);
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(WAIT_MS); __atomic_load_n(here, __ATOMIC_SEQ_CST) < count; drive(s))
		if (test_now_ms() > until)
			test_fail(__FILE__, __LINE__, "only %d of %d have come to meeting %d", __atomic_load_n(here, __ATOMIC_SEQ_CST), count, s->meetings);
}

void meet(struct self *s)
{
	meet_of(s, s->count);
}

/* The info of the device under test, or the first. */
static gdrfab_info *of_device(gdrfab_info *list)
{
	const char *node = strcmp(provider(), "verbs") ? NULL : node_name();
	gdrfab_info *i = list;
	while (i && node && !(i->src_addr && strstr(i->src_addr, node)))
		i = i->next;
	return i ? i : list;
}

bool rdm_over_iwarp(const struct self *s)
{
	return strstr(s->info->domain_name, ":iwarp") != NULL;
}

static void find(struct self *s, const char *service, uint64_t flags)
{
	gdrfab_info hints = {0}, *list = NULL;
	hints.struct_size = sizeof hints, hints.prov_name = (char *)s->lanes;
	hints.ep_type = s->connected ? GDRFAB_EP_MSG : GDRFAB_EP_RDM;
	hints.caps = GDRFAB_MSG | GDRFAB_TAGGED | GDRFAB_RMA | GDRFAB_MULTI_RECV;
	hints.caps |= s->connected ? 0 : GDRFAB_DIRECTED_RECV | GDRFAB_SOURCE;
	hints.mr_mode = GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY;
	OK(gdrfab_getinfo(GDRFAB_VERSION, NULL, service, flags, &hints, &list));
	s->info = gdrfab_dupinfo(of_device(list));
	gdrfab_freeinfo(list);
	CHECK(strcmp(s->info->prov_name, s->lanes) == 0);
	CHECK_EQ(s->info->ep_type, hints.ep_type);
	CHECK_EQ(s->info->caps, hints.caps);
	OK(gdrfab_fabric_open(s->info, NULL, &s->fabric));
}

static void open_domain(struct self *s)
{
	gdrfab_cq_attr attr = {0};
	OK(gdrfab_domain_open(s->fabric, s->info, NULL, &s->domain));
	attr.struct_size = sizeof attr, attr.size = 100, attr.format = GDRFAB_CQ_FORMAT_TAGGED;
	OK(gdrfab_cq_open(s->domain, &attr, NULL, &s->cq));
}

void open_connected(struct self *s)
{
	gdrfab_pep *pep = NULL;
	gdrfab_eq_cm_entry entry;
	uint32_t event = 0;
	s->connected = true;
	if (s->rank == 0) {
		size_t len = sizeof s->w->address;
		find(s, strcmp(s->lanes, "tcp") ? NULL : "0", GDRFAB_SOURCE);
		OK(gdrfab_eq_open(s->fabric, NULL, NULL, &s->eq));
		OK(gdrfab_pep_open(s->fabric, s->info, NULL, &pep));
		OK(gdrfab_pep_bind_eq(pep, s->eq, 0));
		OK(gdrfab_pep_listen(pep));
		OK(gdrfab_pep_getname(pep, s->w->address, &len));
		__atomic_store_n(&s->w->met[0], 1, __ATOMIC_SEQ_CST);
		CHECK(gdrfab_eq_sread(s->eq, &event, &entry, sizeof entry, test_ms(WAIT_MS), 0) > 0);
		CHECK_EQ(event, GDRFAB_CONNREQ);
		gdrfab_freeinfo(s->info);
		s->info = entry.info;
	} else {
		for (uint64_t until = test_now_ms() + (uint64_t)test_ms(WAIT_MS); !__atomic_load_n(&s->w->met[0], __ATOMIC_SEQ_CST); test_sleep_ms(1))
			CHECK(test_now_ms() < until);
		find(s, s->w->address, 0);
		OK(gdrfab_eq_open(s->fabric, NULL, NULL, &s->eq));
	}
	s->meetings = 1;
	open_domain(s);
	OK(gdrfab_ep_open(s->domain, s->info, NULL, &s->ep));
	OK(gdrfab_ep_bind_cq(s->ep, s->cq, GDRFAB_TRANSMIT | GDRFAB_RECV));
	OK(gdrfab_ep_bind_eq(s->ep, s->eq, 0));
	if (rdm_bind)
		rdm_bind(s);
	OK(gdrfab_ep_enable(s->ep));
	if (s->rank == 0)
		OK(gdrfab_ep_accept(s->ep, NULL, 0));
	else
		OK(gdrfab_ep_connect(s->ep, s->info->dest_addr, s->info->dest_addrlen, NULL, 0));
	CHECK(gdrfab_eq_sread(s->eq, &event, &entry, sizeof entry, test_ms(WAIT_MS), 0) > 0);
	CHECK_EQ(event, GDRFAB_CONNECTED);
	if (pep)
		OK(gdrfab_pep_close(pep));
}

void open_ep(struct self *s, const char *service)
{
	find(s, service, service ? GDRFAB_SOURCE : 0);
	open_domain(s);
	OK(gdrfab_av_open(s->domain, NULL, NULL, &s->av));
	OK(gdrfab_ep_open(s->domain, s->info, NULL, &s->ep));
	OK(gdrfab_ep_bind_cq(s->ep, s->cq, GDRFAB_TRANSMIT | GDRFAB_RECV));
	OK(gdrfab_ep_bind_av(s->ep, s->av, 0));
	if (rdm_bind)
		rdm_bind(s);
	OK(gdrfab_ep_enable(s->ep));
}

void close_ep(struct self *s)
{
	if (s->ep)
		OK(gdrfab_ep_close(s->ep));
	if (rdm_unbound)
		rdm_unbound();
	if (s->av)
		OK(gdrfab_av_close(s->av));
	if (s->eq)
		OK(gdrfab_eq_close(s->eq));
	OK(gdrfab_cq_close(s->cq));
	OK(gdrfab_domain_close(s->domain));
	OK(gdrfab_fabric_close(s->fabric));
	gdrfab_freeinfo(s->info);
}

static void learn_names(struct self *s)
{
	size_t len = NAME;
	uint64_t index[MOST];
	OK(gdrfab_ep_getname(s->ep, s->w->names[s->rank], &len));
	CHECK_EQ(len, NAME);
	meet(s);
	CHECK_EQ(gdrfab_av_insert(s->av, s->w->names, (size_t)s->count, index, 0, NULL), s->count);
	for (int i = 0; i < s->count; i++)
		CHECK_EQ(index[i], i);
}

void put_number(struct self *s, int i, uint64_t number)
{
	__atomic_store_n(&s->w->number[i], number, __ATOMIC_SEQ_CST);
}

uint64_t get_number(struct self *s, int i)
{
	return __atomic_load_n(&s->w->number[i], __ATOMIC_SEQ_CST);
}

bool has_come(struct self *s, uintptr_t context)
{
	drive(s);
	for (int i = 0; i < s->kept_count; i++)
		if (s->kept[i].entry.op_context == context_of(context))
			return true;
	return false;
}

struct claim {
	struct rdm_claim of;
	const char *lanes;
	bool connected, two_hosts;
	char name[96];
};

static void child(const struct claim *c, struct world *w, int rank)
{
	static struct self s;
	s.lanes = c->lanes, s.w = w, s.rank = rank, s.count = c->of.count;
	s.two_hosts = c->two_hosts;
	if (c->two_hosts && rank) {
		char dir[] = "/tmp/gdrfab-host-XXXXXX";
		CHECK(mkdtemp(dir));
		OK(setenv("GDRFAB_SHM_DIR", dir, 1));
		if (getenv("TEST_CLIENT_LANES"))
			s.lanes = getenv("TEST_CLIENT_LANES");
	}
	test_enter_namespaces(getenv(rank ? "TEST_CLIENT_NAMESPACES" : "TEST_SERVER_NAMESPACES"));
	if (c->connected) {
		open_connected(&s);
	} else {
		open_ep(&s, NULL);
		learn_names(&s);
	}
	c->of.run(&s);
	meet_of(&s, c->of.killed ? s.count - 1 : s.count);
	close_ep(&s);
	if (c->two_hosts && rank)
		OK(rmdir(getenv("GDRFAB_SHM_DIR")));
	test_child_done();
}

/* Messages that arrived at a device without a posted receive, as soft-RoCE counts them; -1: no device here counts them. */
static long receivers_not_ready(void)
{
	glob_t found;
	long sum = -1, one;
	if (glob("/sys/class/infiniband/*/ports/1/hw_counters/send_rnr_err", 0, NULL, &found))
		return -1;
	for (size_t i = 0; i < found.gl_pathc; i++) {
		FILE *f = fopen(found.gl_pathv[i], "r");
		if (f && fscanf(f, "%ld", &one) == 1)
			sum = (sum < 0 ? 0 : sum) + one;
		if (f)
			fclose(f);
	}
	globfree(&found);
	return sum;
}

static void run_claim(const void *arg)
{
	long before = receivers_not_ready();
	const struct claim *c = (const struct claim *)arg;
	struct world *w = (struct world *)mmap(NULL, sizeof *w, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t victim = 0;
	int status;
	CHECK(w != MAP_FAILED);
	for (int rank = c->of.count - 1; rank >= 0; rank--) {
		pid_t pid = test_fork(rank ? TEST_CLIENT : TEST_SERVER);
		if (pid == 0)
			child(c, w, rank);
		if (rank == 1 && c->of.killed) {
			victim = pid;
			w->number[0] = (uint64_t)pid;
		}
	}
	for (pid_t pid; (pid = wait(&status)) > 0;)
		if (pid != victim)
			test_child_ended(TEST_CLIENT, status);
	if (rdm_after)
		rdm_after();
	if (!rdm_meets_none)
		CHECK_EQ(receivers_not_ready(), before);
}

static void add(const struct rdm_claim *claim, const char *lanes, bool connected, bool two_hosts)
{
	static struct claim all[96];
	static size_t used;
	struct claim *c = &all[used];
	if (used++ == sizeof all / sizeof *all)
		abort();
	c->of = *claim, c->lanes = lanes, c->connected = connected, c->two_hosts = two_hosts;
	snprintf(c->name, sizeof c->name, "%s over %s%s%s", claim->name, connected ? "connected " : "", lanes, two_hosts ? ", two hosts" : "");
	test_add(c->name, run_claim, c, 60);
}

static void add_usual(const struct rdm_claim *claims, size_t count, bool connected_too)
{
	static const char *const lanes[] = {"shm+tcp", "shm", "tcp"};
	for (size_t l = 0; l < 3; l++)
		for (size_t k = 0; k < count; k++) {
			/* TEST_FAST leaves out shm alone. A memory checker runs only the first claim over tcp, or none if the claims also
			 * run over connected tcp endpoints. */
			if ((l == 1 && test_count(0, 1)) || (l == 2 && test_checked() && (connected_too || k > 0)))
				continue;
			add(&claims[k], lanes[l], false, false);
		}
}

static void add_cards(const struct rdm_claim *claims, size_t count)
{
	static const char *const lanes[] = {"verbs", "shm+verbs+tcp", "shm+verbs+tcp"};
	for (size_t l = 0; l < 3; l++) {
		/* With several lanes the endpoint chooses one and uses it alone: with TEST_FAST the first claim is enough. */
		size_t most = l == 0 ? count : rdm_cards_alone ? 0 : (size_t)test_count((int)count, 1);
		for (size_t k = 0; k < most; k++)
			add(&claims[k], lanes[l], false, l == 2);
	}
}

void rdm_add(const struct rdm_claim *claims, size_t count)
{
	if (strcmp(provider(), "verbs"))
		add_usual(claims, count, false);
	else
		add_cards(claims, count);
}

void rdm_add_both(const struct rdm_claim *claims, size_t count)
{
	bool cards = !strcmp(provider(), "verbs");
	if (cards)
		add_cards(claims, count);
	else
		add_usual(claims, count, true);
	for (size_t l = cards || test_checked() ? 1 : 0; l < 2; l++)
		for (size_t k = 0; k < count; k++)
			add(&claims[k], cards ? "verbs" : l ? "tcp" : "shm", true, false);
}

void tsend(struct self *s, int to, const void *buf, size_t len, uint64_t tag, uintptr_t context)
{
	OK(gdrfab_tsend(s->ep, buf, len, NULL, (uint64_t)to, tag, context_of(context)));
}

void trecv(struct self *s, uint64_t from, void *buf, size_t len, uint64_t tag, uint64_t ignore, uintptr_t context)
{
	OK(gdrfab_trecv(s->ep, buf, len, NULL, from, tag, ignore, context_of(context)));
}
