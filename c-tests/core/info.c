/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Discovery (gdrfab_getinfo()): providers on offer, restrictions by the environment, copies, and texts. */
#include "info.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>

/* The address that these claims ask for. */
static const char *address(void)
{
	static char text[GDRFAB_ADDR_MAX];
	address_start(text, sizeof text);
	snprintf(text + strlen(text), sizeof text - strlen(text), "%s", service());
	return text;
}

static bool iwarp(const gdrfab_info *info)
{
	return strcmp(info->fabric_name, "iWARP") == 0;
}

TEST(without_hints)
{
	gdrfab_info *list = get(NULL, 0), *info = provider_pick(list);
	/* A provider without an adapter has only the library's limits. */
	bool own = !traits()->adapter;
	uint32_t mode = GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY;
	CHECK(info == list || !path_known(PATH_DIRECT));
	CHECK_EQ(info->struct_size, sizeof *info);
	CHECK_EQ(info->ep_type, GDRFAB_EP_MSG);
	CHECK_EQ(info->mr_mode, own ? mode : mode | GDRFAB_MR_LOCAL);
	CHECK_EQ(info->addr_format, GDRFAB_ADDR_STR);
	CHECK(info->cq_data_size == (own ? 8 : 4) || (info->cq_data_size == 0 && iwarp(info)));
	CHECK_EQ(info->cm_data_size, own ? GDRFAB_CM_DATA_MAX : 48);
	CHECK(info->mr_key_size == 8 || !own);
	CHECK_EQ(info->reason_errno, 0);
	CHECK(info->reason == NULL);
	CHECK(info->handle == NULL);
	uint64_t caps = GDRFAB_MSG | GDRFAB_RMA | GDRFAB_READ | GDRFAB_WRITE | GDRFAB_SEND | GDRFAB_RECV |
			GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE | GDRFAB_LOCAL_COMM;
	CHECK_EQ(info->caps & caps, caps);
	CHECK_EQ(info->caps & GDRFAB_REMOTE_COMM, path_known(PATH_DIRECT) ? 0 : GDRFAB_REMOTE_COMM);
	CHECK_EQ(info->paths & ~traits()->paths, 0);
	CHECK((info->paths & best_path()) != 0);
	CHECK((info->paths & GDRFAB_PATH_STAGED) != 0 || !own);
	uint64_t order = GDRFAB_ORDER_SAS | GDRFAB_ORDER_WAW;
	CHECK_EQ(info->msg_order & order, order);
	CHECK(info->inject_size >= (own ? 64u : 16u));
	CHECK(info->tx_size >= 16 && info->rx_size >= 16);
	CHECK(info->tx_iov_limit >= (own ? 4u : 1u) && info->rx_iov_limit >= (own ? 4u : 1u));
	CHECK(info->mr_iov_limit >= (own ? 4u : 1u));
	CHECK(info->rma_iov_limit >= 1);
	CHECK(info->max_msg_size >= 1u << 30);
	CHECK(info->mr_cnt >= (own ? 10000u : 1000u));
	CHECK(info->progress == GDRFAB_PROGRESS_MANUAL);
	CHECK(info->threading == GDRFAB_THREAD_SAFE || info->threading == GDRFAB_THREAD_DOMAIN);
	CHECK(info->fabric_name && *info->fabric_name);
	CHECK(info->domain_name && *info->domain_name);
	gdrfab_freeinfo(list);
}

TEST(addresses)
{
	gdrfab_info *out = get(NULL, 0), *in = get(NULL, GDRFAB_SOURCE);
	gdrfab_info *to = provider_pick(out), *at = provider_pick(in);
	CHECK(to->dest_addr != NULL);
	CHECK_EQ(strcmp(to->dest_addr, address()), 0);
	CHECK_EQ(to->dest_addrlen, strlen(to->dest_addr) + 1);
	CHECK(at->src_addr != NULL);
	CHECK_EQ(strcmp(at->src_addr, address()), 0);
	CHECK_EQ(at->src_addrlen, strlen(at->src_addr) + 1);
	CHECK(at->dest_addr == NULL);
	CHECK_EQ(at->dest_addrlen, 0);
	gdrfab_freeinfo(out);
	gdrfab_freeinfo(in);
	/* An address belongs to one provider. */
	gdrfab_info *whole = NULL;
	OK(gdrfab_getinfo(GDRFAB_VERSION, NULL, strcmp(provider(), "tcp") == 0 ? "tcp://127.0.0.1:7" : "shm://a", 0, NULL, &whole));
	for (const gdrfab_info *i = whole; i; i = i->next)
		CHECK(strncmp(i->dest_addr, i->prov_name, strlen(i->prov_name)) == 0);
	gdrfab_freeinfo(whole);
	/* Without a service there is no address: the caller may get it by other means. */
	gdrfab_info *none = NULL;
	OK(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, NULL, &none));
	CHECK(provider_pick(none)->dest_addr == NULL);
	gdrfab_freeinfo(none);
}

