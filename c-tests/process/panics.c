/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A panic in the library ends no process. For a build of the library that panics on demand (`make check-guards`): with
 * GDRFAB_PANIC=n the n-th step of a call panics. Covers every function of the header, then the data path with open objects.
 */
#include "fab.h"

#include <ctype.h>
#include <dlfcn.h>
#include <fcntl.h>

#define LEN 4096
enum { MOST_STEPS = 16, ATOMIC_MOST = 1024 };

static void arm(int step)
{
	char number[16];

	/* Sets another error text first, so that the text of a panic is seen as new; no step is counted yet. */
	unsetenv("GDRFAB_PANIC");
	gdrfab_fabric_close(NULL);
	snprintf(number, sizeof number, "%d", step);
	setenv("GDRFAB_PANIC", number, 1);
}

/* True if a step has panicked since arm(). */
static bool disarm(void)
{
	unsetenv("GDRFAB_PANIC");
	return strstr(gdrfab_last_error(), "on demand") != NULL;
}

static void skip_if_it_never_panics(void)
{
	int quiet = open("/dev/null", O_WRONLY | O_CLOEXEC), err = dup(2);

	/* Silences Rust's report of the panic on stderr. */
	CHECK(quiet >= 0 && err >= 0);
	dup2(quiet, 2);
	arm(1);
	int rc = gdrfab_fabric_close(NULL);
	if (!disarm()) {
		dup2(err, 2);
		test_skip("this build of the library does not panic on demand");
	}
	CHECK_EQ(rc, -ENOTRECOVERABLE);
	close(quiet);
	close(err);
}

/* --- every function of the header --- */

/* Functions that return no errno when they panic. */
static const char *const without_errno[] = {
	"av_context", "cntr_context", "cntr_read",   "cntr_readerr", "cq_context",   "cq_strerror", "domain_context", "dupinfo", "ep_context",
	"eq_context",	"eq_strerror", "fabric_context", "freeinfo",   "mr_context",  "mr_desc",	"mr_key",  "pep_context",
};
/* Functions that cannot fail: the version, and constant texts. */
static const char *const with_words[] = {"last_error", "strerror"};
static const char *const constant[] = {"version", "version_string"};

static bool among(const char *name, const char *const *list, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (strcmp(name + strlen("gdrfab_"), list[i]) == 0)
			return true;
	return false;
}
#define AMONG(name, list) among(name, list, sizeof list / sizeof *list)

static void call_with_zeros(const char *name, void *at)
{
	intptr_t (*call)(long, long, long, long, long, long, long, long, long);

	memcpy(&call, &at, sizeof call);
	arm(1);
	intptr_t got = call(0, 0, 0, 0, 0, 0, 0, 0, 0);
	bool panicked = disarm();
	if (panicked == AMONG(name, constant))
		test_wrong(__FILE__, __LINE__, "%s: %s", name, panicked ? "a constant has panicked" : "has not panicked");
	else if (!AMONG(name, without_errno) && !AMONG(name, with_words) && !AMONG(name, constant) && (int)got != -ENOTRECOVERABLE)
		test_wrong(__FILE__, __LINE__, "%s is %s, not -ENOTRECOVERABLE", name, test_number((int)got));
	else if (AMONG(name, without_errno) && strcmp(name, "gdrfab_freeinfo") != 0 && got != 0 &&
		 (!strstr(name, "strerror") || *(const char *)got))
		test_wrong(__FILE__, __LINE__, "%s is 0x%llx, not 0", name, (unsigned long long)got);
	else if (AMONG(name, with_words) && !got)
		test_wrong(__FILE__, __LINE__, "%s is NULL", name);
}

/* The functions that the header names; `make check-guards` compares the header with the exported symbols. */
TEST(a_panic_in_any_function_is_an_error)
{
	static char text[1 << 20], seen[1 << 14];
	char path[512], key[80];
	int called = 0;

	skip_if_it_never_panics();
	snprintf(path, sizeof path, "%s/include/gdrfab.h", getenv("PREFIX") ? getenv("PREFIX") : "/usr/local");
	FILE *header = fopen(path, "r");
	CHECK(header);
	CHECK(fread(text, 1, sizeof text - 1, header) > 0);
	fclose(header);
	for (const char *at = text; (at = strstr(at, "gdrfab_")) != NULL;) {
		size_t len = strspn(at, "abcdefghijklmnopqrstuvwxyz0123456789_");
		char name[64];
		bool whole = at == text || !(isalnum((unsigned char)at[-1]) || at[-1] == '_');
		snprintf(name, sizeof name, "%.*s", (int)len, at);
		at += len;
		snprintf(key, sizeof key, " %s ", name);
		void *function = whole && *at == '(' ? dlsym(RTLD_DEFAULT, name) : NULL;
		if (!function || strstr(seen, key))
			continue;
		CHECK(strlen(seen) + sizeof key < sizeof seen);
		strcat(seen, key);
		call_with_zeros(name, function);
		called++;
	}
	CHECK(called > 100);
}

