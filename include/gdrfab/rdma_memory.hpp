// SPDX-License-Identifier: Apache-2.0 OR MIT
// Registered memory, and views of it. Every range is checked on the caller's side: a range that does not fit throws
// std::out_of_range, and nothing is sent.
#ifndef GDRFAB_RDMA_MEMORY_HPP
#define GDRFAB_RDMA_MEMORY_HPP

#include "rdma_domain.hpp"
#include "rdma_remote.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace gdrfab {

struct RdmaMemoryOptions {
	// The providers with which the memory may be registered. It is registered in those of their domains that
	// transports of this process have open; if none is open, new domains are opened as a default transport would.
	// Without "verbs" the memory is not pinned.
	std::vector<std::string> providers{"shm", "verbs", "tcp"};
	uint64_t access = GDRFAB_READ | GDRFAB_WRITE | GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE;
	// GDRFAB_PATH_*, as in gdrfab_mr_attr. A provider that cannot keep to them is left out.
	uint64_t require = 0;
	uint64_t forbid = 0;
};

namespace detail {

struct Registration {
	std::shared_ptr<Domain> domain;
	gdrfab_mr *mr = nullptr;
};

// The registrations, shared by an RdmaMemory and its views.
class Region {
public:
	Region(const void *buf, size_t len, int device, RdmaMemoryOptions options)
	    : data(static_cast<const unsigned char *>(buf)), len(len), device(device), options_(std::move(options))
	{
	}
	~Region() { close(); }
	Region(const Region &) = delete;
	Region &operator=(const Region &) = delete;

	// The descriptor of the registration in a domain. The memory is registered there now if this is the first use.
	// Every operation calls this, so a known answer takes no lock.
	void *in(const std::shared_ptr<Domain> &domain)
	{
		const size_t n = used_.load(std::memory_order_acquire);
		for (size_t i = 0; i < n; i++)
			if (slots_[i].serves.load(std::memory_order_acquire) == domain.get())
				return slots_[i].desc;
		std::lock_guard<std::mutex> lock(mutex_);
		return add(domain);
	}

	// Registers with each provider of the options, and keeps the reason of each refusal.
	void add_all()
	{
		std::lock_guard<std::mutex> lock(mutex_);
		refused_.clear();
		std::vector<std::shared_ptr<Domain>> domains = Domains::here().of(options_.providers);
		if (domains.empty())
			domains = fresh();
		for (const auto &domain : domains) {
			try {
				add(domain);
			} catch (const RdmaError &e) {
				error_ = e.error();
				refused_ += domain->provider + ": " + e.what() + "\n";
			}
		}
		if (used_.load(std::memory_order_relaxed) == 0)
			throw RdmaError(error_, "RdmaMemory: no provider can register this memory\n" + refused_);
	}

	template <typename Each> void each(Each use)
	{
		std::lock_guard<std::mutex> lock(mutex_);
		for (size_t i = 0; !closed_ && i < used_.load(std::memory_order_relaxed); i++)
			use(slots_[i].made);
	}
	std::string refused()
	{
		std::lock_guard<std::mutex> lock(mutex_);
		return refused_;
	}

	// After close() no peer reaches the memory. False: a peer is stopped inside a copy; it cannot begin another.
	bool close()
	{
		std::lock_guard<std::mutex> lock(mutex_);
		const size_t n = closed_ ? 0 : used_.load(std::memory_order_relaxed);
		closed_ = true;
		bool quiet = true;
		for (size_t i = 0; i < n; i++) {
			slots_[i].serves.store(nullptr, std::memory_order_release);
			const Registration was = std::exchange(slots_[i].made, Registration());
			if (gdrfab_mr_close(was.mr) != 0) {
				was.domain->leave(was.mr);
				quiet = false;
			}
		}
		void *const at = const_cast<unsigned char *>(data);
		if (allocator_ && gdrfab_mem_free(allocator_->domain.get(), at) != 0)
			allocator_->leave_memory(at);
		allocator_.reset();
		return quiet;
	}

