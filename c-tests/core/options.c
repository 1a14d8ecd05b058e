/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Options of an endpoint; its reports about the path to a region, the reasons against other paths, and the bytes moved by
 * each path; and that required and forbidden paths are respected.
 */
#include "misuse.h"

#include <sys/uio.h>

TEST(set_and_get)
{
	struct node n;
	node_alone(&n, NULL);
	n.ep = ep_new(&n, n.info, NULL);
	gdrfab_ep *ep = n.ep;
	uint64_t value = 0;
	uint32_t coop = 7;
	size_t len = sizeof value, cm = 0;
	const int level = GDRFAB_OPT_ENDPOINT;
	const uint64_t known = traits()->paths, best = known & -known, two = best | ((known & ~best) & -(known & ~best));

	OK(gdrfab_ep_getopt(ep, level, GDRFAB_OPT_CM_DATA_SIZE, &cm, &len));
	CHECK_EQ(cm, n.info->cm_data_size);
	OK(gdrfab_ep_getopt(ep, level, GDRFAB_OPT_DEADLINE, &value, &len));
	CHECK_EQ(value, 0);
	OK(gdrfab_ep_getopt(ep, level, GDRFAB_OPT_CONNECT_TIMEOUT, &value, &len));
	CHECK_EQ(value, 10000000000);
	OK(gdrfab_ep_getopt(ep, level, GDRFAB_OPT_REQUIRE_PATH, &value, &len));
	CHECK_EQ(value, 0);
	len = sizeof coop;
	OK(gdrfab_ep_getopt(ep, level, GDRFAB_OPT_COOP, &coop, &len));
	/* The option is of shm alone; other providers refuse it instead of ignoring it. */
	CHECK_EQ(coop, path_known(PATH_DIRECT));
	if (!coop) {
		coop = 1;
		MISUSE(gdrfab_ep_setopt(ep, level, GDRFAB_OPT_COOP, &coop, sizeof coop), -EOPNOTSUPP, "GDRFAB_OPT_COOP");
	}
	if (path_known(PATH_DIRECT)) {
		coop = 2;
		OK(gdrfab_ep_setopt(ep, level, GDRFAB_OPT_COOP, &coop, sizeof coop));
		coop = 7;
		OK(gdrfab_ep_getopt(ep, level, GDRFAB_OPT_COOP, &coop, &len));
		CHECK_EQ(coop, 2);
	}
	coop = 0;
	OK(gdrfab_ep_setopt(ep, level, GDRFAB_OPT_COOP, &coop, sizeof coop));
	coop = 7;
	OK(gdrfab_ep_getopt(ep, level, GDRFAB_OPT_COOP, &coop, &len));
	CHECK_EQ(coop, 0);
	value = two;
	OK(gdrfab_ep_setopt(ep, level, GDRFAB_OPT_REQUIRE_PATH, &value, sizeof value));
	value = 0, len = sizeof value;
	OK(gdrfab_ep_getopt(ep, level, GDRFAB_OPT_REQUIRE_PATH, &value, &len));
	CHECK_EQ(value, two);

	value = 5;
	MISUSE(gdrfab_ep_setopt(NULL, level, GDRFAB_OPT_DEADLINE, &value, sizeof value), -EINVAL, "ep");
	MISUSE_EITHER(gdrfab_ep_setopt(ep, 99, GDRFAB_OPT_DEADLINE, &value, sizeof value), -EINVAL, -ENOPROTOOPT,
		      "level");
	MISUSE_EITHER(gdrfab_ep_setopt(ep, level, 9999, &value, sizeof value), -ENOPROTOOPT, -EINVAL, "optname");
	MISUSE(gdrfab_ep_setopt(ep, level, GDRFAB_OPT_DEADLINE, NULL, sizeof value), -EINVAL, "optval");
	MISUSE(gdrfab_ep_setopt(ep, level, GDRFAB_OPT_DEADLINE, &value, 4), -EINVAL, "optlen");
	MISUSE(gdrfab_ep_setopt(ep, level, GDRFAB_OPT_DEADLINE, &value, 9), -EINVAL, "optlen");
	MISUSE(gdrfab_ep_setopt(ep, level, GDRFAB_OPT_COOP, &value, 8), -EINVAL, "optlen");
	MISUSE_EITHER(gdrfab_ep_setopt(ep, level, GDRFAB_OPT_CM_DATA_SIZE, &cm, sizeof cm), -ENOPROTOOPT, -EINVAL,
		      "optname");
	value = 1ull << 50;
	MISUSE(gdrfab_ep_setopt(ep, level, GDRFAB_OPT_REQUIRE_PATH, &value, sizeof value), -EINVAL, "optval");
	MISUSE(gdrfab_ep_setopt(ep, level, GDRFAB_OPT_FORBID_PATH, &value, sizeof value), -EINVAL, "optval");
	coop = 3;
	MISUSE(gdrfab_ep_setopt(ep, level, GDRFAB_OPT_COOP, &coop, sizeof coop), -EINVAL, "optval");

	len = 4, value = 5;
	MISUSE(gdrfab_ep_getopt(ep, level, GDRFAB_OPT_DEADLINE, &value, &len), -GDRFAB_ETOOSMALL, "optlen");
	CHECK_EQ(len, 8);
	CHECK_EQ(value, 5);
	MISUSE(gdrfab_ep_getopt(NULL, level, GDRFAB_OPT_DEADLINE, &value, &len), -EINVAL, "ep");
	MISUSE(gdrfab_ep_getopt(ep, level, GDRFAB_OPT_DEADLINE, NULL, &len), -EINVAL, "optval");
	MISUSE(gdrfab_ep_getopt(ep, level, GDRFAB_OPT_DEADLINE, &value, NULL), -EINVAL, "optlen");
	MISUSE_EITHER(gdrfab_ep_getopt(ep, level, 9999, &value, &len), -ENOPROTOOPT, -EINVAL, "optname");

	gdrfab_path_info path;
	gdrfab_stats stats;
	char text[64];
	memset(&path, 0x5a, sizeof path);
	memset(&stats, 0, sizeof stats);
	path.struct_size = sizeof path;
	stats.struct_size = sizeof stats;
	MISUSE(gdrfab_ep_query(NULL, 0, 1, &path), -EINVAL, "ep");
	MISUSE(gdrfab_ep_query(ep, 0, 1, NULL), -EINVAL, "info");
	path.rails = NULL;
	MISUSE(gdrfab_ep_query(ep, 0, 1, &path), -EINVAL, "info->rails");
	path.rails_max = 0;
	MISUSE(gdrfab_ep_query(ep, 0, 1, &path), -ENOTCONN, "");
	MISUSE(gdrfab_ep_explain(ep, 0, 1, NULL, 1), -EINVAL, "buf");
	MISUSE(gdrfab_ep_explain(NULL, 0, 1, text, sizeof text), -EINVAL, "ep");
	MISUSE(gdrfab_ep_explain(ep, 0, 1, text, sizeof text), -ENOTCONN, "");
	MISUSE(gdrfab_ep_stats(NULL, &stats), -EINVAL, "ep");
	MISUSE(gdrfab_ep_stats(ep, NULL), -EINVAL, "stats");
	CHECK_EQ(path.path, 0x5a5a5a5a5a5a5a5a);
	OK(gdrfab_ep_stats(ep, &stats));
	CHECK_EQ(stats.sends + stats.errors, 0);
	for (int i = 0; i < GDRFAB_PATHS_MAX; i++)
		CHECK_EQ(stats.by_path[i].ops + stats.by_path[i].bytes, 0);
	node_close(&n);
}

