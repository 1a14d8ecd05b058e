/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The offers of fi_getinfo, with few hints and with many that can be met: they match the hints and are true. */
#include "fi.h"

static const struct setup plain;

static struct fi_info *hints_bare(void)
{
	struct fi_info *hints = fi_allocinfo();
	CHECK(hints != NULL);
	hints->fabric_attr->prov_name = strdup(fi_provider());
	return hints;
}

/* Checks that hold for every answer. */
static void check_sane(const struct fi_info *i, const struct fi_info *hints)
{
	CHECK(i->tx_attr && i->rx_attr && i->ep_attr && i->domain_attr && i->fabric_attr);
	CHECK(i->fabric_attr->name && *i->fabric_attr->name);
	CHECK(i->domain_attr->name && *i->domain_attr->name);
	CHECK(i->fabric_attr->prov_name != NULL);
	CHECK_EQ(strcmp(i->fabric_attr->prov_name, fi_provider()), 0);
	bool connected = i->ep_attr->type == FI_EP_MSG;
	/* Connectionless endpoints are tested in rdm.c. */
	CHECK(connected || (is_gdrfab() && i->ep_attr->type == FI_EP_RDM && (!hints || !hints->ep_attr->type)));
	CHECK(i->ep_attr->max_msg_size >= 8 << 20);
	CHECK(i->caps & (FI_MSG | FI_RMA | FI_ATOMIC));
	if (is_gdrfab()) {
		CHECK_EQ(i->caps & ((connected ? FI_TAGGED : 0) | FI_MULTICAST | FI_COLLECTIVE), 0);
		CHECK_EQ(i->tx_attr->caps & ~i->caps, 0);
		CHECK_EQ(i->rx_attr->caps & ~i->caps, 0);
	}
	CHECK(i->tx_attr->size > 0 && i->rx_attr->size > 0);
	CHECK(i->tx_attr->iov_limit > 0 && i->rx_attr->iov_limit > 0);
	if (i->caps & FI_RMA)
		CHECK(i->tx_attr->rma_iov_limit > 0);
	CHECK(i->domain_attr->mr_key_size > 0);
	CHECK(i->domain_attr->threading != FI_THREAD_UNSPEC);
	CHECK(i->domain_attr->control_progress != FI_PROGRESS_UNSPEC);
	CHECK(i->domain_attr->data_progress != FI_PROGRESS_UNSPEC);
	CHECK(i->domain_attr->max_ep_tx_ctx >= 1 && i->domain_attr->max_ep_rx_ctx >= 1);
	CHECK(i->domain_attr->max_ep_stx_ctx == 0 || !is_gdrfab());
	CHECK(i->handle == NULL);
	CHECK((i->src_addr == NULL) == (i->src_addrlen == 0));
	CHECK((i->dest_addr == NULL) == (i->dest_addrlen == 0));
	CHECK(i->addr_format != FI_FORMAT_UNSPEC);
	if (i->caps & FI_HMEM)
		CHECK(i->domain_attr->mr_mode & FI_MR_HMEM || !is_gdrfab());
	if (!hints)
		return;
	/* Nothing is required that the caller has not offered. */
	CHECK_EQ(i->mode & ~hints->mode, 0);
	CHECK_EQ(i->tx_attr->mode & ~hints->mode, 0);
	CHECK_EQ(i->rx_attr->mode & ~hints->mode, 0);
	CHECK_EQ(i->domain_attr->mode & ~hints->mode, 0);
	if (hints->caps)
		CHECK_EQ(hints->caps & ~i->caps, 0);
}

static void check_text(const struct fi_info *i)
{
	/* libfabric prints what the provider has filled in. */
	char *text = fi_tostr(i, FI_TYPE_INFO);
	CHECK(text && strstr(text, "FI_EP_"));
	CHECK(strstr(text, i->domain_attr->name));
	CHECK(fi_tostr(i->domain_attr, FI_TYPE_DOMAIN_ATTR));
	CHECK(fi_tostr(i->fabric_attr, FI_TYPE_FABRIC_ATTR));
	CHECK(fi_tostr(i->ep_attr, FI_TYPE_EP_ATTR));
	CHECK(fi_tostr(i->tx_attr, FI_TYPE_TX_ATTR));
	CHECK(fi_tostr(i->rx_attr, FI_TYPE_RX_ATTR));
}

