/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Attributes that cannot be met are not offered: each one is requested once at its limit and once above it. */
#include "fi.h"

static const struct setup plain;

static int ask(struct fi_info *hints)
{
	struct fi_info *list;
	int rc = provider_getinfo(NULL, NULL, 0, hints, &list);
	if (rc == 0)
		fi_freeinfo(list);
	return rc;
}

static struct fi_info *first_answer(void)
{
	struct fi_info *hints = hints_new(&plain), *list, *first;
	OK(provider_getinfo(NULL, NULL, 0, hints, &list));
	first = fi_dupinfo(list);
	fi_freeinfo(list);
	fi_freeinfo(hints);
	return first;
}

/* Attributes whose value in an offer is a limit. */
enum part { TX, RX, EP, DOMAIN };
struct limit {
	const char *name;
	enum part part;
	size_t offset;
	bool always; /* tcp checks it too */
};
#define LIMIT(part, type, field, always) {#field, part, offsetof(struct type, field), always}
static const struct limit limits[] = {
	LIMIT(TX, fi_tx_attr, inject_size, true),
	LIMIT(TX, fi_tx_attr, iov_limit, true),
	LIMIT(TX, fi_tx_attr, rma_iov_limit, true),
	LIMIT(RX, fi_rx_attr, iov_limit, true),
	LIMIT(RX, fi_rx_attr, total_buffered_recv, true),
	LIMIT(EP, fi_ep_attr, max_msg_size, true),
	LIMIT(EP, fi_ep_attr, max_order_raw_size, true),
	LIMIT(EP, fi_ep_attr, max_order_waw_size, true),
	LIMIT(EP, fi_ep_attr, max_order_war_size, true),
	LIMIT(EP, fi_ep_attr, tx_ctx_cnt, true),
	LIMIT(EP, fi_ep_attr, rx_ctx_cnt, true),
	LIMIT(DOMAIN, fi_domain_attr, cq_data_size, true),
	LIMIT(DOMAIN, fi_domain_attr, mr_key_size, false),
	LIMIT(DOMAIN, fi_domain_attr, mr_iov_limit, false),
};

static size_t *field(struct fi_info *info, const struct limit *l)
{
	char *base = l->part == TX   ? (char *)info->tx_attr
		     : l->part == RX ? (char *)info->rx_attr
		     : l->part == EP ? (char *)info->ep_attr
				     : (char *)info->domain_attr;
	return (size_t *)(void *)(base + l->offset);
}

static void limit_claim(const void *arg)
{
	const struct limit *l = (const struct limit *)arg;
	struct fi_info *first = first_answer(), *hints = hints_new(&plain);
	/* Other candidates (another adapter) may have more. */
	free(hints->domain_attr->name);
	hints->domain_attr->name = strdup(first->domain_attr->name);
	size_t most = *field(first, l);
	*field(hints, l) = most;
	OK(ask(hints));
	if (most > 1) {
		*field(hints, l) = most / 2;
		OK(ask(hints));
	}
	skip_unless(is_gdrfab() || l->always, "does not look at it");
	if (most < SIZE_MAX - 1) {
		/* An adapter may have more if more is requested, and then offers it. */
		struct fi_info *list;
		*field(hints, l) = most + 1;
		int rc = provider_getinfo(NULL, NULL, 0, hints, &list);
		for (struct fi_info *i = list; rc == 0 && i; i = i->next)
			CHECK(*field(i, l) > most);
		if (rc == 0)
			fi_freeinfo(list);
		else
			CHECK_EQ(rc, -FI_ENODATA);
		*field(hints, l) = SIZE_MAX - 1;
		CHECK_EQ(ask(hints), -FI_ENODATA);
	}
	fi_freeinfo(hints);
	fi_freeinfo(first);
}

TEST_TABLE(limits)
{
	char name[96];
	static const char *const of[] = {"tx", "rx", "ep", "domain"};
	for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
		snprintf(name, sizeof name, "limit_%s_%s", of[limits[i].part], limits[i].name);
		test_add(name, limit_claim, &limits[i], 20);
	}
}

/* Queue sizes are granted as requested, up to a limit above which requests are refused. */
TEST(queue_sizes)
{
	struct fi_info *hints = hints_new(&plain), *list;
	for (size_t size = 1; size <= 128; size *= 2) {
		hints->tx_attr->size = hints->rx_attr->size = size;
		OK(provider_getinfo(NULL, NULL, 0, hints, &list));
		for (struct fi_info *i = list; i; i = i->next)
			CHECK(i->tx_attr->size >= size && i->rx_attr->size >= size);
		fi_freeinfo(list);
	}
	hints->tx_attr->size = SIZE_MAX / 2;
	CHECK_EQ(ask(hints), -FI_ENODATA);
	hints->tx_attr->size = 0;
	hints->rx_attr->size = SIZE_MAX / 2;
	CHECK_EQ(ask(hints), -FI_ENODATA);
	fi_freeinfo(hints);
}

static void expect_ask(int line, struct fi_info *hints, int want)
{
	int rc = ask(hints);
	if (rc != want)
		test_wrong(__FILE__, line, "fi_getinfo is %s, not %s", test_number(rc), test_number(want));
}
#define ASK(hints, want) expect_ask(__LINE__, hints, want)

