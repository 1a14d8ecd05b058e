/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Errnos are as documented: the program reads the comments of the installed gdrfab.h. Each call here fails in one way. Its
 * errno must be listed by the comment of the function, of its section, or of a function that the comment refers to, and
 * gdrfab_last_error() must have the text of this call.
 */
#include "fab.h"

#include <ctype.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <sys/stat.h>

#define E(name)                                                                                                        \
	{                                                                                                              \
		"-" #name, name                                                                                        \
	}
static const struct {
	const char *name;
	int number;
} errnos[] = {
	E(EINVAL), E(E2BIG), E(EPERM), E(ENOMEM), E(EMFILE), E(ENFILE), E(ENOSPC), E(EAGAIN), E(EBUSY), E(ENODEV), E(ENODATA), E(ENOSYS),
	E(EACCES), E(ENOENT), E(EADDRINUSE), E(EADDRNOTAVAIL), E(EHOSTUNREACH), E(EISCONN), E(ENOTCONN), E(ESHUTDOWN), E(ECONNRESET),
	E(EPROTO), E(EOPNOTSUPP), E(ENOPROTOOPT), E(EMSGSIZE), E(EKEYREJECTED), E(EBADF), E(EIO), E(EINTR), E(ETIMEDOUT), E(ENOTRECOVERABLE),
	E(GDRFAB_ETOOSMALL), E(GDRFAB_EOPBADSTATE), E(GDRFAB_EAVAIL), E(GDRFAB_EBADFLAGS), E(GDRFAB_ENOEQ), E(GDRFAB_ENOCQ), E(GDRFAB_ENOKEY),
};
enum { ERRNOS = sizeof errnos / sizeof *errnos, FUNCTIONS = 256, NAME_LEN = 48 };
typedef uint64_t set; /* of errnos: a bit for each index in the table above */

static struct {
	char name[NAME_LEN];
	set listed;
	char as[8][NAME_LEN];
} functions[FUNCTIONS];
static int function_count;

/* The errnos that the text [from, to) names. */
static set named(const char *from, const char *to)
{
	set all = 0;
	for (const char *at = from; at < to && (at = memchr(at, '-', (size_t)(to - at))); at++)
		for (int i = 0; i < ERRNOS; i++) {
			size_t len = strlen(errnos[i].name);
			if (at + len <= to && strncmp(at, errnos[i].name, len) == 0 && !isalnum((unsigned char)at[len]) && at[len] != '_')
				all |= 1ull << i;
		}
	return all;
}

static set of(int err)
{
	for (int i = 0; i < ERRNOS; i++)
		if (errnos[i].number == -err || errnos[i].number == err)
			return 1ull << i;
	test_fail(__FILE__, __LINE__, "%s is no errno of the table", test_number(err));
}

static int find(const char *name)
{
	for (int i = 0; i < function_count; i++)
		if (strcmp(functions[i].name, name) == 0)
			return i;
	return -1;
}

static void copy_name(char *to, const char *from)
{
	size_t len = strspn(from, "abcdefghijklmnopqrstuvwxyz_0123456789");
	if (len >= NAME_LEN)
		len = NAME_LEN - 1;
	memcpy(to, from, len);
	to[len] = 0;
}

/* The functions that a comment refers to for its errnos: after "as", "of" and "see", and at its beginning. */
static void refers(int function, const char *from, const char *to)
{
	int count = 0;
	for (const char *at = strstr(from, "gdrfab_"); at && at < to && count < 8; at = strstr(at + 1, "gdrfab_")) {
		const char *before = at;
		while (before > from && (isspace((unsigned char)before[-1]) || before[-1] == '*'))
			before--;
		bool refers = before - from <= 3 || strncmp(before - 3, " as", 3) == 0 || strncmp(before - 3, " of", 3) == 0;
		if (refers && at[strspn(at, "abcdefghijklmnopqrstuvwxyz_0123456789")] == '(')
			copy_name(functions[function].as[count++], at);
	}
}

static char *read_header(void)
{
	Dl_info library;
	char path[4096];
	CHECK(dladdr((void *)(uintptr_t)gdrfab_version, &library) != 0);
	const char *slash = strrchr(library.dli_fname, '/');
	CHECK(slash != NULL);
	snprintf(path, sizeof path, "%.*s/../include/gdrfab.h", (int)(slash - library.dli_fname), library.dli_fname);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		test_skip("%s: %s", path, strerror(errno));
	struct stat s;
	CHECK_EQ(fstat(fd, &s), 0);
	char *text = calloc(1, (size_t)s.st_size + 1);
	CHECK(text && read(fd, text, (size_t)s.st_size) == s.st_size);
	close(fd);
	return text;
}

static void read_table(void)
{
	char *text = read_header();
	set rma = 0, section = 0;
	if (function_count)
		return;
	for (char *at = text; (at = strstr(at, "/*")); at++) {
		char *end = strstr(at, "*/");
		CHECK(end != NULL);
		if (strncmp(at, "/* ---- ", 8) == 0) {
			section = named(at, end);
			if (strncmp(at, "/* ---- RMA ", 12) == 0)
				rma = section;
			char *see = strstr(at, "see RMA"), *as = strstr(at, "As RMA");
			if ((see && see < end) || (as && as < end))
				section |= rma;
			/* The section about all calls lists errnos of no function. */
			if (strncmp(at, "/* ---- All ", 12) == 0)
				section = 0;
			continue;
		}
		char *next = end + 2 + strspn(end + 2, " \n");
		size_t line = strcspn(next, ";{/#");
		char *name = strstr(next, "gdrfab_");
		while (name && name < next + line && name[strspn(name, "abcdefghijklmnopqrstuvwxyz_0123456789")] != '(')
			name = strstr(name + 1, "gdrfab_");
		if (strncmp(at, "/**", 3) != 0 || at[3] == '<' || !name || name >= next + line)
			continue;
		CHECK(function_count < FUNCTIONS);
		copy_name(functions[function_count].name, name);
		functions[function_count].listed = named(at, end) | section;
		refers(function_count++, at, end);
	}
	free(text);
	/* Follows references of references. */
	for (int round = 0; round < 4; round++)
		for (int i = 0; i < function_count; i++)
			for (int k = 0; k < 8; k++) {
				int other = functions[i].as[k][0] ? find(functions[i].as[k]) : -1;
				functions[i].listed |= other >= 0 ? functions[other].listed : 0;
			}
	CHECK(function_count > 100);
}