static void check_dup(struct fi_info *i)
{
	struct fi_info *copy = fi_dupinfo(i);
	CHECK(copy != NULL);
	CHECK(copy->next == NULL);
	CHECK_EQ(strcmp(copy->domain_attr->name, i->domain_attr->name), 0);
	CHECK_EQ(copy->caps, i->caps);
	CHECK_EQ(copy->src_addrlen, i->src_addrlen);
	if (i->src_addr)
		CHECK_EQ(memcmp(copy->src_addr, i->src_addr, i->src_addrlen), 0);
	CHECK_EQ(copy->nic == NULL, i->nic == NULL);
	if (i->nic) {
		CHECK(copy->nic != i->nic);
		CHECK(copy->nic->device_attr && copy->nic->device_attr->name);
		CHECK(fi_tostr(&copy->nic->fid, FI_TYPE_FID));
	}
	/* Frees a copy and a copy of a copy, in either order. */
	struct fi_info *second = fi_dupinfo(copy);
	fi_freeinfo(copy);
	CHECK_EQ(strcmp(second->fabric_attr->name, i->fabric_attr->name), 0);
	fi_freeinfo(second);
}

TEST(without_hints)
{
	struct fi_info *list = NULL, *i;
	bool found = false, others = false;
	/* All providers of libfabric are asked. */
	unsetenv("FI_PROVIDER");
	OK(fi_getinfo(fi_version(), NULL, NULL, 0, NULL, &list));
	for (i = list; i; i = i->next) {
		if (strcmp(i->fabric_attr->prov_name, fi_provider()) != 0) {
			others = true;
			continue;
		}
		if (i->ep_attr->type != FI_EP_MSG && !is_gdrfab())
			continue;
		found = true;
		check_sane(i, NULL);
		check_text(i);
		check_dup(i);
		CHECK_EQ(i->caps & (FI_MSG | FI_RMA), FI_MSG | FI_RMA);
	}
	CHECK(found);
	CHECK(others);
	fi_freeinfo(list);
}

TEST(with_its_name_alone)
{
	struct fi_info *hints = hints_bare(), *list, *i;
	/* A caller that cannot meet a card's requirements on regions is offered only connectionless endpoints. */
	if (is_carried_by("verbs")) {
		OK(provider_getinfo(NULL, NULL, 0, hints, &list));
		for (i = list; i; i = i->next)
			CHECK_EQ(i->ep_attr->type, FI_EP_RDM);
		fi_freeinfo(list);
		hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
		hints->mode = FI_RX_CQ_DATA;
	}
	OK(provider_getinfo(NULL, NULL, 0, hints, &list));
	for (i = list; i; i = i->next)
		if (i->ep_attr->type == FI_EP_MSG) {
			check_sane(i, hints);
			check_text(i);
			check_dup(i);
		}
	fi_freeinfo(list);
	fi_freeinfo(hints);
}

/* The attributes of its own answer can be requested. */
TEST(asked_for_what_it_said)
{
	struct fi_info *hints = hints_new(&plain), *first, *second;
	OK(provider_getinfo(NULL, NULL, 0, hints, &first));
	fi_freeinfo(hints);
	int count = 0;
	for (struct fi_info *i = first; i; i = i->next, count++) {
		hints = fi_dupinfo(i);
		free(hints->fabric_attr->prov_name);
		hints->fabric_attr->prov_name = strdup(fi_provider());
		int rc = provider_getinfo(NULL, NULL, 0, hints, &second);
		if (rc)
			test_fail(__FILE__, __LINE__, "asked for all that the answer %d said (%s): %s", count,
				  i->domain_attr->name, test_number(rc));
		for (struct fi_info *s = second; s; s = s->next) {
			check_sane(s, hints);
			CHECK_EQ(strcmp(s->domain_attr->name, i->domain_attr->name), 0);
			CHECK_EQ(strcmp(s->fabric_attr->name, i->fabric_attr->name), 0);
			CHECK_EQ(s->addr_format, i->addr_format);
			CHECK(s->tx_attr->size >= i->tx_attr->size);
			CHECK(s->rx_attr->size >= i->rx_attr->size);
			CHECK(s->tx_attr->inject_size >= i->tx_attr->inject_size);
			CHECK_EQ(i->tx_attr->msg_order & ~s->tx_attr->msg_order, 0);
		}
		fi_freeinfo(second);
		fi_freeinfo(hints);
	}
	CHECK(count > 0);
	fi_freeinfo(first);
}

/* --- caps --- */

static int ask_caps(uint64_t caps, struct fi_info **out)
{
	struct fi_info *hints = hints_new(&plain);
	hints->caps = caps;
	int rc = provider_getinfo(NULL, NULL, 0, hints, out);
	if (rc == 0)
		for (struct fi_info *i = *out; i; i = i->next)
			check_sane(i, hints);
	fi_freeinfo(hints);
	return rc;
}

