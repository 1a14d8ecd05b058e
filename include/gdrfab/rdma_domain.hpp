// SPDX-License-Identifier: Apache-2.0 OR MIT
// The domains of this process. An RdmaMemory is not tied to a transport, so all transports of a process share one
// domain for each provider (for verbs one for each NIC), and memory is registered in these domains. A domain lives as
// long as a transport or a memory uses it.
#ifndef GDRFAB_RDMA_DOMAIN_HPP
#define GDRFAB_RDMA_DOMAIN_HPP

#include "rdma_status.hpp"
#include "rdma_text.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unistd.h>
#include <vector>

namespace gdrfab {
namespace detail {

template <typename T, int (*close)(T *)> struct Closer {
	void operator()(T *handle) const noexcept { close(handle); }
};
struct FreeInfo {
	void operator()(gdrfab_info *info) const noexcept { gdrfab_freeinfo(info); }
};
using InfoPtr = std::unique_ptr<gdrfab_info, FreeInfo>;
using FabricPtr = std::unique_ptr<gdrfab_fabric, Closer<gdrfab_fabric, gdrfab_fabric_close>>;
using DomainPtr = std::unique_ptr<gdrfab_domain, Closer<gdrfab_domain, gdrfab_domain_close>>;
using EqPtr = std::unique_ptr<gdrfab_eq, Closer<gdrfab_eq, gdrfab_eq_close>>;
using CqPtr = std::unique_ptr<gdrfab_cq, Closer<gdrfab_cq, gdrfab_cq_close>>;
using EpPtr = std::unique_ptr<gdrfab_ep, Closer<gdrfab_ep, gdrfab_ep_close>>;

// The domain that a transport needs.
struct DomainRequest {
	std::string provider;
	int device = -1; // verbs: the NIC nearest to this accelerator
	bool thread = true;
	std::string auth_key;

	std::string text() const
	{
		std::string t = provider + (thread ? "/auto" : "/manual");
		if (provider == "verbs")
			t += "/near" + std::to_string(device);
		if (provider == "tcp")
			t += "/" + auth_key;
		return t;
	}
};

// Finds accelerator number `device`: of the first vendor that has one. Opens drivers, but creates no context.
inline bool accelerator(int device, uint32_t &iface, std::string &why)
{
	why.clear();
	for (uint32_t i : {GDRFAB_HMEM_CUDA, GDRFAB_HMEM_ROCR, GDRFAB_HMEM_ZE, GDRFAB_HMEM_NEURON, GDRFAB_HMEM_SYNAPSEAI}) {
		gdrfab_hmem_info facts{};
		facts.struct_size = sizeof facts;
		const int rc = gdrfab_hmem_query(i, static_cast<uint32_t>(device), &facts);
		if (rc == 0) {
			iface = i;
			return true;
		}
		why += std::string(why.empty() ? "" : "; ") + failure("gdrfab_hmem_query", rc);
	}
	return false;
}

// The lines about one provider, out of the library's text on why each provider does not fit.
inline std::string only_of(const std::string &provider, const std::string &words)
{
	const size_t at = words.find(": " + provider + ": ") != std::string::npos ? words.find(": " + provider + ": ")
										   : words.find("; " + provider + ": ");
	if (at == std::string::npos)
		return words;
	const std::string rest = words.substr(at + 4 + provider.size());
	size_t end = rest.size();
	for (const char *other : {"; shm: hints->prov_name", "; verbs: hints->prov_name", "; tcp: hints->prov_name"})
		end = std::min(end, rest.find(other));
	return rest.substr(0, end);
}

// Candidates for one-sided operations, best first. Returns null, with the reason in `why`, if there is none. If
// `address` is empty, the library chooses the address.
inline InfoPtr candidates(const DomainRequest &request, const std::string &address, std::string &why)
{
	InfoPtr hints(gdrfab_dupinfo(nullptr));
	// Without GDRFAB_MSG, verbs posts receives of its own for notifications.
	hints->caps = GDRFAB_RMA | GDRFAB_READ | GDRFAB_WRITE | GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE;
	hints->mr_mode = GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY | GDRFAB_MR_LOCAL | GDRFAB_MR_HMEM;
	hints->threading = GDRFAB_THREAD_SAFE;
	hints->progress = request.thread ? GDRFAB_PROGRESS_AUTO : GDRFAB_PROGRESS_MANUAL;
	// gdrfab_freeinfo() does not free strings of the caller's in hints.
	hints->prov_name = const_cast<char *>(request.provider.c_str());
	if (!request.auth_key.empty()) {
		hints->auth_key = request.auth_key.data();
		hints->auth_key_size = request.auth_key.size();
	}
	std::string words;
	if (request.provider == "verbs" && request.device >= 0 && accelerator(request.device, hints->near_iface, words))
		hints->near_device = static_cast<uint32_t>(request.device);
	gdrfab_info *list = nullptr;
	const bool named = request.provider == "tcp" && !address.empty();
	const int rc = gdrfab_getinfo(GDRFAB_VERSION, named ? address.c_str() : nullptr,
				      named ? "0" : nullptr, named ? GDRFAB_SOURCE : 0, hints.get(), &list);
	if (rc < 0) {
		why = only_of(request.provider, failure("gdrfab_getinfo", rc));
		return nullptr;
	}
	InfoPtr info(list);
	// iWARP carries no data with writes.
	if (info->cq_data_size == 0) {
		why = std::string(info->domain_name) + ": cannot send data with writes, so it cannot notify";
		return nullptr;
	}
	return info;
}

// One open domain.
class Domain {
public:
	Domain(const DomainRequest &request, InfoPtr info) : provider(request.provider), tag(random_number()), info(std::move(info))
	{
		gdrfab_fabric *f = nullptr;
		check("gdrfab_fabric_open", gdrfab_fabric_open(this->info.get(), nullptr, &f));
		fabric.reset(f);
		gdrfab_domain *d = nullptr;
		check("gdrfab_domain_open", gdrfab_domain_open(f, this->info.get(), nullptr, &d));
		domain.reset(d);
	}
	~Domain()
	{
		for (gdrfab_mr *mr : busy_)
			gdrfab_mr_close(mr);
		for (void *at : memory_)
			gdrfab_mem_free(domain.get(), at);
	}
	Domain(const Domain &) = delete;
	Domain &operator=(const Domain &) = delete;

