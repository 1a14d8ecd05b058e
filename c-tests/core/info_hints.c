/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Discovery: each hint alone, and the text for a hint that cannot be met. */
#include "info.h"

struct hint {
	const char *name; /* the error text contains it if the hint cannot be met */
	size_t offset, size;
	uint64_t value;
	const char *only; /* the providers that this hint is for */
};

#define HINT_OF(only, member, value)                                                                                   \
	{                                                                                                              \
		#member, offsetof(gdrfab_info, member), sizeof(((gdrfab_info *)0)->member), value, only                \
	}
#define HINT(member, value) HINT_OF(NULL, member, value)
/* The modes that any provider may demand; a caller that supports all of them gets every provider. */
#define MODE(bits) (GDRFAB_MR_LOCAL | GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY | (bits))

static void set(gdrfab_info *hints, const struct hint *w)
{
	memset(hints, 0, sizeof *hints);
	hints->struct_size = sizeof *hints;
	hints->mr_mode = MODE(0);
	/* Little-endian, like every machine that the library runs on. */
	memcpy((char *)hints + w->offset, &w->value, w->size);
}

static bool concerns_us(const struct hint *w)
{
	return !w->only || strstr(w->only, provider()) != NULL;
}

static uint64_t field(const gdrfab_info *info, const struct hint *w)
{
	uint64_t value = 0;
	memcpy(&value, (const char *)info + w->offset, w->size);
	return value;
}

static const struct hint possible[] = {
	HINT(caps, GDRFAB_MSG),
	HINT(caps, GDRFAB_MSG | GDRFAB_SEND),
	HINT(caps, GDRFAB_RMA),
	HINT(caps, GDRFAB_RMA | GDRFAB_HMEM),
	HINT(caps, GDRFAB_RMA | GDRFAB_READ | GDRFAB_REMOTE_READ),
	HINT_OF("shm tcp", caps, GDRFAB_RMA | GDRFAB_RMA_EVENT),
	HINT(caps, GDRFAB_MSG | GDRFAB_RMA | GDRFAB_LOCAL_COMM),
	HINT(tx_op_flags, GDRFAB_COMPLETION),
	HINT_OF("shm tcp", tx_op_flags, GDRFAB_DELIVERY_COMPLETE),
	HINT(tx_op_flags, GDRFAB_INJECT),
	HINT(tx_op_flags, GDRFAB_INJECT_COMPLETE),
	HINT(tx_op_flags, GDRFAB_TRANSMIT_COMPLETE | GDRFAB_COMPLETION),
	HINT(rx_op_flags, GDRFAB_COMPLETION),
	HINT(msg_order, GDRFAB_ORDER_SAS),
	HINT(comp_order, GDRFAB_ORDER_STRICT),
	HINT(msg_order, GDRFAB_ORDER_WAW | GDRFAB_ORDER_SAS),
	HINT_OF("shm", paths, GDRFAB_PATH_DIRECT),
	HINT_OF("shm tcp", paths, GDRFAB_PATH_STAGED),
	HINT_OF("shm tcp", mr_mode, GDRFAB_MR_VIRT_ADDR),
	HINT_OF("shm tcp", mr_mode, GDRFAB_MR_PROV_KEY),
	HINT(mr_mode, MODE(GDRFAB_MR_HMEM)),
	HINT(mr_mode, MODE(1u << 5)), /* FI_MR_ALLOCATED, which has no meaning here */
	HINT(ep_type, GDRFAB_EP_MSG),
	HINT(threading, GDRFAB_THREAD_SAFE),
	HINT(threading, GDRFAB_THREAD_DOMAIN),
	HINT(progress, GDRFAB_PROGRESS_MANUAL),
	HINT(progress, GDRFAB_PROGRESS_AUTO),
	HINT(addr_format, GDRFAB_ADDR_STR),
	HINT(cq_data_size, 1),
	HINT_OF("shm tcp", cq_data_size, 8),
	HINT(inject_size, 16),
	HINT_OF("shm tcp", inject_size, 64),
	HINT(tx_size, 16),
	HINT(rx_size, 16),
	HINT_OF("shm tcp", tx_iov_limit, 4),
	HINT_OF("shm tcp", rx_iov_limit, 4),
	HINT(rma_iov_limit, 1),
	HINT_OF("shm tcp", mr_iov_limit, 4),
	HINT(max_msg_size, 1u << 30),
	HINT_OF("shm tcp", mr_key_size, 8),
	HINT_OF("shm tcp", mr_cnt, 10000),
	HINT_OF("shm tcp", cm_data_size, GDRFAB_CM_DATA_MAX),
	HINT_OF("verbs tcp", caps, GDRFAB_MSG | GDRFAB_RMA | GDRFAB_REMOTE_COMM),
	HINT_OF("tcp", paths, GDRFAB_PATH_SOCKET),
	HINT_OF("tcp", paths, GDRFAB_PATH_SOCKET | GDRFAB_PATH_DIRECT),
	HINT_OF("tcp", max_msg_size, 1ull << 32),
	HINT_OF("verbs", paths, GDRFAB_PATH_NIC),
	HINT_OF("verbs", paths, GDRFAB_PATH_NIC | GDRFAB_PATH_DIRECT),
	HINT_OF("verbs", mr_mode, GDRFAB_MR_LOCAL | GDRFAB_MR_PROV_KEY),
	HINT_OF("verbs", cq_data_size, 4),
	HINT_OF("verbs", mr_key_size, 4),
	HINT_OF("verbs", cm_data_size, 48),
	HINT_OF("verbs", max_msg_size, 1u << 31),
};