TEST(caps)
{
	struct fi_info *i;
	OK(ask_caps(FI_MSG, &i));
	CHECK_EQ(i->caps & (FI_MSG | FI_SEND | FI_RECV), FI_MSG | FI_SEND | FI_RECV);
	fi_freeinfo(i);
	OK(ask_caps(FI_RMA, &i));
	CHECK_EQ(i->caps & RMA_CAPS, RMA_CAPS);
	fi_freeinfo(i);
	OK(ask_caps(FI_MSG | RMA_CAPS | FI_SEND | FI_RECV, &i));
	CHECK_EQ(i->tx_attr->caps & (FI_MSG | FI_RMA | FI_SEND | FI_READ | FI_WRITE),
		 FI_MSG | FI_RMA | FI_SEND | FI_READ | FI_WRITE);
	CHECK_EQ(i->rx_attr->caps & (FI_MSG | FI_RMA | FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE),
		 FI_MSG | FI_RMA | FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE);
	fi_freeinfo(i);
	/* Half of its capabilities. */
	OK(ask_caps(FI_MSG | FI_SEND, &i));
	fi_freeinfo(i);
	OK(ask_caps(FI_RMA | FI_WRITE, &i));
	fi_freeinfo(i);
	if (is_gdrfab()) {
		OK(ask_caps(FI_MSG | FI_RMA | FI_LOCAL_COMM, &i));
		fi_freeinfo(i);
	}
	if (is_gdrfab() && !is_carried_by("verbs")) {
		OK(ask_caps(FI_ATOMIC, &i));
		CHECK_EQ(i->tx_attr->caps & (FI_ATOMIC | RMA_CAPS), FI_ATOMIC | FI_READ | FI_WRITE);
		fi_freeinfo(i);
	} else {
		CHECK_EQ(ask_caps(FI_ATOMIC, &i), -FI_ENODATA);
	}
	static const uint64_t none[] = {FI_TAGGED, FI_MSG | FI_TAGGED, FI_MSG | FI_MULTICAST, FI_MSG | FI_COLLECTIVE, FI_MSG | FI_MULTI_RECV,
					FI_MSG | FI_DIRECTED_RECV, FI_MSG | FI_NAMED_RX_CTX, FI_MSG | FI_SOURCE,
					FI_MSG | FI_VARIABLE_MSG, FI_MSG | FI_TRIGGER};
	for (size_t c = 0; c < sizeof none / sizeof none[0]; c++) {
		/* libfabric's tcp offers some of these. */
		if (!is_gdrfab() && c > 3)
			break;
		int rc = ask_caps(none[c], &i);
		if (rc != -FI_ENODATA)
			test_fail(__FILE__, __LINE__, "caps %s: %s, not -FI_ENODATA",
				  fi_tostr(&none[c], FI_TYPE_CAPS), test_number(rc));
	}
}

/* --- mr_mode of today, and of the API before 1.5 --- */

static int ask_mr_mode(uint32_t version, int mr_mode, uint64_t mode, struct fi_info **out)
{
	struct fi_info *hints = hints_new(&plain);
	hints->domain_attr->mr_mode = mr_mode;
	hints->mode = mode | FI_RX_CQ_DATA;
	*out = NULL;
	int rc = fi_getinfo(version, NULL, NULL, 0, hints, out);
	fi_freeinfo(hints);
	return rc;
}

TEST(mr_modes)
{
	struct fi_info *list;
	static const int offered[] = {0, FI_MR_VIRT_ADDR, FI_MR_PROV_KEY, FI_MR_ALLOCATED, FI_MR_LOCAL,
				      FI_MR_VIRT_ADDR | FI_MR_PROV_KEY,
				      FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY, KNOWN_MR_MODES,
				      KNOWN_MR_MODES | FI_MR_ENDPOINT | FI_MR_HMEM | FI_MR_MMU_NOTIFY};
	bool adapter = is_carried_by("verbs");
	for (size_t o = 0; o < sizeof offered / sizeof offered[0]; o++) {
		int rc = ask_mr_mode(fi_version(), offered[o], 0, &list);
		/* The bits that an adapter requires; with fewer it is not offered. */
		int needs = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | FI_MR_ALLOCATED;
		if (adapter && (offered[o] & needs) != needs) {
			CHECK_EQ(rc, -FI_ENODATA);
			continue;
		}
		if (rc)
			test_fail(__FILE__, __LINE__, "mr_mode %s: %s", fi_tostr(&offered[o], FI_TYPE_MR_MODE),
				  test_number(rc));
		for (struct fi_info *i = list; i; i = i->next)
			CHECK_EQ(i->domain_attr->mr_mode & ~offered[o], 0);
		fi_freeinfo(list);
	}
}

