/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Endpoints of one process that address each other by their indexes; see fi_rdm.h. */
#include "fi_rdm.h"

struct fi_info *rdm_hints(uint64_t caps)
{
	struct fi_info *hints = fi_allocinfo();
	CHECK(hints != NULL);
	skip_unless(is_gdrfab(), "has endpoints of its own kind");
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = caps;
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_PROV_KEY;
	hints->fabric_attr->prov_name = strdup("gdrfab");
	return hints;
}

void end_open_with(struct end *e, struct fi_info *hints, enum fi_av_type type, uint64_t cq_flags)
{
	/* As short as Open MPI's queues. */
	struct fi_cq_attr cq_attr = {.size = 100, .format = FI_CQ_FORMAT_TAGGED};
	struct fi_av_attr av_attr = {.type = type, .count = 10};
	OK(fi_getinfo(FI_VERSION(1, 5), NULL, NULL, 0, hints, &e->info));
	CHECK_EQ(strcmp(e->info->fabric_attr->prov_name, "gdrfab"), 0);
	OK(fi_fabric(e->info->fabric_attr, &e->fabric, NULL));
	OK(fi_domain(e->fabric, e->info, &e->domain, NULL));
	OK(fi_cq_open(e->domain, &cq_attr, &e->cq, NULL));
	OK(fi_av_open(e->domain, &av_attr, &e->av, NULL));
	OK(fi_endpoint(e->domain, e->info, &e->ep, NULL));
	OK(fi_ep_bind(e->ep, &e->cq->fid, FI_TRANSMIT | FI_RECV | cq_flags));
	OK(fi_ep_bind(e->ep, &e->av->fid, 0));
	OK(fi_enable(e->ep));
	e->namelen = 0;
	CHECK_EQ(fi_getname(&e->ep->fid, NULL, &e->namelen), -FI_ETOOSMALL);
	CHECK(e->namelen > 0 && e->namelen <= sizeof e->name);
	OK(fi_getname(&e->ep->fid, e->name, &e->namelen));
}

void end_open(struct end *e, uint64_t caps)
{
	struct fi_info *hints = rdm_hints(caps);
	end_open_with(e, hints, FI_AV_MAP, 0);
	fi_freeinfo(hints);
}

void end_close(struct end *e)
{
	CLOSE(e->ep);
	CLOSE(e->av);
	CLOSE(e->cq);
	CLOSE(e->domain);
	CLOSE(e->fabric);
	fi_freeinfo(e->info);
}

fi_addr_t end_knows(struct end *e, const struct end *other)
{
	fi_addr_t index = FI_ADDR_NOTAVAIL;
	CHECK_EQ(fi_av_insert(e->av, other->name, 1, &index, 0, NULL), 1);
	CHECK(index != FI_ADDR_NOTAVAIL);
	return index;
}

struct fi_cq_tagged_entry *end_next(struct end *e, struct end *other, fi_addr_t *from)
{
	static struct fi_cq_tagged_entry entry;
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(10000); test_now_ms() < until;) {
		ssize_t n = fi_cq_readfrom(e->cq, &entry, 1, from);
		if (n == -FI_EAVAIL)
			return NULL;
		CHECK(n == 1 || n == -FI_EAGAIN);
		if (n == 1)
			return &entry;
		if (other != e)
			fi_cq_read(other->cq, NULL, 0);
	}
	test_fail(__FILE__, __LINE__, "no entry within 10 s");
}

void end_failed(struct end *e, int err, struct fi_cq_err_entry *entry)
{
	struct fi_cq_err_entry local;
	entry = entry ? entry : &local;
	memset(entry, 0, sizeof *entry);
	CHECK_EQ(fi_cq_readerr(e->cq, entry, 0), 1);
	CHECK_EQ(entry->err, err);
}