	const unsigned char *const data;
	const size_t len;
	const int device;

	// Makes the region own memory from gdrfab_mem_alloc(), which is freed with the region.
	void own(std::shared_ptr<Domain> allocator) { allocator_ = std::move(allocator); }

private:
	std::vector<std::shared_ptr<Domain>> fresh()
	{
		std::vector<std::shared_ptr<Domain>> domains;
		for (const std::string &provider : options_.providers) {
			DomainRequest request;
			request.provider = provider;
			request.device = device;
			std::string why;
			if (auto domain = Domains::here().open(request, why))
				domains.push_back(std::move(domain));
			else
				refused_ += provider + ": " + why + "\n";
		}
		return domains;
	}
	// The caller holds mutex_.
	void *add(const std::shared_ptr<Domain> &domain)
	{
		if (closed_)
			throw std::invalid_argument("view: its RdmaMemory was destroyed");
		const size_t n = used_.load(std::memory_order_relaxed);
		for (size_t i = 0; i < n; i++)
			if (slots_[i].made.domain == domain)
				return slots_[i].desc;
		if (n == slots_.size())
			throw RdmaError(ENOSPC, "RdmaMemory: registered in " + std::to_string(n) + " domains already");
		domain->retry();
		const iovec iov = {const_cast<unsigned char *>(data), len};
		gdrfab_mr_attr attr{};
		attr.struct_size = sizeof attr;
		attr.mr_iov = &iov;
		attr.iov_count = 1;
		attr.access = options_.access;
		// AUTO would open the vendors' drivers, which a program without accelerators does not need.
		attr.iface = device < 0 ? static_cast<uint32_t>(GDRFAB_HMEM_SYSTEM) : GDRFAB_HMEM_AUTO;
		attr.require = options_.require;
		attr.forbid = options_.forbid;
		gdrfab_mr *mr = nullptr;
		check("gdrfab_mr_regattr", gdrfab_mr_regattr(domain->domain.get(), &attr, 0, &mr));
		slots_[n].made = Registration{domain, mr};
		slots_[n].desc = gdrfab_mr_desc(mr);
		slots_[n].serves.store(domain.get(), std::memory_order_relaxed);
		used_.store(n + 1, std::memory_order_release);
		return slots_[n].desc;
	}

	struct Slot {
		// The domain, not owned; null again once the region is closed.
		std::atomic<const Domain *> serves{nullptr};
		// Written once, before used_ counts the slot.
		void *desc = nullptr;
		// Protected by mutex_.
		Registration made;
	};

	const RdmaMemoryOptions options_;
	std::mutex mutex_;
	// Filled from the front; a slot is never reused.
	std::array<Slot, 16> slots_;
	std::atomic<size_t> used_{0};
	bool closed_ = false; // protected by mutex_
	std::shared_ptr<Domain> allocator_;
	std::string refused_;
	int error_ = ENODEV;
};

} // namespace detail

// Memory that operations read and write, and that peers reach by its remoteKey(). The program owns the bytes and must
// keep them valid and mapped while this object lives. Move-only.
class RdmaMemory {
public:
	// A range that a write reads. If it is used after its memory was destroyed, std::invalid_argument is thrown.
	class View {
	public:
		const void *data() const noexcept { return at_; }
		size_t size() const noexcept { return len_; }

	protected:
		friend class RdmaMemory;
		friend class RdmaTransport;
		View(std::shared_ptr<detail::Region> region, const unsigned char *at, size_t len)
		    : region_(std::move(region)), at_(at), len_(len)
		{
		}
		detail::Region &region(const char *what) const
		{
			if (!region_)
				throw std::logic_error(std::string(what) + ": the view was moved from");
			return *region_;
		}
		std::shared_ptr<detail::Region> region_;
		const unsigned char *at_;
		size_t len_;
	};
	// A range that a read fills.
	class MutableView : public View {
	public:
		void *data() const noexcept { return const_cast<unsigned char *>(at_); }