/* --- the environment; each claim is a process that has not called the library yet --- */

TEST(environment_names_a_provider)
{
	gdrfab_info *info = NULL;
	gdrfab_info hints = {.struct_size = sizeof hints, .prov_name = (char *)"tcp"};
	setenv("GDRFAB_PROVIDER", "shm", 1);
	CHECK_EQ(gdrfab_getinfo(GDRFAB_VERSION, NULL, "a", 0, &hints, &info), -ENODATA);
	if (!test_says(gdrfab_last_error(), "GDRFAB_PROVIDER"))
		test_fail(__FILE__, __LINE__, "the words do not name the variable: %s", gdrfab_last_error());
}

TEST(environment_names_a_set)
{
	gdrfab_info *info = NULL;
	gdrfab_info hints = {.struct_size = sizeof hints, .ep_type = GDRFAB_EP_RDM};
	setenv("GDRFAB_PROVIDER", "shm+tcp", 1);
	hints.mr_mode = GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY;
	OK(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, &hints, &info));
	CHECK(strcmp(info->prov_name, "shm+tcp") == 0 && !info->next);
	gdrfab_freeinfo(info);
	/* No info is named after a set: sets exist for connectionless endpoints only. */
	CHECK_EQ(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, NULL, &info), -ENODATA);
	hints.prov_name = (char *)"tcp";
	CHECK_EQ(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, &hints, &info), -ENODATA);
	SAYS(gdrfab_last_error(), "GDRFAB_PROVIDER=shm+tcp leaves only that provider");
	hints.prov_name = (char *)"shm+pigeon";
	CHECK_EQ(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, &hints, &info), -ENODATA);
	SAYS(gdrfab_last_error(), "no connectionless endpoints over \"shm+pigeon\", but over shm+verbs+tcp, shm+tcp, verbs, shm, tcp");
}

/* Connectionless endpoints with an RDMA device listen at the device's address, and their info shows it. */
TEST(sets_have_their_card)
{
	gdrfab_info hints = {.struct_size = sizeof hints, .ep_type = GDRFAB_EP_RDM}, *all;
	size_t cards = 0;
	hints.mr_mode = GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY;
	OK(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, &hints, &all));
	for (const gdrfab_info *at = all; at; at = at->next) {
		gdrfab_nic_attr nic = {.struct_size = sizeof nic};
		bool has_card = strstr(at->prov_name, "verbs") != NULL;
		cards += has_card;
		CHECK_EQ(at->src_addr != NULL, has_card);
		CHECK(!has_card || strncmp(at->src_addr, "rdm://", 6) == 0);
		CHECK_EQ(gdrfab_info_nic(at, &nic), has_card ? 0 : -ENODATA);
		CHECK(!has_card || strncmp(at->domain_name, nic.device, strlen(nic.device)) == 0);
	}
	CHECK(cards || strcmp(provider(), "verbs"));
	gdrfab_freeinfo(all);
}

TEST(environment_restricts_paths)
{
	bool tcp = path_known(PATH_SOCKET);
	skip_unless(tcp || path_known(PATH_DIRECT), "its paths are not for an environment to choose");
	/* Names the provider: else another provider could offer the path that this one must not use. */
	setenv("GDRFAB_PROVIDER", provider(), 1);
	set_variable("GDRFAB_PATHS", "staged");
	gdrfab_info *info = get(NULL, 0), hints, *none = NULL;
	CHECK_EQ(info->paths, GDRFAB_PATH_STAGED);
	gdrfab_freeinfo(info);
	memset(&hints, 0, sizeof hints);
	hints.struct_size = sizeof hints;
	hints.paths = best_path();
	CHECK_EQ(gdrfab_getinfo(GDRFAB_VERSION, node_name(), service(), 0, &hints, &none), -ENODATA);
}

/* --- copies and text --- */

TEST(copies)
{
	gdrfab_info *list = get(NULL, GDRFAB_SOURCE), *info = provider_pick(list), *copy = gdrfab_dupinfo(info);
	CHECK(copy && copy != info && copy->next == NULL);
	CHECK(copy->src_addr != info->src_addr && strcmp(copy->src_addr, info->src_addr) == 0);
	CHECK(copy->prov_name != info->prov_name && strcmp(copy->prov_name, info->prov_name) == 0);
	CHECK(strcmp(copy->fabric_name, info->fabric_name) == 0);
	CHECK(strcmp(copy->domain_name, info->domain_name) == 0);
	CHECK_EQ(copy->caps, info->caps);
	CHECK_EQ(copy->mr_cnt, info->mr_cnt);
	gdrfab_freeinfo(list);
	/* The copy is complete and independent of the first. */
	gdrfab_fabric *fabric = NULL;
	OK(gdrfab_fabric_open(copy, NULL, &fabric));
	gdrfab_info *again = get(copy, GDRFAB_SOURCE);
	gdrfab_freeinfo(again);
	gdrfab_freeinfo(copy);
	OK(gdrfab_fabric_close(fabric));
	gdrfab_freeinfo(NULL);

	gdrfab_info *blank = gdrfab_dupinfo(NULL);
	for (size_t i = sizeof blank->struct_size; i < sizeof *blank; i++)
		CHECK_EQ(((unsigned char *)blank)[i], 0);
	gdrfab_freeinfo(blank);
}