TEST(each_hint_that_can_be_met)
{
	gdrfab_info *plain = get(NULL, 0);
	bool no_data = provider_pick(plain)->cq_data_size == 0;
	gdrfab_freeinfo(plain);
	for (size_t i = 0; i < sizeof possible / sizeof possible[0]; i++) {
		const struct hint *w = &possible[i];
		gdrfab_info hints, *info = NULL;
		if (!concerns_us(w) || (no_data && w->offset == offsetof(gdrfab_info, cq_data_size)))
			continue;
		set(&hints, w);
		int rc = provider_getinfo(service(), 0, &hints, &info);
		if (rc != 0) {
			test_wrong(__FILE__, __LINE__, "hints->%s = 0x%llx: %s%s", w->name,
				   (unsigned long long)w->value, test_number(rc), test_words(rc));
			continue;
		}
		uint64_t got = field(info, w);
		bool bits = w->offset < offsetof(gdrfab_info, ep_type);
		bool met = bits ? (got & w->value) != 0 : got >= w->value;
		/* Of the caller's modes the info keeps only those that the provider demands. */
		if (w->offset == offsetof(gdrfab_info, mr_mode))
			met = (got & ~w->value) == 0;
		else if (bits && w->offset != offsetof(gdrfab_info, paths))
			met = (got & w->value) == w->value;
		if (w->offset == offsetof(gdrfab_info, threading) || w->offset == offsetof(gdrfab_info, progress))
			met = got == w->value;
		if (!met)
			test_wrong(__FILE__, __LINE__, "hints->%s = 0x%llx gave 0x%llx", w->name,
				   (unsigned long long)w->value, (unsigned long long)got);
		gdrfab_freeinfo(info);
	}
}

static const struct hint impossible[] = {
	HINT_OF("shm", caps, GDRFAB_MSG | GDRFAB_REMOTE_COMM),
	HINT(caps, 1ull << 63),
	HINT(rx_op_flags, GDRFAB_MULTI_RECV),
	HINT(rx_op_flags, GDRFAB_INJECT),
	HINT(msg_order, 1ull << 40),
	HINT(comp_order, 1ull << 40),
	HINT(paths, 1ull << 40),
	HINT(ep_type, 2),
	HINT(addr_format, 2),
	HINT(cq_data_size, 9),
	HINT(inject_size, SIZE_MAX),
	HINT(tx_size, SIZE_MAX),
	HINT(rx_size, SIZE_MAX),
	HINT(tx_iov_limit, SIZE_MAX),
	HINT(rx_iov_limit, SIZE_MAX),
	HINT(rma_iov_limit, SIZE_MAX),
	HINT(mr_iov_limit, SIZE_MAX),
	HINT(mr_cnt, SIZE_MAX),
	HINT(cm_data_size, 1u << 20),
	HINT_OF("verbs", caps, GDRFAB_RMA | GDRFAB_RMA_EVENT),
	HINT_OF("verbs", tx_op_flags, GDRFAB_DELIVERY_COMPLETE),
	HINT_OF("verbs tcp", paths, GDRFAB_PATH_DIRECT),
	HINT_OF("tcp", paths, GDRFAB_PATH_NIC),
	HINT_OF("verbs", mr_mode, GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY),
	HINT_OF("verbs", mr_mode, GDRFAB_MR_LOCAL | GDRFAB_MR_VIRT_ADDR),
	HINT_OF("verbs", cq_data_size, 5),
	HINT_OF("verbs", cm_data_size, 57),
	HINT_OF("verbs", max_msg_size, 1ull << 32),
};