	private:
		friend class RdmaMemory;
		using View::View;
	};

	// device: -1 for host memory; 0 and more for an accelerator's memory, whose vendor is found out. Throws
	// std::invalid_argument if the memory does not belong to that device, and RdmaError if no provider can register
	// it.
	RdmaMemory(const void *buf, size_t len, int device = -1, RdmaMemoryOptions options = {})
	{
		if (!buf)
			throw std::invalid_argument("RdmaMemory: buf is NULL");
		if (len == 0)
			throw std::invalid_argument("RdmaMemory: len is 0");
		if (len > UINTPTR_MAX - reinterpret_cast<uintptr_t>(buf))
			throw std::invalid_argument("RdmaMemory: buf plus len exceeds the address space");
		if (device < -1)
			throw std::invalid_argument("RdmaMemory: device " + std::to_string(device) + "; -1 is the host");
		if (device >= 0)
			check_place(buf, len, device);
		region_ = std::make_shared<detail::Region>(buf, len, device, std::move(options));
		region_->add_all();
	}
	// Allocates memory that another process can map, which is the fastest between processes of one host: host
	// memory (zeroed), or an accelerator's memory from its driver's allocator. The object owns the memory and frees
	// it.
	static RdmaMemory allocate(size_t len, int device = -1, RdmaMemoryOptions options = {})
	{
		uint32_t iface = GDRFAB_HMEM_SYSTEM;
		std::string why;
		if (len == 0)
			throw std::invalid_argument("allocate: len is 0");
		if (device < -1)
			throw std::invalid_argument("allocate: device " + std::to_string(device) + "; -1 is the host");
		if (device >= 0 && !detail::accelerator(device, iface, why))
			throw RdmaError(ENODEV, "allocate: device " + std::to_string(device) + ": " + why);
		detail::DomainRequest request;
		request.provider = "shm";
		const auto there = detail::Domains::here().of({"shm"});
		const auto domain = there.empty() ? detail::Domains::here().open(request, why) : there.front();
		if (!domain)
			throw RdmaError(ENODEV, "allocate: shm: " + why);
		void *at = nullptr;
		const uint32_t number = device < 0 ? 0 : static_cast<uint32_t>(device);
		detail::check("gdrfab_mem_alloc", gdrfab_mem_alloc(domain->domain.get(), iface, number, len, 0, &at));
		auto region = std::make_shared<detail::Region>(at, len, device, std::move(options));
		region->own(domain);
		region->add_all();
		return RdmaMemory(std::move(region));
	}
	~RdmaMemory()
	{
		if (region_)
			region_->close();
	}
	RdmaMemory(RdmaMemory &&) noexcept = default;
	RdmaMemory &operator=(RdmaMemory &&other) noexcept
	{
		if (this != &other) {
			if (region_)
				region_->close();
			region_ = std::move(other.region_);
		}
		return *this;
	}

	View createView() const { return createView(size_t{0}, length()); }
	View createView(size_t offset, size_t len) const
	{
		check_range("createView", offset, len);
		return View(region_, region_->data + offset, len);
	}
	View createView(const void *ptr, size_t len) const { return createView(offset_of("createView", ptr, len), len); }
	// Makes a literal 0 an offset and not a null pointer.
	template <typename I, std::enable_if_t<std::is_integral_v<I>, int> = 0> View createView(I offset, size_t len) const
	{
		return createView(static_cast<size_t>(offset), len);
	}
	MutableView createMutableView() { return createMutableView(size_t{0}, length()); }
	MutableView createMutableView(size_t offset, size_t len)
	{
		check_range("createMutableView", offset, len);
		return MutableView(region_, region_->data + offset, len);
	}
	MutableView createMutableView(void *ptr, size_t len)
	{
		return createMutableView(offset_of("createMutableView", ptr, len), len);
	}
	template <typename I, std::enable_if_t<std::is_integral_v<I>, int> = 0>
	MutableView createMutableView(I offset, size_t len)
	{
		return createMutableView(static_cast<size_t>(offset), len);
	}