static void text(const void *data, uint32_t type, const char *word)
{
	char full[8192], cut[8];
	ssize_t len = gdrfab_tostr(data, type, full, sizeof full);
	if (len < 0 || (size_t)len >= sizeof full || strlen(full) != (size_t)len || !test_says(full, word)) {
		full[sizeof full - 1] = 0;
		test_wrong(__FILE__, __LINE__, "type %u: %zd, without \"%s\": %.500s", type, len, word,
			   len < 0 ? gdrfab_last_error() : full);
		return;
	}
	WANT_EQ(gdrfab_tostr(data, type, NULL, 0), len);
	memset(cut, 'x', sizeof cut);
	WANT_EQ(gdrfab_tostr(data, type, cut, 4), len);
	WANT_EQ(cut[len < 4 ? len : 3], 0);
	WANT_EQ(cut[4], 'x');
}

TEST(text_of_everything)
{
	gdrfab_info *list = get(NULL, 0), *info = provider_pick(list);
	uint64_t caps = GDRFAB_MSG | GDRFAB_REMOTE_WRITE, all = UINT64_MAX, none = 0;
	uint64_t paths_bits = GDRFAB_PATH_DIRECT | GDRFAB_PATH_STAGED, flags = GDRFAB_DELIVERY_COMPLETE;
	uint32_t mode = GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY, event = GDRFAB_CONNREQ, strange = 12345;
	char buf[64];
	text(info, GDRFAB_TYPE_INFO, provider());
	text(info, GDRFAB_TYPE_INFO, address());
	text(&caps, GDRFAB_TYPE_CAPS, "MSG");
	text(&caps, GDRFAB_TYPE_CAPS, "REMOTE_WRITE");
	text(&mode, GDRFAB_TYPE_MR_MODE, "VIRT_ADDR");
	text(&mode, GDRFAB_TYPE_MR_MODE, "PROV_KEY");
	text(&paths_bits, GDRFAB_TYPE_PATHS, "direct");
	text(&paths_bits, GDRFAB_TYPE_PATHS, "staged");
	text(&flags, GDRFAB_TYPE_OP_FLAGS, "DELIVERY_COMPLETE");
	text(&event, GDRFAB_TYPE_EQ_EVENT, "CONNREQ");
	text(&caps, GDRFAB_TYPE_ACCESS, "REMOTE_WRITE");
	/* Bits without a name are printed as numbers. */
	text(&all, GDRFAB_TYPE_CAPS, "MSG");
	text(&all, GDRFAB_TYPE_OP_FLAGS, "");
	text(&none, GDRFAB_TYPE_CAPS, "");
	text(&strange, GDRFAB_TYPE_EQ_EVENT, "");
	WANT_EQ(gdrfab_tostr(&caps, 999, buf, sizeof buf), -EINVAL);
	WANT_EQ(gdrfab_tostr(NULL, GDRFAB_TYPE_CAPS, buf, sizeof buf), -EINVAL);
	gdrfab_freeinfo(list);
}

static void *fails_in_a_thread(void *arg)
{
	CHECK_EQ(gdrfab_last_error()[0], 0);
	CHECK_EQ(gdrfab_fabric_close(NULL), -EINVAL);
	CHECK(gdrfab_last_error()[0] != 0);
	return arg;
}

