// SPDX-License-Identifier: Apache-2.0 OR MIT
// The results of operations and the exception of constructors, for rdma_transport.hpp.
#ifndef GDRFAB_RDMA_STATUS_HPP
#define GDRFAB_RDMA_STATUS_HPP

#include <gdrfab.h>

#include <cerrno>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

namespace gdrfab {

// The result of an operation, and the state of the transport after it; docs/rdma-transport.md has the table.
enum class RdmaCode {
	Success, // done
	Timeout, // the time limit passed; nothing uses the buffer. Over shm and tcp the transport goes on, over verbs it is broken
	Failed,  // this operation was refused (key, range, right, path) or its memory failed; otherwise as Timeout
	Broken,  // the connection is over, and stays so: every later operation ends like this at once
	Aborted, // this side closed or destroyed the transport
};

inline const char *name(RdmaCode code) noexcept
{
	switch (code) {
	case RdmaCode::Success: return "success";
	case RdmaCode::Timeout: return "timeout";
	case RdmaCode::Failed: return "failed";
	case RdmaCode::Broken: return "broken";
	case RdmaCode::Aborted: return "aborted";
	}
	return "unknown";
}

class RdmaStatus {
public:
	RdmaStatus() noexcept = default;
	RdmaStatus(RdmaCode code, int error, std::string words)
	    : code_(code), error_(error), words_(std::make_shared<const std::string>(std::move(words)))
	{
	}

	RdmaCode code() const noexcept { return code_; }
	bool ok() const noexcept { return code_ == RdmaCode::Success; }
	explicit operator bool() const noexcept { return ok(); }
	// An errno or a GDRFAB_E* value; 0 for a success.
	int error() const noexcept { return error_; }
	// The reason as text; "success" for a success.
	std::string what() const
	{
		return words_ ? std::string(name(code_)) + ": " + *words_ : std::string(name(code_));
	}

	friend bool operator==(const RdmaStatus &s, RdmaCode code) noexcept { return s.code_ == code; }
	friend bool operator!=(const RdmaStatus &s, RdmaCode code) noexcept { return s.code_ != code; }
	friend bool operator==(RdmaCode code, const RdmaStatus &s) noexcept { return s.code_ == code; }
	friend bool operator!=(RdmaCode code, const RdmaStatus &s) noexcept { return s.code_ != code; }

private:
	RdmaCode code_ = RdmaCode::Success;
	int error_ = 0;
	// Null for a success.
	std::shared_ptr<const std::string> words_;
};

// Thrown if a transport, a registration or an endpoint could not be set up. what() has the library's own text.
class RdmaError : public std::runtime_error {
public:
	RdmaError(int error, const std::string &words) : std::runtime_error(words), error_(error) {}
	int error() const noexcept { return error_; }

private:
	int error_;
};

namespace detail {

// The error text of a library call that has just failed in this thread.
inline std::string failure(const char *step, long long result)
{
	const char *words = gdrfab_last_error();
	return std::string(step) + ": " + (words[0] ? words : gdrfab_strerror(static_cast<int>(result)));
}

// Throws RdmaError if a call that returns 0 or a negative errno has failed.
inline void check(const char *step, long long result)
{
	if (result < 0)
		throw RdmaError(static_cast<int>(-result), failure(step, result));
}

// The result for the errno of an error entry. The end of a connection cancels its operations; if this side ended it,
// the caller says Aborted instead.
inline RdmaCode code_of(int error, int provider_code) noexcept
{
	if (provider_code == GDRFAB_PROV_DEADLINE)
		return RdmaCode::Timeout;
	switch (error) {
	case ECONNRESET:
	case ECONNABORTED:
	case ECONNREFUSED:
	case ENOTCONN:
	case ESHUTDOWN:
	case ECANCELED:
	case EPIPE:
	case EPROTO:
	case EPERM: // a child of fork() with its parent's transport
	case ETIMEDOUT: // without GDRFAB_PROV_DEADLINE: the peer's device no longer answers
		return RdmaCode::Broken;
	default:
		return RdmaCode::Failed;
	}
}

} // namespace detail
} // namespace gdrfab
#endif