TEST(mr_modes_of_old)
{
	struct fi_info *list;
	uint32_t old = FI_VERSION(1, 4);
	bool adapter = is_carried_by("verbs");
	OK(ask_mr_mode(old, FI_MR_BASIC, FI_LOCAL_MR, &list));
	for (struct fi_info *i = list; i; i = i->next) {
		CHECK_EQ(i->domain_attr->mr_mode, FI_MR_BASIC);
		CHECK_EQ(i->mode & ~(FI_LOCAL_MR | FI_RX_CQ_DATA), 0);
	}
	fi_freeinfo(list);
	int rc = ask_mr_mode(old, FI_MR_SCALABLE, FI_LOCAL_MR, &list);
	if (adapter)
		CHECK_EQ(rc, -FI_ENODATA);
	else
		CHECK_EQ(rc, 0);
	for (struct fi_info *i = list; i; i = i->next)
		CHECK_EQ(i->domain_attr->mr_mode, FI_MR_SCALABLE);
	fi_freeinfo(list);
	OK(ask_mr_mode(old, FI_MR_UNSPEC, FI_LOCAL_MR, &list));
	for (struct fi_info *i = list; i; i = i->next)
		CHECK(i->domain_attr->mr_mode == FI_MR_BASIC || i->domain_attr->mr_mode == FI_MR_SCALABLE);
	fi_freeinfo(list);
	/* Without FI_LOCAL_MR only providers that do not need it. */
	rc = ask_mr_mode(old, FI_MR_BASIC, 0, &list);
	if (adapter)
		CHECK_EQ(rc, -FI_ENODATA);
	else
		CHECK_EQ(rc, 0);
	for (struct fi_info *i = list; i; i = i->next)
		CHECK_EQ(i->mode & FI_LOCAL_MR, 0);
	fi_freeinfo(list);
}

TEST(versions)
{
	struct fi_info *list;
	for (uint32_t minor = 3; minor <= FI_MINOR(fi_version()) && FI_MAJOR(fi_version()) == 1; minor++) {
		int mr_mode = minor < 5 ? FI_MR_UNSPEC : KNOWN_MR_MODES;
		int rc = ask_mr_mode(FI_VERSION(1, minor), mr_mode, FI_LOCAL_MR, &list);
		if (rc)
			test_fail(__FILE__, __LINE__, "version 1.%u: %s", minor, test_number(rc));
		for (struct fi_info *i = list; i; i = i->next) {
			CHECK_EQ(i->fabric_attr->api_version, FI_VERSION(1, minor));
			CHECK_EQ(i->ep_attr->type, FI_EP_MSG);
			if (minor < 5)
				CHECK_EQ(i->domain_attr->mr_mode & ~(FI_MR_BASIC | FI_MR_SCALABLE), 0);
			struct fi_info *copy = fi_dupinfo(i);
			fi_freeinfo(copy);
		}
		fi_freeinfo(list);
	}
}

/* --- threading and progress --- */

TEST(threading_and_progress)
{
	static const enum fi_threading threading[] = {FI_THREAD_UNSPEC, FI_THREAD_SAFE, FI_THREAD_FID,
						      FI_THREAD_DOMAIN, FI_THREAD_COMPLETION, FI_THREAD_ENDPOINT};
	for (size_t t = 0; t < sizeof threading / sizeof threading[0]; t++)
		for (int p = FI_PROGRESS_UNSPEC; p <= FI_PROGRESS_MANUAL; p++) {
			struct setup setup = {.threading = threading[t], .progress = (enum fi_progress)p};
			struct fi_info *hints = hints_new(&setup), *list;
			OK(provider_getinfo(NULL, NULL, 0, hints, &list));
			for (struct fi_info *i = list; i; i = i->next) {
				check_sane(i, hints);
				/* FI_THREAD_SAFE promises the most; otherwise the answer is the level that was
				 * requested. */
				if (threading[t] != FI_THREAD_UNSPEC)
					CHECK(i->domain_attr->threading == threading[t] ||
					      i->domain_attr->threading == FI_THREAD_SAFE);
				if (p == FI_PROGRESS_AUTO) {
					CHECK_EQ(i->domain_attr->data_progress, FI_PROGRESS_AUTO);
					CHECK_EQ(i->domain_attr->control_progress, FI_PROGRESS_AUTO);
				}
			}
			fi_freeinfo(list);
			fi_freeinfo(hints);
		}
}