TEST(versions_and_words)
{
	char want[32];
	snprintf(want, sizeof want, "%d.%d.%d", GDRFAB_VERSION_MAJOR, GDRFAB_VERSION_MINOR, GDRFAB_VERSION_PATCH);
	CHECK(strstr(gdrfab_version_string(), want) != NULL);
	CHECK_EQ(gdrfab_version(), GDRFAB_VERSION);
	CHECK_EQ(GDRFAB_VERSION, GDRFAB_VERSION_MAJOR << 16 | GDRFAB_VERSION_MINOR);
	char words[200];
	snprintf(words, sizeof words, "%s", gdrfab_strerror(EINVAL));
	CHECK_EQ(strcmp(words, gdrfab_strerror(-EINVAL)), 0);
	for (int err = 0; err < 300; err++)
		CHECK(gdrfab_strerror(err) && *gdrfab_strerror(err));
	CHECK(gdrfab_strerror(123456789) != NULL && gdrfab_strerror(-2147483647 - 1) != NULL);
	snprintf(words, sizeof words, "%s", gdrfab_strerror(GDRFAB_ETRUNC));
	CHECK(strcmp(words, gdrfab_strerror(GDRFAB_ENOKEY)) != 0);

	/* The error text belongs to the thread, and a success does not clear it. */
	pthread_t thread;
	CHECK_EQ(gdrfab_last_error()[0], 0);
	CHECK_EQ(pthread_create(&thread, NULL, fails_in_a_thread, NULL), 0);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(gdrfab_last_error()[0], 0);
	CHECK_EQ(gdrfab_fabric_close(NULL), -EINVAL);
	CHECK(test_says(gdrfab_last_error(), "fabric"));
}

/* --- silence, unless asked --- */

static int logged;

static void count_messages(void *arg, int level, const char *message)
{
	CHECK(arg == &logged);
	CHECK(level >= 1 && level <= 4);
	CHECK(message && *message);
	logged++;
}

static void some_failures(void)
{
	struct node n;
	gdrfab_mr *mr = NULL;
	node_alone(&n, NULL);
	gdrfab_mr_reg(n.domain, NULL, 1, 0, 0, 0, 0, NULL, &mr);
	n.ep = ep_new(&n, n.info, NULL);
	OK(gdrfab_ep_connect(n.ep, n.info->dest_addr, n.info->dest_addrlen, NULL, 0));
	EQ_FAILED(n.eq, n.ep, ECONNREFUSED, 5000, NULL);
	node_close(&n);
}

TEST(nothing_is_printed_unless_asked)
{
	unsetenv("GDRFAB_LOG");
	int fd = memfd_create("output", MFD_CLOEXEC), out = dup(1), err = dup(2);
	CHECK(fd >= 0 && out >= 0 && err >= 0);
	fflush(stdout);
	dup2(fd, 1);
	dup2(fd, 2);
	some_failures();
	fflush(stdout);
	dup2(out, 1);
	dup2(err, 2);
	CHECK_EQ(lseek(fd, 0, SEEK_END), 0);

	OK(gdrfab_log_set(4, count_messages, &logged));
	some_failures();
	CHECK(logged > 0);
	OK(gdrfab_log_set(0, NULL, NULL));
	int before = logged;
	some_failures();
	CHECK_EQ(logged, before);
	close(fd);
	close(out);
	close(err);
}

/* --- the first error --- */

/* A call that reports -GDRFAB_EAVAIL also sets the error text, besides the error entry. */
TEST(an_error_that_is_next_has_its_words_at_once)
{
	struct node n;
	uint32_t event;
	gdrfab_eq_cm_entry entry;
	gdrfab_eq_err_entry why = {.struct_size = sizeof why};
	char words[512] = "";
	ssize_t got;
	uint64_t until = test_now_ms() + (uint64_t)test_ms(5000);

	node_alone(&n, NULL);
	n.ep = ep_new(&n, n.info, NULL);
	OK(gdrfab_ep_connect(n.ep, n.info->dest_addr, n.info->dest_addrlen, NULL, 0));
	while ((got = gdrfab_eq_sread(n.eq, &event, &entry, sizeof entry, 100, 0)) == -EAGAIN && test_now_ms() < until)
		;
	CHECK_EQ(got, -GDRFAB_EAVAIL);
	char said[512];
	snprintf(said, sizeof said, "%s", gdrfab_last_error());
	why.err_data = words;
	why.err_data_size = sizeof words;
	CHECK_EQ(gdrfab_eq_readerr(n.eq, &why, 0), 1);
	CHECK_EQ(why.err, ECONNREFUSED);
	if (!words[0] || !strstr(said, words))
		test_fail(__FILE__, __LINE__, "the entry says '%s', the call before '%s'", words, said);

	/* The same for a completion queue: closing the endpoint cancels a posted receive. */
	static char buf[64];
	gdrfab_ep *ep = ep_new(&n, n.info, NULL);
	OK(gdrfab_recv(ep, buf, sizeof buf, local_desc(&n, buf, sizeof buf), 0, buf));
	OK(gdrfab_ep_close(ep));
	done e;
	struct failure f;
	CHECK_EQ(gdrfab_cq_read(n.cq, &e, 1), -GDRFAB_EAVAIL);
	snprintf(said, sizeof said, "%s", gdrfab_last_error());
	FAILED(n.cq, buf, ECANCELED, GDRFAB_PROV_CANCELED, &f);
	if (!f.words[0] || !strstr(said, f.words))
		test_fail(__FILE__, __LINE__, "the entry says '%s', the call before '%s'", f.words, said);
	node_close(&n);
}