/* --- the data path --- */

struct target {
	struct node *n;
	void *desc;
	uint64_t at, key;
};
static unsigned char near_bytes[LEN], got_bytes[LEN];

static gdrfab_rma_iov remote_of(const struct target *f, size_t len)
{
	gdrfab_rma_iov r = {.addr = f->at, .len = len, .key = f->key};
	return r;
}

#define CALL(name, ...)                                                                                                \
	static ssize_t call_##name(const struct target *f, size_t len)                                                    \
	{                                                                                                              \
		gdrfab_ep *ep = f->n->ep;                                                                              \
		void *desc = f->desc, *context = near_bytes;                                                           \
		struct iovec iov = {near_bytes, len};                                                                  \
		gdrfab_rma_iov rma = remote_of(f, len);                                                                \
		gdrfab_msg_rma both = {.struct_size = sizeof both, .msg_iov = &iov, .desc = &desc, .iov_count = 1,     \
				       .rma_iov = &rma, .rma_iov_count = 1, .context = context};               \
		gdrfab_msg one = {.struct_size = sizeof one, .msg_iov = &iov, .desc = &desc, .iov_count = 1,           \
				  .context = context};                                                         \
		gdrfab_msg_atomic element = {.struct_size = sizeof element, .buf = near_bytes, .count = len / 8,       \
					     .rma_addr = f->at, .key = f->key, .datatype = GDRFAB_UINT64,              \
					     .op = GDRFAB_ATOMIC_WRITE, .context = context};                           \
		(void)both, (void)one, (void)ep, (void)iov, (void)element;                                             \
		return gdrfab_##name(__VA_ARGS__);                                                                     \
	}

CALL(write, ep, near_bytes, len, desc, 0, f->at, f->key, context)
CALL(writev, ep, &iov, &desc, 1, 0, f->at, f->key, context)
CALL(writemsg, ep, &both, GDRFAB_COMPLETION)
CALL(inject_write, ep, near_bytes, len, 0, f->at, f->key)
CALL(read, ep, near_bytes, len, desc, 0, f->at, f->key, context)
CALL(readv, ep, &iov, &desc, 1, 0, f->at, f->key, context)
CALL(readmsg, ep, &both, GDRFAB_COMPLETION)
CALL(atomic, ep, near_bytes, len / 8, desc, 0, f->at, f->key, GDRFAB_UINT64, GDRFAB_ATOMIC_WRITE, context)
CALL(inject_atomic, ep, near_bytes, len / 8, 0, f->at, f->key, GDRFAB_UINT64, GDRFAB_ATOMIC_WRITE)
CALL(fetch_atomic, ep, near_bytes, len / 8, desc, got_bytes, desc, 0, f->at, f->key, GDRFAB_UINT64, GDRFAB_ATOMIC_READ, context)
CALL(compare_atomic, ep, near_bytes, len / 8, desc, near_bytes, desc, got_bytes, desc, 0, f->at, f->key, GDRFAB_UINT64,
     GDRFAB_CSWAP, context)
CALL(atomicmsg, ep, &element, GDRFAB_COMPLETION)
CALL(send, ep, near_bytes, len, desc, 0, context)
CALL(sendv, ep, &iov, &desc, 1, 0, context)
CALL(sendmsg, ep, &one, GDRFAB_COMPLETION)
CALL(senddata, ep, near_bytes, len, desc, 7, 0, context)
CALL(inject, ep, near_bytes, len, 0)
CALL(injectdata, ep, near_bytes, len, 7, 0)
CALL(recv, ep, got_bytes, LEN, desc, 0, context)
CALL(recvv, ep, &iov, &desc, 1, 0, context)
CALL(recvmsg, ep, &one, GDRFAB_COMPLETION)

