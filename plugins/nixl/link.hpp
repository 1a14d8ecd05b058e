/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* One connectionless endpoint of gdrfab with all that it needs, and its operations as objects that learn of their end. */
#pragma once

#include "settings.hpp"
#include "wire.hpp"

#include <gdrfab.h>

#include <string>
#include <vector>

/* How an operation ended: err is 0, or a positive errno with words. */
struct Ending {
	int err;
	size_t len;
	std::string words;
};

/* What an operation's context points to. Any thread that drives may call ended(), without locks held. */
class Operation {
public:
	virtual void ended(const Ending &) = 0;

protected:
	~Operation() = default;
};

/* Blocks between here and one peer, with a descriptor and a key for each, or one for all. */
struct Blocks {
	std::vector<gdrfab_block> blocks;
	std::vector<void *> descs;
	std::vector<uint64_t> keys;
};

class Link {
public:
	Link() = default;
	~Link();
	Link(const Link &) = delete;
	Link &operator=(const Link &) = delete;

	/* Empty, or what is wrong. */
	std::string open(const Settings &);
	/* Ends all operations: none is called afterwards. False: somebody is still inside of a buffer. */
	bool close();

	wire::Name name() const { return own; }
	size_t list_limit() const { return limit; }

	/* What the calls of gdrfab.h return. */
	ssize_t insert(const wire::Name &, uint64_t &index);
	void remove(uint64_t index);
	int open_region(void *addr, size_t len, bool device, gdrfab_mr **mr);
	ssize_t post(bool write, const Blocks &, size_t from, size_t count, uint64_t index, Operation *);
	ssize_t send(const std::string &, uint64_t index, Operation *);
	ssize_t receive(void *buf, size_t len, Operation *);
	/* Takes back all that still can be. */
	void cancel(Operation *);

	/* Reads what has ended. False: nothing had. */
	bool drive();
	/* The same, and sleeps up to timeout_ms for it. */
	void wait(int timeout_ms);
	void wake();

	/* Bytes of transfers by path; adds "bytes_cma" and its like. */
	void count(border::Params &);
	/* "over shm: cma", or why that is not known. */
	std::string path_to(uint64_t index, uint64_t key);

private:
	bool hand_out(ssize_t n, const gdrfab_cq_msg_entry *entries);

	gdrfab_info *info = nullptr;
	gdrfab_fabric *fabric = nullptr;
	gdrfab_domain *domain = nullptr;
	gdrfab_cq *cq = nullptr;
	gdrfab_av *av = nullptr;
	gdrfab_ep *ep = nullptr;
	wire::Name own{};
	size_t limit = 1;
};

/* The words of this thread's last failure in the library. */
std::string last_words();