/* --- paths of a connected endpoint --- */

static const char one_path[] = "an endpoint has one path to host memory";

static void offers_two(struct node *n)
{
	struct mem easy, plain;
	node_up(n);
	mem_new(n, &easy, &memkinds[KIND_MEM_ALLOC], 65536);
	mem_new(n, &plain, &memkinds[KIND_MALLOC], 65536);
	memset(plain.addr, 0, 65536);
	mem_register(n, &easy, 0, 65536, REMOTE_ACCESS, 0);
	mem_register(n, &plain, 0, 65536, REMOTE_ACCESS, 0);
	mem_publish(n, &easy);
	mem_publish(n, &plain);
	barrier(n);
	mem_end(n, &easy);
	mem_end(n, &plain);
	node_down(n);
}

/* Each object returns the context that it was opened or registered with. */
TEST(contexts)
{
	struct node n;
	gdrfab_fabric *fabric;
	gdrfab_domain *domain;
	gdrfab_ep *ep;
	gdrfab_pep *pep;
	gdrfab_cq *cq;
	gdrfab_eq *eq;
	gdrfab_cntr *cntr;
	gdrfab_mr *mr;
	char at[16];
	node_alone(&n, NULL);
	OK(gdrfab_fabric_open(n.info, at, &fabric));
	OK(gdrfab_domain_open(fabric, n.info, at + 1, &domain));
	OK(gdrfab_ep_open(domain, n.info, at + 2, &ep));
	OK(gdrfab_pep_open(fabric, n.info, at + 3, &pep));
	OK(gdrfab_cq_open(domain, NULL, at + 4, &cq));
	OK(gdrfab_eq_open(fabric, NULL, at + 5, &eq));
	OK(gdrfab_cntr_open(domain, NULL, at + 6, &cntr));
	CHECK(gdrfab_fabric_context(fabric) == at && gdrfab_domain_context(domain) == at + 1);
	CHECK(gdrfab_ep_context(ep) == at + 2 && gdrfab_pep_context(pep) == at + 3);
	CHECK(gdrfab_cq_context(cq) == at + 4 && gdrfab_eq_context(eq) == at + 5);
	CHECK(gdrfab_cntr_context(cntr) == at + 6);
	CHECK(!gdrfab_fabric_context(NULL) && !gdrfab_domain_context(NULL) && !gdrfab_ep_context(NULL));
	CHECK(!gdrfab_pep_context(NULL) && !gdrfab_cq_context(NULL) && !gdrfab_eq_context(NULL));
	CHECK(!gdrfab_cntr_context(NULL) && !gdrfab_mr_context(NULL));
	/* By the fast path, by the slow path, and by a handle that was used before. */
	struct iovec two[2] = {{at, 4}, {at + 8, 4}};
	for (int i = 0; i < 2; i++) {
		OK(gdrfab_mr_reg(domain, at, sizeof at, GDRFAB_SEND, 0, 1, 0, at + 7 + i, &mr));
		CHECK(gdrfab_mr_context(mr) == at + 7 + i);
		OK(gdrfab_mr_close(mr));
		OK(gdrfab_mr_regv(domain, two, 2, GDRFAB_SEND, 0, 2, 0, at + 9 + i, &mr));
		CHECK(gdrfab_mr_context(mr) == at + 9 + i);
		OK(gdrfab_mr_close(mr));
	}
	OK(gdrfab_mr_reg(domain, at, sizeof at, GDRFAB_SEND, 0, 1, 0, NULL, &mr));
	CHECK(gdrfab_mr_context(mr) == NULL);
	OK(gdrfab_mr_close(mr));
	OK(gdrfab_cntr_close(cntr));
	OK(gdrfab_cq_close(cq));
	OK(gdrfab_ep_close(ep));
	OK(gdrfab_pep_close(pep));
	OK(gdrfab_eq_close(eq));
	OK(gdrfab_domain_close(domain));
	OK(gdrfab_fabric_close(fabric));
	node_close(&n);
}