	bool contains(const void *ptr, size_t len) const
	{
		const uintptr_t at = reinterpret_cast<uintptr_t>(ptr), base = reinterpret_cast<uintptr_t>(data());
		return at >= base && at - base <= length() && len <= length() - (at - base);
	}
	const void *data() const { return region().data; }
	size_t length() const { return region().len; }
	int getDevice() const { return region().device; }
	// Equal for two objects that share a registration.
	const void *localKey() const { return &region(); }

	// Text from which a peer makes an RdmaRemoteBuffer: keys, addresses, length and rights, with a checksum. It
	// covers the domains that are open now, so a key from before a transport was made may not work with that
	// transport.
	std::string remoteKey() const
	{
		region().add_all();
		uint64_t access = 0;
		detail::Text text("gdrfab-key");
		region_->each([&](const detail::Registration &r) {
			gdrfab_mr_info facts{};
			facts.struct_size = sizeof facts;
			detail::check("gdrfab_mr_query", gdrfab_mr_query(r.mr, &facts));
			access = facts.access;
			text.add("k", {detail::hex(r.domain->tag), detail::hex(facts.key)});
		});
		text.add("at", {detail::hex(reinterpret_cast<uintptr_t>(data())), detail::hex(length()), detail::hex(access)});
		return text.done();
	}

	// The paths that the memory offers with each provider, and for every other path the reason why it is not
	// offered.
	std::string explain() const
	{
		std::string out;
		region().each([&](const detail::Registration &r) {
			const ssize_t n = gdrfab_mr_explain(r.mr, nullptr, 0);
			std::string words(n < 0 ? 0 : static_cast<size_t>(n) + 1, '\0');
			if (n >= 0)
				gdrfab_mr_explain(r.mr, &words[0], words.size());
			out += r.domain->provider + ": " + words.substr(0, words.find('\0'));
		});
		return out + region_->refused();
	}

private:
	explicit RdmaMemory(std::shared_ptr<detail::Region> region) noexcept : region_(std::move(region)) {}
	static void check_place(const void *buf, size_t len, int device)
	{
		gdrfab_hmem_place place{};
		place.struct_size = sizeof place;
		detail::check("gdrfab_hmem_detect", gdrfab_hmem_detect(buf, len, &place));
		if (place.iface == GDRFAB_HMEM_SYSTEM || place.kind == GDRFAB_HMEM_KIND_HOST)
			throw std::invalid_argument("RdmaMemory: buf is not memory of an accelerator; use device -1 for host memory");
		if (place.device != static_cast<uint32_t>(device))
			throw std::invalid_argument("RdmaMemory: buf is memory of device " + std::to_string(place.device) +
						    ", not of " + std::to_string(device));
		if (place.covered < len)
			throw std::invalid_argument("RdmaMemory: of len " + std::to_string(len) + " only " +
						    std::to_string(place.covered) + " bytes are memory of the device");
	}
	detail::Region &region() const
	{
		if (!region_)
			throw std::logic_error("RdmaMemory: it was moved from");
		return *region_;
	}
	void check_range(const char *what, size_t offset, size_t len) const
	{
		const size_t whole = length();
		if (offset > whole || len > whole - offset)
			throw std::out_of_range(detail::range_words(what, offset, len, whole));
	}
	size_t offset_of(const char *what, const void *ptr, size_t len) const
	{
		const uintptr_t at = reinterpret_cast<uintptr_t>(ptr), base = reinterpret_cast<uintptr_t>(data());
		if (at < base)
			throw std::out_of_range(std::string(what) + ": ptr lies before the registered memory");
		check_range(what, at - base, len);
		return at - base;
	}

	std::shared_ptr<detail::Region> region_;
};

} // namespace gdrfab
#endif