	// Keeps a region that a peer prevents from closing. The region allows no new operations, and is closed with the
	// next region or with the domain.
	void leave(gdrfab_mr *mr)
	{
		std::lock_guard<std::mutex> lock(mutex_);
		busy_.push_back(mr);
	}
	// Keeps memory of this domain that such a region prevents from being freed.
	void leave_memory(void *at)
	{
		std::lock_guard<std::mutex> lock(mutex_);
		memory_.push_back(at);
	}
	void retry()
	{
		std::lock_guard<std::mutex> lock(mutex_);
		busy_.erase(std::remove_if(busy_.begin(), busy_.end(), [](gdrfab_mr *mr) { return gdrfab_mr_close(mr) == 0; }),
			    busy_.end());
	}

	const std::string provider;
	// Names this domain in urls and access keys, so that a key of another domain is noticed before anything is
	// sent.
	const uint64_t tag;
	const InfoPtr info;
	FabricPtr fabric;
	DomainPtr domain;

private:
	std::mutex mutex_;
	std::vector<gdrfab_mr *> busy_;
	std::vector<void *> memory_;
};

// Never destroyed, because the program may have static memories and transports.
class Domains {
public:
	static Domains &here()
	{
		static Domains *const it = new Domains;
		return *it;
	}

	// Returns null, with the reason in `why`, if the provider cannot be used.
	std::shared_ptr<Domain> open(const DomainRequest &request, std::string &why)
	{
		std::lock_guard<std::mutex> lock(mutex_);
		forget_parents();
		const std::string key = request.text();
		auto known = by_request_.find(key);
		if (known != by_request_.end())
			if (auto domain = known->second.lock())
				return domain;
		InfoPtr info = candidates(request, "", why);
		if (!info)
			return nullptr;
		// The same NIC may be the nearest to two accelerators.
		const std::string place = key.substr(0, key.find("/near")) + "@" + info->domain_name;
		auto same = request.provider == "verbs" ? by_request_.find(place) : by_request_.end();
		std::shared_ptr<Domain> domain = same == by_request_.end() ? nullptr : same->second.lock();
		if (!domain) {
			try {
				domain = std::make_shared<Domain>(request, std::move(info));
			} catch (const RdmaError &e) {
				why = e.what();
				return nullptr;
			}
			open_.push_back(domain);
		}
		by_request_[key] = by_request_[place] = domain;
		return domain;
	}

	// The open domains of these providers.
	std::vector<std::shared_ptr<Domain>> of(const std::vector<std::string> &providers)
	{
		std::lock_guard<std::mutex> lock(mutex_);
		forget_parents();
		std::vector<std::shared_ptr<Domain>> found;
		open_.erase(std::remove_if(open_.begin(), open_.end(), [](const auto &w) { return w.expired(); }), open_.end());
		for (const auto &weak : open_)
			if (auto domain = weak.lock())
				if (std::count(providers.begin(), providers.end(), domain->provider))
					found.push_back(std::move(domain));
		return found;
	}

private:
	Domains() = default;
	// The library's handles cannot be used in a child of fork().
	void forget_parents()
	{
		if (pid_ == getpid())
			return;
		pid_ = getpid();
		by_request_.clear();
		open_.clear();
	}

	std::mutex mutex_;
	pid_t pid_ = 0;
	std::map<std::string, std::weak_ptr<Domain>> by_request_;
	std::vector<std::weak_ptr<Domain>> open_;
};

} // namespace detail
} // namespace gdrfab
#endif