static gdrfab_path_info path_to(struct node *n, uint64_t key)
{
	gdrfab_path_info info;
	char text[2048];
	memset(&info, 0, sizeof info);
	info.struct_size = sizeof info;
	OK(gdrfab_ep_query(n->ep, 0, key, &info));
	ssize_t len = gdrfab_ep_explain(n->ep, 0, key, text, sizeof text);
	CHECK(len > 0 && (size_t)len < sizeof text && strlen(text) == (size_t)len);
	CHECK_EQ(gdrfab_ep_explain(n->ep, 0, key, NULL, 0), len);
	for (int p = 0; p < PATHS; p++) {
		/* gdrfab_ep_query() and gdrfab_ep_explain() agree. */
		CHECK_EQ((info.paths & paths[p].bit) != 0, info.reasons[p] == 0);
		if (!names(text, paths[p].name))
			test_fail(__FILE__, __LINE__, "the explanation is silent about %s: %s", paths[p].name, text);
	}
	for (int i = PATHS; i < GDRFAB_PATHS_MAX; i++)
		CHECK_EQ(info.reasons[i], 0);
	CHECK_EQ(info.path, info.paths & -info.paths);
	CHECK_EQ(info.paths & ~info.offered, 0);
	return info;
}

static void put(struct node *n, struct remote to, int err)
{
	static char out[100];
	POST(n->cq, gdrfab_write(n->ep, out, sizeof out, local_desc(n, out, sizeof out), 0, to.base, to.key, out));
	if (err)
		FAILED(n->cq, out, err, GDRFAB_PROV_PATH, NULL);
	else
		DONE(n->cq, out, GDRFAB_WRITE, NULL);
}

static void option(struct node *n, int name, uint64_t bits)
{
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, name, &bits, sizeof bits));
}

static uint64_t bytes_by(struct node *n, int path)
{
	gdrfab_stats s;
	memset(&s, 0, sizeof s);
	s.struct_size = sizeof s;
	OK(gdrfab_ep_stats(n->ep, &s));
	return s.by_path[path].bytes;
}