enum { ENTRY = 1, MESSAGE = 2, RECEIVE = 4, SMALL = 8, ATOMIC = 16 };
static const struct {
	const char *name;
	ssize_t (*call)(const struct target *f, size_t len);
	int kind;
} posts[] = {
	{"write", call_write, ENTRY},
	{"writev", call_writev, ENTRY},
	{"writemsg", call_writemsg, ENTRY},
	{"inject_write", call_inject_write, SMALL},
	{"read", call_read, ENTRY},
	{"readv", call_readv, ENTRY},
	{"readmsg", call_readmsg, ENTRY},
	{"atomic", call_atomic, ENTRY | ATOMIC},
	{"inject_atomic", call_inject_atomic, SMALL | ATOMIC},
	{"fetch_atomic", call_fetch_atomic, ENTRY | ATOMIC},
	{"compare_atomic", call_compare_atomic, ENTRY | ATOMIC},
	{"atomicmsg", call_atomicmsg, ENTRY | ATOMIC},
	{"send", call_send, ENTRY | MESSAGE},
	{"sendv", call_sendv, ENTRY | MESSAGE},
	{"sendmsg", call_sendmsg, ENTRY | MESSAGE},
	{"senddata", call_senddata, ENTRY | MESSAGE},
	{"inject", call_inject, SMALL | MESSAGE},
	{"injectdata", call_injectdata, SMALL | MESSAGE},
	{"recv", call_recv, RECEIVE},
	{"recvv", call_recvv, RECEIVE},
	{"recvmsg", call_recvmsg, RECEIVE},
};
enum { POSTS = sizeof posts / sizeof *posts };

static int messages(void)
{
	int n = 0;

	for (int i = 0; i < POSTS; i++)
		n += !(posts[i].kind & MESSAGE) ? 0 : posts[i].kind & SMALL ? 1 : 2;
	return n;
}

/* Repeats a post with each step panicking in turn, until no step panics: then the operation is carried out as usual. */
static void post(const struct target *f, int i, size_t len)
{
	int step;

	for (step = 1; step <= MOST_STEPS; step++) {
		arm(step);
		ssize_t rc = posts[i].call(f, len);
		if (!disarm()) {
			POST(f->n->cq, rc == -EAGAIN ? (rc = posts[i].call(f, len)) : rc);
			break;
		}
		if (rc != -ENOTRECOVERABLE)
			test_fail(__FILE__, __LINE__, "%s of %zu bytes, step %d: %s", posts[i].name, len, step, test_number(rc));
	}
	CHECK(step > 1 && step <= MOST_STEPS);
	if (posts[i].kind & ENTRY)
		DONE(f->n->cq, near_bytes, 0, NULL);
}

static void serve(struct node *n)
{
	struct mem m;
	done e;
	int count = messages();
	static unsigned char received[64][LEN];

	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MEM_ALLOC], LEN);
	mem_register(n, &m, 0, LEN, REMOTE_ACCESS, 0);
	mem_publish(n, &m);
	CHECK(count < 64);
	for (int i = 0; i < count; i++)
		OK(gdrfab_recv(n->ep, received[i], LEN, local_desc(n, received, sizeof received), 0, received[i]));
	barrier(n);
	for (int i = 0; i < count; i++) {
		DONE(n->cq, received[i], GDRFAB_RECV, &e);
		CHECK_FILLED("a message", received[i], e.len, 0, 1);
	}
	barrier(n);
	mem_check(__FILE__, __LINE__, "what was written", &m, 0, LEN, 0, 1);
	mem_end(n, &m);
	node_down(n);
}

static void panic_often(struct node *n)
{
	done e;

	node_up(n);
	skip_if_it_never_panics();
	struct remote r = mem_fetch(n);
	struct target f = {.n = n, .at = r.base, .key = r.key};
	f.desc = local_desc(n, near_bytes, LEN);
	fill(near_bytes, LEN, 0, 1);
	barrier(n);
	for (int i = 0; i < POSTS; i++) {
		if (posts[i].kind & RECEIVE)
			f.desc = local_desc(n, got_bytes, LEN);
		post(&f, i, 8);
		if (posts[i].kind & ENTRY)
			post(&f, i, posts[i].kind & ATOMIC ? ATOMIC_MOST : LEN);
	}
	/* Reads an empty queue, and a queue that gets an entry: a panic must not lose the entry. */
	for (int step = 1, panicked = 1; panicked; step++) {
		CHECK(step <= MOST_STEPS);
		arm(step);
		ssize_t rc = gdrfab_cq_read(n->cq, &e, 1);
		panicked = disarm();
		CHECK_EQ(rc, panicked ? -ENOTRECOVERABLE : -EAGAIN);
	}
	f.desc = local_desc(n, near_bytes, LEN);
	for (int step = 1, panicked = 1; panicked; step++) {
		CHECK(step <= MOST_STEPS);
		OK(call_write(&f, LEN));
		arm(step);
		ssize_t rc = gdrfab_cq_read(n->cq, &e, 1);
		panicked = disarm();
		CHECK(rc == 1 || rc == -EAGAIN || (panicked && rc == -ENOTRECOVERABLE));
		if (rc != 1)
			DONE(n->cq, near_bytes, 0, NULL);
	}
	barrier(n);
	node_down(n);
}

TEST(a_panic_on_the_data_path_is_an_error_and_nothing_was_posted)
{
	pair(NULL, serve, panic_often, NULL);
}
