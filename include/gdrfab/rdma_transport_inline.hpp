// SPDX-License-Identifier: Apache-2.0 OR MIT
// The bodies of RdmaTransport's functions, kept apart so that its declaration stays readable.
#ifndef GDRFAB_RDMA_TRANSPORT_INLINE_HPP
#define GDRFAB_RDMA_TRANSPORT_INLINE_HPP

#include "rdma_transport.hpp"

namespace gdrfab {

inline RdmaTransport::RdmaTransport(int device, RdmaOptions options)
    : device_(device), options_(std::move(options)), connection_(std::make_shared<detail::Connection>(options_.spin))
{
	if (device < -1)
		throw std::invalid_argument("device " + std::to_string(device) + "; -1 is the host");
	if (options_.providers.empty())
		throw std::invalid_argument("RdmaOptions::providers is empty");
	for (const std::string &p : options_.providers)
		if (p != "shm" && p != "verbs" && p != "tcp")
			throw std::invalid_argument("RdmaOptions::providers: there is no provider \"" + p + "\"");
	if (options_.timeout.count() <= 0 || options_.connectTimeout.count() <= 0)
		throw std::invalid_argument("RdmaOptions: a time limit must be positive");
	if (!options_.authKey.empty() && (options_.authKey.size() < 16 || options_.authKey.size() > 1024))
		throw std::invalid_argument("RdmaOptions::authKey: must have 16 to 1024 bytes");
	uint32_t iface = 0;
	std::string why;
	if (device >= 0 && !detail::accelerator(device, iface, why))
		throw RdmaError(ENODEV, "device " + std::to_string(device) + ": no accelerator has this number (" + why + ")");
}

inline bool RdmaTransport::supported(int device, std::string *why)
{
	std::string words, out;
	bool any = false;
	for (const char *provider : {"shm", "verbs", "tcp"}) {
		detail::DomainRequest request;
		request.provider = provider;
		if (detail::candidates(request, "", words))
			any = true;
		else
			out += std::string(provider) + ": " + words + "\n";
	}
	uint32_t iface = 0;
	if (device >= 0 && !detail::accelerator(device, iface, words)) {
		any = false;
		out += "device " + std::to_string(device) + ": " + words + "\n";
	}
	if (why)
		*why = out;
	return any;
}

inline std::string RdmaTransport::bind()
{
	std::lock_guard<std::mutex> lock(mutex_);
	if (closed_)
		throw std::logic_error("bind: the transport is closed");
	if (url_.id)
		return url_.text();
	detail::Url url;
	refused_.clear();
	for (const std::string &provider : options_.providers) {
		detail::DomainRequest request;
		request.provider = provider;
		request.device = device_;
		request.thread = options_.progressThread;
		if (provider == "tcp")
			request.auth_key = options_.authKey;
		std::string why;
		try {
			auto domain = detail::Domains::here().open(request, why);
			const bool named = provider == "tcp" && !options_.address.empty();
			detail::InfoPtr info(!domain ? nullptr
						     : named ? detail::candidates(request, options_.address, why).release()
							     : gdrfab_dupinfo(domain->info.get()));
			if (info) {
				rails_.push_back(std::make_unique<detail::Rail>(domain, std::move(info), options_.depth,
										options_.timeout));
				url.offers.push_back(rails_.back()->offer);
				continue;
			}
		} catch (const RdmaError &e) {
			why = e.what();
		}
		refused_ += provider + ": " + why + "\n";
	}
	if (url.offers.empty())
		throw RdmaError(ENODEV, "bind: no provider can be used\n" + refused_);
	url.id = detail::random_number() | 1;
	url.host = detail::host_token();
	url_ = url;
	Registry &registry = Registry::here();
	std::lock_guard<std::mutex> registering(registry.mutex);
	registry.by_id[url_.id] = connection_;
	connection_->set_state(detail::Connection::Bound);
	return url_.text();
}

inline RdmaStatus RdmaTransport::connect(const std::string &peerUrl)
{
	using detail::Connection;
	const detail::Url peer = detail::Url::parse(peerUrl);
	{
		std::lock_guard<std::mutex> lock(mutex_);
		if (connection_->state() == Connection::New)
			throw std::logic_error("connect: call bind() first");
		if (closed_)
			return RdmaStatus(RdmaCode::Aborted, ECANCELED, "this side closed the transport");
		if (connection_->state() != Connection::Bound)
			throw std::logic_error("connect: a transport connects once; make another");
		if (peer.id == url_.id)
			throw std::invalid_argument("peerUrl: this is the transport's own URL");
		const std::string taken = detail::choose(url_, peer, chosen_why_);
		std::unique_ptr<detail::Rail> rail;
		for (auto &r : rails_)
			if (r->offer.provider == taken)
				rail = std::move(r);
		rails_.clear();
		if (!rail) {
			connection_->broken(EHOSTUNREACH, "connect: the two sides have no common provider that can connect them\n" +
								  chosen_why_ + refused_);
			return connection_->end();
		}
		const detail::Offer &offer = *peer.of(taken);
		peer_tag_ = offer.tag;
		rail->option(GDRFAB_OPT_CONNECT_TIMEOUT, options_.connectTimeout);
		connection_->begin(std::move(rail));
		const int rc = gdrfab_ep_connect_addr(connection_->rail().ep.get(), offer.address.c_str(),
						      offer.address.size() + 1);
		if (rc < 0)
			connection_->broken(-rc, detail::failure("gdrfab_ep_connect_addr", rc));
	}
	auto here = Registry::here().find(peer.id);
	if (here && here->state() < Connection::Connecting)
		return RdmaStatus();
	return await_connected(here ? *here : *connection_, options_.connectTimeout);
}

// Waits until the connection is made or has failed. If the peer is in this process, both ends are driven, because it
// may have no other thread.
inline RdmaStatus RdmaTransport::await_connected(detail::Connection &peer_or_self, std::chrono::milliseconds limit)
{
	using detail::Connection;
	Connection &c = *connection_;
	const auto until = detail::after(limit), give_up = detail::after(limit + std::chrono::milliseconds(500));
	auto settled = [&] { return c.state() != Connection::Connecting && peer_or_self.state() != Connection::Connecting; };
	while (!settled() && detail::Clock::now() < give_up) {
		if (&peer_or_self == &c) {
			// The library ends the attempt at its own limit, with its own error text.
			c.wait(settled, give_up);
		} else {
			c.pump();
			peer_or_self.pump();
			if (!settled())
				std::this_thread::sleep_for(std::chrono::microseconds(50));
			if (c.state() != Connection::Connecting && detail::Clock::now() > until)
				break;
		}
	}
	if (c.state() == Connection::Connecting)
		c.broken(ETIMEDOUT, "connect: the peer did not connect within the time limit");
	if (c.state() == Connection::Connected)
		return RdmaStatus();
	const RdmaStatus end = c.end();
	return end.error() == ETIMEDOUT ? RdmaStatus(RdmaCode::Timeout, ETIMEDOUT, end.what()) : end;
}

inline bool RdmaTransport::connected()
{
	connection_->pump();
	return connection_->state() == detail::Connection::Connected;
}

inline void RdmaTransport::need_begun(const char *what) const
{
	if (connection_->state() < detail::Connection::Connecting)
		throw std::logic_error(std::string(what) + ": call connect() first");
}

inline RdmaFuture<RdmaStatus> RdmaTransport::operation(const RdmaMemory::View &view, const RdmaRemoteBuffer &remote,
						       bool writes, RdmaNotify notify, Timeout timeout)
{
	using detail::Connection;
	Connection &c = *connection_;
	const char *what = writes ? "write" : "read";
	if (timeout && timeout->count() <= 0)
		throw std::invalid_argument(std::string(what) + ": timeout is not positive");
	detail::Region &region = view.region(what);
	if (view.size() > remote.len)
		throw std::out_of_range(std::string(what) + ": the view has " + std::to_string(view.size()) +
					" bytes, the remote buffer " + std::to_string(remote.len));
	remote.check_range();
	// One limit for all waits of this call and for the operation.
	detail::Limit limit(timeout.value_or(options_.timeout));
	if (c.state() != Connection::Connected) {
		need_begun(what);
		c.wait([&] { return c.state() != Connection::Connecting; }, limit.end());
		if (c.state() == Connection::Connecting)
			return settled(RdmaStatus(RdmaCode::Timeout, ETIMEDOUT, "the peer has not connected yet"));
		if (c.state() != Connection::Connected)
			return settled(c.end());
	}
	const uint64_t *key = remote.key_in(peer_tag_);
	if (!key)
		throw std::invalid_argument("accessKey: not from the process to which this transport is connected, or made "
					    "before that process made its transport");
	if (!c.enter())
		return settled(RdmaStatus(RdmaCode::Aborted, ECANCELED, "this side closes the transport"));
	// While this thread is inside, the endpoint and its domain are not closed.
	struct Inside {
		Connection &c;
		~Inside() { c.leave(); }
	} inside{c};
	detail::Rail &rail = c.rail();
	const size_t most = rail.info->max_msg_size;
	size_t left = view.size();
	Piece piece{region.in(rail.domain), view.at_, 0, reinterpret_cast<uintptr_t>(remote.ptr), *key, writes, false, 0};
	std::unique_lock<std::timed_mutex> in_order(notify_mutex_, std::defer_lock);
	if (notify.on && !in_order.try_lock() && !in_order.try_lock_until(limit.end()))
		return settled(RdmaStatus(RdmaCode::Timeout, ETIMEDOUT,
					  "write: an earlier notifying write still waits for room; wait for it first"));

	detail::Op *op = c.pool().take(2);
	const size_t pieces = left <= most ? 1 : (left + most - 1) / most;
	if (pieces > 1) {
		op->pieces = pieces + 1;
		limit.end();
	}
	// The store releases `op` to the thread that reads its completion.
	op->done.store(false, std::memory_order_release);
	ssize_t rc = 0;
	size_t posted = 0;
	for (; posted < pieces; posted++) {
		piece.len = left < most ? left : most;
		if (posted + 1 == pieces && notify.on) {
			piece.notify = true;
			piece.data = notify.value ? *notify.value : notified_ + 1;
		}
		if (piece.notify && rail.info->cq_data_size < sizeof piece.data)
			rc = post_in_parts(op, piece, limit, timeout);
		else
			rc = when_room(limit, timeout, [&](Timeout rest) { return post(op, piece, rest); });
		if (rc < 0)
			break;
		piece.at += piece.len, piece.addr += piece.len, left -= piece.len;
	}
	RdmaStatus status;
	if (rc == -ETIMEDOUT)
		status = RdmaStatus(RdmaCode::Timeout, ETIMEDOUT,
				    std::string(what) + ": too many operations are outstanding");
	else if (rc == -ECANCELED)
		status = RdmaStatus(RdmaCode::Aborted, ECANCELED, "this side closes the transport");
	else if (rc < 0)
		status = RdmaStatus(detail::code_of(static_cast<int>(-rc), 0), static_cast<int>(-rc),
				    detail::failure(what, rc));
	else if (notify.on)
		notified_++;
	if (pieces > 1)
		c.pieces_done(op, pieces - posted + 1, status);
	else if (rc < 0)
		c.complete(op, std::move(status));
	return RdmaFuture<RdmaStatus>(connection_, op);
}

// Calls `post` until there is room, within the limit. The operation gets the time that is left.
template <typename Post> inline ssize_t RdmaTransport::when_room(detail::Limit &limit, Timeout timeout, Post post)
{
	for (unsigned turn = 0;; turn++) {
		if (limit.running() && (turn % 16 == 0 || turn > 256)) {
			timeout = limit.rest();
			if (timeout->count() == 0)
				return -ETIMEDOUT;
		}
		const ssize_t rc = post(timeout);
		if (rc != -EAGAIN)
			return rc;
		if (connection_->closing())
			return -ECANCELED;
		limit.end();
		connection_->relieve(turn);
	}
}

// Posts a value that is too wide for the provider: its higher parts go first, with writes of no bytes.
inline ssize_t RdmaTransport::post_in_parts(detail::Op *op, Piece &piece, detail::Limit &limit, Timeout timeout)
{
	gdrfab_ep *ep = connection_->rail().ep.get();
	uint32_t ahead[2];
	unsigned count = 0;
	piece.data = detail::Parts::split(piece.data, ahead, count, half_told_);
	for (unsigned i = 0; i < count; i++) {
		const ssize_t rc = when_room(limit, timeout, [&](Timeout) {
			return gdrfab_writedata(ep, piece.at, 0, piece.desc, ahead[i], 0, piece.addr, piece.key, nullptr);
		});
		if (rc < 0)
			return rc;
		half_told_ = true;
	}
	const ssize_t rc = when_room(limit, timeout, [&](Timeout rest) { return post(op, piece, rest); });
	if (rc >= 0)
		half_told_ = false;
	return rc;
}

inline ssize_t RdmaTransport::post(detail::Op *op, const Piece &piece, Timeout timeout)
{
	detail::Rail &rail = connection_->rail();
	gdrfab_ep *ep = rail.ep.get();
	unsigned char *at = const_cast<unsigned char *>(piece.at);
	const size_t len = piece.len;
	void *desc = piece.desc;
	// The endpoint's own deadline is the default time limit.
	if (!timeout) {
		if (piece.notify)
			return gdrfab_writedata(ep, at, len, desc, piece.data, 0, piece.addr, piece.key, op);
		if (piece.writes)
			return gdrfab_write(ep, at, len, desc, 0, piece.addr, piece.key, op);
		return gdrfab_read(ep, at, len, desc, 0, piece.addr, piece.key, op);
	}
	const iovec here = {at, len};
	const gdrfab_rma_iov there = {piece.addr, len, piece.key};
	gdrfab_msg_rma msg{};
	msg.struct_size = sizeof msg;
	msg.msg_iov = &here;
	msg.desc = &desc;
	msg.iov_count = 1;
	msg.rma_iov = &there;
	msg.rma_iov_count = 1;
	msg.context = op;
	msg.data = piece.data;
	msg.timeout_ns = detail::Rail::nanoseconds(*timeout);
	const uint64_t flags = rail.flags | (piece.notify ? +GDRFAB_REMOTE_CQ_DATA : 0);
	return piece.writes ? gdrfab_writemsg(ep, &msg, flags) : gdrfab_readmsg(ep, &msg, flags);
}

inline RdmaFuture<RdmaNotification> RdmaTransport::waitForWrite(Timeout timeout)
{
	if (timeout && timeout->count() < 0)
		throw std::invalid_argument("waitForWrite: timeout is negative");
	need_begun("waitForWrite");
	return RdmaFuture<RdmaNotification>(connection_, connection_->wait_for_write(timeout.value_or(options_.timeout)));
}

inline void RdmaTransport::progress()
{
	connection_->pump();
	connection_->withdraw_late();
}

inline std::string RdmaTransport::path() const
{
	const detail::Connection &c = *connection_;
	return c.began() ? c.provider() : std::string();
}

inline std::string RdmaTransport::path(const RdmaRemoteBuffer &remote)
{
	need_begun("path");
	const uint64_t *key = remote.key_in(peer_tag_);
	std::string out = path();
	if (!key || !connection_->began() || !connection_->enter())
		return out;
	gdrfab_path_info facts{};
	facts.struct_size = sizeof facts;
	if (gdrfab_ep_query(connection_->rail().ep.get(), 0, *key, &facts) == 0 && facts.path) {
		char words[64] = "";
		gdrfab_tostr(&facts.path, GDRFAB_TYPE_PATHS, words, sizeof words);
		out += std::string("/") + words;
	}
	connection_->leave();
	return out;
}

inline std::string RdmaTransport::explain() const
{
	std::lock_guard<std::mutex> lock(mutex_);
	return chosen_why_ + refused_;
}

inline std::string RdmaTransport::explain(const RdmaRemoteBuffer &remote)
{
	need_begun("explain");
	const uint64_t *key = remote.key_in(peer_tag_);
	if (!key)
		return explain() + "the access key belongs to no domain of the peer\n";
	if (!connection_->began() || !connection_->enter())
		return explain();
	std::string words(4096, '\0');
	const ssize_t n = gdrfab_ep_explain(connection_->rail().ep.get(), 0, *key, &words[0], words.size());
	connection_->leave();
	return explain() + (n < 0 ? detail::failure("gdrfab_ep_explain", n) : std::string(words.c_str()));
}

inline void RdmaTransport::close()
{
	{
		std::lock_guard<std::mutex> lock(mutex_);
		closed_ = true;
		if (url_.id) {
			Registry &registry = Registry::here();
			std::lock_guard<std::mutex> registering(registry.mutex);
			registry.by_id.erase(url_.id);
		}
		rails_.clear();
	}
	connection_->close();
}

} // namespace gdrfab
#endif