static void chooses(struct node *n)
{
	node_up(n);
	struct remote easy = mem_fetch(n), plain = mem_fetch(n);
	const struct way best = {&paths[PATH_DIRECT], &memkinds[KIND_MEM_ALLOC], "direct_mem_alloc"};
	int refused = cma_refused(n);
	way_check(n, &best, easy);
	gdrfab_path_info info = path_to(n, easy.key);
	CHECK_EQ(info.path, GDRFAB_PATH_DIRECT);
	CHECK((info.paths & GDRFAB_PATH_STAGED) != 0);
	info = path_to(n, plain.key);
	CHECK_EQ(info.paths & GDRFAB_PATH_DIRECT, 0);
	CHECK(info.reasons[PATH_DIRECT] != 0);
	CHECK_EQ(info.path, refused ? GDRFAB_PATH_STAGED : GDRFAB_PATH_CMA);
	if (refused)
		CHECK_EQ(info.reasons[PATH_CMA], refused);
	memset(&info, 0, sizeof info);
	info.struct_size = sizeof info;
	CHECK_EQ(gdrfab_ep_query(n->ep, 0, wrong_key(easy.key), &info), -EKEYREJECTED);

	/* A required path: no other path is used. */
	option(n, GDRFAB_OPT_REQUIRE_PATH, GDRFAB_PATH_DIRECT);
	put(n, easy, 0);
	put(n, plain, EOPNOTSUPP);
	CHECK_EQ(bytes_by(n, PATH_DIRECT), 100);
	CHECK_EQ(bytes_by(n, PATH_CMA) + bytes_by(n, PATH_STAGED), 0);
	option(n, GDRFAB_OPT_REQUIRE_PATH, GDRFAB_PATH_STAGED);
	CHECK_EQ(path_to(n, easy.key).path, GDRFAB_PATH_STAGED);
	put(n, easy, 0);
	put(n, plain, 0);
	CHECK_EQ(bytes_by(n, PATH_STAGED), 200);
	option(n, GDRFAB_OPT_REQUIRE_PATH, 0);

	/* A forbidden path: the next best is used. */
	option(n, GDRFAB_OPT_FORBID_PATH, GDRFAB_PATH_DIRECT);
	CHECK_EQ(path_to(n, easy.key).path, refused ? GDRFAB_PATH_STAGED : GDRFAB_PATH_CMA);
	put(n, easy, 0);
	CHECK_EQ(bytes_by(n, refused ? PATH_STAGED : PATH_CMA), refused ? 300 : 100);
	option(n, GDRFAB_OPT_FORBID_PATH, GDRFAB_PATH_DIRECT | GDRFAB_PATH_CMA | GDRFAB_PATH_STAGED);
	put(n, easy, EOPNOTSUPP);
	option(n, GDRFAB_OPT_FORBID_PATH, 0);
	put(n, easy, 0);
	CHECK_EQ(bytes_by(n, PATH_DIRECT), 200);
	barrier(n);
	node_down(n);
}

TEST(paths_of_an_endpoint)
{
	skip_unless(path_known(PATH_DIRECT), one_path);
	pair(NULL, offers_two, chooses, NULL);
}

/* Variables that forbid paths work on either side. */
static void restricted(struct node *n)
{
	only_staged();
	node_up(n);
	struct remote easy = mem_fetch(n), plain = mem_fetch(n);
	CHECK_EQ(path_to(n, easy.key).path, GDRFAB_PATH_STAGED);
	put(n, easy, 0);
	put(n, plain, 0);
	CHECK_EQ(bytes_by(n, PATH_STAGED), 200);
	barrier(n);
	node_down(n);
}

TEST(environment_restricts_the_initiator)
{
	skip_unless(path_known(PATH_DIRECT), one_path);
	pair(NULL, offers_two, restricted, NULL);
}

static void offers_little(struct node *n)
{
	only_staged();
	offers_two(n);
}

static void gets_little(struct node *n)
{
	node_up(n);
	struct remote easy = mem_fetch(n), plain = mem_fetch(n);
	CHECK_EQ(path_to(n, easy.key).offered, GDRFAB_PATH_STAGED);
	put(n, easy, 0);
	put(n, plain, 0);
	CHECK_EQ(bytes_by(n, PATH_STAGED), 200);
	barrier(n);
	node_down(n);
}

TEST(environment_restricts_the_target)
{
	skip_unless(path_known(PATH_DIRECT), one_path);
	pair(NULL, offers_little, gets_little, NULL);
}
