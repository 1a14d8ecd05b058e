// SPDX-License-Identifier: Apache-2.0 OR MIT
// Waiting for an operation, and giving up a wait for a notification.
#ifndef GDRFAB_RDMA_WAIT_HPP
#define GDRFAB_RDMA_WAIT_HPP

#include "rdma_connection.hpp"

#include <cerrno>

namespace gdrfab {
namespace detail {

inline bool finish_until(Connection &connection, Op &op, Clock::time_point until)
{
	auto done = [&] { return op.done.load(std::memory_order_acquire); };
	const bool mine = op.waits_for_write && op.until <= until;
	if (!connection.wait(done, mine ? op.until : until) && mine)
		connection.withdraw(op, Connection::late());
	return done();
}

// Waits for an operation. The library applies the time limit of writes and reads, and ends them only when nothing uses
// their buffers any more.
inline void finish(Connection &connection, Op &op)
{
	while (!finish_until(connection, op, Clock::time_point::max()))
		if (connection.lost())
			return connection.complete(&op, connection.end());
}

inline void abandon(Connection &connection, Op &op)
{
	if (op.waits_for_write && !op.done.load(std::memory_order_acquire))
		connection.withdraw(op, RdmaStatus(RdmaCode::Aborted, ECANCELED, "its RdmaFuture was abandoned"));
	connection.pool().drop(&op);
}

} // namespace detail
} // namespace gdrfab
#endif