TEST(each_hint_that_cannot_be_met)
{
	for (size_t i = 0; i < sizeof impossible / sizeof impossible[0]; i++) {
		const struct hint *w = &impossible[i];
		gdrfab_info hints, *marker = &hints, *info = marker;
		if (!concerns_us(w))
			continue;
		set(&hints, w);
		int rc = provider_getinfo(service(), 0, &hints, &info);
		if (rc != -ENODATA && rc != -EINVAL)
			test_wrong(__FILE__, __LINE__, "hints->%s = 0x%llx: %s, not -ENODATA", w->name,
				   (unsigned long long)w->value, test_number(rc));
		if (rc == 0) {
			gdrfab_freeinfo(info);
			continue;
		}
		if (info != marker)
			test_wrong(__FILE__, __LINE__, "hints->%s: *info was written", w->name);
		if (!test_says(gdrfab_last_error(), w->name) ||
		    (rc == -ENODATA && !test_says(gdrfab_last_error(), provider())))
			test_wrong(__FILE__, __LINE__, "hints->%s: the words name not both it and the provider: %s",
				   w->name, gdrfab_last_error());

		/* GDRFAB_GETINFO_ALL returns the refused provider too, with the reason. */
		rc = provider_getinfo(service(), GDRFAB_GETINFO_ALL, &hints, &info);
		if (rc == -EINVAL)
			continue;
		if (rc != 0) {
			test_wrong(__FILE__, __LINE__, "GETINFO_ALL, hints->%s: %s%s", w->name, test_number(rc),
				   test_words(rc));
			continue;
		}
		gdrfab_info *mine = provider_pick(info);
		if (!mine->reason_errno || !test_says(mine->reason, w->name))
			test_wrong(__FILE__, __LINE__, "GETINFO_ALL, hints->%s: reason %u, \"%s\"", w->name,
				   mine->reason_errno, mine->reason ? mine->reason : "");
		gdrfab_freeinfo(info);
	}
}

/* A caller with a newer header learns which bits this library knows. */
TEST(bits_that_the_library_does_not_know_are_named_beside_those_it_knows)
{
	static const struct {
		struct hint hint;
		const char *unknown, *known[12];
	} cases[] = {
		{HINT(caps, GDRFAB_MSG | 1ull << 63), "0x8000000000000000", {"MSG", "RMA", "REMOTE_WRITE", "RMA_EVENT"}},
		{HINT(tx_op_flags, GDRFAB_COMPLETION | 1ull << 62), "0x4000000000000000", {"COMPLETION", "DELIVERY_COMPLETE"}},
		{HINT(rx_op_flags, GDRFAB_COMPLETION | 1ull << 62), "0x4000000000000000", {"COMPLETION", "MULTI_RECV"}},
		{HINT(msg_order, GDRFAB_ORDER_SAS | 1ull << 40), "0x10000000000", {"ORDER_RAR", "ORDER_WAW", "ORDER_SAS"}},
		{HINT(comp_order, 1ull << 40), "0x10000000000", {"ORDER_RAR", "ORDER_SAS"}},
		{HINT(paths, 1ull << 40), "0x10000000000", {"direct", "cma", "staged", "nic", "socket"}},
		{HINT(mr_mode, MODE(1u << 31)), "0x80000000", {"MR_LOCAL", "MR_VIRT_ADDR", "MR_PROV_KEY", "MR_HMEM"}},
	};

	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		const struct hint *w = &cases[i].hint;
		gdrfab_info hints, *info = NULL;
		set(&hints, w);
		WANT_EQ(provider_getinfo(service(), 0, &hints, &info), -ENODATA);
		bool all = test_says(gdrfab_last_error(), w->name) && test_says(gdrfab_last_error(), cases[i].unknown) &&
			   test_says(gdrfab_last_error(), "does not know");
		for (int k = 0; cases[i].known[k]; k++)
			all = all && test_says(gdrfab_last_error(), cases[i].known[k]);
		if (!all)
			test_wrong(__FILE__, __LINE__, "hints->%s: %s", w->name, gdrfab_last_error());
	}
}

TEST(names_that_do_not_exist)
{
	static char nosuch[] = "nosuch";
	char **name[3];
	gdrfab_info hints, *info = &hints;
	name[0] = &hints.prov_name, name[1] = &hints.fabric_name, name[2] = &hints.domain_name;
	for (int i = 0; i < 3; i++) {
		memset(&hints, 0, sizeof hints);
		hints.struct_size = sizeof hints;
		*name[i] = nosuch;
		CHECK_EQ(gdrfab_getinfo(GDRFAB_VERSION, NULL, "a", 0, &hints, &info), -ENODATA);
		if (!test_says(gdrfab_last_error(), "nosuch"))
			test_fail(__FILE__, __LINE__, "the words do not name \"nosuch\": %s", gdrfab_last_error());
	}
	CHECK_EQ(gdrfab_getinfo(GDRFAB_VERSION, "another.host.example", "a", 0, NULL, &info), -ENODATA);
	if (!test_says(gdrfab_last_error(), "another.host.example"))
		test_fail(__FILE__, __LINE__, "the words do not name the host: %s", gdrfab_last_error());
	CHECK(info == &hints);
}

TEST(all_candidates_without_hints)
{
	gdrfab_info *info = get(NULL, GDRFAB_GETINFO_ALL);
	bool usable = false;
	for (gdrfab_info *i = info; i; i = i->next) {
		CHECK(i->prov_name && *i->prov_name);
		CHECK_EQ(i->reason_errno == 0, i->reason == NULL);
		usable = usable || (i->reason_errno == 0 && strcmp(i->prov_name, provider()) == 0);
	}
	CHECK(usable);
	gdrfab_freeinfo(info);
}