static int provoked;

static void returned(const char *file, int line, const char *call, long long got, int want, const char *old)
{
	char name[NAME_LEN];
	copy_name(name, call);
	int function = find(name);
	if (function < 0)
		test_fail(file, line, "gdrfab.h has no comment of %s", name);
	if (got >= 0) {
		test_wrong(file, line, "%s is %s, not %s", call, test_number(got), test_number(want));
		return;
	}
	if (want && got != want)
		test_wrong(file, line, "%s is %s, not %s%s", call, test_number(got), test_number(want), test_words(got));
	/* Errnos that any call can return. */
	set listed = functions[function].listed | of(EINVAL) | of(ENOTRECOVERABLE);
	if (!(of((int)got) & listed))
		test_wrong(file, line, "%s is %s, which its comment does not list%s", call, test_number(got), test_words(got));
	/* A full or an empty queue (-EAGAIN) sets no text. */
	if (got != -EAGAIN && strcmp(gdrfab_last_error(), old) == 0)
		test_wrong(file, line, "%s is %s, without words", call, test_number(got));
	provoked++;
}

/* want: a negative errno, or 0 for any that is listed. */
#define RETURNS(call, want)                                                                                            \
	do {                                                                                                           \
		char old_[512];                                                                                        \
		test_at(__FILE__, __LINE__);                                                                           \
		gdrfab_log_set(99, NULL, NULL);                                                                                    \
		snprintf(old_, sizeof old_, "%s", gdrfab_last_error());                                                \
		long long got_ = (long long)(call);                                                                    \
		returned(__FILE__, __LINE__, #call, got_, want, old_);                                                 \
	} while (0)

#define LONGER 8
/* A struct of a caller with a newer header, which has one more field and sets it. */
#define NEWER(type, variable)                                                                                          \
	struct {                                                                                                       \
		type it;                                                                                               \
		uint64_t more;                                                                                         \
	} variable = {{.struct_size = sizeof(type) + LONGER}, 1}

TEST(discovery_and_opening)
{
	struct node n;
	static char nosuch[] = "nosuch";
	gdrfab_info *info = NULL, *hints = gdrfab_dupinfo(NULL);
	gdrfab_fabric *fabric = NULL;
	gdrfab_domain *domain = NULL;
	gdrfab_ep *ep = NULL;
	gdrfab_pep *pep = NULL;
	uint32_t v = gdrfab_version();
	char text[8];
	read_table();
	NEWER(gdrfab_info, newer);
	RETURNS(gdrfab_getinfo(v, NULL, NULL, 0, NULL, NULL), -EINVAL);
	RETURNS(gdrfab_getinfo(v, NULL, NULL, 1ull << 63, NULL, &info), -GDRFAB_EBADFLAGS);
	RETURNS(gdrfab_getinfo(v + (1u << 16), NULL, NULL, 0, NULL, &info), -ENOSYS);
	RETURNS(gdrfab_getinfo(v, NULL, NULL, 0, &newer.it, &info), -E2BIG);
	RETURNS(gdrfab_getinfo(v, "no.such.host.invalid", "1", 0, NULL, &info), -ENODATA);
	hints->caps = 1ull << 60;
	RETURNS(gdrfab_getinfo(v, NULL, NULL, 0, hints, &info), -ENODATA);
	hints->caps = 0, hints->near_iface = 1, hints->near_device = 999;
	RETURNS(gdrfab_getinfo(v, NULL, NULL, 0, hints, &info), 0);
	hints->near_iface = hints->near_device = 0, hints->prov_name = nosuch;
	RETURNS(gdrfab_fabric_open(hints, NULL, &fabric), -ENODEV);
	RETURNS(gdrfab_fabric_open(&newer.it, NULL, &fabric), -E2BIG);
	hints->prov_name = NULL;
	RETURNS(gdrfab_fabric_open(hints, NULL, &fabric), -EINVAL);
	RETURNS(gdrfab_tostr(NULL, GDRFAB_TYPE_CAPS, text, sizeof text), -EINVAL);
	RETURNS(gdrfab_tostr(&v, 99, text, sizeof text), -EINVAL);

	node_alone(&n, NULL);
	gdrfab_nic_attr nic = {.struct_size = sizeof nic};
	if (!traits()->adapter)
		RETURNS(gdrfab_info_nic(n.info, &nic), -ENODATA);
	RETURNS(gdrfab_domain_open(n.fabric, &newer.it, NULL, &domain), -E2BIG);
	RETURNS(gdrfab_ep_open(n.domain, &newer.it, NULL, &ep), -E2BIG);
	RETURNS(gdrfab_pep_open(n.fabric, &newer.it, NULL, &pep), -E2BIG);
	gdrfab_freeinfo(hints);
	hints = gdrfab_dupinfo(n.info);
	hints->ep_type = 77;
	RETURNS(gdrfab_domain_open(n.fabric, hints, NULL, &domain), -EINVAL);
	hints->ep_type = n.info->ep_type;
	hints->handle = (gdrfab_connreq *)(uintptr_t)12345;
	RETURNS(gdrfab_ep_open(n.domain, hints, NULL, &ep), -EINVAL);
	hints->handle = NULL;
	RETURNS(gdrfab_fabric_close(n.fabric), -EBUSY);
	RETURNS(gdrfab_domain_close(n.domain), -EBUSY);
	gdrfab_freeinfo(hints);
	node_close(&n);
}

TEST(endpoints)
{
	struct node n, other;
	char name[GDRFAB_ADDR_MAX] = "", bytes[64] = "";
	size_t len = 1;
	gdrfab_ep *ep = NULL, *bare = NULL;
	gdrfab_cntr *cntr = NULL;
	const uint64_t both = GDRFAB_TRANSMIT | GDRFAB_RECV, bad = 1ull << 62;
	read_table();
	skip_if_connectionless();
	node_alone(&n, NULL);
	node_alone(&other, NULL);
	void *desc = local_desc(&n, bytes, sizeof bytes);
	OK(gdrfab_ep_open(n.domain, n.info, NULL, &ep));
	OK(gdrfab_ep_open(n.domain, n.info, NULL, &bare));
	OK(gdrfab_cntr_open(n.domain, NULL, NULL, &cntr));
	RETURNS(gdrfab_ep_enable(ep), -GDRFAB_ENOCQ);
	RETURNS(gdrfab_ep_bind_cq(ep, n.cq, bad), -GDRFAB_EBADFLAGS);
	RETURNS(gdrfab_ep_bind_cq(ep, other.cq, both), -EINVAL);
	RETURNS(gdrfab_ep_bind_eq(ep, other.eq, 0), -EINVAL);
	RETURNS(gdrfab_ep_bind_eq(ep, n.eq, bad), -GDRFAB_EBADFLAGS);
	RETURNS(gdrfab_ep_bind_cntr(ep, cntr, bad), -GDRFAB_EBADFLAGS);
	RETURNS(gdrfab_ep_bind_cntr(ep, cntr, GDRFAB_REMOTE_READ), -EOPNOTSUPP);
	RETURNS(gdrfab_ep_bind_av(ep, (gdrfab_av *)NULL, 0), -EINVAL);
	RETURNS(gdrfab_recv(ep, bytes, sizeof bytes, desc, 0, NULL), 0);
	RETURNS(gdrfab_send(ep, bytes, sizeof bytes, desc, 0, NULL), 0);
	RETURNS(gdrfab_write(ep, bytes, sizeof bytes, desc, 0, 1, 2, NULL), 0);
	OK(gdrfab_ep_bind_cq(ep, n.cq, both));
	RETURNS(gdrfab_ep_bind_cq(ep, n.cq, both), -EBUSY);
	OK(gdrfab_ep_bind_cntr(ep, cntr, GDRFAB_SEND));
	RETURNS(gdrfab_ep_bind_cntr(ep, cntr, GDRFAB_SEND), -EBUSY);
	RETURNS(gdrfab_ep_connect(ep, n.info->dest_addr, n.info->dest_addrlen, NULL, 0), 0);
	OK(gdrfab_ep_enable(ep));
	RETURNS(gdrfab_ep_enable(ep), -GDRFAB_EOPBADSTATE);
	RETURNS(gdrfab_ep_bind_eq(ep, n.eq, 0), -GDRFAB_EOPBADSTATE);
	RETURNS(gdrfab_ep_connect(ep, n.info->dest_addr, n.info->dest_addrlen, NULL, 0), -GDRFAB_ENOEQ);
	RETURNS(gdrfab_ep_accept(ep, NULL, 0), -GDRFAB_EOPBADSTATE);
	RETURNS(gdrfab_ep_shutdown(ep, 0), -ENOTCONN);
	RETURNS(gdrfab_ep_shutdown(ep, bad), -GDRFAB_EBADFLAGS);
	RETURNS(gdrfab_ep_getpeer(ep, name, &len), -ENOTCONN);
	OK(gdrfab_ep_bind_cq(bare, n.cq, both));
	OK(gdrfab_ep_bind_eq(bare, n.eq, 0));
	OK(gdrfab_ep_enable(bare));
	len = 1;
	RETURNS(gdrfab_ep_getname(bare, name, &len), -GDRFAB_ETOOSMALL);
	RETURNS(gdrfab_ep_connect(bare, "nonsense", 9, NULL, 0), -EINVAL);
	RETURNS(gdrfab_ep_connect_addr(bare, "nonsense", 9), -EINVAL);
	OK(gdrfab_ep_connect(bare, n.info->dest_addr, n.info->dest_addrlen, NULL, 0));
	RETURNS(gdrfab_ep_connect(bare, n.info->dest_addr, n.info->dest_addrlen, NULL, 0), 0);

	/* Not connected. */
	struct iovec iov = {bytes, sizeof bytes};
	gdrfab_msg msg = {.struct_size = sizeof msg, .msg_iov = &iov, .desc = desc ? &desc : NULL, .iov_count = 1};
	gdrfab_rma_iov there = {1, sizeof bytes, 2};
	gdrfab_msg_rma rma = {.struct_size = sizeof rma, .msg_iov = &iov, .desc = desc ? &desc : NULL, .iov_count = 1, .rma_iov = &there,
			      .rma_iov_count = 1};
	RETURNS(gdrfab_send(ep, bytes, sizeof bytes, desc, 0, NULL), -ENOTCONN);
	RETURNS(gdrfab_sendv(ep, &iov, desc ? &desc : NULL, 1, 0, NULL), -ENOTCONN);
	RETURNS(gdrfab_sendmsg(ep, &msg, 0), -ENOTCONN);
	RETURNS(gdrfab_sendmsg(ep, &msg, bad), -GDRFAB_EBADFLAGS);
	RETURNS(gdrfab_recvmsg(ep, &msg, bad), -GDRFAB_EBADFLAGS);
	RETURNS(gdrfab_recvmsg(ep, &msg, GDRFAB_MULTI_RECV), 0);
	RETURNS(gdrfab_inject(ep, bytes, 1, 0), -ENOTCONN);
	RETURNS(gdrfab_write(ep, bytes, sizeof bytes, desc, 0, 1, 2, NULL), -ENOTCONN);
	RETURNS(gdrfab_read(ep, bytes, sizeof bytes, desc, 0, 1, 2, NULL), -ENOTCONN);
	RETURNS(gdrfab_writev(ep, &iov, desc ? &desc : NULL, 1, 0, 1, 2, NULL), -ENOTCONN);
	RETURNS(gdrfab_writemsg(ep, &rma, 0), -ENOTCONN);
	RETURNS(gdrfab_writemsg(ep, &rma, bad), -GDRFAB_EBADFLAGS);
	RETURNS(gdrfab_readmsg(ep, &rma, bad), -GDRFAB_EBADFLAGS);
	RETURNS(gdrfab_inject_write(ep, bytes, 1, 0, 1, 2), -ENOTCONN);
	RETURNS(gdrfab_inject(ep, bytes, SIZE_MAX / 4, 0), 0);
	RETURNS(gdrfab_tsend(ep, bytes, 1, desc, 0, 1, NULL), 0);
	RETURNS(gdrfab_trecv(ep, bytes, 1, desc, 0, 1, 0, NULL), 0);
	RETURNS(gdrfab_atomic(ep, bytes, 1, NULL, 0, 8, 2, GDRFAB_UINT64, GDRFAB_SUM, NULL), 0);
	RETURNS(gdrfab_atomic(ep, bytes, 1, NULL, 0, 9, 2, GDRFAB_UINT64, GDRFAB_SUM, NULL), 0);
	RETURNS(gdrfab_atomic(ep, bytes, 1, NULL, 0, 8, 2, 99, GDRFAB_SUM, NULL), 0);
	RETURNS(gdrfab_atomic(ep, bytes, 100000, NULL, 0, 8, 2, GDRFAB_UINT64, GDRFAB_SUM, NULL), 0);
	RETURNS(gdrfab_fetch_atomic(ep, bytes, 1, NULL, bytes, NULL, 0, 8, 2, GDRFAB_UINT64, GDRFAB_SUM, NULL), 0);
	RETURNS(gdrfab_atomicvalid(ep, 99, GDRFAB_SUM, &len), -EINVAL);
	RETURNS(gdrfab_atomicvalid(ep, GDRFAB_UINT64, GDRFAB_CSWAP, &len), -EOPNOTSUPP);
	gdrfab_block block = {bytes, 1, sizeof bytes};
	uint64_t key = 2;
	gdrfab_msg_list list = {.struct_size = sizeof list, .blocks = &block, .count = 1, .key = &key, .key_count = 1,
				.desc = desc ? &desc : NULL, .desc_count = desc ? 1 : 0};
	gdrfab_list *prepared = NULL;
	RETURNS(gdrfab_readlist(ep, &list, 0), -ENOTCONN);
	RETURNS(gdrfab_writelist(ep, &list, bad), -GDRFAB_EBADFLAGS);
	list.count = 0;
	RETURNS(gdrfab_list_open(ep, &list, &prepared), -EINVAL);
	RETURNS(gdrfab_cancel(ep, &list), 0);

	/* Options, paths. */
	uint64_t value = 0;
	gdrfab_path_info path = {.struct_size = sizeof path};
	RETURNS(gdrfab_ep_setopt(ep, GDRFAB_OPT_ENDPOINT, 9999, &value, sizeof value), -ENOPROTOOPT);
	RETURNS(gdrfab_ep_setopt(ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_DEADLINE, &value, 3), -EINVAL);
	RETURNS(gdrfab_ep_setopt(ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_WHOLE_NAME, &(uint32_t){1}, 4), -ENOPROTOOPT);
	if (strcmp(provider(), "shm") != 0)
		RETURNS(gdrfab_ep_setopt(ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_COOP, &(uint32_t){1}, 4), -EOPNOTSUPP);
	len = 1;
	RETURNS(gdrfab_ep_getopt(ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_DEADLINE, &value, &len), -GDRFAB_ETOOSMALL);
	RETURNS(gdrfab_ep_getopt(ep, GDRFAB_OPT_ENDPOINT, 9999, &value, &len), -ENOPROTOOPT);
	RETURNS(gdrfab_ep_query(ep, 0, 2, &path), -ENOTCONN);
	RETURNS(gdrfab_ep_query(ep, 0, GDRFAB_KEY_MESSAGES, &path), -ENOTCONN);
	RETURNS(gdrfab_ep_explain(ep, 0, 2, name, sizeof name), -ENOTCONN);
	RETURNS(gdrfab_cntr_add(NULL, 1), -EINVAL);
	OK(gdrfab_ep_close(ep));
	OK(gdrfab_ep_close(bare));
	OK(gdrfab_cntr_close(cntr));
	node_close(&other);
	node_close(&n);
}

TEST(passive_endpoints)
{
	struct node n;
	char name[GDRFAB_ADDR_MAX];
	size_t len = 1;
	gdrfab_pep *pep = NULL, *second = NULL;
	read_table();
	skip_if_connectionless();
	node_alone(&n, NULL);
	gdrfab_info *info = gdrfab_dupinfo(n.info);
	gdrfab_info *again = gdrfab_dupinfo(n.info);
	info->src_addr = NULL;
	OK(gdrfab_pep_open(n.fabric, info, NULL, &pep));
	RETURNS(gdrfab_pep_listen(pep), -GDRFAB_ENOEQ);
	RETURNS(gdrfab_pep_bind_eq(pep, n.eq, 1), -GDRFAB_EBADFLAGS);
	OK(gdrfab_pep_bind_eq(pep, n.eq, 0));
	RETURNS(gdrfab_pep_bind_eq(pep, n.eq, 0), -EBUSY);
	OK(gdrfab_pep_listen(pep));
	RETURNS(gdrfab_pep_listen(pep), -GDRFAB_EOPBADSTATE);
	RETURNS(gdrfab_pep_getname(pep, name, &len), -GDRFAB_ETOOSMALL);
	RETURNS(gdrfab_pep_reject(pep, (gdrfab_connreq *)(uintptr_t)12345, NULL, 0), -EINVAL);
	len = sizeof name;
	OK(gdrfab_pep_getname(pep, name, &len));
	/* The same name once more: reported by the call that would take it. */
	again->src_addr = name;
	if (traits()->numbered) {
		if (!traits()->adapter)
			RETURNS(gdrfab_pep_open(n.fabric, again, NULL, &second), -EADDRINUSE);
	} else {
		OK(gdrfab_pep_open(n.fabric, again, NULL, &second));
		OK(gdrfab_pep_bind_eq(second, n.eq, 0));
		RETURNS(gdrfab_pep_listen(second), -EADDRINUSE);
		OK(gdrfab_pep_close(second));
	}
	static char nonsense[] = "nonsense", elsewhere[] = "tcp://192.0.2.1:7", unknown[] = "tcp://no.such.host.invalid:7",
		    low[] = "tcp://127.0.0.1:7", folder[] = "shm:///nonexistent/gdrfab/socket";
	again->src_addr = nonsense;
	RETURNS(gdrfab_pep_open(n.fabric, again, NULL, &second), -EINVAL);
	if (path_known(PATH_SOCKET)) {
		gdrfab_ep *ep = NULL;
		again->src_addr = elsewhere;
		RETURNS(gdrfab_pep_open(n.fabric, again, NULL, &second), -EADDRNOTAVAIL);
		again->src_addr = unknown;
		RETURNS(gdrfab_pep_open(n.fabric, again, NULL, &second), -EADDRNOTAVAIL);
		RETURNS(gdrfab_ep_open(n.domain, again, NULL, &ep), -EADDRNOTAVAIL);
		again->src_addr = low;
		if (geteuid() != 0 || (setgroups(0, NULL) == 0 && setegid(65534) == 0 && seteuid(65534) == 0)) {
			int rc = gdrfab_pep_open(n.fabric, again, NULL, &second);
			if (rc == 0) /* This host lets everybody have the port. */
				OK(gdrfab_pep_close(second));
			else
				RETURNS(gdrfab_pep_open(n.fabric, again, NULL, &second), -EACCES);
		}
	} else if (strcmp(provider(), "shm") == 0) {
		again->src_addr = folder;
		OK(gdrfab_pep_open(n.fabric, again, NULL, &second));
		OK(gdrfab_pep_bind_eq(second, n.eq, 0));
		RETURNS(gdrfab_pep_listen(second), -ENOENT);
		OK(gdrfab_pep_close(second));
	}
	again->src_addr = NULL;
	gdrfab_freeinfo(again);
	gdrfab_freeinfo(info);
	OK(gdrfab_pep_close(pep));
	node_close(&n);
}

TEST(a_key_file_that_is_not_there)
{
	struct node n = {0};
	gdrfab_info *info = NULL;
	gdrfab_pep *pep = NULL;
	read_table();
	skip_unless(path_known(PATH_SOCKET), "has no key file");
	skip_if_connectionless();
	setenv("GDRFAB_TCP_KEY_FILE", "/nonexistent/key", 1);
	gdrfab_info *hints = gdrfab_dupinfo(NULL);
	OK(provider_getinfo("0", GDRFAB_SOURCE, hints, &info));
	gdrfab_freeinfo(hints);
	OK(gdrfab_fabric_open(info, NULL, &n.fabric));
	RETURNS(gdrfab_domain_open(n.fabric, info, NULL, &n.domain), -ENOENT);
	RETURNS(gdrfab_pep_open(n.fabric, info, NULL, &pep), -ENOENT);
	OK(gdrfab_fabric_close(n.fabric));
	gdrfab_freeinfo(info);
}

TEST(memory)
{
	static char bytes[8192];
	struct setup given = {.given_keys = true};
	struct node n;
	void *memory = NULL;
	gdrfab_mr *mr = NULL, *second = NULL;
	gdrfab_cntr *cntr = NULL;
	read_table();
	node_alone(&n, NULL);
	NEWER(gdrfab_mr_attr, newer);
	gdrfab_mr_dmabuf closed = {.fd = -1, .len = 4096};
	gdrfab_mr_attr attr = {.struct_size = sizeof attr, .dmabuf = &closed, .iov_count = 1, .access = REMOTE_ACCESS};
	RETURNS(gdrfab_mr_reg(n.domain, bytes, 0, REMOTE_ACCESS, 0, 0, 0, NULL, &mr), -EINVAL);
	RETURNS(gdrfab_mr_reg(n.domain, bytes, 64, REMOTE_ACCESS, 0, 0, 1ull << 61, NULL, &mr), -GDRFAB_EBADFLAGS);
	RETURNS(gdrfab_mr_regattr(n.domain, &newer.it, 0, &mr), -E2BIG);
	RETURNS(gdrfab_mr_regattr(n.domain, &attr, GDRFAB_MR_DMABUF, &mr), -EBADF);
	if (!traits()->adapter)
		RETURNS(gdrfab_mr_reg(n.domain, bytes, 64, GDRFAB_ATOMIC | REMOTE_ACCESS, 0, 0, 0, NULL, &mr), -EOPNOTSUPP);
	RETURNS(gdrfab_mem_alloc(n.domain, GDRFAB_HMEM_SYSTEM, 0, 4096, 1, &memory), -GDRFAB_EBADFLAGS);
	RETURNS(gdrfab_mem_alloc(n.domain, GDRFAB_HMEM_SYSTEM, 0, 0, 0, &memory), -EINVAL);
	RETURNS(gdrfab_mem_alloc(n.domain, GDRFAB_HMEM_SYSTEM, 0, (size_t)1 << 60, 0, &memory), 0);
	RETURNS(gdrfab_mem_alloc(n.domain, 0, 7, 4096, 0, &memory), -ENODEV);
	RETURNS(gdrfab_mem_free(n.domain, bytes), -EINVAL);
	OK(gdrfab_mem_alloc(n.domain, GDRFAB_HMEM_SYSTEM, 0, 4096, 0, &memory));
	OK(gdrfab_mr_reg(n.domain, memory, 4096, REMOTE_ACCESS, 0, 0, 0, NULL, &mr));
	OK(gdrfab_cntr_open(n.domain, NULL, NULL, &cntr));
	RETURNS(gdrfab_mem_free(n.domain, memory), -EBUSY);
	RETURNS(gdrfab_mr_bind_cntr(mr, cntr, 0), -GDRFAB_EBADFLAGS);
	OK(gdrfab_cntr_close(cntr));
	OK(gdrfab_mr_close(mr));
	OK(gdrfab_mem_free(n.domain, memory));
	RETURNS(gdrfab_mr_close(NULL), -EINVAL);
	node_close(&n);
	if (traits()->adapter)
		return;
	node_alone(&n, &given);
	OK(gdrfab_mr_reg(n.domain, bytes, 64, REMOTE_ACCESS, 0, 5, 0, NULL, &mr));
	RETURNS(gdrfab_mr_reg(n.domain, bytes, 64, REMOTE_ACCESS, 0, 5, 0, NULL, &second), -GDRFAB_ENOKEY);
	OK(gdrfab_mr_close(mr));
	node_close(&n);
}

/* Calls that need a descriptor, when the process may open no more. */
static void without_descriptors(struct node *n, const gdrfab_info *info)
{
	struct rlimit limit, none = {0, 0};
	gdrfab_domain *domain = NULL;
	gdrfab_pep *pep = NULL;
	gdrfab_eq *eq = NULL;
	gdrfab_cq *cq = NULL;
	void *memory = NULL;
	gdrfab_eq_attr eq_attr = {.struct_size = sizeof eq_attr, .wait_obj = GDRFAB_WAIT_FD};
	gdrfab_cq_attr cq_attr = {.struct_size = sizeof cq_attr, .wait_obj = GDRFAB_WAIT_FD};
	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
	none.rlim_max = limit.rlim_max;
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
	RETURNS(gdrfab_mem_alloc(n->domain, GDRFAB_HMEM_SYSTEM, 0, 4096, 0, &memory), -EMFILE);
	RETURNS(gdrfab_cq_open(n->domain, &cq_attr, NULL, &cq), -EMFILE);
	RETURNS(gdrfab_eq_open(n->fabric, &eq_attr, NULL, &eq), -EMFILE);
	if (strcmp(provider(), "shm") == 0)
		RETURNS(gdrfab_domain_open(n->fabric, info, NULL, &domain), -EMFILE);
	else if (path_known(PATH_SOCKET) && !connectionless(n->setup))
		RETURNS(gdrfab_pep_open(n->fabric, info, NULL, &pep), -EMFILE);
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

TEST(what_the_kernel_has_no_more_of)
{
	struct node n;
	read_table();
	node_alone(&n, NULL);
	without_descriptors(&n, n.info);
	node_close(&n);
}

/* The process has locked all its memory, and its limit allows no more. */
TEST(memory_that_may_not_be_locked)
{
	struct node n;
	void *memory = NULL;
	struct rlimit limit;
	read_table();
	node_alone(&n, NULL);
	CHECK_EQ(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
	limit.rlim_cur = limit.rlim_max < 64 << 20 ? limit.rlim_max : 64 << 20;
	CHECK_EQ(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
	if (geteuid() == 0 && (setgroups(0, NULL) != 0 || setgid(65534) != 0 || setuid(65534) != 0))
		test_skip("no user without rights: %s", strerror(errno));
	if (mlockall(MCL_FUTURE) != 0)
		test_skip("mlockall: %s", strerror(errno));
	RETURNS(gdrfab_mem_alloc(n.domain, GDRFAB_HMEM_SYSTEM, 0, 256 << 20, 0, &memory), -ENOMEM);
	if (!test_says(gdrfab_last_error(), "RLIMIT_MEMLOCK"))
		test_wrong(__FILE__, __LINE__, "the words do not name the limit: %s", gdrfab_last_error());
	munlockall();
	node_close(&n);
}

TEST(queues_and_counters)
{
	struct node n;
	gdrfab_cq *cq = NULL;
	gdrfab_eq *eq = NULL;
	gdrfab_cntr *cntr = NULL;
	gdrfab_ep *ep = NULL;
	done entry;
	int fd;
	uint32_t event;
	char bytes[512];
	read_table();
	node_alone(&n, NULL);
	gdrfab_cq_attr cq_attr = {.struct_size = sizeof cq_attr, .flags = 1};
	gdrfab_eq_attr eq_attr = {.struct_size = sizeof eq_attr, .flags = 1};
	gdrfab_cntr_attr cntr_attr = {.struct_size = sizeof cntr_attr, .flags = 1};
	gdrfab_cq_err_entry failed = {.struct_size = sizeof failed};
	gdrfab_eq_err_entry lost = {.struct_size = sizeof lost};
	NEWER(gdrfab_cq_attr, newer_cq);
	NEWER(gdrfab_eq_attr, newer_eq);
	NEWER(gdrfab_cntr_attr, newer_cntr);
	RETURNS(gdrfab_cq_open(n.domain, &cq_attr, NULL, &cq), -GDRFAB_EBADFLAGS);
	RETURNS(gdrfab_cq_open(n.domain, &newer_cq.it, NULL, &cq), -E2BIG);
	RETURNS(gdrfab_eq_open(n.fabric, &eq_attr, NULL, &eq), -GDRFAB_EBADFLAGS);
	RETURNS(gdrfab_eq_open(n.fabric, &newer_eq.it, NULL, &eq), -E2BIG);
	RETURNS(gdrfab_cntr_open(n.domain, &cntr_attr, NULL, &cntr), -GDRFAB_EBADFLAGS);
	RETURNS(gdrfab_cntr_open(n.domain, &newer_cntr.it, NULL, &cntr), -E2BIG);
	RETURNS(gdrfab_cq_read(n.cq, &entry, 1), -EAGAIN);
	RETURNS(gdrfab_cq_sread(n.cq, &entry, 1, 1), -EAGAIN);
	RETURNS(gdrfab_cq_sread(n.cq, &entry, 0, 1), -EINVAL);
	RETURNS(gdrfab_cq_readerr(n.cq, &failed, 0), -EAGAIN);
	RETURNS(gdrfab_cq_readerr(n.cq, &failed, 1), -GDRFAB_EBADFLAGS);
	RETURNS(gdrfab_cq_fd(n.cq, &fd), -ENOSYS);
	RETURNS(gdrfab_cq_trywait(n.cq), -ENOSYS);
	RETURNS(gdrfab_eq_read(n.eq, &event, bytes, sizeof bytes, 0), -EAGAIN);
	RETURNS(gdrfab_eq_read(n.eq, &event, bytes, sizeof bytes, 1ull << 63), -GDRFAB_EBADFLAGS);
	RETURNS(gdrfab_eq_sread(n.eq, &event, bytes, sizeof bytes, 1, 0), -EAGAIN);
	RETURNS(gdrfab_eq_readerr(n.eq, &lost, 0), -EAGAIN);
	RETURNS(gdrfab_eq_fd(n.eq, &fd), -ENOSYS);
	RETURNS(gdrfab_eq_trywait(n.eq), -ENOSYS);
	RETURNS(gdrfab_eq_write(n.eq, 5, bytes, sizeof bytes, 1), -GDRFAB_EBADFLAGS);
	OK(gdrfab_cntr_open(n.domain, NULL, NULL, &cntr));
	RETURNS(gdrfab_cntr_wait(cntr, 1, 1), -ETIMEDOUT);
	RETURNS(gdrfab_cntr_fd(cntr, &fd), -ENOSYS);
	OK(gdrfab_cntr_adderr(cntr, 1));
	RETURNS(gdrfab_cntr_wait(cntr, 1, 1), 0);
	OK(gdrfab_ep_open(n.domain, n.info, NULL, &ep));
	OK(gdrfab_ep_bind_cq(ep, n.cq, GDRFAB_TRANSMIT));
	OK(gdrfab_ep_bind_cntr(ep, cntr, GDRFAB_SEND));
	RETURNS(gdrfab_cq_close(n.cq), -EBUSY);
	RETURNS(gdrfab_cntr_close(cntr), -EBUSY);
	if (!connectionless(n.setup)) {
		OK(gdrfab_ep_bind_eq(ep, n.eq, 0));
		RETURNS(gdrfab_eq_close(n.eq), -EBUSY);
	}
	OK(gdrfab_ep_close(ep));
	OK(gdrfab_cntr_close(cntr));
	node_close(&n);
}

TEST(address_vectors)
{
	gdrfab_info *info = NULL, *hints = gdrfab_dupinfo(NULL);
	gdrfab_fabric *fabric = NULL;
	gdrfab_domain *domain = NULL;
	gdrfab_cq *cq = NULL;
	gdrfab_av *av = NULL;
	gdrfab_ep *ep = NULL;
	char name[GDRFAB_NAME_LEN] = "";
	size_t len = 1;
	uint64_t index;
	read_table();
	hints->ep_type = GDRFAB_EP_RDM;
	OK(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, hints, &info));
	OK(gdrfab_fabric_open(info, NULL, &fabric));
	OK(gdrfab_domain_open(fabric, info, NULL, &domain));
	gdrfab_av_attr attr = {.struct_size = sizeof attr, .flags = 1};
	RETURNS(gdrfab_av_open(domain, &attr, NULL, &av), 0);
	OK(gdrfab_av_open(domain, NULL, NULL, &av));
	RETURNS(gdrfab_av_insert(av, name, 1, &index, 1ull << 62, NULL), -GDRFAB_EBADFLAGS);
	RETURNS(gdrfab_av_insertsvc(av, "no.such.host.invalid", "7", &index, 0, NULL), -EADDRNOTAVAIL);
	RETURNS(gdrfab_av_insertsvc(av, NULL, NULL, &index, 0, NULL), -EINVAL);
	RETURNS(gdrfab_av_remove(av, &(uint64_t){77}, 1, 0), -EINVAL);
	RETURNS(gdrfab_av_lookup(av, 77, name, &len), -EINVAL);
	OK(gdrfab_cq_open(domain, NULL, NULL, &cq));
	OK(gdrfab_ep_open(domain, info, NULL, &ep));
	RETURNS(gdrfab_ep_bind_av(ep, av, 1), -GDRFAB_EBADFLAGS);
	OK(gdrfab_ep_bind_cq(ep, cq, GDRFAB_TRANSMIT | GDRFAB_RECV));
	OK(gdrfab_ep_bind_av(ep, av, 0));
	RETURNS(gdrfab_ep_bind_av(ep, av, 0), -EBUSY);
	RETURNS(gdrfab_av_close(av), -EBUSY);
	RETURNS(gdrfab_send(ep, name, 1, NULL, 0, NULL), 0);
	RETURNS(gdrfab_ep_getname(ep, name, &len), 0);
	OK(gdrfab_ep_enable(ep));
	RETURNS(gdrfab_send(ep, name, 1, NULL, 77, NULL), -EINVAL);
	RETURNS(gdrfab_ep_connect(ep, "shm://x", 8, NULL, 0), 0);
	RETURNS(gdrfab_ep_connect_addr(ep, "shm://x", 8), -EOPNOTSUPP);
	OK(gdrfab_ep_close(ep));
	OK(gdrfab_av_close(av));
	OK(gdrfab_cq_close(cq));
	OK(gdrfab_domain_close(domain));
	OK(gdrfab_fabric_close(fabric));
	gdrfab_freeinfo(info);
	gdrfab_freeinfo(hints);
}

TEST(devices)
{
	static char bytes[64];
	gdrfab_hmem_info info = {.struct_size = sizeof info};
	read_table();
	RETURNS(gdrfab_hmem_query(99, 0, &info), -EINVAL);
	RETURNS(gdrfab_hmem_query(0, 99, &info), 0);
	RETURNS(gdrfab_hmem_copy_to(0, 9, bytes, bytes + 32, 8), -ENODEV);
	RETURNS(gdrfab_hmem_copy_from(99, 0, bytes, bytes + 32, 8), -EINVAL);
	RETURNS(gdrfab_hmem_flush(99, 0), -EINVAL);
	RETURNS(gdrfab_hmem_detect(bytes, 8, NULL), -EINVAL);
}

/* Handles belong to the process that opened them. */
TEST(a_child_of_fork)
{
	struct node n;
	void *memory = NULL;
	gdrfab_mr *mr = NULL;
	gdrfab_cq *cq = NULL;
	gdrfab_ep *ep = NULL;
	read_table();
	node_alone(&n, NULL);
	pid_t child = test_fork(TEST_CLIENT);
	if (child == 0) {
		RETURNS(gdrfab_ep_open(n.domain, n.info, NULL, &ep), -EPERM);
		RETURNS(gdrfab_cq_open(n.domain, NULL, NULL, &cq), -EPERM);
		RETURNS(gdrfab_mem_alloc(n.domain, GDRFAB_HMEM_SYSTEM, 0, 4096, 0, &memory), -EPERM);
		RETURNS(gdrfab_mr_reg(n.domain, &n, 64, REMOTE_ACCESS, 0, 0, 0, NULL, &mr), -EPERM);
		RETURNS(gdrfab_domain_close(n.domain), -EPERM);
		RETURNS(gdrfab_cq_close(n.cq), -EPERM);
		RETURNS(gdrfab_fabric_close(n.fabric), -EPERM);
		test_child_done();
	}
	int status;
	CHECK_EQ(waitpid(child, &status, 0), child);
	test_child_ended(TEST_CLIENT, status);
	node_close(&n);
}

/* --- connected --- */

static void goes(struct node *n)
{
	struct mem m;
	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MEM_ALLOC], 4096);
	mem_register(n, &m, 0, 4096, REMOTE_ACCESS, 0);
	mem_publish(n, &m);
	barrier(n);
	OK(gdrfab_ep_shutdown(n->ep, 0));
	barrier(n);
	mem_end(n, &m);
	node_close(n);
}

static void stays(struct node *n)
{
	static char bytes[64];
	char name[GDRFAB_ADDR_MAX];
	size_t len = 1;
	gdrfab_path_info path = {.struct_size = sizeof path};
	read_table();
	node_up(n);
	struct remote r = mem_fetch(n);
	void *desc = local_desc(n, bytes, sizeof bytes);
	RETURNS(gdrfab_ep_connect(n->ep, n->info->dest_addr, n->info->dest_addrlen, NULL, 0), 0);
	RETURNS(gdrfab_ep_getname(n->ep, bytes, &len), 0);
	len = 1;
	RETURNS(gdrfab_ep_getpeer(n->ep, name, &len), -GDRFAB_ETOOSMALL);
	if (traits()->knows_regions)
		RETURNS(gdrfab_ep_query(n->ep, 0, wrong_key(r.key), &path), -EKEYREJECTED);
	RETURNS(gdrfab_inject(n->ep, bytes, n->info->inject_size + 1, 0), -EMSGSIZE);
	RETURNS(gdrfab_send(n->ep, NULL, 5, desc, 0, NULL), -EINVAL);
	RETURNS(gdrfab_cancel(n->ep, &path), 0);
	barrier(n);
	EVENT(n->eq, GDRFAB_SHUTDOWN, n->ep, NULL);
	RETURNS(gdrfab_send(n->ep, bytes, sizeof bytes, desc, 0, NULL), -ESHUTDOWN);
	RETURNS(gdrfab_recv(n->ep, bytes, sizeof bytes, desc, 0, NULL), -ESHUTDOWN);
	RETURNS(gdrfab_write(n->ep, bytes, sizeof bytes, desc, 0, r.base, r.key, NULL), -ESHUTDOWN);
	RETURNS(gdrfab_ep_query(n->ep, 0, r.key, &path), -ESHUTDOWN);
	RETURNS(gdrfab_ep_explain(n->ep, 0, GDRFAB_KEY_MESSAGES, name, sizeof name), -ESHUTDOWN);
	RETURNS(gdrfab_ep_shutdown(n->ep, 0), -ESHUTDOWN);
	RETURNS(gdrfab_ep_getpeer(n->ep, name, &len), 0);
	barrier(n);
	node_close(n);
}

TEST(connected_and_over)
{
	skip_if_connectionless();
	pair(NULL, goes, stays, NULL);
}