TEST(kinds_of_endpoint)
{
	struct fi_info *hints = hints_new(&plain);
	static const enum fi_ep_type none[] = {FI_EP_RDM, FI_EP_DGRAM, FI_EP_SOCK_STREAM, FI_EP_SOCK_DGRAM};
	/* Only the provider itself: libfabric's utility layers would make an RDM endpoint of it. */
	skip_unless(is_gdrfab(), "has others");
	setenv("FI_PROVIDER", "gdrfab", 1);
	hints->ep_attr->type = FI_EP_UNSPEC;
	ASK(hints, 0);
	for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
		struct fi_info *list;
		hints->ep_attr->type = none[i];
		int rc = provider_getinfo(NULL, NULL, 0, hints, &list);
		for (struct fi_info *l = list; rc == 0 && l; l = l->next)
			CHECK(none[i] == FI_EP_RDM || strchr(l->fabric_attr->prov_name, ';') != NULL);
		if (rc)
			CHECK_EQ(rc, -FI_ENODATA);
		fi_freeinfo(list);
	}
	fi_freeinfo(hints);
}

TEST(names)
{
	struct fi_info *first = first_answer(), *hints = hints_new(&plain);
	hints->domain_attr->name = strdup(first->domain_attr->name);
	ASK(hints, 0);
	skip_unless(is_gdrfab(), "does not look at names");
	hints->fabric_attr->name = strdup(first->fabric_attr->name);
	ASK(hints, 0);
	free(hints->domain_attr->name);
	hints->domain_attr->name = strdup("no-such-domain");
	ASK(hints, -FI_ENODATA);
	free(hints->domain_attr->name);
	hints->domain_attr->name = NULL;
	free(hints->fabric_attr->name);
	hints->fabric_attr->name = strdup("no-such-fabric");
	ASK(hints, -FI_ENODATA);
	fi_freeinfo(hints);
	fi_freeinfo(first);
}

TEST(other_attributes)
{
	struct fi_info *hints = hints_new(&plain), *first = first_answer();
	/* Offered orders can be requested; orders that no provider has cannot. */
	hints->tx_attr->msg_order = first->tx_attr->msg_order;
	hints->rx_attr->msg_order = first->rx_attr->msg_order;
	ASK(hints, 0);
	hints->tx_attr->msg_order = FI_ORDER_SAS;
	hints->rx_attr->msg_order = FI_ORDER_SAS;
	ASK(hints, 0);
	hints->tx_attr->msg_order = 1ull << 50;
	ASK(hints, -FI_ENODATA);
	hints->tx_attr->msg_order = hints->rx_attr->msg_order = 0;
	hints->tx_attr->comp_order = first->tx_attr->comp_order;
	ASK(hints, 0);
	hints->tx_attr->comp_order = 1ull << 50;
	if (is_gdrfab())
		ASK(hints, -FI_ENODATA);
	hints->tx_attr->comp_order = 0;
	/* Operation flags. */
	hints->tx_attr->op_flags = FI_COMPLETION;
	ASK(hints, 0);
	hints->tx_attr->op_flags = FI_COMPLETION | FI_TRANSMIT_COMPLETE;
	ASK(hints, 0);
	if (!is_carried_by("verbs")) {
		hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
		ASK(hints, 0);
	}
	hints->tx_attr->op_flags = FI_MULTI_RECV;
	ASK(hints, -FI_ENODATA);
	if (is_gdrfab()) {
		hints->tx_attr->op_flags = FI_COMMIT_COMPLETE;
		ASK(hints, -FI_ENODATA);
		hints->tx_attr->op_flags = FI_MATCH_COMPLETE;
		ASK(hints, -FI_ENODATA);
	}
	hints->tx_attr->op_flags = 0;
	hints->rx_attr->op_flags = FI_COMPLETION;
	ASK(hints, 0);
	hints->rx_attr->op_flags = FI_MULTI_RECV;
	ASK(hints, -FI_ENODATA);
	hints->rx_attr->op_flags = 0;
	/* Protocols: its own, and no other. */
	hints->ep_attr->protocol = first->ep_attr->protocol;
	ASK(hints, 0);
	hints->ep_attr->protocol = FI_PROTO_PSMX2;
	ASK(hints, -FI_ENODATA);
	hints->ep_attr->protocol = FI_PROTO_UNSPEC;
	/* Halves of the capabilities. */
	hints->tx_attr->caps = FI_MSG | FI_SEND;
	ASK(hints, 0);
	hints->tx_attr->caps = FI_TAGGED;
	ASK(hints, -FI_ENODATA);
	hints->tx_attr->caps = 0;
	hints->rx_attr->caps = FI_ATOMIC;
	ASK(hints, is_gdrfab() && !is_carried_by("verbs") ? 0 : -FI_ENODATA);
	hints->rx_attr->caps = 0;
	/* Resource management, an address vector type that will not be used, contexts. */
	hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
	ASK(hints, 0);
	hints->domain_attr->av_type = FI_AV_TABLE;
	if (is_gdrfab())
		ASK(hints, 0);
	hints->domain_attr->av_type = FI_AV_UNSPEC;
	hints->ep_attr->tx_ctx_cnt = FI_SHARED_CONTEXT;
	ASK(hints, -FI_ENODATA);
	hints->ep_attr->tx_ctx_cnt = 0;
	hints->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
	if (is_gdrfab())
		ASK(hints, -FI_ENODATA);
	hints->ep_attr->rx_ctx_cnt = 0;
	hints->ep_attr->msg_prefix_size = 0;
	/* Mode bits that no provider uses do no harm. */
	hints->mode = ~0ull;
	ASK(hints, 0);
	fi_freeinfo(hints);
	fi_freeinfo(first);
}

TEST(provider_names)
{
	struct fi_info *hints = hints_new(&plain);
	free(hints->fabric_attr->prov_name);
	hints->fabric_attr->prov_name = strdup("no-such-provider");
	ASK(hints, -FI_ENODATA);
	fi_freeinfo(hints);
}
