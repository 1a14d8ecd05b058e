// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Options of a connected socket.

use crate::config;
use crate::error::Result;
use crate::sys::tcp;
use std::os::fd::BorrowedFd;

/// Congestion control for a connection within one host, which needs no pacing, since no network is shared. Every kernel
/// has reno, and reno does not pace.
const LOCAL_CONGESTION: &str = "reno";

/// Turns on TCP keepalive, so that a dead host is noticed even while this side waits for an answer without a time limit.
pub fn keep_alive(socket: BorrowedFd<'_>) -> Result<()> {
    match config::get().tcp.timeout_ms {
        0 => Ok(()),
        ms => tcp::set_keep_alive(socket, ms),
    }
}

/// Sets all options of a connection's socket.
pub fn tune(socket: BorrowedFd<'_>) -> Result<()> {
    let config = &config::get().tcp;
    let (local, peer) = (tcp::local(socket)?, tcp::peer(socket)?);
    tcp::set_no_delay(socket)?;
    keep_alive(socket)?;
    if config.buffer > 0 {
        tcp::set_buffers(socket, config.buffer)?;
    }
    let algorithm = config.congestion.as_deref().or((local.ip() == peer.ip()).then_some(LOCAL_CONGESTION));
    if let Some(Err(e)) = algorithm.map(|name| tcp::set_congestion(socket, name)) {
        crate::log!(Info, "{e}; the host's default is used");
    }
    Ok(())
}
