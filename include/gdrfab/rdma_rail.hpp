// SPDX-License-Identifier: Apache-2.0 OR MIT
// An endpoint with its queues. bind() makes one for each provider, since the peer may choose any of them; connect()
// keeps one.
#ifndef GDRFAB_RDMA_RAIL_HPP
#define GDRFAB_RDMA_RAIL_HPP

#include "rdma_domain.hpp"
#include "rdma_offer.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

namespace gdrfab {
namespace detail {

struct Rail {
	std::shared_ptr<Domain> domain;
	InfoPtr info;
	EqPtr eq;
	CqPtr cq;
	EpPtr ep; // destroyed, and so closed, first
	Offer offer;

	Rail(std::shared_ptr<Domain> of, InfoPtr like, size_t depth, std::chrono::milliseconds limit)
	    : domain(std::move(of)), info(std::move(like))
	{
		if (depth)
			info->tx_size = depth;
		gdrfab_eq_attr eq_attr{};
		eq_attr.struct_size = sizeof eq_attr;
		eq_attr.wait_obj = GDRFAB_WAIT_FD;
		gdrfab_eq *q = nullptr;
		check("gdrfab_eq_open", gdrfab_eq_open(domain->fabric.get(), &eq_attr, nullptr, &q));
		eq.reset(q);
		gdrfab_cq_attr cq_attr{};
		cq_attr.struct_size = sizeof cq_attr;
		// Room for all writes and reads under way, and for notifications of the peer.
		cq_attr.size = info->tx_size + 1024;
		cq_attr.format = GDRFAB_CQ_FORMAT_DATA;
		cq_attr.wait_obj = GDRFAB_WAIT_FD;
		gdrfab_cq *c = nullptr;
		check("gdrfab_cq_open", gdrfab_cq_open(domain->domain.get(), &cq_attr, nullptr, &c));
		cq.reset(c);
		// With these flags a success means that the bytes are in the peer's memory. Over tcp they also request
		// the answer at once.
		const uint64_t levels = info->tx_op_flags & (GDRFAB_DELIVERY_COMPLETE | GDRFAB_TRANSMIT_COMPLETE);
		flags = GDRFAB_COMPLETION | (domain->provider == "verbs" ? levels : +GDRFAB_DELIVERY_COMPLETE);
		info->tx_op_flags = flags;
		gdrfab_ep *e = nullptr;
		check("gdrfab_ep_open", gdrfab_ep_open(domain->domain.get(), info.get(), nullptr, &e));
		ep.reset(e);
		check("gdrfab_ep_bind_cq", gdrfab_ep_bind_cq(e, c, GDRFAB_TRANSMIT | GDRFAB_RECV));
		check("gdrfab_ep_bind_eq", gdrfab_ep_bind_eq(e, q, 0));
		option(GDRFAB_OPT_DEADLINE, limit);
		check("gdrfab_ep_enable", gdrfab_ep_enable(e));
		char address[GDRFAB_ADDR_MAX];
		size_t len = sizeof address;
		check("gdrfab_ep_getname", gdrfab_ep_getname(e, address, &len));
		offer = Offer{domain->provider, domain->tag, address};
	}
	void option(int which, std::chrono::milliseconds limit)
	{
		const uint64_t ns = nanoseconds(limit);
		check("gdrfab_ep_setopt", gdrfab_ep_setopt(ep.get(), GDRFAB_OPT_ENDPOINT, which, &ns, sizeof ns));
	}
	static uint64_t nanoseconds(std::chrono::milliseconds limit) noexcept
	{
		const auto ms = static_cast<uint64_t>(limit.count());
		return ms > INT64_MAX / 1000000 ? INT64_MAX : ms * 1000000;
	}

	uint64_t flags = 0;
};

} // namespace detail
} // namespace gdrfab
#endif
